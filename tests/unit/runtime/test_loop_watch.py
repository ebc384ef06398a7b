"""What held an event loop that stood, by processor time."""

import asyncio
import time

import pytest

from probe.runtime.loop_watch import LoopWatch, Stall, Use, judged

_BEFORE = Use(at_s=10.0, computed_s=1.0, waited_s=0.5, process_s=2.0)


@pytest.mark.parametrize(
    ("computed", "waited", "process", "own_late", "cause", "by"),
    [
        (1.9, 0.0, 1.9, 0.0, "held", "loop"),  # a computation in Python
        (1.9, 0.0, 1.9, 1.9, "held", "loop"),  # in a library that keeps the GIL
        (0.0, 0.0, 0.0, 0.0, "held", "loop, which waits"),  # a lock, a disk
        (0.0, 0.0, 1.9, 1.9, "held", "other"),  # another thread keeps the GIL
        (0.0, 0.0, 1.9, 0.0, "held", "loop, which waits"),  # another thread computes without it
        (0.1, 1.8, 0.2, 0.0, "starved", "the process got 0.2 s of a processor in 2.0 s"),  # a busy machine
        (0.1, 0.0, 0.2, 1.7, "starved", "the process got 0.2 s of a processor in 2.0 s"),  # a container's limit
        (0.0, 0.0, 0.0, 2.0, "starved", "the process got 0.0 s of a processor in 2.0 s"),  # stopped, or suspended
        (0.8, 1.1, 0.8, 1.1, "starved", "the process got 0.8 s of a processor in 2.0 s, the loop's part of it in loop"),
    ],
)  # fmt: skip
@pytest.mark.fault(
    "ST21",
    "The event loop stands for over a second: a call that computes or waits, a thread that keeps the GIL, no processor",
    area="Starvation",
    users_see="a line with the function, or `starved`; `kneewatch_event_loop_stalls_total`",
    stays="a suspended or busy machine is not taken for a fault of Kneewatch",
)
def test_the_cause_follows_from_processor_time(  # noqa: PLR0917
    computed: float, waited: float, process: float, own_late: float, cause: str, by: str
) -> None:
    now = Use(at_s=12.0, computed_s=1.0 + computed, waited_s=0.5 + waited, process_s=2.0 + process)
    assert judged(_BEFORE, now, own_late, "loop", lambda: "other") == Stall(cause, 2.0, by)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.alone
def test_a_loop_that_stands_is_told_with_the_function_once_also_while_it_stands() -> None:
    told: list[Stall] = []

    def wait_for_a_disk(seconds: float) -> None:
        time.sleep(seconds)

    async def stand() -> None:
        with LoopWatch(told.append, told_after_s=1.6):
            await asyncio.sleep(0.3)
            wait_for_a_disk(1.3)
            await asyncio.sleep(1.2)
            wait_for_a_disk(2.2)
            assert len(told) == 2, "the second one was told before it ended"
            await asyncio.sleep(1.2)

    asyncio.run(stand())
    first, second = told
    assert first.has_ended
    assert not second.has_ended
    assert first.seconds == pytest.approx(1.3, abs=0.4)
    assert all(stall.by.startswith("wait_for_a_disk (test_loop_watch.py:") for stall in told)
