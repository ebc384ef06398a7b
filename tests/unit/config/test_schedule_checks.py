"""What `config check` says of runs that never begin, or begin late."""

from datetime import UTC, datetime
from typing import Any

import pytest

from probe.config.capacity import CapacityConfig
from probe.config.config import Config
from probe.config.config_file import config_from
from probe.config.schedule_checks import crowded, never_problems, room

SINCE = datetime(2026, 11, 23, tzinfo=UTC)  # a Monday


def problems(**capacity: Any) -> list[str]:
    return list(never_problems(CapacityConfig.model_validate({"mode": "verify", **capacity})))


def scheduled(cron: str, *windows: str, **more: Any) -> list[str]:
    return problems(schedule={"cron": cron, "windows": windows, **more})


@pytest.mark.parametrize(
    ("cron", "window"),
    [
        ("30 3 * * *", "04:00-05:00"),
        ("0 5 * * *", "04:00-05:00"),  # it has just closed
        ("0 4 * * 1-5", "Sat,Sun 00:00-24:00"),
        ("0 4 15 * *", "05:00-06:00"),
        ("*/20 3 * * *", "Sun 04:00-05:00"),
        ("59 4 * * *", "04:00-04:59"),
        ("0 4 29 2 *", "03:00-04:00"),
    ],
)
@pytest.mark.fault(
    "TI35",
    "A schedule whose times are in none of its windows",
    area="Time",
    users_see="`config check` and every command name the key; a running Kneewatch keeps its configuration",
    stays="-",
)
def test_a_schedule_outside_its_windows_is_refused(cron: str, window: str) -> None:
    (problem,) = scheduled(cron, window)
    assert problem.startswith(".schedule.cron: at none of its times a window of schedule.windows is open")


@pytest.mark.parametrize(
    ("cron", "windows", "more"),
    [
        ("30 3 * * *", (), {}),
        ("0 4 * * *", ("04:00-04:01",), {}),
        ("0 1 1 * *", ("Sun 00:00-24:00",), {}),  # some month begins with a Sunday
        ("0 3 * * *", ("22:00-04:00",), {}),
        ("0 23 * * *", ("Fri 22:00-04:00",), {}),
        ("30 3 * * *", ("04:00-05:00", "03:00-03:31"), {}),
        ("30 3 * * *", ("02:00-04:00",), {"timezone": "Asia/Kolkata"}),
        ("*/5 * * * *", ("Sun 12:00-12:01",), {}),
    ],
)
def test_a_schedule_that_meets_a_window_at_times_is_not(cron: str, windows: tuple[str, ...], more: Any) -> None:
    assert scheduled(cron, *windows, **more) == []


def test_a_window_too_short_for_the_first_step_is_none() -> None:
    schedule = {"cron": "0 4 * * *", "windows": ["04:00-04:01"]}
    (problem,) = problems(schedule=schedule, observe="50s", step="15s")
    assert "is open for another 65s, which a first step takes" in problem
    assert problems(schedule=schedule, rates=[1], step="50s") == []


@pytest.mark.parametrize(
    ("capacity", "words"),
    [
        ({"budget": {"seconds": 10}}, ".budget.seconds: 10 is not more than observe, 30s, so no load would follow"),
        ({"budget": {"seconds": 30}, "observe": "30s"}, ".budget.seconds: 30 is not more than observe"),
        ({"budget": {"seconds": 14}, "rates": [1]}, ".budget.seconds: 14 is less than step, 15s"),
        ({"budget": {"seconds": 14}, "concurrency": [1], "step": "1m"}, ".budget.seconds: 14 is less than step, 60s"),
        ({"budget": {"seconds": 31}}, None),
        ({"budget": {"seconds": 15}, "rates": [1]}, None),
        ({"budget": {"seconds": 10}, "mode": "forecast"}, None),
    ],
)
def test_a_budget_shorter_than_what_comes_before_load_is_refused(capacity: dict[str, Any], words: str | None) -> None:
    found = problems(**capacity)
    assert (found == []) if words is None else found[0].startswith(words)


def config(*targets: dict[str, Any], **more: Any) -> Config:
    entries = [
        {"name": f"t{i}", "base_url": f"http://t{i}:8000", **each, "capacity": {"mode": "verify", **each["capacity"]}}
        for i, each in enumerate(targets)
    ]
    return config_from({"targets": entries, **more}, "FILE")


def late(*targets: dict[str, Any], **more: Any) -> str | None:
    found = config(*targets, **more)
    return crowded(found.targets, found.capacity_runs_at_once, SINCE)


NIGHTLY: dict[str, Any] = {"capacity": {}}  # 300 s, a grace of 1800 s


@pytest.mark.fault(
    "TI36",
    "More capacity runs than begin in time",
    area="Time",
    users_see="`config check` names a target and what to change; the runs are `late`",
    stays="the others",
)
def test_more_runs_than_begin_within_their_grace_are_said() -> None:
    assert late(*[NIGHTLY] * 7) is None
    words = late(*[NIGHTLY] * 9)
    assert words is not None
    assert words.startswith("t7 and 1 more: runs could not begin within schedule.grace of their time")
    assert late(*[NIGHTLY] * 9, capacity_runs_at_once=2) is None
    same = [{**NIGHTLY, "base_url": "http://gateway:8000"}] * 9
    assert late(*same, capacity_runs_at_once=2) is not None, "a server has one at a time"
    spread = [{"capacity": {"schedule": {"cron": f"{i * 5} 4 * * *"}}} for i in range(9)]
    assert late(*spread) is None
    window = {"capacity": {"schedule": {"cron": "0 4 * * *", "windows": ["04:00-04:10"]}}}
    assert late(window, window) is None
    assert late(window, window, window) is not None, "its window has closed by then"


def test_what_is_not_scheduled_takes_no_place() -> None:
    assert late(*[{"capacity": {"mode": "forecast"}}] * 20, NIGHTLY) is None
    rare = [{"capacity": {"schedule": {"cron": f"0 4 {i + 1} * *"}}} for i in range(20)]
    assert late(*rare) is None


@pytest.mark.parametrize(
    ("schedule", "at_once", "targets"),
    [
        ({}, 1, 30),  # two hours and the grace, in runs of 300 s
        ({}, 4, 120),
        ({"cron": "0 1 * * *", "windows": ["01:00-05:00"]}, 1, 53),
        ({"cron": "0 1 * * *", "windows": ["01:00-01:02"], "grace": "1m"}, 1, 1),
        ({"cron": "0 * * * *"}, 1, 18),
    ],
)
def test_the_room_of_a_discovery_is_what_its_windows_hold(schedule: dict[str, Any], at_once: int, targets: int) -> None:
    discover = {"kubernetes": {"selector": "a=b", "port": 8000, "namespace": "serving"}}
    entry = {"name": "qwen", "discover": discover, "capacity": {"mode": "verify", "schedule": schedule}}
    (template,) = config_from({"targets": [entry]}, "FILE").templates
    assert room(template, at_once, SINCE) == targets
