"""The documents of file_sd and http_sd, and the servers in their target groups. Pure.

    [{"targets": ["10.0.0.1:8000"], "labels": {"team": "chat"}}]

Documents are read within limits of size. A target is HOST:PORT, or a host alone for its scheme's default port. The
label `__scheme__` sets a group's scheme. Labels that begin with two underscores are meant for the reader of the groups,
and are dropped.
"""

import re
import reprlib
from collections.abc import Iterator

import yaml

from probe.core.foreign_json import JsonLimits, size_text
from probe.core.provenance import MAX_VALUE
from probe.core.text import one_line
from probe.discovery.types import DiscoveredServer, State, pod_labels, state_of

# Ten thousand groups of one target, each with ten labels.
LIMITS = JsonLimits(max_bytes=16 * 2**20, max_values=300_000)
# A number with colons, in base 60, takes time by the square of its length.
_MAX_SCALAR = 16 * 1024
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(text: bytes, limits: JsonLimits = LIMITS) -> object:
    """Return the document. Raises ValueError or yaml.YAMLError.

    An alias counts as its anchor's values: nine aliases in each of nine lists unfold to gigabytes.
    """
    if len(text) > limits.max_bytes:
        raise ValueError(f"it is larger than {size_text(limits.max_bytes)}")
    try:
        _check(text, limits)
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - either is a safe loader
    except (TypeError, AttributeError, LookupError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"a value in it cannot be read ({type(error).__name__})") from None


def _check(text: bytes, limits: JsonLimits) -> None:
    """Raise ValueError if the document has too many values, or is too deep."""
    values = 0
    sizes: dict[str, int] = {}  # of what each anchor stands for
    is_in: list[tuple[str | None, int]] = []  # the anchor of each enclosing collection, and the values before it
    for event in yaml.parse(text, Loader=_Loader):
        match event:
            case yaml.AliasEvent():
                values += sizes.get(event.anchor or "", 1)
            case yaml.ScalarEvent():
                values += 1
                sizes[event.anchor or ""] = 1
                if len(event.value) > _MAX_SCALAR:
                    raise ValueError(f"it holds a text of more than {size_text(_MAX_SCALAR)}")
            case yaml.CollectionStartEvent():
                is_in.append((event.anchor, values))
                values += 1
            case yaml.CollectionEndEvent():
                anchor, before = is_in.pop()
                sizes[anchor or ""] = values - before
        if values > limits.max_values:
            raise ValueError(f"it holds more than {limits.max_values} values")
        if len(is_in) > limits.max_depth:
            raise ValueError(f"it is nested deeper than {limits.max_depth}")


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
                    yield DiscoveredServer(
                        id=authority,
                        base_url=f"{of_group}://{authority}{path}",
                        labels=kept,
                        facts={"node": one_line(kept["node"], MAX_VALUE)} if kept.get("node") else {},
                        pod=pod_labels(kept.get("pod", ""), kept.get("namespace", "")),
                    )
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
