"""The help of a command: options and commands below the headings of their groups, plain names for values, an example.

A command's or option's group is its `rich_help_panel`, and a command's example is its `epilog`, a command in each line.
"""

import re
from collections.abc import Iterable
from typing import Any

from typer.core import TyperCommand, TyperGroup

# What Typer calls the kind of an option that has no metavar.
_KINDS = {"int": "N", "int range": "N", "float": "NUMBER", "float range": "NUMBER", "path": "FILE", "str": "TEXT"}
_KIND = re.compile(r"<(?:list\[)?([^<>\]]+)\]?>")


class Command(TyperCommand):
    """A command, with its help in groups."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ANN401 - click is Typer's own in newer versions
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        _write_options(self, ctx, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401, ARG002
        if self.epilog:
            lines = self.epilog.splitlines()
            with formatter.section("Example" if len(lines) == 1 else "Examples"):
                formatter.write("".join(f"  {line}\n" for line in lines))


class Group(TyperGroup):
    """A group of commands, with those before its options."""

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        rows = []
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            assert command is not None  # noqa: S101 - it is listed
            panel = getattr(command, "rich_help_panel", None)
            rows.append((_panel(panel, "Commands"), (name, command.get_short_help_str(formatter.width))))
        _write(formatter, rows)
        _write_options(self, ctx, formatter)


def _write_options(command: Any, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
    rows = []
    for one in command.get_params(ctx):
        record = one.get_help_record(ctx)
        if record is None:
            continue
        name, words = record
        is_argument = one.param_type_name == "argument"
        # An argument's name says what it is.
        name = name.partition(" <")[0] if is_argument else _KIND.sub(lambda kind: _KINDS.get(kind[1], kind[1]), name)
        rows.append((_panel(one.rich_help_panel, "Arguments" if is_argument else "Options"), (name, words)))
    _write(formatter, rows)


def _panel(chosen: object, usual: str) -> str:
    """Return the group; Typer marks what was not chosen with a value that is no text."""
    return chosen if isinstance(chosen, str) else usual


def _write(formatter: Any, rows: Iterable[tuple[str, tuple[str, str]]]) -> None:  # noqa: ANN401
    """Write the rows below their headings, in the order in which the headings first come; `Options` come last."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for panel, row in rows:
        groups.setdefault(panel, []).append(row)
    for panel in sorted(groups, key=lambda panel: panel == "Options"):
        with formatter.section(panel):
            formatter.write_dl(groups[panel])
