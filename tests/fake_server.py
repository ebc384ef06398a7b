"""A server for load, as the two seams see it: requests to send, and a reading of its metrics. Time is the loop's."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from example_records import record, snapshot
from example_records import spec as one_spec
from fake_request import FakeRequest, Send

from probe.capacity.run.load_plan import LoadPlan
from probe.capacity.run.request import Budget, RunJob, RunRequest
from probe.capacity.run.runner import CapacityRun
from probe.capacity.run.seams import Load, ServerAccess, StepObservers, Think
from probe.capacity.search.fixed_steps import FixedSteps
from probe.core.clock import Clock
from probe.core.errors import TargetError
from probe.core.objectives import Objectives
from probe.core.request import Outcome, RequestRecord, RequestSpec, Traffic
from probe.core.result import RunContext
from probe.core.snapshot import ServerSnapshot
from probe.core.step import StepPlan

_T = TypeVar("_T")


async def at_once(work: Callable[[], _T]) -> _T:
    """Run the work of a Think at once, for a loop whose virtual time threads cannot follow."""
    return work()


@dataclass(frozen=True)
class Asked:
    """A run as it is asked for: a job, and the steps, or another load plan."""

    job: RunJob
    plans: tuple[StepPlan, ...] = ()
    load_plan: LoadPlan | None = None

    def ramp(
        self, load: Load, read: Any, clock: Clock, *, think: Think = at_once, access: Any = None, **followed: Any
    ) -> CapacityRun:
        """Return its capacity run with these seams, with a new load plan each time."""
        way = self.load_plan or FixedSteps(self.plans, to_the_end=not self.job.request.is_guarded)
        server = ServerAccess(read, **(access or {}))
        return CapacityRun(self.job, way, load, server, clock, observers=StepObservers(**followed), think=think)


def job(objectives: Objectives, budget: Budget, **given: Any) -> RunJob:
    """Return the job of a run of target `a`, with these values of its request."""
    return RunJob(RunRequest("a", objectives, budget, **given), "m", RunContext({"name": "short"}, {}))


def specs(prompt_tokens: int = 8, output_tokens: int = 3) -> Iterator[RequestSpec]:
    while True:
        yield one_spec(prompt_tokens, output_tokens)


def ready(to: Send, what: Iterator[RequestSpec] | None = None) -> Iterator[FakeRequest]:
    """Return requests to a server, prepared."""
    for one in specs() if what is None else what:
        yield FakeRequest(one, to)


@dataclass
class FakeServer:
    """`seconds` by how many are in flight (this one included); `outcome` by the number of the request, from 0."""

    seconds: Callable[[int], float] = lambda _: 0.1
    outcome: Callable[[int], Outcome] = lambda _: Outcome.OK
    detail: str | None = None  # of failures
    in_flight: int = 0
    peak: int = 0
    sent_s: list[float] = field(default_factory=list)
    ended: list[RequestRecord] = field(default_factory=list)

    async def __call__(self, spec: RequestSpec, scheduled_ns: int) -> RequestRecord:
        number = len(self.sent_s)
        start_s = asyncio.get_running_loop().time()
        self.sent_s.append(start_s)
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        try:
            await asyncio.sleep(self.seconds(self.in_flight))
        finally:
            self.in_flight -= 1
        took_s = asyncio.get_running_loop().time() - start_s
        gap_s = took_s / 100
        answer = record(
            ttft_s=took_s - gap_s * (spec.output_tokens - 1),
            gap_s=gap_s,
            start_s=start_s,
            asked=spec,
            outcome=self.outcome(number),
            traffic=Traffic.CAPACITY,
            scheduled_ns=scheduled_ns,
        )
        if answer.outcome is not Outcome.OK:
            answer = replace(answer, detail=self.detail or answer.detail)
        self.ended.append(answer)
        return answer


@dataclass
class FakeMetrics:
    """What the server says of itself; `values` by the seconds since the first reading, None: it cannot be read."""

    values: Callable[[float], dict[str, Any] | None] = lambda _: {}
    takes_s: float = 0.0
    read_s: list[float] = field(default_factory=list)

    async def __call__(self) -> ServerSnapshot:
        now_s = asyncio.get_running_loop().time()
        self.read_s.append(now_s)
        await asyncio.sleep(self.takes_s)
        values = self.values(now_s - self.read_s[0])
        if values is None:
            raise TargetError("http://a/metrics: no metrics of a server", Outcome.UNREACHABLE)
        return snapshot(**values)


@dataclass
class Timed(FakeMetrics):
    """Readings with the loop's time on them."""

    async def __call__(self) -> ServerSnapshot:
        reading = await super().__call__()
        return replace(reading, at_ns=round(asyncio.get_running_loop().time() * 1e9))
