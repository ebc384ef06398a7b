"""The faults that Kneewatch survives, for docs/reliability.md, read from the markers of the tests that prove them.

A test's marker names a fault by its ID. One test says what the fault is, the others have the ID alone:

    @pytest.mark.fault("C20", "The wall clock is set back", area="Time", users_see="...", stays="...")
    @pytest.mark.fault("C20")

`case` names the parameter that proves the fault, where a test has several. The tests are parsed and not imported.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[1]
AREAS = (
    "Time", "Starvation", "Memory", "Foreign answers", "Prometheus", "Names", "Disk", "Signals", "Security", "Truth",
    "Sockets", "Network", "Kubernetes", "Configuration", "Load",
)  # fmt: skip
_ID = re.compile(r"([A-Z]{1,2})(\d+)(\w*)")


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that somebody injects on purpose, and the file of the test that describes it."""

    id: str
    what: str
    area: str
    users_see: str
    stays: str
    file: str


@dataclass(frozen=True, slots=True)
class _Marker:
    """What a marker says; `texts` is empty where it has the ID alone."""

    fault: str
    texts: dict[str, str]
    test: str


@cache
def faults() -> tuple[Fault, ...]:
    """Return the faults by area and ID. Raises ValueError for a marker with a mistake, or a missing one."""
    found: list[_Marker] = []
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        text, path = file.read_text(), str(file.relative_to(ROOT))
        is_about_faults = path.startswith("tests/faults/")
        if is_about_faults or "mark.fault(" in text:
            for name, markers in _markers(text, path):
                if is_about_faults and not markers:
                    raise ValueError(f"{path}::{name} injects a fault and has no marker for it")
                found += markers
    return _in_order([_fault(each) for each in found if each.texts], {each.fault for each in found})


def _markers(text: str, path: str) -> Iterator[tuple[str, list[_Marker]]]:
    """Yield each test's name and its fault markers."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            calls = [each for each in node.decorator_list if isinstance(each, ast.Call)]
            marks = [each for each in calls if ast.unparse(each.func) == "pytest.mark.fault"]
            yield node.name, [_marker(each, f"{path}::{node.name}") for each in marks]


def _marker(call: ast.Call, test: str) -> _Marker:
    fault, *what = (ast.literal_eval(each) for each in call.args)
    keys = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords if each.arg != "case"}
    return _Marker(fault, {**({"what": what[0]} if what else {}), **keys}, test)


def _fault(marker: _Marker) -> Fault:
    """Return the fault that a marker describes."""
    wrong = f"{marker.test}: {marker.fault}: a fault has an ID such as C20 and its texts: what, area, users_see, stays"
    if sorted(marker.texts) != ["area", "stays", "users_see", "what"] or not all(marker.texts.values()):
        raise ValueError(wrong)
    fault = Fault(marker.fault, **marker.texts, file=marker.test.partition("::")[0])
    if fault.area not in AREAS or not _ID.fullmatch(fault.id):
        raise ValueError(f"{wrong}; the area is one of {', '.join(AREAS)}")
    return fault


def _in_order(found: list[Fault], named: set[str]) -> tuple[Fault, ...]:
    """Return the faults by area and ID, each of them described once."""
    described = [fault.id for fault in found]
    wrong = {fault for fault in described if described.count(fault) > 1} | (named - set(described))
    if wrong:
        raise ValueError(f"{', '.join(sorted(wrong))}: one marker says what this fault is, neither none nor several")
    return tuple(sorted(found, key=lambda fault: (AREAS.index(fault.area), _natural(fault.id))))


def _natural(name: str) -> tuple[str, int, str]:
    """Return the ID's parts, so that C9 sorts before C20."""
    letters, number, rest = _ID.findall(name)[0]
    return letters, int(number), rest


def rows_by_area() -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    """Yield each area with a row for each of its faults: ID, fault, what users see, what stays."""
    for area, group in groupby(faults(), key=lambda fault: fault.area):
        yield area, [(f"[{one.id}](../{one.file})", one.what, one.users_see, one.stays) for one in group]
