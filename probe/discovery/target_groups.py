"""Target groups as Prometheus' file_sd and http_sd write them, to what was found. Pure.

    [{"targets": ["10.0.0.1:8000"], "labels": {"team": "chat"}}]

A target is HOST:PORT, or a host alone for its scheme's own port; the label `__scheme__` gives one group another scheme.
Labels that begin with two underscores are for whoever reads the groups, and are dropped.
"""

import re
import reprlib
from collections.abc import Iterator

from probe.discovery.types import DiscoveredServer, State, state_of

MAX_TARGETS = 10_000
_MAX_NAMED = 10
_HOST = r"(?P<host>[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}|\[[0-9A-Fa-f:.]{2,45}\])"
_ADDRESS = re.compile(rf"{_HOST}(:(?P<port>[0-9]{{1,5}}))?")
_PORTS = {"http": 80, "https": 443}
_MAX_PORT = 65535
_short = reprlib.Repr()
_short.maxstring = 100


def read(groups: object, scheme: str, path: str) -> tuple[State, list[str]]:
    """What was found, and what was left out and why: a target that is no address, the first ten of them by name.

    `groups`: the parsed document. Raises ValueError for what is no list of groups, None included: an empty file is one
    that is being written, and says nothing. Refused as soon as they are counted: more targets, or groups, than
    MAX_TARGETS, each as often as it is written.
    """
    left_out: list[str] = []
    count = unnamed = 0

    def all_found() -> Iterator[DiscoveredServer]:
        nonlocal count, unnamed
        if groups is None:
            raise ValueError("it is empty; [] says that there are no targets")
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
                    left_out.append(f"group {i}: {_short.repr(target)} is no HOST:PORT")
                else:
                    unnamed += 1

    found = state_of(all_found())
    return found, [*left_out, f"{unnamed} more are no HOST:PORT"] if unnamed else left_out


def address(target: object, scheme: str) -> str | None:
    """HOST:PORT, the host in small letters; None for what is no address."""
    match = _ADDRESS.fullmatch(target) if isinstance(target, str) else None
    if match is None:
        return None
    port = int(match["port"]) if match["port"] else _PORTS[scheme]
    return f"{match['host'].lower()}:{port}" if 0 < port <= _MAX_PORT else None


def _group(group: object, i: int) -> tuple[list[object], dict[str, str]]:
    if not isinstance(group, dict) or not set(group) <= {"targets", "labels"}:
        raise ValueError(f"group {i}: expected a mapping with targets and labels alone")
    labels = group.get("labels")
    if labels is not None and not isinstance(labels, dict):
        raise ValueError(f"group {i}: expected labels to be a mapping")
    return (
        _list(group.get("targets"), f"group {i}: targets to be a list"),
        {str(name): str(value) for name, value in (labels or {}).items()},
    )


def _list(value: object, expected: str) -> list[object]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"expected {expected}")  # noqa: TRY004 - the caller's one kind of refusal
    return value
