"""A scheduler of interval and cron tasks.

A task overlaps itself only where `every` allows it, and missed runs are dropped: after a pause there is one canary and
not a burst. A task that fails, is late or is skipped is reported, because a monitor whose tasks silently do not run
would show a healthy server.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

from probe.core.clock import Clock
from probe.runtime.due_times import Cron, DueTimes, Interval

Work = Callable[[], Awaitable[object]]


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
    work: Work
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
        """`on_problem` is called with the task, what happened (failed, late, skipped) and the exception, if any;
        `on_begin` with the kind of task that starts and its lateness in seconds.
        """
        self._clock = clock
        self._tasks: dict[TaskId, _Task] = {}
        self._is_started = self._is_stopped = False
        self._on_success = on_success
        self._on_problem = on_problem
        self._on_begin = on_begin

    @property
    def tasks(self) -> Collection[TaskId]:
        """The scheduled tasks."""
        return self._tasks.keys()

    def every(self, task: TaskId, seconds: float, work: Work, *, first_s: float = 0.0, at_once: int = 1) -> None:
        """Run `work` in `first_s`, and then about every `seconds`. While `at_once` runs go on, the next is skipped."""
        self._add(_Task(task, work, Interval(self._clock, seconds, first_s), at_once))

    def cron(self, task: TaskId, expression: str, timezone: str, work: Work) -> None:
        """Run `work` by a cron expression of five fields, in that time zone."""
        self._add(_Task(task, work, Cron(self._clock, expression, timezone)))

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
            run = asyncio.create_task(self._run(task))
            task.runs.add(run)
            run.add_done_callback(task.runs.discard)

    async def _run(self, task: _Task) -> None:
        try:
            await task.work()
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
