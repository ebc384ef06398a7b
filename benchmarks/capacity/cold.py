"""Searches that start cold, on servers of known timing in virtual time: `python -m benchmarks.capacity.cold`.

    NAME                names of benchmarks/timed/cases.py, its mixtures too, and with -tight (timed_cases.py); else the
                        ten. Names of benchmarks/capacity work too
    --seeds 0,1,2       the runs of each
    --users 0.2         live users, as a share of the true capacity; else none
    --no-plans-ahead    schedule synchronously; else servers whose truth is vLLM's plan steps ahead, as it does on GPUs
    --busy              the machine of the search is busy for part of it (busy.py)
    --without pulses    a heuristic to take away, or several with commas (switches.py)
    --processes 2
    --out FILE          the record; else none is written

Nothing is configured but the objectives, with the budget that `kneewatch ramp` has by default. The search's arithmetic
takes its CPU time in virtual time too, so that runs of a seed differ a little. Prints a line for each run: error, half
of the interval, time (and how much of it was arithmetic), tokens and harm. Tokens are compared with a sweep of ten
steps of 60 s, evenly spaced up to 120 % of the true capacity. That is of vLLM's own scheduler
(benchmarks/timed/truth.json) where it is on file, else of the simulated one. Exits 1 if a wrong capacity was called
verified.
"""

import argparse
import json
import math
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import median

from benchmarks.capacity import truth_file
from benchmarks.capacity.busy import BusyMachine
from benchmarks.capacity.play import Arithmetic, play
from benchmarks.capacity.switches import SWITCHES, without
from benchmarks.capacity.timed_cases import PREFIX, TIGHT, planned_ahead
from benchmarks.timed import cases as timed
from benchmarks.timed.cases import ALL, CASES
from probe import __version__
from probe.capacity.run.request import Budget
from probe.capacity.search.search import Search
from probe.capacity.search.unverified import Spending
from probe.config.capacity import BudgetConfig, CapacityConfig
from probe.core.step import StepSummary
from probe.core.token_length import mean_length
from probe.core.workload import Workload

_SWEEP_S, _SWEEP_SHARES = 60.0, [0.12 * step for step in range(1, 11)]
_WRONG = 0.1
_VERIFIED, _VLLM = "verified", "vllm"
_BY_VLLM = Path(timed.__file__).with_name("truth.json")


@dataclass(frozen=True, slots=True)
class ColdRun:
    """One search. `cpu_s`: of `seconds`, those of arithmetic; `steps`: rate, seconds, result.

    `users`: their share of the capacity; `live`: their requests that ended meanwhile; `spoilt`: of these, those over an
    objective; `truth_by`: whose scheduler the truth is of, "vllm" or "simulator".
    """

    case: str
    seed: int
    users: float
    truth_rps: float
    truth_by: str
    plans_ahead: bool
    busy: bool
    answer_rps: float | None
    lower_rps: float | None
    upper_rps: float | None
    mode: str
    reason: str | None
    stopped: str
    seconds: float
    cpu_s: float
    tokens: int
    tokens_of_sweep: float
    over_objective_s: float
    live: int
    spoilt: int
    steps: tuple[str, ...]

    @property
    def error(self) -> float | None:
        """Relative error, or None without a capacity."""
        return None if self.answer_rps is None else self.answer_rps / self.truth_rps - 1

    @property
    def has_held(self) -> bool:
        """Whether the interval contains the truth."""
        return (self.lower_rps or 0.0) <= self.truth_rps <= (float("inf") if self.upper_rps is None else self.upper_rps)

    @property
    def is_wrongly_verified(self) -> bool:
        return self.mode == _VERIFIED and (self.error is None or abs(self.error) > _WRONG)

    def __str__(self) -> str:
        error = "none" if self.error is None else f"{self.error:+.1%}"
        width = "" if self.upper_rps is None or self.lower_rps is None or not self.answer_rps else (
            f"{(self.upper_rps - self.lower_rps) / (self.upper_rps + self.lower_rps):.0%}"
        )  # fmt: skip
        beside = f" {self.spoilt} of {self.live} users' requests spoilt," if self.users else ""
        return (
            f"{self.case:22} {self.seed} truth {self.truth_rps:6.2f} {error:>7} {width:>4}"
            f" {'held' if self.has_held else 'NOT '} {self.mode:9} {self.seconds:4.0f} s ({self.cpu_s:.0f}),"
            f" {self.tokens_of_sweep:4.0%} tokens, {self.over_objective_s:4.1f} s over,{beside} {self.stopped};"
            f" {self.reason or ''}\n{'':8}{' '.join(self.steps)}"
        )


def true_rps(name: str, simulated: Mapping[str, truth_file.Known]) -> tuple[float, str]:
    """Return the true capacity of a case, and whose scheduler it is of."""
    by_vllm = json.loads(_BY_VLLM.read_text()).get(name.removeprefix(PREFIX))
    return (by_vllm["requests_per_second"], _VLLM) if by_vllm else (simulated[name].truth.rps, "simulator")


