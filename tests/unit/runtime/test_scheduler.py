"""When tasks run, and that one that does not run is heard of."""

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from virtual_time import VirtualClock, virtually

from probe.runtime.cron import cron_trigger
from probe.runtime.scheduler import Scheduler, TaskId

CANARY = TaskId("canary", "a")
NEVER = "0 0 29 2 *"
MIDNIGHT = datetime(2026, 11, 23, tzinfo=UTC)


def at(hour: int, minute: int = 0) -> datetime:
    return MIDNIGHT + timedelta(hours=hour, minutes=minute)


@dataclass
class SetClock(VirtualClock):
    """A clock with a wall clock that a test sets."""

    ahead_s: float = 0.0

    def wall_s(self) -> float:
        return super().wall_s() + self.ahead_s

    def set(self, wall: datetime) -> None:
        self.ahead_s += wall.timestamp() - self.wall_s()


@dataclass
class Heard:
    succeeded: list[TaskId] = field(default_factory=list)
    problems: list[tuple[TaskId, str, BaseException | None]] = field(default_factory=list)
    clock: SetClock = field(default_factory=SetClock)

    def schedule(self) -> Scheduler:
        return Scheduler(
            self.clock, self.succeeded.append, lambda task, what, error: self.problems.append((task, what, error))
        )


def _during(seconds: float, heard: Heard, plan: Callable[[Scheduler], object]) -> None:
    async def run() -> None:
        schedule = heard.schedule()
        plan(schedule)
        schedule.start()
        await asyncio.sleep(seconds)
        await schedule.stop()

    virtually(run(), within_s=seconds + 60)


@dataclass
class Work:
    """A task that notes when it began, and how many of it ran at the same time."""

    body: Callable[[], Awaitable[None]] | None = None
    began: list[float] = field(default_factory=list)
    ended: int = 0
    at_once: int = 0
    most_at_once: int = 0

    async def __call__(self, due_s: float = 0.0) -> None:  # noqa: ARG002
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


@pytest.mark.fault(
    "TI9",
    "One slow task",
    area="Time",
    users_see="its own next runs are skipped and counted",
    stays="the other tasks keep their times",
)
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


@pytest.mark.fault(
    "TI8",
    "A task that runs too late",
    area="Time",
    users_see="it is left out and counted; it is not caught up",
    stays="the other tasks",
)
def test_a_run_that_comes_too_late_is_left_out_and_heard() -> None:
    heard, work = Heard(), Work()

    def plan(schedule: Scheduler) -> None:
        schedule.cron(CANARY, cron_trigger(NEVER), work)
        schedule.bring_forward(CANARY, -3600.0)

    _during(0.1, heard, plan)
    assert work.began == []
    assert heard.problems == [(CANARY, "late", None)]


@pytest.mark.fault("TI8")
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
        schedule.cron(CANARY, cron_trigger(NEVER), work)
        schedule.bring_forward(CANARY, 0.1)

    _during(0.3, heard, plan)
    assert work.ended == 1


def test_what_is_due_sooner_is_not_put_off() -> None:
    heard, work, other = Heard(), Work(), Work()

    def plan(schedule: Scheduler) -> None:
        schedule.cron(CANARY, cron_trigger("* * * * *"), work)
        schedule.bring_forward(CANARY, 3600.0)
        schedule.every(TaskId("canary", "b"), 60.0, other)
        schedule.bring_forward(TaskId("canary", "b"), 3600.0)
        first_s, second_s = schedule.next_s(CANARY), schedule.next_s(TaskId("canary", "b"))
        assert first_s is not None
        assert second_s is not None
        assert schedule.next_s(TaskId("canary", "c")) is None

    _during(90.0, heard, plan)
    assert work.ended >= 1
    assert other.ended >= 1


def test_a_cron_expression_is_read_in_its_time_zone() -> None:
    heard, hours_utc = Heard(), {"UTC": 4, "Europe/Berlin": 3, "America/New_York": 9}
    began: dict[str, list[datetime]] = {zone: [] for zone in hours_utc}

    async def run() -> None:
        heard.clock.set(MIDNIGHT)
        schedule = heard.schedule()
        for zone, times in began.items():

            async def work(due_s: float, times: list[datetime] = times) -> None:  # noqa: ARG001
                times.append(datetime.fromtimestamp(int(heard.clock.wall_s()), UTC))

            schedule.cron(TaskId("capacity", zone), cron_trigger("0 4 * * *", zone), work)
        schedule.start()
        await asyncio.sleep(10 * 3600)
        await schedule.stop()

    virtually(run(), within_s=11 * 3600)
    assert began == {zone: [at(hour)] for zone, hour in hours_utc.items()}


