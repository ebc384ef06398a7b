"""The tasks of one process, at intervals and by cron: APScheduler's jobs.

A task overlaps itself only where `every` allows it, and missed runs are dropped: after a pause there is one canary and
not a burst. A task that fails, is late or is skipped is reported, because a monitor that silently skips its tasks
would show a healthy server. A wall clock that is set neither stops nor hurries what runs at intervals.
"""

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED, EVENT_JOB_MAX_INSTANCES, EVENT_JOB_MISSED
from apscheduler.executors.asyncio import AsyncIOExecutor
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.base import STATE_RUNNING
from apscheduler.triggers.base import BaseTrigger

from probe.core.clock import Clock
from probe.runtime.run_times import Trigger

# Share of an interval by which each run is moved at random, so that many instances do not run in step.
_JITTER = 0.1
# The wall clock may be set at any time, and runs on while the machine is suspended: so it is looked at this often.
_LOOK_S = 15.0
_CRON_GRACE_S = 1800.0
# By less the wall clock may move unnoticed. A run by cron begins so much later, and never before its time.
_SET = timedelta(milliseconds=50)
# A clock set back by more than this was wrong before, and the due time is computed again. After a smaller step nothing
# runs twice. Vixie cron does the same.
_CORRECTED = timedelta(hours=3)
_NEVER = timedelta(days=36500)  # from now: of a trigger that has no more times
_PROBLEMS = {EVENT_JOB_ERROR: "failed", EVENT_JOB_MISSED: "late", EVENT_JOB_MAX_INSTANCES: "skipped"}

# What it says of a job is reported here, in a bounded log.
logging.getLogger("apscheduler.executors").setLevel(logging.CRITICAL)
logging.getLogger("apscheduler.scheduler").setLevel(logging.ERROR)

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


