"""One capacity run of Kneewatch on a case, in virtual time: the real CapacityRun, guard, summary and search."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from benchmarks.capacity.busy import BusyMachine
from benchmarks.capacity.cases import Case
from benchmarks.capacity.virtual_load import VirtualLoad
from probe.capacity.run.load_plan import LoadPlan
from probe.capacity.run.request import Budget, RunJob, RunRequest
from probe.capacity.run.runner import CapacityRun
from probe.capacity.run.seams import ServerAccess, Think
from probe.core.clock import Clock
from probe.core.objectives import Objectives
from probe.core.result import CapacityResult, RunContext
from probe.core.snapshot import ServerSnapshot
from probe.simulator.simulated_request import SimulatedRequest
from tests.virtual_time import VirtualClock, virtually

_T = TypeVar("_T")
_PLENTY = Budget(10**9, 1800, 20)


@dataclass(frozen=True, slots=True)
class Played:
    """A run's result, and how many live requests ended during it (`users`), late or slow ones among them (`spoilt`)."""

    result: CapacityResult
    users: int
    spoilt: int


@dataclass(slots=True)
class Arithmetic:
    """Does a search's arithmetic, which takes its CPU time in virtual time too, and adds that up."""

    seconds: float = field(default=0.0)

    async def __call__(self, work: Callable[[], _T]) -> _T:
        begun_s = time.process_time()
        done = work()
        took_s = time.process_time() - begun_s
        self.seconds += took_s
        await asyncio.sleep(took_s)
        return done


async def _at_once(work: Callable[[], _T]) -> _T:
    return work()


def play(
    case: Case,
    truth_rps: float,
    seed: int,
    load_plan: LoadPlan,
    *,
    live_share: float = 0.2,
    budget: Budget = _PLENTY,
    is_guarded: bool = True,
    page: Callable[[float, ServerSnapshot], ServerSnapshot] = lambda _, snapshot: snapshot,
    clock: Clock | None = None,
    think: Think = _at_once,
    machine: BusyMachine | None = None,
) -> Played:
    """Run the load plan on the case, with live users at a share of its capacity.

    `page` returns the server's metrics as read, from the seconds since the run began and the true page; it may
    raise. `think` does the load plan's arithmetic, by default in no time. `machine`: what Kneewatch runs on, by default
    a quiet one.
    """
    server = case.server(seed, live_share * truth_rps)
    users: list[SimulatedRequest] = []

    async def run() -> CapacityResult:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        # Let the server fill with users first.
        server.advance(begin)
        await asyncio.sleep(120)
        server.advance(loop.time())
        server.ended_requests.clear()
        load = VirtualLoad(server, case.workload, seed, machine)
        load.on_ended = lambda request: None if request.is_probe else users.append(request)

        async def read() -> ServerSnapshot:
            server.advance(max(loop.time(), server.now_s))
            seen = page(loop.time() - begun, server.snapshot())
            if machine is None:
                return seen
            await asyncio.sleep(machine.handled_s(loop.time()) - loop.time())
            return replace(seen, at_ns=round(loop.time() * 1e9))

        request = RunRequest("bench", case.objectives, budget, is_guarded=is_guarded)
        job = RunJob(request, "bench", RunContext({"name": "bench"}, {}))
        begun = loop.time()
        ramp = CapacityRun(job, load_plan, load, ServerAccess(read), clock or VirtualClock(), think=think)
        result = await ramp.run()
        await asyncio.sleep(60)
        load._collect(loop.time(), lambda _: None)
        return result

    result = virtually(run(), within_s=10_000)
    return Played(result, len(users), sum(_is_spoilt(request, case.objectives) for request in users))


def _is_spoilt(request: SimulatedRequest, objectives: Objectives) -> bool:
    """Return whether the request was late or slow."""
    limits = objectives.latencies()
    took_s = {"ttft": request.ttft_s, "tpot": request.tpot_s, "e2e": request.e2e_s}
    if "itl" in limits:
        took_s["itl"] = request.longest_gap_s()
    return any(took_s[name] > limit.within_s for name, limit in limits.items())
