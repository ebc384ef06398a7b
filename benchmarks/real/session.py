"""Records one real server: searches, and loads of fixed rates around and far below what they found, interleaved.

    search, alone --> estimate --> rates at shares of it, in rounds --> search, beside live users

The rates near the estimate give the truth that searches and forecasts are judged by (truth.py). Each lasts for 180 s
or 1000 requests, since queues near the knee grow for minutes. The low ones are live traffic to forecast from. They are
interleaved because a machine's speed drifts. Uses Kneewatch's own CapacityRun, workers and scraper.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from benchmarks.real.recording import Recorder, Taken
from benchmarks.real.servers import Spec
from benchmarks.real.truth import NEAR
from probe.capacity.model.hints import Hints
from probe.capacity.run.load_plan import LoadPlan
from probe.capacity.run.request import Budget, RunJob, RunRequest
from probe.capacity.run.runner import CapacityRun
from probe.capacity.run.seams import ServerAccess
from probe.capacity.search.fixed_steps import FixedSteps
from probe.capacity.search.knee import LONG_S, MANY_REQUESTS
from probe.capacity.search.search import Search
from probe.client.endpoint import Endpoint
from probe.core.clock import SystemClock
from probe.core.result import RunContext
from probe.core.step import Arrivals, StepPlan
from probe.load.request_source import RequestSource
from probe.load.worker_pool import WorkerPool
from probe.scrape.scraper import Scraper

MODEL = "tiny"
# Shares of the estimate, round by round. The low ones follow heavy ones and the other way round.
ROUNDS = (
    (0.4, 0.88, 0.25, 1.04, 0.6, 0.96, 1.12),
    (1.08, 0.25, 0.92, 0.6, 1.0, 0.4, 0.84),
)
LIGHT_STEP_S, WARM_UP_S = 30.0, 4.0
_FULL_AFTER_S = 20.0  # a server near its knee
LIVE_SHARE = 0.25  # of the estimate, in the second search
_STREAMS = 400
_TIMEOUT_S = 60.0
_BUDGET = Budget(tokens=10**9, seconds=900, over_objective_seconds=20)
_UNBOUND = Budget(tokens=10**9, seconds=1800, over_objective_seconds=1800)
_OBSERVE_S = 20.0


async def record(spec: Spec, base_url: str, say: "Say") -> list[Taken]:
    """Run all load plans on a running server. ValueError if the first search has too little data for an estimate."""
    server = _Server(spec, base_url)
    first = await server.take(Taken("search"), server.search(), _BUDGET, is_guarded=True, seed=1)
    say(_words(first))
    estimate_rps = _estimate(first)
    taken = [first]
    for number, shares in enumerate(ROUNDS):
        load_plan = FixedSteps([_step(share, estimate_rps) for share in shares], to_the_end=True)
        name = f"round {number + 1}"
        taken.append(await server.take(Taken(name), load_plan, _UNBOUND, is_guarded=False, seed=10 + number))
        estimate_rps *= _aside(taken[-1])
        say(f"{name}: done, around {estimate_rps:.2f} requests/s")
    live_rps = LIVE_SHARE * estimate_rps
    async with server.users(live_rps):
        await asyncio.sleep(5)
        second = Taken("search beside users", live_rps)
        taken.append(await server.take(second, server.search(), _BUDGET, is_guarded=True, seed=2))
    say(_words(second))
    return taken


class Say:
    """Print progress."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, words: str) -> None:
        print(f"{self._name}: {words}", flush=True)


class _Server:
    """One server under test."""

    def __init__(self, spec: Spec, base_url: str) -> None:
        self._spec = spec
        self._clock = SystemClock()
        self._endpoint = Endpoint(target=spec.name, base_url=base_url)

    def search(self) -> Search:
        """Return a search without hints about the server."""
        return Search(self._spec.workload, self._spec.objectives, Hints(), observe_s=_OBSERVE_S, explain=True)

    async def take(self, taken: Taken, load_plan: LoadPlan, budget: Budget, *, is_guarded: bool, seed: int) -> Taken:
        """Run the load plan and record the data it gets."""
        request = RunRequest(self._spec.name, self._spec.objectives, budget, is_guarded=is_guarded)
        job = RunJob(request, MODEL, RunContext({"name": "r"}, {}))
        scraper = Scraper(self._endpoint, self._clock, timeout_s=1.0)
        try:
            async with WorkerPool(self._source(seed), 1, self._clock) as workers:
                ramp = CapacityRun(job, Recorder(load_plan, taken), workers, ServerAccess(scraper.read), self._clock)
                taken.result = await ramp.run()
        finally:
            await scraper.close()
        return taken

    @asynccontextmanager
    async def users(self, rate_rps: float) -> AsyncIterator[None]:
        """Send user traffic beside the load plan."""
        over = asyncio.Event()
        async with WorkerPool(self._source(99), 1, self._clock) as workers:
            plan = replace(_plan(rate_rps), seconds=1200)
            load = asyncio.create_task(workers.run(plan, over, lambda _: None))
            try:
                yield
            finally:
                over.set()
                await load

    def _source(self, seed: int) -> RequestSource:
        return RequestSource(self._endpoint, MODEL, self._spec.workload, _TIMEOUT_S, seed)


def _step(share: float, estimate_rps: float) -> StepPlan:
    """Return the step at a share of the estimate."""
    plan = _plan(share * estimate_rps)
    if share <= NEAR:
        return plan
    return replace(plan, seconds=min(LONG_S, MANY_REQUESTS / plan.load), warm_up_s=_FULL_AFTER_S)


def _plan(rate_rps: float) -> StepPlan:
    return StepPlan(_STREAMS, LIGHT_STEP_S, loop="open", warm_up_s=WARM_UP_S, arrivals=Arrivals(rate_rps=rate_rps))


def _estimate(taken: Taken) -> float:
    """Return the capacity that the search found, else the highest load that held."""
    assert taken.result is not None
    if (found := taken.result.capacity.requests_per_second) is not None:
        return found
    held = [s.plan.arrivals.rate_rps for s in taken.result.steps if s.valid and not s.broken and s.plan.arrivals]
    if not held:
        raise ValueError(f"nothing held: {taken.result.capacity.reason}; {taken.result.stopped}")
    return max(held)


def _aside(taken: Taken) -> float:
    """Return a factor for the estimate, if a round lay on one side of the knee."""
    assert taken.result is not None
    near = [s for s in taken.result.steps if s.plan.arrivals and s.plan.arrivals.rate_rps > NEAR * _top_rps(taken)]
    return 1.2 if not any(s.broken for s in near) else 0.8 if all(s.broken for s in near) else 1.0


def _top_rps(taken: Taken) -> float:
    return max(s.run.plan.arrivals.rate_rps for s in taken.steps if s.run.plan.arrivals)


def _words(taken: Taken) -> str:
    assert taken.result is not None
    found, cost = taken.result.capacity, taken.result.cost
    steps: Sequence[str] = [
        f"{s.plan.arrivals.rate_rps:.2f} {s.tripped or s.reason or '/'.join(s.broken) or 'held'}"
        for s in taken.result.steps
        if s.plan.arrivals
    ]
    return (
        f"{taken.name}: {found.mode} {found.requests_per_second} [{found.lower}, {found.upper}] {found.reason or ''}"
        f" {found.bottleneck}; {cost.seconds:.0f} s, {cost.over_objective_seconds:.1f} s over; {'; '.join(steps)}"
    )
