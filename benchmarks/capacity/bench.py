"""The runs of the benchmark: each method of finding capacity, on each case, with each seed, and its result.

Input: jobs (a method, a case by name, a seed). Output: a Row each. Jobs are independent and go to processes.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context

from benchmarks.capacity.cases import CASES, Case
from benchmarks.capacity.peer_load import LEVEL_S, PeerLoad, Spent, spoilt_without_run
from benchmarks.capacity.peers import PEERS, answer
from benchmarks.capacity.play import play
from benchmarks.capacity.truth_file import kind, named
from probe.capacity.model.forecast import forecast
from probe.capacity.search.search import Search
from probe.core.result import Capacity

KNEEWATCH, FORECAST = "kneewatch", "kneewatch forecast"
OURS = (KNEEWATCH, FORECAST)
METHODS = (*OURS, *PEERS)
LIVE_SHARE = 0.2  # live users' share of the true capacity
# A forecast learns from live users alone, at this share of the capacity, and scraped as by `kneewatch run`.
FORECAST_SHARE, FORECAST_S, SCRAPE_S = 0.6, 600.0, 5.0


@dataclass(frozen=True, slots=True)
class Job:
    method: str
    case: str
    seed: int
    truth_rps: float


@dataclass(frozen=True, slots=True)
class Row:
    """One run. `spoilt`: live requests over an objective, of `users`, less those that would be without the run."""

    method: str
    case: str
    kind: str
    seed: int
    truth_rps: float
    answer_rps: float | None
    lower_rps: float | None
    upper_rps: float | None
    mode: str
    reason: str | None  # why there is no answer, or what it lacks to be verified
    requests: int
    tokens: int
    seconds: float
    over_objective_s: float
    users: int
    spoilt: int
    cpu_s: float

    @property
    def error(self) -> float | None:
        """Relative: -0.1 is 10 % too low."""
        return None if self.answer_rps is None else self.answer_rps / self.truth_rps - 1


def run(job: Job, *, level_s: float = LEVEL_S) -> Row:
    """Run a job in virtual time. `level_s`: duration of a peer's step."""
    begun = time.process_time()
    case = named(job.case)
    if job.method == FORECAST:
        found, spent, without = *_forecast(job, case), 0
    else:
        found, spent = _kneewatch(job, case) if job.method == KNEEWATCH else _peer(job, case, level_s)
        without = spoilt_without_run(case, job.seed, LIVE_SHARE * job.truth_rps, spent.seconds)
    return Row(
        method=job.method,
        case=job.case,
        kind=kind(job.case),
        seed=job.seed,
        truth_rps=job.truth_rps,
        answer_rps=found.rps,
        lower_rps=found.lower_rps,
        upper_rps=found.upper_rps,
        mode=found.mode,
        reason=found.reason,
        requests=spent.requests,
        tokens=spent.tokens,
        seconds=round(spent.seconds, 1),
        over_objective_s=round(spent.over_objective_s, 2),
        users=spent.users,
        spoilt=spent.spoilt - without,
        cpu_s=round(time.process_time() - begun, 1),
    )


def run_all(jobs: Sequence[Job], processes: int) -> Iterator[Row]:
    """Run all jobs and yield their rows as they end."""
    # Forked processes would carry this one's threads' locks; new ones cost a second.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(run, job) for job in jobs]):
            yield done.result()


def jobs_of(methods: Iterable[str], truths: Mapping[str, float], seeds: int, peer_seeds: int) -> list[Job]:
    """Return the jobs case by case, so that the first results come soon.

    A random case runs once: another case shows more than another seed.
    """
    methods = list(methods)
    return [
        Job(method, name, seed, rps)
        for name, rps in truths.items()
        for method in methods
        for seed in range(1 if name not in CASES else seeds if method in OURS else peer_seeds)
    ]


@dataclass(frozen=True, slots=True)
class _Found:
    """A run's answer; `reason`: why there is none."""

    rps: float | None
    reason: str | None
    lower_rps: float | None = None
    upper_rps: float | None = None
    mode: str = ""


def _found(capacity: Capacity, stopped: str | None = None) -> _Found:
    """Return a capacity as an answer. A lower bound is none: it does not say where the knee is."""
    if capacity.is_lower_bound:
        reason = f"at least {capacity.requests_per_second:.4g} requests/s: {capacity.reason}"
        return _Found(None, reason, mode=capacity.mode)
    reason = capacity.reason or stopped
    return _Found(capacity.requests_per_second, reason, capacity.lower, capacity.upper, capacity.mode)


def _kneewatch(job: Job, case: Case) -> tuple[_Found, Spent]:
    plan = Search(case.workload, case.objectives, explain=False)
    played = play(case, job.truth_rps, job.seed, plan, live_share=LIVE_SHARE)
    capacity, cost = played.result.capacity, played.result.cost
    found = _found(capacity, played.result.stopped.reason)
    over_s = cost.over_objective_seconds
    return found, Spent(cost.requests, cost.tokens, cost.seconds, over_s, played.users, played.spoilt)


def _forecast(job: Job, case: Case) -> tuple[_Found, Spent]:
    server = case.server(job.seed, FORECAST_SHARE * job.truth_rps)
    server.advance(120.0)
    snapshots = []
    for i in range(round(FORECAST_S / SCRAPE_S) + 1):
        server.advance(120.0 + i * SCRAPE_S)
        snapshots.append(server.snapshot())
    capacity = forecast(snapshots, case.workload, case.objectives)
    return _found(capacity), Spent(0, 0, FORECAST_S, 0.0, len(server.ended_requests), 0)


def _peer(job: Job, case: Case, level_s: float) -> tuple[_Found, Spent]:
    live_rps = LIVE_SHARE * job.truth_rps
    load = PeerLoad(case, job.seed, live_rps)
    found = answer(PEERS[job.method](load, level_s, job.seed), live_rps)
    return _Found(found, "no load held"), load.spent()
