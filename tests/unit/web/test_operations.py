"""A function for many callers: how often it runs, and whose result each of them gets."""

import asyncio
from threading import Event
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from both_loops import Run

from probe.web.operations import Coalesced, Operations

if TYPE_CHECKING:
    from starlette.requests import Request

    from probe.web.monitor_protocol import Monitor


@pytest.mark.fault(
    "ST124",
    "All threads of the event loop wait, such as for name servers that do not answer",
    area="Starvation",
    users_see="nothing",
    stays="/metrics is answered at once",
)
def test_metrics_need_no_thread_that_waits_for_others(run: Run) -> None:
    held = Event()

    async def main() -> None:
        waiting = [asyncio.get_running_loop().run_in_executor(None, held.wait) for _ in range(40)]
        page = SimpleNamespace(render=lambda accept: (b"up 1", accept))
        operations = Operations(cast("Monitor", SimpleNamespace(page=page, reload=None, config_text=None)))
        request = cast("Request", SimpleNamespace(headers={}))
        try:
            async with asyncio.timeout(10):
                assert (await operations.metrics(request)).body == b"up 1"
        finally:
            held.set()
            await asyncio.gather(*waiting)

    run(main())


class Counted:
    """A function that returns how many of its runs have begun; each waits until it may end."""

    def __init__(self) -> None:
        self.begun = 0
        self.may_end = asyncio.Event()

    async def __call__(self) -> int:
        self.begun += 1
        mine = self.begun
        await self.may_end.wait()
        return mine


@pytest.mark.fault("C40")
def test_callers_during_a_run_share_the_next_one(run: Run) -> None:
    async def main() -> None:
        function = Counted()
        shared = Coalesced(function)
        first = asyncio.create_task(shared())
        await asyncio.sleep(0.01)
        others = [asyncio.create_task(shared()) for _ in range(20)]
        await asyncio.sleep(0.01)
        assert function.begun == 1
        function.may_end.set()
        assert await first == 1
        assert await asyncio.gather(*others) == [2] * 20, "what they asked for began after they asked"
        assert await shared() == 3

    run(main())


def test_a_caller_that_goes_away_ends_nothing(run: Run) -> None:
    async def main() -> None:
        function = Counted()
        shared = Coalesced(function)
        gone, stays = asyncio.create_task(shared()), asyncio.create_task(shared())
        await asyncio.sleep(0.01)
        gone.cancel()
        function.may_end.set()
        assert await stays == 1

    run(main())


def test_an_error_reaches_its_callers_and_no_later_one(run: Run) -> None:
    calls = 0

    async def function() -> str:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ValueError("no")
        return "yes"

    async def main() -> None:
        shared = Coalesced(function)
        for answer in await asyncio.gather(shared(), shared(), return_exceptions=True):
            assert isinstance(answer, ValueError)
        assert await shared() == "yes"

    run(main())


@pytest.mark.parametrize(("pause_s", "took_s", "least_s"), [(0.1, 0.0, 0.1), (0.01, 0.05, 0.2)])
def test_runs_have_a_pause_in_between_that_is_longer_for_slow_ones(
    run: Run, pause_s: float, took_s: float, least_s: float
) -> None:
    begun: list[float] = []
    ended: list[float] = []

    async def function() -> None:
        begun.append(asyncio.get_running_loop().time())
        await asyncio.sleep(took_s)
        ended.append(asyncio.get_running_loop().time())

    async def main() -> None:
        shared = Coalesced(function, pause_s)
        await shared()
        await shared()
        assert begun[1] - ended[0] >= 0.99 * least_s

    run(main())
