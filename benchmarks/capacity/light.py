"""Forecasts on the timed servers from a stranger's traffic alone: `python -m benchmarks.capacity.light [CASE ...]`.

    CASE                names of benchmarks/timed/cases.py; else all ten
    --shares 0.3,0.55,0.75   the traffic, as shares of the true capacity
    --seeds 0,1
    --processes 2
    --out FILE          the record; else none is written

In virtual time, with steps planned ahead as by vLLM on GPUs. Users send Poisson traffic for 150 s, whose lengths are
the workload's in the mean, spread evenly by up to 40 % to each side, or as the case has them; the server's page is
read every second, as `kneewatch forecast` does. Each forecast is made twice, with the server's startup flags known
and with none. Prints a line for each, and figures for each share: a lower bound counts as held if it is below the
truth, and as within 10 % if it is.
"""

import argparse
import json
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from random import Random
from statistics import median

from benchmarks.capacity.cold import true_rps
from benchmarks.capacity.timed_cases import planned_ahead, timed_case
from benchmarks.capacity.truth_file import read
from benchmarks.timed.cases import CASES, MAX_MODEL_LEN
from probe import __version__
from probe.capacity.model.forecast import forecast
from probe.capacity.model.hints import NO_HINTS, Hints
from probe.core.snapshot import ServerSnapshot
from probe.core.workload import Workload, lengths
from probe.simulator.virtual_server import VirtualServer

_WATCH_S, _WARM_UP_S = 150, 60
_SPREAD = 0.4
_NEAR = 0.10


@dataclass(frozen=True, slots=True)
class Light:
    """One forecast from traffic at `share` of the truth; `flags`: whether the server's limits were known."""

    case: str
    share: float
    seed: int
    flags: bool
    truth_rps: float
    answer_rps: float | None
    lower_rps: float | None
    upper_rps: float | None
    reason: str | None
    cpu_s: float  # that the forecast took

    @property
    def error(self) -> float | None:
        """Relative error, or None without a forecast."""
        return None if self.answer_rps is None else self.answer_rps / self.truth_rps - 1

    @property
    def has_held(self) -> bool:
        """Whether the interval contains the truth."""
        return (self.lower_rps or 0.0) <= self.truth_rps <= (float("inf") if self.upper_rps is None else self.upper_rps)

    def __str__(self) -> str:
        flags = "flags" if self.flags else "-"
        start = f"{self.case:14} {self.share:4.0%} {self.seed} {flags:5} truth {self.truth_rps:6.2f}"
        if self.error is None:
            return f"{start} withheld: {self.reason}"
        held = "held" if self.has_held else "NOT held"
        return f"{start} {self.error:+6.1%} [{self.lower_rps:.3g}, {self.upper_rps or float('inf'):.3g}] {held}"


def run(name: str, truth_rps: float, share: float, seed: int) -> list[Light]:
    """Return the forecasts of a case with flags and without, from the same traffic."""
    case = timed_case(name)
    snapshots = watched(name, truth_rps, share, seed)
    flags = Hints(case.profile.max_num_seqs, case.profile.max_num_batched_tokens)
    answers = []
    for hints in (flags, NO_HINTS):
        began_s = time.process_time()
        found = forecast(snapshots, case.workload, case.objectives, hints)
        cpu_s = round(time.process_time() - began_s, 2)
        answer = found.requests_per_second, found.lower, found.upper, found.reason, cpu_s
        answers.append(Light(name, share, seed, hints is flags, truth_rps, *answer))
    return answers


def watched(name: str, truth_rps: float, share: float, seed: int) -> list[ServerSnapshot]:
    """Return the page of a case's server, every second, under a stranger's traffic at that share of the truth."""
    case = planned_ahead(timed_case(name))
    server = VirtualServer(case.profile, seed=seed)
    chance, drawn = Random(f"{name}/{share}/{seed}"), lengths(case.workload, seed + 99)
    at_s = 0.0
    while (at_s := at_s + chance.expovariate(share * truth_rps)) < _WARM_UP_S + _WATCH_S:
        prompt, output, _ = next(drawn)
        server.submit(at_s, *spread(case.workload, prompt, output, chance))
    snapshots = []
    for second in range(_WARM_UP_S, _WARM_UP_S + _WATCH_S + 1):
        server.advance(second)
        snapshots.append(server.snapshot())
    return snapshots


def spread(workload: Workload, prompt: int, output: int, chance: Random) -> tuple[int, int]:
    """Return other lengths for a request of fixed ones, as far as the server takes them."""
    if not isinstance(workload.prompt_tokens, int):
        return prompt, output
    output = round(output * chance.uniform(1 - _SPREAD, 1 + _SPREAD))
    most = min(_SPREAD, (MAX_MODEL_LEN - output) / prompt - 1)
    return round(prompt * chance.uniform(1 - most, 1 + most)), output


def summary(runs: Sequence[Light]) -> Iterator[str]:
    """Yield a line for each share, with flags and without."""
    for share, flags in sorted({(one.share, one.flags) for one in runs}):
        of = [one for one in runs if (one.share, one.flags) == (share, flags)]
        told = [one for one in of if one.error is not None]
        errors = sorted(abs(one.error or 0.0) for one in told)
        bounds, near = sum(one.upper_rps is None for one in told), sum(error <= _NEAR for error in errors)
        yield (
            f"{share:.0%}, {'flags known' if flags else 'nothing known'}: {len(of) - len(told)} of {len(of)} withheld,"
            f" {bounds} lower bounds, {near} within 10 %, {sum(one.has_held for one in told)} of {len(told)} held"
            + (f"; error {median(errors):.1%} in the median, {errors[-1]:.1%} at most" if errors else "")
            + f"; {median(one.cpu_s for one in told or of):.2g} s of CPU in the median"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--shares", default="0.3,0.55,0.75")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    known, runs = read(), list[Light]()
    seeds, shares = map(int, options.seeds.split(",")), map(float, options.shares.split(","))
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        jobs = [
            pool.submit(run, name, true_rps(name, known)[0], share, seed)
            for seed, name, share in product(seeds, options.cases, shares)
        ]
        for done in as_completed(jobs):
            runs += done.result()
            print(*done.result(), sep="\n", flush=True)
            if options.out:
                _write(runs, options.out)
    print(*summary(runs), sep="\n")
    return 0


def _write(runs: Sequence[Light], out: Path) -> None:
    record = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "command": " ".join(["python -m benchmarks.capacity.light", *sys.argv[1:]]),
        "kneewatch": __version__,
        "python": platform.python_version(),
        "summary": list(summary(runs)),
        "runs": [{**asdict(one), "error": one.error, "has_held": one.has_held} for one in runs],
    }
    out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
