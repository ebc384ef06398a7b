"""How many lines there are about tasks that do not run or fail."""

import asyncio

import pytest
from structlog.testing import capture_logs
from virtual_time import virtually

from probe.monitor.bounded_log import TaskLog
from probe.runtime.scheduler import TaskId


@pytest.mark.fault(
    "TI34",
    "A machine without CPU time left: tasks of all targets are late or skipped",
    area="Time",
    users_see="one line for each cause and minute, with how often and for how many targets",
    stays="the series count each of them",
)
def test_a_cause_has_a_line_at_once_and_then_one_a_minute_with_what_it_stands_for() -> None:
    async def run() -> None:
        log = TaskLog()
        for _ in range(150):  # two and a half minutes
            for target in ("a", "b", "c"):
                log.add(TaskId("canary", target), "skipped", None)
            await asyncio.sleep(1.0)
        log.add(TaskId("scrape", "a"), "late", None)
        await asyncio.sleep(300.0)
        log.add(TaskId("canary", "b"), "skipped", None)

    with capture_logs() as lines:
        virtually(run(), within_s=600.0)
    said = [(line["task"], line["problem"], line.get("times", 1), line.get("targets", 1)) for line in lines]
    assert said == [
        ("canary", "skipped", 1, 1),
        ("canary", "skipped", 60 * 3 - 1, 3),
        ("canary", "skipped", 60 * 3, 3),
        ("scrape", "late", 1, 1),
        ("canary", "skipped", 30 * 3 + 1 - 1, 3),
        ("canary", "skipped", 1, 1),
    ]
    assert all(line["event"] == "task did not run" for line in lines)


def test_each_error_is_a_cause_of_its_own_and_keeps_its_traceback() -> None:
    async def run() -> None:
        log = TaskLog()
        for error in (ValueError("x"), ValueError("x"), ValueError("y"), KeyError("x")):
            log.add(TaskId("scrape", "a"), "failed", error)
        await asyncio.sleep(61.0)

    with capture_logs() as lines:
        virtually(run())
    assert [(repr(line["exc_info"]), line.get("times", 1)) for line in lines] == [
        ("ValueError('x')", 1),
        ("ValueError('y')", 1),
        ("KeyError('x')", 1),
        ("ValueError('x')", 1),
    ]
    assert {line["event"] for line in lines} == {"task failed"}
