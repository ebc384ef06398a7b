"""The true capacities on file (truth.json), and how to recompute them: `python -m benchmarks.capacity --truth`.

Each entry has a digest of its case's definition, so that the truth of a former definition is never used.
"""

import hashlib
import json
import platform
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.capacity.cases import CASES, Case, random_blind_case, random_case
from benchmarks.capacity.timed_cases import PREFIX, timed_case
from benchmarks.capacity.truth import Truth, load_at, true_capacity
from probe import __version__

FILE = Path(__file__).with_name("truth.json")
# Of a workload, of objectives, and of a profile.
_NEWER = (
    "parts",
    "trace",
    "e2e",
    "itl",
    "plans_ahead",
    "request_blocks",
    "max_num_queued_reqs",
    "max_num_queued_tokens",
)
# So low a rate that requests do not overlap.
_UNLOADED_RPS = 1e-4
_UNLOADED_REQUESTS = 600
_RANDOM, _RANDOM_BLIND = "random-", "random-blind-"


def named(name: str) -> Case:
    """Return the case of this name: one of CASES, `random-SEED`, `random-blind-SEED` or `timed-NAME`.

    KeyError if there is none.
    """
    if name.startswith(PREFIX):
        return timed_case(name.removeprefix(PREFIX))
    for prefix, make in ((_RANDOM_BLIND, random_blind_case), (_RANDOM, random_case)):
        seed = name.removeprefix(prefix)
        if seed != name and seed.isdigit():
            return make(int(seed))
    return CASES[name]


def kind(name: str) -> str:
    """Return the group of the report that the case belongs to."""
    if name.startswith(_RANDOM):
        return "random blind" if name.startswith(_RANDOM_BLIND) else "random"
    if name.startswith(PREFIX):
        return "timed"
    return "blind" if CASES[name].blind else "named"


def digest(case: Case) -> str:
    """Return a digest of the case's values; names of classes and fields, and the profile's description, may change."""
    values = asdict(replace(case, profile=replace(case.profile, description="")), dict_factory=_values)
    return hashlib.sha256(repr(values).encode()).hexdigest()[:16]


def _values(fields: list[tuple[str, object]]) -> tuple[object, ...]:
    """Return the values, without those of fields that are newer than the file and not set."""
    return tuple(value for name, value in fields if name not in _NEWER or value)


@dataclass(frozen=True, slots=True)
class Known:
    """The truth of one case; `rps` is 0 if no load meets the objectives."""

    truth: Truth
    digest: str
    computed_s: float  # how long that took
    date: str


def compute(name: str) -> Known:
    """Compute the truth of a case: some seconds to some minutes."""
    begun, case = time.perf_counter(), named(name)
    found = Truth(0.0, 0.0, "ttft")
    if load_at(case, _UNLOADED_RPS, 0, _UNLOADED_REQUESTS).score <= 1:
        found = true_capacity(case)
    return Known(found, digest(case), round(time.perf_counter() - begun, 1), _now())


def read(file: Path | None = None) -> dict[str, Known]:
    """Read the truths on file (FILE), by name; empty if there is no file."""
    file = file or FILE
    if not file.exists():
        return {}
    cases: Mapping[str, Any] = json.loads(file.read_text())["cases"]
    return {
        name: Known(
            Truth(each["rps"], each["error_rps"], each["limiting"]), each["digest"], each["computed_s"], each["date"]
        )
        for name, each in cases.items()
    }


def stale(names: Iterable[str], known: Mapping[str, Known]) -> list[str]:
    """Return the names that are not on file, or with another definition."""
    return [name for name in names if name not in known or known[name].digest != digest(named(name))]


def write(known: Mapping[str, Known], command: str, file: Path | None = None) -> None:
    """Write the whole file, in the order of the cases. `command`: the one that computed the newest entries."""
    order = {name: i for i, name in enumerate(CASES)}
    record = {
        "command": command,
        "date": _now(),
        "python": platform.python_version(),
        "kneewatch": __version__,
        "method": "3 bisections to 0.5 %, each of 7,000 requests a rate; error_rps is the standard error of their mean",
        "cases": {
            name: {**asdict(each.truth), "digest": each.digest, "computed_s": each.computed_s, "date": each.date}
            for name, each in sorted(known.items(), key=lambda item: (order.get(item[0], len(order)), item[0]))
        },
    }
    (file or FILE).write_text(json.dumps(record, indent=1) + "\n")


def compute_all(names: Iterable[str], processes: int) -> Iterator[tuple[str, Known]]:
    """Yield each name with its truth, as they are computed."""
    # Forked processes would carry this one's threads' locks; new ones cost a second.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        pending = {pool.submit(compute, name): name for name in names}
        for done in as_completed(pending):
            yield pending[done], done.result()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
