"""Helpers of all discoveries: background polling, retries with backoff, and each problem reported once."""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable

from probe.core.text import one_line
from probe.discovery.types import OnProblem, OnWell, State

SETTLE_S = 0.2
_FIRST_S, _LAST_S = 0.2, 30.0
_MAX_WORDS = 400


class Backoff:
    """The wait before the next try: longer each time, up to half a minute, and random, so that instances spread out."""

    def __init__(self) -> None:
        self._tries = 0
        self._random = random.Random()  # noqa: S311 - spreads tries; no secret

    def next_s(self) -> float:
        """Return the wait in seconds, between half of the current step and the whole step."""
        due_s: float = min(_FIRST_S * 2**self._tries, _LAST_S)
        self._tries = min(self._tries + 1, 16)
        return due_s * self._random.uniform(0.5, 1.0)

    def reset(self) -> None:
        self._tries = 0


class ProblemReporter:
    """Reports a problem when it begins or changes, and when it is over."""

    def __init__(self, on_problem: OnProblem, on_well: OnWell) -> None:
        self._on_problem = on_problem
        self._on_well = on_well
        self._last: str | None = None

    def problem(self, text: str) -> None:
        text = one_line(text, _MAX_WORDS)
        if text != self._last:
            self._last = text
            self._on_problem(text)

    def well(self) -> None:
        if self._last is not None:
            self._last = None
            self._on_well()


class PollError(Exception):
    """A source did not answer, or not with targets. The message is one line for people."""


async def followed(
    follow: Callable[[Callable[[], None]], Awaitable[None]],
    state: Callable[[], State | None],
    settle_s: float = SETTLE_S,
) -> AsyncGenerator[State, None]:
    """Yield the states until closed.

    `follow(changed)` runs in a task of its own and calls `changed` when `state()` may have changed. `state()` returns
    None while the state is not known yet.
    """
    may_differ = asyncio.Event()
    task = asyncio.ensure_future(follow(may_differ.set))
    task.add_done_callback(lambda _: may_differ.set())
    last: State | None = None
    try:
        while True:
            await may_differ.wait()
            if task.done():
                task.result()  # raises: only a bug ends it
                return
            await asyncio.sleep(settle_s)
            may_differ.clear()
            now = state()
            if now is not None and now != last:
                last = now
                yield now
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def polled(
    ask: Callable[[], Awaitable[State]], every_s: float, reporter: ProblemReporter, settle_s: float = 0.0
) -> AsyncGenerator[State, None]:
    """Yield the states of a source that is polled with `ask`. After a PollError the state is kept, and the next try is
    sooner. `ask` has to clear any problem that it reports together with a state.
    """
    backoff = Backoff()
    latest: State | None = None

    async def follow(changed: Callable[[], None]) -> None:
        nonlocal latest
        while True:
            try:
                latest = await ask()
            except PollError as error:
                reporter.problem(str(error))
                await asyncio.sleep(min(backoff.next_s(), every_s))
            else:
                backoff.reset()
                changed()
                await asyncio.sleep(every_s)

    states = followed(follow, lambda: latest, settle_s)
    try:
        async for state in states:
            yield state
    finally:
        await states.aclose()