def run(
    name: str,
    truth: tuple[float, str],
    seed: int,
    users: float = 0.0,
    taken: Sequence[str] = (),
    *,
    plans_ahead: bool = True,
    busy: bool = False,
) -> ColdRun:
    """Search once on a case of that truth (`true_rps`), beside users with this share of it."""
    truth_rps, truth_by = truth
    case, limits, think = truth_file.named(name), BudgetConfig(), Arithmetic()
    if plans_ahead := plans_ahead and truth_by == _VLLM:  # the other truths are of synchronous servers
        case = planned_ahead(case)
    budget = Budget(limits.tokens_per_run, limits.seconds, limits.over_objective_seconds)
    machine = BusyMachine(seed) if busy else None
    most = Spending(budget.seconds, budget.tokens)
    with without(taken):
        search = Search(case.workload, case.objectives, budget=most, observe_s=CapacityConfig().observe, explain=False)
        played = play(case, truth_rps, seed, search, live_share=users, budget=budget, think=think, machine=machine)
    result = played.result
    found, cost = result.capacity, result.cost
    return ColdRun(
        case=name,
        seed=seed,
        users=users,
        truth_rps=truth_rps,
        truth_by=truth_by,
        plans_ahead=plans_ahead,
        busy=busy,
        answer_rps=found.requests_per_second,
        lower_rps=found.lower,
        upper_rps=found.upper,
        mode=found.mode,
        reason=found.reason,
        stopped=" ".join(filter(None, (result.stopped.by, result.stopped.reason))),
        seconds=round(cost.seconds, 1),
        cpu_s=round(think.seconds, 1),
        tokens=cost.tokens,
        tokens_of_sweep=cost.tokens / sweep_tokens(case.workload, truth_rps),
        over_objective_s=round(cost.over_objective_seconds, 2),
        live=played.users,
        spoilt=played.spoilt,
        steps=tuple(map(_words, result.steps)),
    )


def sweep_tokens(workload: Workload, truth_rps: float) -> float:
    """Return the tokens that a sweep of ten steps up to 120 % of the capacity would send."""
    tokens = mean_length(workload.prompt_tokens) + mean_length(workload.output_tokens)
    return sum(_SWEEP_S * share * truth_rps * tokens for share in _SWEEP_SHARES)


def _words(step: StepSummary) -> str:
    kind = "x" if step.plan.arrivals is None else "/s"
    why = step.tripped or (",".join(step.broken) if step.broken else step.reason or ("late" if step.is_late else ""))
    return f"{step.plan.load:.3g}{kind}({step.plan.warm_up_s + step.plan.seconds:.0f}s{': ' + why if why else ''})"


def run_all(
    jobs: Sequence[tuple[str, tuple[float, str], int, float, Sequence[str]]], processes: int, **options: bool
) -> Iterator[ColdRun]:
    """Run all jobs and yield their results as they end."""
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(run, *job, **options) for job in jobs]):
            yield done.result()


def summary(runs: Sequence[ColdRun]) -> str:
    """Return the figures over all runs."""
    errors = sorted(abs(one.error) for one in runs if one.error is not None)
    count = len(runs)
    return (
        f"{sum(one.mode == _VERIFIED for one in runs)} of {count} verified,"
        f" {sum(one.is_wrongly_verified for one in runs)} wrongly;"
        f" error {median(errors or [math.inf]):.1%} in the median, {max(errors, default=math.inf):.1%} at most,"
        f" {count - len(errors)} withheld;"
        f" {sum(one.has_held for one in runs)} intervals hold;"
        f" {median(one.seconds for one in runs):.0f} s in the median, {max(one.seconds for one in runs):.0f} at most;"
        f" tokens {median(one.tokens_of_sweep for one in runs):.0%}, {max(one.tokens_of_sweep for one in runs):.0%};"
        f" over an objective {median(one.over_objective_s for one in runs):.1f} s,"
        f" {max(one.over_objective_s for one in runs):.1f}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(CASES))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--users", type=float, default=0.0)
    parser.add_argument("--plans-ahead", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--without", default="")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    names = [PREFIX + name if name.removesuffix(TIGHT) in ALL else name for name in options.names]
    known = truth_file.read()
    of_vllm = json.loads(_BY_VLLM.read_text())
    if missing := truth_file.stale([name for name in names if name.removeprefix(PREFIX) not in of_vllm], known):
        parser.error(f"no truth of {', '.join(missing)}; python -m benchmarks.capacity --truth {' '.join(missing)}")
    taken = [name for name in options.without.split(",") if name]
    if absent := [name for name in taken if name not in SWITCHES]:
        parser.error(f"no heuristic {', '.join(absent)}; there are {', '.join(SWITCHES)}")
    seeds = map(int, options.seeds.split(","))
    jobs = [(name, true_rps(name, known), seed, options.users, taken) for seed, name in product(seeds, names)]
    runs = []
    for done in run_all(jobs, options.processes, plans_ahead=options.plans_ahead, busy=options.busy):
        print(done, flush=True)
        runs.append(done)
        if options.out:
            _write(runs, options.out)
    print(summary(runs))
    return int(any(one.is_wrongly_verified for one in runs))


def _write(runs: Sequence[ColdRun], out: Path) -> None:
    record = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "command": " ".join(["python -m benchmarks.capacity.cold", *sys.argv[1:]]),
        "kneewatch": __version__,
        "python": platform.python_version(),
        "summary": summary(runs),
        "runs": [{**asdict(one), "error": one.error, "has_held": one.has_held} for one in runs],
    }
    out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
