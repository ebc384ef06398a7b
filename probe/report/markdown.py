"""Tables in Markdown of text that may come from a server. Pure."""

from collections.abc import Iterable, Sequence

from probe.core.text import one_line
from probe.report.figures import MISSING

_CELL = 500


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    lines = [head, ["---"] * len(head), *([cell(each) for each in row] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def cell(text: str) -> str:
    """Return text for a cell: on one line, without what would be markup, a link or an image."""
    text = one_line(text, _CELL).replace("\\", "\\\\").replace("|", "\\|").replace("[", "\\[")
    return text.replace("<", "&lt;") or MISSING