class _SteadyTime(tzinfo):
    """The time by the monotonic clock, as the time zone of all jobs.

    APScheduler takes no clock. It asks Python for `datetime.now(zone)`, which asks the zone: so no time of a job moves
    when the wall clock is set. All times of jobs are in this zone; one converted to it would become now.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._zero = clock, datetime(1970, 1, 1, tzinfo=self)
        self.wall_ahead = timedelta()

    def fromutc(self, _: datetime) -> datetime:
        return self.now()

    def utcoffset(self, _: datetime | None) -> timedelta:
        return timedelta()

    def dst(self, _: datetime | None) -> None:
        return None

    def tzname(self, _: datetime | None) -> str:
        return "steady"

    def now(self) -> datetime:
        return self._zero + timedelta(microseconds=self._clock.monotonic_ns() // 1000)

    def look(self) -> timedelta:
        """Return by how much the wall clock has been set since the last look."""
        ahead = timedelta(seconds=self._clock.wall_s() - self.now().timestamp())
        if abs(leap := ahead - self.wall_ahead) < _SET:
            return timedelta()
        self.wall_ahead = ahead
        return leap


class _Interval(BaseTrigger):
    """About every `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def get_next_fire_time(self, previous_fire_time: datetime, now: datetime) -> datetime:
        # Whole intervals, so that targets spread over an interval stay so after a pause. The nearest number of them:
        # the next run is never in less than half an interval, however late this one is.
        missed = round(max((now - previous_fire_time).total_seconds(), 0.0) / self._seconds)
        apart = random.uniform(1 - _JITTER / 2, 1 + _JITTER / 2)  # noqa: S311 - it spreads load, it guards no secret
        return previous_fire_time + timedelta(seconds=(missed + apart) * self._seconds)


class _Cron(BaseTrigger):
    """The times of a trigger on the wall clock."""

    def __init__(self, trigger: Trigger, time: _SteadyTime) -> None:
        self._trigger, self._time = trigger, time

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime:
        after = max(previous_fire_time or now, now).replace(tzinfo=UTC) + self._time.wall_ahead
        due = self._trigger.get_next_fire_time(None, after + timedelta(microseconds=1))
        if due is None:
            return now + _NEVER
        return due.astimezone(UTC).replace(tzinfo=self._time) - self._time.wall_ahead + _SET


class _Runs(AsyncIOExecutor):
    """The runs in progress of a target's tasks."""

    def _do_submit_job(self, job: Any, run_times: list[datetime]) -> None:  # noqa: ANN401 - APScheduler has no types
        late = self._scheduler.timezone.now() - run_times[-1]
        job.kwargs["late_s"] = late.total_seconds()
        super()._do_submit_job(job, [datetime.now(UTC) - late])  # it compares this with the system's clock

    async def end(self) -> None:
        """Cancel the runs, and wait until they have ended."""
        runs = list(self._pending_futures)
        self.shutdown()
        await asyncio.gather(*runs, return_exceptions=True)


class _Jobs(AsyncIOScheduler):
    """APScheduler, which looks at the wall clock, too: whenever it wakes, and every `_LOOK_S`."""

    def _process_jobs(self) -> float | None:
        self.follow_wall_clock()
        wait_s: float | None = super()._process_jobs()
        return wait_s and min(wait_s, _LOOK_S)

    def follow_wall_clock(self) -> None:
        """Move what is due by cron as the wall clock was set."""
        if not (leap := self.timezone.look()):
            return
        for job in self.get_jobs():
            if isinstance(job.trigger, _Cron):
                due = job.next_run_time - leap
                if leap < -_CORRECTED:
                    due = job.trigger.get_next_fire_time(None, self.timezone.now())
                job.modify(next_run_time=due)


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
        self._clock, self._time = clock, _SteadyTime(clock)
        self._on_success, self._on_problem, self._on_begin = on_success, on_problem, on_begin
        self._tasks: dict[str, TaskId] = {}  # by the ID of its job
        self._runs: dict[str, _Runs] = {}  # by target
        self._jobs = _Jobs(timezone=self._time, job_defaults={"coalesce": True})
        self._jobs.add_listener(self._heard, EVENT_JOB_EXECUTED | sum(_PROBLEMS))

    @property
    def tasks(self) -> Collection[TaskId]:
        """Return the scheduled tasks."""
        return self._tasks.values()

    def every(self, task: TaskId, seconds: float, work: Work, *, first_s: float = 0.0, at_once: int = 1) -> None:
        """Run `work` in `first_s`, and then about every `seconds`. While `at_once` runs go on, the next is skipped."""
        first = self._time.now() + timedelta(seconds=first_s)
        self._add(task, _Interval(seconds), lambda _: work(), first, max_instances=at_once, misfire_grace_time=None)

    def cron(self, task: TaskId, trigger: Trigger, work: TimedWork, *, grace_s: float = _CRON_GRACE_S) -> None:
        """Run `work` at the times of a trigger, or up to `grace_s` later."""
        self._jobs.follow_wall_clock()
        times = _Cron(trigger, self._time)
        first = times.get_next_fire_time(None, self._time.now())
        self._add(task, times, work, first, max_instances=1, misfire_grace_time=math.ceil(grace_s))

    def bring_forward(self, task: TaskId, seconds: float) -> None:
        """Make the next run of a task due in `seconds`, unless it is due sooner."""
        job = self._jobs.get_job(repr(task))
        job.modify(next_run_time=min(job.next_run_time, self._time.now() + timedelta(seconds=seconds)))

    def next_s(self, task: TaskId) -> float | None:
        """Return the wall time at which a task is due next; None if it is not scheduled."""
        job = self._jobs.get_job(repr(task))
        return job.next_run_time.timestamp() if job is not None and job.next_run_time is not None else None

    def start(self) -> None:
        """Start the tasks. Needs a running event loop."""
        self._jobs.start()

    @property
    def is_running(self) -> bool:
        return bool(self._jobs.state == STATE_RUNNING)

    async def drop(self, target: str) -> None:
        """Remove a target's tasks, cancel those that run, and wait until they have ended."""
        if (runs := self._runs.pop(target, None)) is None:
            return
        for job_id in [job_id for job_id, task in self._tasks.items() if task.target == target]:
            del self._tasks[job_id]
            self._jobs.remove_job(job_id)
        self._jobs.remove_executor(repr(target), shutdown=False)
        if self._jobs.running:
            await runs.end()

    async def stop(self) -> None:
        """Start no more tasks, cancel those that run, and wait until they have ended."""
        if self.is_running:
            self._jobs.pause()
            await asyncio.gather(*map(self.drop, list(self._runs)))
            self._jobs.shutdown()
            await asyncio.sleep(0)  # which takes it a turn of the loop

    def _add(self, task: TaskId, trigger: BaseTrigger, work: TimedWork, first: datetime, **limits: int | None) -> None:
        job_id, executor = repr(task), repr(task.target)  # never "default", which is APScheduler's own
        if job_id in self._tasks:
            raise ValueError(f"{task} is scheduled already")
        if task.target not in self._runs:
            self._runs[task.target] = _Runs()
            self._jobs.add_executor(self._runs[task.target], executor)
        self._tasks[job_id] = task
        self._jobs.add_job(
            self._run, trigger, (task, work), id=job_id, executor=executor, next_run_time=first, **limits
        )

    async def _run(self, task: TaskId, work: TimedWork, late_s: float = 0.0) -> None:
        self._on_begin(task.task, late_s)
        await work(self._clock.wall_s() - late_s)

    def _heard(self, event: Any) -> None:  # noqa: ANN401 - APScheduler has no types
        if (task := self._tasks.get(event.job_id)) is None:  # what is cancelled by its removal has not failed
            return
        if event.code == EVENT_JOB_EXECUTED:
            self._on_success(task)
        else:
            self._on_problem(task, _PROBLEMS[event.code], getattr(event, "exception", None))
