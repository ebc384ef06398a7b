"""A scheduler of tasks: when each is due, by the monotonic clock or by cron, and how it runs.

A task overlaps itself only where `every` allows it, and missed runs are dropped: after a pause there is one canary and
not a burst. A task that fails, is late or is skipped is reported, because a monitor that silently skips its tasks
would show a healthy server. A wall clock that is set neither stops nor hurries what runs at intervals.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Protocol

from probe.core.clock import Clock
from probe.runtime.run_times import Trigger

# Share of an interval by which each run is moved at random, so that many instances do not run in step.
_JITTER = 0.1
# The wall clock may be set at any time, and runs on while the machine is suspended: so it is looked at this often.
_LOOK_S = 15.0
_CRON_GRACE_S = 1800.0
# A clock set back by more than this was wrong before, and the due time is computed again. After a smaller step nothing
# runs twice. Vixie cron does the same.
_CORRECTED_S = 3 * 3600.0


class DueTimes(Protocol):
    """The times at which one task is due, one after the other."""

    @property
    def grace_s(self) -> float | None:
        """Return after how many seconds of lateness a run is left out; None: a late run is better than none."""
        ...

    def late_s(self) -> float:
        """Return for how long the task has been due, in seconds; negative while it is not."""
        ...

    def wait_s(self) -> float:
        """Return how long to wait before `late_s` is asked again, in seconds."""
        ...

    def advance(self) -> None:
        """Go on to the next due time after now."""
        ...

    def bring_forward(self, seconds: float) -> None:
        """Make the task due in `seconds` unless it is sooner, and then as usual."""
        ...


class Interval:
    """About every `seconds`, for the first time in `first_s`. Times that were missed are left out."""

    grace_s = None

    def __init__(self, clock: Clock, seconds: float, first_s: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._due_ns = clock.monotonic_ns() + int(first_s * 1e9)

    def late_s(self) -> float:
        return (self._clock.monotonic_ns() - self._due_ns) * 1e-9

    def wait_s(self) -> float:
        return -self.late_s()

    def advance(self) -> None:
        # Whole intervals, so that targets spread over an interval stay so after a pause. The nearest number of them:
        # the next run is never in less than half an interval, however late this one is.
        missed = round(max(self.late_s(), 0.0) / self._seconds)
        apart = random.uniform(1 - _JITTER / 2, 1 + _JITTER / 2)  # noqa: S311 - it spreads load, it guards no secret
        self._due_ns += int((missed + apart) * self._seconds * 1e9)

    def bring_forward(self, seconds: float) -> None:
        self._due_ns = min(self._due_ns, self._clock.monotonic_ns() + int(seconds * 1e9))


class Cron:
    """The times of a trigger on the wall clock."""

    def __init__(self, clock: Clock, trigger: Trigger, grace_s: float) -> None:
        self._clock = clock
        self._trigger = trigger
        self.grace_s: float | None = grace_s
        self._last_s = clock.wall_s()
        self._due_s = self._next_s(self._last_s)

    def late_s(self) -> float:
        now_s = self._clock.wall_s()
        if now_s < self._last_s - _CORRECTED_S:
            self._due_s = self._next_s(now_s)
        self._last_s = now_s
        return now_s - self._due_s

    def wait_s(self) -> float:
        return min(-self.late_s(), _LOOK_S)

    def advance(self) -> None:
        self._due_s = self._next_s(max(self._clock.wall_s(), self._due_s))

    def bring_forward(self, seconds: float) -> None:
        self._due_s = min(self._due_s, self._clock.wall_s() + seconds)

    def _next_s(self, after_s: float) -> float:
        """Return the next due time after a wall time; infinite if there is none, as of 31 February."""
        after = datetime.fromtimestamp(after_s, UTC) + timedelta(microseconds=1)
        due = self._trigger.get_next_fire_time(None, after)
        return float("inf") if due is None else float(due.timestamp())


Work = Callable[[], Awaitable[object]]
TimedWork = Callable[[float], Awaitable[object]]  # by the wall time (s) at which it was due


@dataclass(frozen=True, slots=True)
class TaskId:
    """A task: a kind of work (canary, scrape, capacity) on a target. `number` distinguishes several of one kind."""

    task: str
    target: str
    number: int = 0

    def __str__(self) -> str:
        return f"{self.task}:{self.target}" + (f":{self.number}" if self.number else "")


@dataclass(slots=True)
class _Task:
    """A scheduled task, its timer, and its runs in progress."""

    id: TaskId
    work: TimedWork
    due: DueTimes
    at_once: int = 1
    timer: asyncio.TimerHandle | None = None
    runs: set[asyncio.Task[None]] = field(default_factory=set)

    def stop(self) -> set[asyncio.Task[None]]:
        """Cancel the timer and the runs in progress. Return those."""
        if self.timer is not None:
            self.timer.cancel()
        for run in self.runs:
            run.cancel()
        return self.runs


class Scheduler:
    """The tasks of one process. Callbacks run on the event loop."""

    def __init__(
        self,
        clock: Clock,
        on_success: Callable[[TaskId], None],
        on_problem: Callable[[TaskId, str, BaseException | None], None],
        on_begin: Callable[[str, float], None] = lambda task, late_s: None,  # noqa: ARG005
    ) -> None:
        """Call `on_problem` with the task, what happened (failed, late, skipped) and the exception, if any.

        Call `on_begin` with the kind of task that starts and its lateness in seconds.
        """
        self._clock = clock
        self._tasks: dict[TaskId, _Task] = {}
        self._is_started = self._is_stopped = False
        self._on_success = on_success
        self._on_problem = on_problem
        self._on_begin = on_begin

    @property
    def tasks(self) -> Collection[TaskId]:
        """Return the scheduled tasks."""
        return self._tasks.keys()

    def every(self, task: TaskId, seconds: float, work: Work, *, first_s: float = 0.0, at_once: int = 1) -> None:
        """Run `work` in `first_s`, and then about every `seconds`. While `at_once` runs go on, the next is skipped."""
        self._add(_Task(task, lambda _: work(), Interval(self._clock, seconds, first_s), at_once))

    def cron(self, task: TaskId, trigger: Trigger, work: TimedWork, *, grace_s: float = _CRON_GRACE_S) -> None:
        """Run `work` at the times of a trigger, or up to `grace_s` later."""
        self._add(_Task(task, work, Cron(self._clock, trigger, grace_s)))

    def bring_forward(self, task: TaskId, seconds: float) -> None:
        """Make the next run of a task due in `seconds`, unless it is due sooner."""
        scheduled = self._tasks[task]
        scheduled.due.bring_forward(seconds)
        if self.is_running:
            self._arm(scheduled)

    def start(self) -> None:
        """Start the tasks. Needs a running event loop."""
        self._is_started = True
        for task in self._tasks.values():
            self._arm(task)

    @property
    def is_running(self) -> bool:
        return self._is_started and not self._is_stopped

    async def drop(self, target: str) -> None:
        """Remove a target's tasks, cancel those that run, and wait until they have ended."""
        dropped = [self._tasks.pop(task) for task in list(self._tasks) if task.target == target]
        await _end(dropped)

    async def stop(self) -> None:
        """Start no more tasks, cancel those that run, and wait until they have ended."""
        self._is_stopped = self._is_started
        await _end(self._tasks.values())

    def _add(self, task: _Task) -> None:
        if task.id in self._tasks:
            raise ValueError(f"{task.id} is scheduled already")
        self._tasks[task.id] = task
        if self.is_running:
            self._arm(task)

    def _arm(self, task: _Task) -> None:
        """Set the timer for when the task may be due."""
        if task.timer is not None:
            task.timer.cancel()
        task.timer = asyncio.get_running_loop().call_later(max(task.due.wait_s(), 0.0), self._check, task)

    def _check(self, task: _Task) -> None:
        """Begin a run if the task is due."""
        late_s = task.due.late_s()
        if late_s >= 0:
            task.due.advance()
        self._arm(task)
        if late_s < 0:
            return
        if task.due.grace_s is not None and late_s > task.due.grace_s:
            self._on_problem(task.id, "late", None)
        elif len(task.runs) >= task.at_once:
            self._on_problem(task.id, "skipped", None)
        else:
            self._on_begin(task.id.task, late_s)
            run = asyncio.create_task(self._run(task, self._clock.wall_s() - late_s))
            task.runs.add(run)
            run.add_done_callback(task.runs.discard)

    async def _run(self, task: _Task, due_s: float) -> None:
        try:
            await task.work(due_s)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - whatever it is: it is reported
            if self._has(task):  # one that is cancelled by its removal has not failed
                self._on_problem(task.id, "failed", error)
        else:
            if self._has(task):
                self._on_success(task.id)

    def _has(self, task: _Task) -> bool:
        return not self._is_stopped and self._tasks.get(task.id) is task


async def _end(tasks: Collection[_Task]) -> None:
    await asyncio.gather(*(run for task in tasks for run in task.stop()), return_exceptions=True)
