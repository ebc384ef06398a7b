"""The forecasts of all targets of one process: one queue, the oldest evidence first, within a budget of CPU.

A forecast is computed in a process of low priority. As many go on at once as the budget has cores, rounded up. After
one that took c seconds of CPU none begins until c / cores seconds have passed since its beginning. So in any time they
take no more together than the budget, and one forecast for each process. Where that is too little for the forecasts
that are due, each one is made less often.

In: the targets, with the work that makes their forecasts. Out: their results, by that work; what failed, to a callback.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from probe.core.clock import Clock
from probe.runtime.helper_process import Compute, KeptHelper
from probe.runtime.scheduler import TaskId

FORECAST = "forecast"  # the task
# Work that computes elsewhere. Returns after how many seconds to try again, None: after the usual interval.
ForecastWork = Callable[[Compute], Awaitable[float | None]]
# A turn comes so much sooner than its interval, since it waits for others.
_EARLY = 0.9
# A helper process costs 50 MiB while it waits, and a quarter of a second of CPU to start.
_KEEP_S = 60.0


class Helper(Protocol):
    """What the queue needs of a KeptHelper."""

    cpu_s: float

    async def compute(self, name: str, *args: Any) -> Any: ...  # noqa: ANN401
    def close(self) -> None: ...


@dataclass(slots=True, eq=False)
class _Turn:
    """One target in the queue. `seen_s`: when its last forecast began, so how old its evidence is."""

    target: str
    every_s: float
    work: ForecastWork
    due_s: float = -math.inf
    seen_s: float = -math.inf


class ForecastQueue:
    """The queue, and the processes that compute. Times are monotonic seconds."""

    def __init__(
        self,
        clock: Clock,
        cores: Callable[[], float],
        on_success: Callable[[TaskId], None],
        on_problem: Callable[[TaskId, str, BaseException | None], None],
        *,
        on_cpu: Callable[[float], None] = lambda _: None,
        new_process: Callable[[], Helper] = KeptHelper,
    ) -> None:
        """Take `cores`: returns the budget. Callbacks are those of the scheduler, and `on_cpu` for seconds spent."""
        self._on_cpu = on_cpu
        self._new_process = new_process
        self._clock, self._cores = clock, cores
        self._on_success, self._on_problem = on_success, on_problem
        self._turns: dict[str, _Turn] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._idle: list[Helper] = []
        self._free_s = -math.inf  # by the budget
        self._changed = asyncio.Event()

    def add(self, target: str, every_s: float, work: ForecastWork) -> None:
        """Make a target's forecasts, the first one now."""
        self._turns[target] = _Turn(target, every_s, work)
        self._changed.set()

    async def drop(self, target: str) -> None:
        """Make no more forecasts of a target, and wait until one in progress has ended."""
        self._turns.pop(target, None)
        await self._end(target)

    def next_s(self, target: str) -> float | None:
        """Return the wall time (s) at which a target's next forecast is due; None without one."""
        turn = self._turns.get(target)
        return None if turn is None else self._clock.wall_s() + max(turn.due_s - self._now_s(), 0.0)

    async def follow(self) -> None:
        """Make the forecasts, until cancelled."""
        try:
            while True:
                self._changed.clear()
                wait_s = self._begin_due()
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._changed.wait()
        finally:
            await asyncio.gather(*map(self._end, list(self._running)))
            self._close_idle()

    def _begin_due(self) -> float | None:
        """Begin what the budget allows. Return after how many seconds to look again; None: after a change."""
        now_s, most = self._now_s(), math.ceil(self._cores())
        while len(self._running) < most and now_s >= self._free_s and (turn := self._oldest_due(now_s)) is not None:
            self._running[turn.target] = asyncio.create_task(self._make(turn, now_s))
        if len(self._running) >= most:
            return None
        due_s = min((turn.due_s for turn in self._turns.values() if turn.target not in self._running), default=math.inf)
        begins_in_s = max(due_s, self._free_s) - now_s
        if begins_in_s > _KEEP_S:
            self._close_idle()
        return min(begins_in_s, _KEEP_S)

    def _oldest_due(self, now_s: float) -> _Turn | None:
        due = [turn for turn in self._turns.values() if turn.due_s <= now_s and turn.target not in self._running]
        return min(due, key=lambda turn: (turn.seen_s, turn.due_s), default=None)

    async def _make(self, turn: _Turn, began_s: float) -> None:
        task, again_s = TaskId(FORECAST, turn.target), None
        helper = self._idle.pop() if self._idle else self._new_process()
        spent_s = helper.cpu_s
        try:
            again_s = await turn.work(helper.compute)
            self._on_success(task)
        except Exception as error:  # noqa: BLE001 - whatever it is: others must go on
            self._on_problem(task, "failed", error)
        finally:
            spent_s = helper.cpu_s - spent_s
            self._on_cpu(spent_s)
            self._free_s = max(self._free_s, began_s) + spent_s / self._cores()
            self._idle.append(helper)
            usual_s = _EARLY * turn.every_s
            turn.seen_s, turn.due_s = began_s, began_s + min(again_s or usual_s, usual_s)
            del self._running[turn.target]
            self._changed.set()

    async def _end(self, target: str) -> None:
        if (running := self._running.get(target)) is not None:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _now_s(self) -> float:
        return self._clock.monotonic_ns() / 1e9
