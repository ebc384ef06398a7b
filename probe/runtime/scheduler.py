"""A scheduler of interval and cron tasks. The only module that imports apscheduler.

A task overlaps itself only where `every` allows it, and missed runs are dropped (coalesce): after a pause there is one
canary and not a burst. A task that fails, is late or is skipped is reported, because a monitor whose tasks silently do
not run would show a healthy server.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from apscheduler.events import (
    EVENT_JOB_ERROR,
    EVENT_JOB_EXECUTED,
    EVENT_JOB_MAX_INSTANCES,
    EVENT_JOB_MISSED,
    EVENT_JOB_SUBMITTED,
    JobEvent,
    JobSubmissionEvent,
)
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

# Share of an interval by which each run is moved at random, so that many instances do not run in step.
_JITTER = 0.1
_CRON_GRACE_S = 60
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_PROBLEMS = EVENT_JOB_ERROR | EVENT_JOB_MISSED | EVENT_JOB_MAX_INSTANCES


@dataclass(frozen=True, slots=True)
class TaskId:
    """A task: a kind of work (canary, scrape, capacity) on a target."""

    task: str
    target: str

    def __str__(self) -> str:
        return f"{self.task}:{self.target}"


def cron_trigger(expression: str, timezone: str = "UTC") -> CronTrigger:
    """Return the trigger for five cron fields. Raise ValueError for anything else.

    Weekdays are passed by name, because APScheduler counts them from Monday and cron from Sunday. Both day and weekday
    are refused: cron means either of them, APScheduler both.
    """
    minute, hour, day, month, weekday = expression.split()
    if "*" not in (day, weekday):
        raise ValueError("day and weekday are both given")
    return CronTrigger(
        minute=minute, hour=hour, day=day, month=month, day_of_week=_weekdays(weekday), timezone=ZoneInfo(timezone)
    )


def _weekdays(field: str) -> str:
    """Return a cron field of weekdays (0 to 7 or names; lists, ranges, steps) as a list of names."""
    if field == "*":
        return field
    days: set[int] = set()
    for part in field.lower().split(","):
        written = re.fullmatch(r"(?:\*|(\w+)(?:-(\w+))?)(?:/([0-9]+))?", part, re.ASCII)
        first, last, step = written.groups() if written else ("", "", "")
        low, high = (_weekday(first), _weekday(last or first)) if first is not None else (0, 6)
        if high < low or (step and first and not last):
            raise ValueError(f"{part!r} is not a range of weekdays")
        days |= {day % 7 for day in range(low, high + 1, int(step or 1))}
    return ",".join(_WEEKDAYS[day] for day in sorted(days))


def _weekday(text: str) -> int:
    day = _WEEKDAYS.index(text) if text in _WEEKDAYS else int(text)
    if not 0 <= day <= len(_WEEKDAYS):
        raise ValueError(f"{text!r} is not a weekday")
    return day


class Scheduler:
    """The tasks of one process. Callbacks run on the event loop."""

    def __init__(
        self,
        on_success: Callable[[TaskId], None],
        on_problem: Callable[[TaskId, str, BaseException | None], None],
        on_begin: Callable[[str, float], None] = lambda task, late_s: None,  # noqa: ARG005
    ) -> None:
        """`on_problem` is called with the task, what happened (failed, late, skipped) and the exception, if any;
        `on_begin` with the kind of task that starts and its lateness in seconds.
        """
        self._scheduler = AsyncIOScheduler(timezone=ZoneInfo("UTC"))
        self._tasks: dict[str, TaskId] = {}
        self._running: dict[asyncio.Task[object], TaskId] = {}
        self._is_stopped = False
        self._on_success = on_success
        self._on_problem = on_problem
        self._on_begin = on_begin
        self._scheduler.add_listener(self._heard, EVENT_JOB_EXECUTED | _PROBLEMS)
        self._scheduler.add_listener(self._submitted, EVENT_JOB_SUBMITTED)

    def every(
        self,
        task: TaskId,
        seconds: float,
        work: Callable[[], Awaitable[object]],
        *,
        first_s: float = 0.0,
        at_once: int = 1,
    ) -> None:
        """Run `work` in `first_s`, and then about every `seconds`. While `at_once` runs go on, the next is skipped."""
        first = datetime.now(ZoneInfo("UTC")) + timedelta(seconds=first_s)
        trigger = IntervalTrigger(seconds=seconds, jitter=seconds * _JITTER, timezone=ZoneInfo("UTC"))
        self._add(task, trigger, work, grace_s=max(int(seconds), 1), first=first, at_once=at_once)

    def cron(self, task: TaskId, expression: str, timezone: str, work: Callable[[], Awaitable[object]]) -> None:
        """Run `work` by a cron expression of five fields, in that time zone."""
        self._add(task, cron_trigger(expression, timezone), work, grace_s=_CRON_GRACE_S)

    def bring_forward(self, task: TaskId, seconds: float) -> None:
        """Make the next run of a task due in `seconds`."""
        due = datetime.now(ZoneInfo("UTC")) + timedelta(seconds=seconds)
        self._scheduler.modify_job(str(task), next_run_time=due)

    def start(self) -> None:
        """Start the tasks. Needs a running event loop."""
        self._scheduler.start()

    @property
    def is_running(self) -> bool:
        return bool(self._scheduler.running) and not self._is_stopped

    async def drop(self, target: str) -> None:
        """Remove a target's tasks, cancel those that run, and wait until they have ended."""
        for name, task in list(self._tasks.items()):
            if task.target == target:
                del self._tasks[name]
                self._scheduler.remove_job(name)
        ended = [running for running, task in self._running.items() if task.target == target]
        for running in ended:
            running.cancel()
        await asyncio.gather(*ended, return_exceptions=True)

    async def stop(self) -> None:
        """Start no more tasks, cancel those that run, and wait until they have ended."""
        if self.is_running:
            self._is_stopped = True  # the scheduler itself stops one loop iteration later
            self._scheduler.shutdown(wait=False)
            await asyncio.gather(*self._running, return_exceptions=True)

    def _add(
        self,
        task: TaskId,
        trigger: object,
        work: Callable[[], Awaitable[object]],
        *,
        grace_s: int,
        first: datetime | None = None,
        at_once: int = 1,
    ) -> None:
        async def tracked() -> None:
            current = asyncio.current_task()
            assert current is not None  # noqa: S101 - a coroutine always runs in a task
            if self._is_stopped or str(task) not in self._tasks:
                return
            self._running[current] = task
            try:
                await work()
            finally:
                self._running.pop(current, None)

        self._tasks[str(task)] = task
        when = {"next_run_time": first} if first else {}
        self._scheduler.add_job(
            tracked, trigger, id=str(task), max_instances=at_once, coalesce=True, misfire_grace_time=grace_s, **when
        )

    def _submitted(self, event: JobSubmissionEvent) -> None:
        due = event.scheduled_run_times[-1]
        if event.job_id in self._tasks:
            self._on_begin(self._tasks[event.job_id].task, max((datetime.now(due.tzinfo) - due).total_seconds(), 0.0))

    def _heard(self, event: JobEvent) -> None:
        task = self._tasks.get(event.job_id)
        if self._is_stopped or task is None:
            return  # a cancelled task has not failed
        if event.code == EVENT_JOB_EXECUTED:
            self._on_success(task)
        elif event.code == EVENT_JOB_ERROR:
            self._on_problem(task, "failed", event.exception)
        else:
            self._on_problem(task, "late" if event.code == EVENT_JOB_MISSED else "skipped", None)
