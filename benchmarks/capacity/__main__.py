"""How well Kneewatch and other methods find a capacity: `python -m benchmarks.capacity`, from the repository.

    --cases 8b-a100,random-1000   only these; else all named ones and --random others
    --random 20                   this many random deployments, and as many with something that the model does not know
    --seeds 5  --peer-seeds 5     runs of each named case; those drawn at random have one
    --only kneewatch|forecast|peers   searches, forecasts from live traffic alone, or other tools' patterns
    --quick                       eight cases, one seed, none at random
    --processes 2
    --out FILE                    the record; benchmarks/results/capacity-DATE.json
    --truth [NAME ...]            recompute true capacities into truth.json, and stop

Everything is in virtual time (no server, no network, a seed for each run), with live users at 20 % of the true
capacity (60 % for a forecast). Prints a line for each run that ended on standard error, then a table, and writes every
run as JSON. Exits 1 if a wrong capacity was published as verified.
"""

import argparse
import json
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.capacity import report, truth_file
from benchmarks.capacity.bench import FORECAST, KNEEWATCH, LIVE_SHARE, METHODS, Job, Row, jobs_of, run_all
from benchmarks.capacity.cases import CASES
from benchmarks.capacity.peers import PEERS
from benchmarks.capacity.truth_file import Known
from probe import __version__

RESULTS = Path(__file__).parents[1] / "results"
QUICK = (
    "1b-l4", "8b-a100", "8b-h100-summary", "70b-h100", "kv-14b", "seats-16", "tokenizer", "8b-a100-two-engines",
)  # fmt: skip
_ONLY = {"kneewatch": (KNEEWATCH,), "forecast": (FORECAST,), "peers": tuple(PEERS)}
_FIRST_RANDOM = 1000


def main(argv: Sequence[str] | None = None) -> int:
    options = _options(argv)
    try:
        names = _names(options)
        for name in names:
            truth_file.named(name)
    except KeyError as error:
        sys.exit(f"no case {error}; there are {', '.join(CASES)}, random-SEED and random-blind-SEED")
    command = " ".join(["python -m benchmarks.capacity", *(sys.argv[1:] if argv is None else argv)])
    if options.truth is not None:
        _compute(names, command, options.processes)
        return 0
    known = _compute(truth_file.stale(names, truth_file.read()), command, options.processes)
    truths = {name: known[name].truth.rps for name in names if known[name].truth.rps}
    unmeetable = [name for name in names if not known[name].truth.rps]
    methods = _ONLY.get(options.only, METHODS)
    begun = time.monotonic()
    rows = _run(jobs_of(methods, truths, options.seeds, options.peer_seeds), options.processes)
    found = report.summaries(rows)
    judged = report.goals(found)
    print(report.table(found))
    print(report.verdicts(judged), end="")
    out = options.out or RESULTS / f"capacity-{datetime.now(UTC):%Y-%m-%d}.json"
    out.write_text(
        json.dumps(
            {
                **_about(command, time.monotonic() - begun),
                "no_load_meets_the_objectives": unmeetable,
                "goals": judged,
                "summaries": found,
                "runs": [{**asdict(row), "error": row.error} for row in rows],
            },
            indent=1,
        )
        + "\n"
    )
    print(f"written: {out}")
    return 1 if any(each["wrong_as_verified"] for each in found) else 0


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.capacity", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--cases", default="")
    parser.add_argument("--random", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--peer-seeds", type=int, default=5)
    parser.add_argument("--only", choices=_ONLY)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--truth", nargs="*", metavar="NAME")
    options = parser.parse_args(argv)
    if options.quick:
        options.seeds, options.peer_seeds, options.random = 1, 1, 0
    return options


def _names(options: argparse.Namespace) -> list[str]:
    if options.truth is not None:
        return options.truth or list(CASES)
    if options.cases:
        return [name for name in options.cases.split(",") if name]
    if options.quick:
        return list(QUICK)
    seeds = range(_FIRST_RANDOM, _FIRST_RANDOM + options.random)
    return [*CASES, *(f"random-{seed}" for seed in seeds), *(f"random-blind-{seed}" for seed in seeds)]


def _compute(names: Sequence[str], command: str, processes: int) -> dict[str, Known]:
    """Return all truths on file, after recomputing and writing these."""
    known = truth_file.read()
    if names:
        print(f"computing the true capacity of {len(names)} cases, some seconds to minutes each", file=sys.stderr)
    for name, each in truth_file.compute_all(names, processes) if names else ():
        known[name] = each
        truth_file.write(known, command)  # each time: the next may take a while
        rate = each.truth
        print(
            f"{name}: {rate.rps:.4g} +- {rate.error_rps:.2g} requests/s, {rate.limiting}", file=sys.stderr, flush=True
        )
    return known


def _run(jobs: Sequence[Job], processes: int) -> list[Row]:
    rows = []
    for done, row in enumerate(run_all(jobs, processes), start=1):
        rows.append(row)
        print(f"{done:4}/{len(jobs)} {report.line(row)}", file=sys.stderr, flush=True)
    return sorted(rows, key=lambda row: (METHODS.index(row.method), row.case, row.seed))


def _about(command: str, seconds: float) -> dict[str, Any]:
    """Return when, where and how the benchmark ran."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "machine": {
            "cpu": next((text.split(": ")[1] for text in lines if text.startswith("model name")), platform.machine()),
            "cores": sum(text.startswith("processor") for text in lines),
            "kernel": platform.release(),
        },
        "python": platform.python_version(),
        "kneewatch": __version__,
        "seconds": round(seconds),
        "live_share": LIVE_SHARE,
    }


if __name__ == "__main__":
    sys.exit(main())