def test_intervals_are_moved_about_so_that_a_fleet_does_not_pulse_and_keep_their_mean() -> None:
    works = [Work() for _ in range(10)]

    def plan(schedule: Scheduler) -> None:
        for i, work in enumerate(works):
            schedule.every(TaskId("canary", str(i)), 100.0, work)

    _during(10_001.0, Heard(), plan)
    gaps = [after - before for work in works for before, after in pairwise(work.began)]
    assert len({round(gap, 3) for gap in gaps}) > 10
    assert 94.9 < min(gaps) <= max(gaps) < 105.1
    assert statistics.mean(gaps) == pytest.approx(100.0, abs=0.5)


# Clocks that are set.


_SET_AT_S = 4 * 3600 + 30 * 60 + 55.0


def _cron_runs(expression: str, *, days: float, set_to: datetime) -> list[datetime]:
    """Return when the wall clock says that a cron task ran, from a midnight on; at 4:30:55 it is set once."""
    heard = Heard()
    began: list[datetime] = []

    async def work(due_s: float) -> None:  # noqa: ARG001
        began.append(datetime.fromtimestamp(int(heard.clock.wall_s()), UTC))

    async def run() -> None:
        heard.clock.set(MIDNIGHT)
        schedule = heard.schedule()
        schedule.cron(CANARY, cron_trigger(expression), work)
        schedule.start()
        await asyncio.sleep(_SET_AT_S)
        heard.clock.set(set_to)
        await asyncio.sleep(days * 86400 - _SET_AT_S)
        await schedule.stop()

    virtually(run(), within_s=days * 86400 + 60)
    assert all(what == "late" for _, what, _ in heard.problems)
    return began + [MIDNIGHT] * len(heard.problems)  # a run that was left out stands for itself as midnight


@pytest.mark.parametrize("hours", [-1000, -1, -0.025, 1, 1000])
@pytest.mark.fault("C20")
def test_an_interval_does_not_depend_on_the_wall_clock(hours: float) -> None:
    heard, work = Heard(), Work()

    async def run() -> None:
        schedule = heard.schedule()
        schedule.every(CANARY, 15.0, work)
        schedule.start()
        await asyncio.sleep(100)
        heard.clock.ahead_s += hours * 3600
        await asyncio.sleep(100)
        await schedule.stop()

    virtually(run(), within_s=400)
    assert 13 <= len(work.began) <= 15
    assert heard.problems == []


@pytest.mark.parametrize("pause_s", [40.0, 4000.0])
def test_after_a_pause_there_is_one_run_and_the_targets_stay_spread(pause_s: float) -> None:
    """A pause is a process that is stopped: the monotonic clock goes on."""
    heard, works = Heard(), [Work() for _ in range(10)]

    async def run() -> None:
        loop = asyncio.get_running_loop()
        schedule = heard.schedule()
        for i, work in enumerate(works):
            schedule.every(TaskId("canary", str(i)), 10.0, work, first_s=float(i))
        schedule.start()
        await asyncio.sleep(20)
        loop._leaping.now_s += pause_s  # type: ignore[attr-defined]
        for work in works:
            work.began.clear()
        await asyncio.sleep(0.1)
        assert all(len(work.began) <= 1 for work in works)
        await asyncio.sleep(30)
        await schedule.stop()

    virtually(run(), within_s=pause_s + 100)
    assert all(3 <= len(work.began) <= 5 for work in works)
    last = [work.began[-1] for work in works]
    assert max(last) - min(last) > 5.0


@pytest.mark.parametrize("late_s", [0.1, 4.9, 5.1, 9.9, 4009.9])
def test_a_late_run_is_not_followed_by_another_at_once(late_s: float) -> None:
    """Whatever the jitter, which is at random: so it is tried many times."""
    works = [Work() for _ in range(50)]

    def plan(schedule: Scheduler) -> None:
        for i, work in enumerate(works):
            schedule.every(TaskId("canary", str(i)), 10.0, work, first_s=-late_s)

    _during(20.0, Heard(), plan)
    waits = [work.began[1] - work.began[0] for work in works]
    assert min(waits) >= 4.0
    assert max(waits) <= 16.0


@pytest.mark.fault(
    "TI11",
    "The machine was suspended, and its wall clock leaps when it wakes",
    area="Time",
    users_see="a capacity run that was due meanwhile is left out if it is later than `schedule.grace`",
    stays="later capacity runs start within 15 s of their time",
)
def test_a_cron_task_follows_a_wall_clock_that_is_set_forward() -> None:
    """As when a machine wakes up: its monotonic clock has stood still."""
    (first, second) = _cron_runs("0 4,6 * * *", days=0.25, set_to=at(5, 58))
    assert (first - at(4)).total_seconds() < 1
    assert 0 <= (second - at(6)).total_seconds() < 1


@pytest.mark.fault("C21")
def test_a_cron_run_that_the_wall_clock_leaps_over_is_left_out_and_reported() -> None:
    assert _cron_runs("0 4,6,8 * * *", days=0.3, set_to=at(7)) == [at(4), at(8), MIDNIGHT]


