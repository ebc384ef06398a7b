"""Runs a test on both kinds of event loop, and fails it for what is left there."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

Run = Callable[[Coroutine[Any, Any, Any]], Any]
_PATIENCE_S = 60.0  # a test that hangs fails, and says where


# The commands run on uvloop.
_LOOPS = [
    pytest.param(asyncio.new_event_loop, marks=pytest.mark.long, id="asyncio"),
    pytest.param(uvloop.new_event_loop, id="uvloop"),
]


@pytest.fixture(params=_LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    """Run a coroutine to its end. Fails on an error that no one caught and on a task that is left."""

    def runner(main: Coroutine[Any, Any, Any]) -> Any:
        reported: list[dict[str, Any]] = []

        async def watched() -> Any:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
            async with asyncio.timeout(_PATIENCE_S):
                result = await main
            for _ in range(50):  # a server's handshake that failed takes some turns to go
                left = asyncio.all_tasks() - {asyncio.current_task()}
                if not left:
                    break
                await asyncio.sleep(0.01)
            assert not left, left
            return result

        with asyncio.Runner(loop_factory=request.param) as loop:
            result = loop.run(watched())
        assert not reported, reported
        return result

    return runner
