"""The servers in target groups, the format of Prometheus' file_sd and http_sd. Pure.

    [{"targets": ["10.0.0.1:8000"], "labels": {"team": "chat"}}]

A target is HOST:PORT, or a host alone for its scheme's default port. The label `__scheme__` sets a group's scheme.
Labels that begin with two underscores are meant for the reader of the groups, and are dropped.
"""

import re
import reprlib
from collections.abc import Iterator

from probe.core.foreign_json import size_text
from probe.discovery.types import DiscoveredServer, State, state_of

MAX_TARGETS = 10_000
_MAX_NAMED = 10
_MAX_LABELS = 512 * 1024  # of a group; annotations of a Kubernetes object have up to 256 KiB
_HOST = r"(?P<host>[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}|\[[0-9A-Fa-f:.]{2,45}\])"
_ADDRESS = re.compile(rf"{_HOST}(:(?P<port>[0-9]{{1,5}}))?")
_PORTS = {"http": 80, "https": 443}
_MAX_PORT = 65535
_short = reprlib.Repr()
_short.maxstring = 100


def read(groups: object, scheme: str, path: str) -> tuple[State, list[str]]:
    """Return the servers, and a line for each target left out because it is not an address (the first ten).

    `groups`: the parsed document. Raises ValueError for anything but a list of groups, None included: an empty file is
    being written. Raises it too, before reading on, for more than MAX_TARGETS targets or groups, repetitions included.
    """
    left_out: list[str] = []
    count = unnamed = 0

    def all_found() -> Iterator[DiscoveredServer]:
        nonlocal count, unnamed
        if groups is None:
            raise ValueError("it is empty; write [] for no targets")
        listed = _list(groups, "a list of target groups")
        if len(listed) > MAX_TARGETS:
            raise ValueError(f"more than {MAX_TARGETS} target groups")
        for i, group in enumerate(listed):
            targets, labels = _group(group, i)
            of_group = labels.get("__scheme__", scheme)
            if of_group not in _PORTS:
                raise ValueError(f"group {i}: __scheme__ is {of_group!r}; expected http or https")
            count += len(targets)
            if count > MAX_TARGETS:
                raise ValueError(f"more than {MAX_TARGETS} targets")
            kept = {name: value for name, value in labels.items() if not name.startswith("__")}
            for target in targets:
                if (authority := address(target, of_group)) is not None:
                    yield DiscoveredServer(id=authority, base_url=f"{of_group}://{authority}{path}", labels=kept)
                elif len(left_out) < _MAX_NAMED:
                    left_out.append(f"group {i}: {_short.repr(target)} is not HOST:PORT")
                else:
                    unnamed += 1

    found = state_of(all_found())
    return found, [*left_out, f"{unnamed} more are not HOST:PORT"] if unnamed else left_out


def address(target: object, scheme: str) -> str | None:
    """Return HOST:PORT with the host in lower case, or None if `target` is not an address."""
    match = _ADDRESS.fullmatch(target) if isinstance(target, str) else None
    if match is None:
        return None
    port = int(match["port"]) if match["port"] else _PORTS[scheme]
    return f"{match['host'].lower()}:{port}" if 0 < port <= _MAX_PORT else None


def _group(group: object, i: int) -> tuple[list[object], dict[str, str]]:
    if not isinstance(group, dict) or not set(group) <= {"targets", "labels"}:
        raise ValueError(f"group {i}: expected a mapping with only targets and labels")
    labels = group.get("labels")
    if labels is not None and not isinstance(labels, dict):
        raise ValueError(f"group {i}: expected labels to be a mapping")
    wrong = [name for name, value in (labels or {}).items() if isinstance(value, list | dict | set | tuple)]
    if wrong:
        raise ValueError(f"group {i}: the label {_short.repr(wrong[0])} is no text")
    if sum(len(str(name)) + len(str(value)) for name, value in (labels or {}).items()) > _MAX_LABELS:
        raise ValueError(f"group {i}: more than {size_text(_MAX_LABELS)} of labels")
    return (
        _list(group.get("targets"), f"group {i}: targets to be a list"),
        {str(name): str(value) for name, value in (labels or {}).items()},
    )


def _list(value: object, expected: str) -> list[object]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"expected {expected}")  # noqa: TRY004 - callers catch ValueError
    return value
