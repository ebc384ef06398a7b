"""When tasks run, and that one that does not run is heard of."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from probe.runtime.scheduler import Scheduler, TaskId, cron_trigger

CANARY = TaskId("canary", "a")
NEVER = "0 0 29 2 *"


@pytest.fixture(autouse=True)
def _quiet() -> None:
    logging.getLogger("apscheduler").setLevel(logging.CRITICAL)


@dataclass
class Heard:
    succeeded: list[TaskId] = field(default_factory=list)
    problems: list[tuple[TaskId, str, BaseException | None]] = field(default_factory=list)

    def schedule(self) -> Scheduler:
        return Scheduler(self.succeeded.append, lambda task, what, error: self.problems.append((task, what, error)))


def _during(seconds: float, heard: Heard, plan: Callable[[Scheduler], object]) -> None:
    async def run() -> None:
        schedule = heard.schedule()
        plan(schedule)
        schedule.start()
        await asyncio.sleep(seconds)
        await schedule.stop()

    asyncio.run(run())


@dataclass
class Work:
    """A task that notes when it began, and how many of it ran at the same time."""

    body: Callable[[], Awaitable[None]] | None = None
    began: list[float] = field(default_factory=list)
    ended: int = 0
    at_once: int = 0
    most_at_once: int = 0

    async def __call__(self) -> None:
        self.began.append(asyncio.get_running_loop().time())
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self.body:
                await self.body()
            self.ended += 1
        finally:
            self.at_once -= 1


def _sleeps(seconds: float) -> Callable[[], Coroutine[Any, Any, None]]:
    return lambda: asyncio.sleep(seconds)


def test_an_interval_task_runs_at_once_and_again_and_its_successes_are_heard() -> None:
    heard, work = Heard(), Work()
    _during(0.5, heard, lambda s: s.every(CANARY, 0.1, work))
    assert 3 <= len(work.began) <= 8
    assert heard.succeeded == [CANARY] * work.ended
    assert heard.problems == []


def test_a_task_never_overlaps_itself_and_what_was_skipped_is_heard() -> None:
    heard, work = Heard(), Work(_sleeps(0.35))
    _during(0.6, heard, lambda s: s.every(CANARY, 0.1, work))
    assert work.most_at_once == 1
    assert (CANARY, "skipped", None) in heard.problems


def test_a_task_that_may_overlap_does_so_up_to_its_bound() -> None:
    heard, work = Heard(), Work(_sleeps(5.0))
    _during(0.6, heard, lambda s: s.every(CANARY, 0.1, work, at_once=3))
    assert work.most_at_once == 3
    assert (CANARY, "skipped", None) in heard.problems


def test_one_slow_task_does_not_hold_up_another() -> None:
    heard, slow, quick = Heard(), Work(_sleeps(5.0)), Work()

    def plan(schedule: Scheduler) -> None:
        schedule.every(CANARY, 0.1, slow)
        schedule.every(TaskId("canary", "b"), 0.1, quick)

    _during(0.4, heard, plan)
    assert quick.ended >= 3


def test_a_task_that_raises_is_heard_with_its_error_and_runs_again() -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    heard, work = Heard(), Work(fail)
    _during(0.4, heard, lambda s: s.every(CANARY, 0.1, work))
    assert len(work.began) >= 3
    assert heard.succeeded == []
    assert len(heard.problems) == len(work.began)
    assert all(
        (task, what) == (CANARY, "failed") and isinstance(error, ZeroDivisionError)
        for task, what, error in heard.problems
    )


def test_a_run_that_comes_too_late_is_left_out_and_heard() -> None:
    heard, work = Heard(), Work()

    def plan(schedule: Scheduler) -> None:
        schedule.cron(CANARY, NEVER, "UTC", work)
        schedule.bring_forward(CANARY, -3600.0)

    _during(0.1, heard, plan)
    assert work.began == []
    assert heard.problems == [(CANARY, "late", None)]


def test_missed_runs_are_not_repeated() -> None:
    heard, work = Heard(), Work()

    def plan(schedule: Scheduler) -> None:
        schedule.every(CANARY, 60.0, work)
        schedule.bring_forward(CANARY, -600.0)

    _during(0.1, heard, plan)
    assert len(work.began) <= 1


def test_a_run_can_be_brought_forward() -> None:
    heard, work = Heard(), Work()

    def plan(schedule: Scheduler) -> None:
        schedule.cron(CANARY, NEVER, "UTC", work)
        schedule.bring_forward(CANARY, 0.1)

    _during(0.3, heard, plan)
    assert work.ended == 1


@pytest.mark.parametrize(("zone", "hour_utc"), [("UTC", {4}), ("Europe/Berlin", {2, 3}), ("Asia/Tokyo", {19})])
def test_a_cron_expression_is_read_in_its_time_zone(zone: str, hour_utc: set[int]) -> None:
    async def due() -> datetime:
        schedule = Heard().schedule()
        schedule.cron(CANARY, "0 4 * * *", zone, Work())
        schedule.start()
        (job,) = schedule._scheduler.get_jobs()
        await schedule.stop()
        when: datetime = job.next_run_time
        return when.astimezone(UTC)

    when = asyncio.run(due())
    assert when.hour in hour_utc
    assert timedelta() < when - datetime.now(UTC) <= timedelta(days=1, hours=1)


def test_intervals_are_moved_about_so_that_a_fleet_does_not_pulse() -> None:
    schedule = Heard().schedule()
    for i in range(20):
        schedule.every(TaskId("canary", str(i)), 100.0, Work())
    now = datetime.now(UTC)
    second_runs = [job.trigger.get_next_fire_time(now, now) for job in schedule._scheduler.get_jobs()]
    gaps = [(run - now).total_seconds() for run in second_runs]
    assert len({round(gap, 3) for gap in gaps}) > 10
    assert 89 < min(gaps) <= max(gaps) < 111


def test_stopping_cancels_what_runs_and_waits_until_it_has_ended() -> None:
    async def run() -> None:
        async def body() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.05)
                cleaned.append(True)

        schedule = heard.schedule()
        schedule.every(CANARY, 60.0, Work(body))
        schedule.start()
        await asyncio.sleep(0.1)
        async with asyncio.timeout(1):
            await schedule.stop()
        assert cleaned == [True]

    cleaned: list[bool] = []
    heard = Heard()
    asyncio.run(run())


@pytest.mark.parametrize(
    ("field", "days"),
    [
        ("1-5", "Mon Tue Wed Thu Fri"),
        ("0", "Sun"),
        ("7", "Sun"),
        ("5-7", "Fri Sat Sun"),
        ("mon-fri", "Mon Tue Wed Thu Fri"),
        ("SAT,0", "Sat Sun"),
        ("1-5/2", "Mon Wed Fri"),
        ("*/3", "Sun Wed Sat"),
        ("*", "Mon Tue Wed Thu Fri Sat Sun"),
    ],
)
def test_weekdays_are_those_of_cron(field: str, days: str) -> None:
    trigger, at, fired = cron_trigger(f"30 4 * * {field}"), datetime(2026, 11, 23, tzinfo=UTC), set()
    while at < datetime(2026, 11, 30, tzinfo=UTC):
        at = trigger.get_next_fire_time(None, at) + timedelta(minutes=1)
        fired.add(f"{at:%a}" if at < datetime(2026, 11, 30, tzinfo=UTC) else None)
    assert fired - {None} == set(days.split())


@pytest.mark.parametrize(
    "field", ["8", "-1", "5-1", "fri-mon", "1/0", "1/x", "someday", "", "1--2", ",", "1-", "1-5/", "+1", "1/2"]
)
def test_weekdays_that_are_none_are_refused(field: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        cron_trigger(f"30 4 * * {field}")


def test_a_day_and_a_weekday_at_once_are_refused_since_cron_would_mean_either() -> None:
    with pytest.raises(ValueError, match="both"):
        cron_trigger("30 4 13 * 5")


def test_tasks_cancelled_by_stopping_are_no_failures() -> None:
    heard, work = Heard(), Work(_sleeps(60))

    async def run() -> None:
        schedule = heard.schedule()
        schedule.every(CANARY, 60.0, work)
        schedule.start()
        await asyncio.sleep(0.1)
        await schedule.stop()
        await asyncio.sleep(0.05)

    asyncio.run(run())
    assert len(work.began) == 1
    assert heard.problems == []


def test_nothing_starts_after_stop_and_it_says_that_it_is_stopped() -> None:
    async def run() -> None:
        schedule = Heard().schedule()
        states = [schedule.is_running]
        schedule.every(CANARY, 0.1, work)
        schedule.start()
        states.append(schedule.is_running)
        await asyncio.sleep(0.05)
        await schedule.stop()
        states.append(schedule.is_running)
        assert states == [False, True, False]
        ran = len(work.began)
        await asyncio.sleep(0.3)
        assert len(work.began) == ran

    work = Work()
    asyncio.run(run())


def test_stop_without_start_and_a_second_stop_do_nothing() -> None:
    async def run() -> None:
        schedule = Heard().schedule()
        await schedule.stop()
        schedule.every(CANARY, 60.0, Work())
        schedule.start()
        await asyncio.sleep(0.01)
        await schedule.stop()
        await asyncio.sleep(0.01)
        await schedule.stop()

    asyncio.run(run())


def test_two_schedules_know_nothing_of_each_other() -> None:
    async def run() -> None:
        first, second = Heard(), Heard()
        one, two = first.schedule(), second.schedule()
        one.every(CANARY, 60.0, Work())
        two.every(CANARY, 60.0, Work())
        one.start()
        await asyncio.sleep(0.05)
        await one.stop()
        two.start()
        await asyncio.sleep(0.05)
        await two.stop()
        assert (len(first.succeeded), len(second.succeeded)) == (1, 1)

    asyncio.run(run())


def test_a_first_run_may_be_delayed_and_lateness_is_reported() -> None:
    late: list[tuple[str, float]] = []
    heard, work = Heard(), Work()

    async def run() -> None:
        schedule = Scheduler(heard.succeeded.append, lambda *_: None, lambda task, late_s: late.append((task, late_s)))
        began = asyncio.get_running_loop().time()
        schedule.every(CANARY, 60.0, work, first_s=0.3)
        schedule.start()
        await asyncio.sleep(0.1)
        assert work.began == []
        await asyncio.sleep(0.6)
        await schedule.stop()
        assert work.began[0] - began >= 0.3

    asyncio.run(run())
    ((task, late_s),) = late
    assert task == "canary"
    assert 0 <= late_s < 5


def test_a_target_that_is_dropped_has_no_task_any_more_and_the_others_go_on() -> None:
    heard, hanging, other = Heard(), Work(_forever), Work()

    async def run() -> None:
        schedule = heard.schedule()
        schedule.every(CANARY, 0.1, hanging)
        schedule.every(TaskId("scrape", "a"), 0.1, Work())
        schedule.every(TaskId("canary", "ab"), 0.1, other)
        schedule.start()
        await asyncio.sleep(0.3)
        assert hanging.at_once == 1
        await asyncio.wait_for(schedule.drop("a"), 5)
        assert hanging.at_once == 0, "what ran was cancelled, and has ended"
        began = len(other.began)
        heard.succeeded.clear()
        heard.problems.clear()
        await asyncio.sleep(0.5)
        assert len(other.began) > began
        assert {task.target for task in heard.succeeded} == {"ab"}
        assert [problem for problem in heard.problems if problem[0].target == "a"] == [], "it has not failed"
        again = Work()
        schedule.every(CANARY, 0.1, again)
        await asyncio.sleep(0.5)
        assert again.ended, "it may come again"
        await schedule.stop()

    asyncio.run(run())


async def _forever() -> None:
    await asyncio.Event().wait()