@pytest.mark.fault("C22")
def test_a_wall_clock_set_back_repeats_no_cron_run() -> None:
    assert _cron_runs("0 4,6 * * *", days=0.3, set_to=at(3, 30)) == [at(4), at(6)]


@pytest.mark.parametrize("back_s", [0.04, 2.0, 3600.0])
@pytest.mark.fault("C22", case="just before a run")
def test_a_run_waits_for_a_wall_clock_that_was_set_back_just_before_it(back_s: float) -> None:
    set_to = MIDNIGHT + timedelta(seconds=_SET_AT_S - back_s)
    assert _cron_runs("31 4 * * *", days=0.25, set_to=set_to) == [at(4, 31)]


@pytest.mark.fault(
    "TI12",
    "The wall clock was wrong by days and is corrected",
    area="Time",
    users_see="the next capacity run is by the new clock",
    stays="canaries and scrapes",
)
def test_a_wall_clock_that_was_wrong_by_days_does_not_keep_cron_from_running() -> None:
    corrected = MIDNIGHT - timedelta(days=400)
    assert _cron_runs("0 4 * * *", days=0.36, set_to=corrected) == [at(4), corrected + timedelta(hours=4)]


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
    virtually(run())


def test_tasks_cancelled_by_stopping_are_no_failures() -> None:
    heard, work = Heard(), Work(_sleeps(60))

    async def run() -> None:
        schedule = heard.schedule()
        schedule.every(CANARY, 60.0, work)
        schedule.start()
        await asyncio.sleep(0.1)
        await schedule.stop()
        await asyncio.sleep(0.05)

    virtually(run())
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
    virtually(run())


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

    virtually(run())


def test_a_task_is_scheduled_once() -> None:
    async def run() -> None:
        schedule = Heard().schedule()
        schedule.every(CANARY, 60.0, Work())
        with pytest.raises(ValueError, match="canary:a is scheduled already"):
            schedule.every(CANARY, 30.0, Work())

    virtually(run())


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

    virtually(run())


def test_a_first_run_may_be_delayed_and_lateness_is_reported() -> None:
    late: list[tuple[str, float]] = []
    heard, work = Heard(), Work()

    async def run() -> None:
        schedule = Scheduler(
            heard.clock, heard.succeeded.append, lambda *_: None, lambda task, late_s: late.append((task, late_s))
        )
        began = asyncio.get_running_loop().time()
        schedule.every(CANARY, 60.0, work, first_s=0.3)
        schedule.start()
        await asyncio.sleep(0.1)
        assert work.began == []
        await asyncio.sleep(0.6)
        await schedule.stop()
        assert work.began[0] - began == pytest.approx(0.3)

    virtually(run())
    ((task, late_s),) = late
    assert task == "canary"
    assert 0 <= late_s < 0.001


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

    virtually(run())


@pytest.mark.parametrize("turns", range(6))
def test_a_run_that_was_about_to_begin_does_not_when_its_target_is_dropped(turns: int) -> None:
    heard, work = Heard(), Work(_forever)

    async def run() -> None:
        schedule = heard.schedule()
        schedule.every(CANARY, 60.0, work)
        schedule.start()
        for _ in range(turns):
            await asyncio.sleep(0)
        await schedule.drop("a")
        began = len(work.began)
        await asyncio.sleep(90.0)
        assert (work.at_once, len(work.began)) == (0, began)
        await schedule.stop()

    virtually(run())
    assert heard.problems == []


def test_targets_whose_names_look_like_others_tasks_are_told_apart() -> None:
    heard = Heard()
    tasks = {TaskId("canary", "a", 1), TaskId("canary", "a:1"), TaskId("canary", "default")}

    async def run() -> None:
        schedule = heard.schedule()
        schedule.start()
        for task in tasks:
            schedule.every(task, 60.0, Work())
        await asyncio.sleep(0.1)
        await schedule.stop()

    virtually(run())
    assert set(heard.succeeded) == tasks


@pytest.mark.fault(
    "TI60",
    "Counting what became of a task fails",
    area="Time",
    users_see="an error in the log",
    stays="the task runs on",
)
def test_only_what_goes_wrong_in_the_scheduler_is_logged_by_it(caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        await asyncio.sleep(0.15)
        raise ZeroDivisionError

    heard, work = Heard(), Work(body)
    _during(1.0, heard, lambda s: s.every(CANARY, 0.1, work))
    assert {what for _, what, _ in heard.problems} == {"failed", "skipped"}
    assert caplog.records == []

    async def run() -> None:
        schedule = Scheduler(heard.clock, lambda _: 1 / 0, lambda *_: None)
        schedule.every(CANARY, 0.1, quick)
        schedule.start()
        await asyncio.sleep(1.0)
        await schedule.stop()

    quick = Work()
    virtually(run())
    assert quick.ended > 5
    assert {record.getMessage() for record in caplog.records} == {"Error notifying listener"}


async def _forever() -> None:
    await asyncio.Event().wait()
