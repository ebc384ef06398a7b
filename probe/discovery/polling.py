"""What all discoveries share: they go on beside whoever listens, try again after a failure, and say why once."""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable

from probe.core.text import one_line
from probe.discovery.types import OnProblem, OnWell, State

SETTLE_S = 0.2
_FIRST_S, _LAST_S = 0.2, 30.0
_MAX_WORDS = 400


class Backoff:
    """How long to wait before the next try: longer each time, up to half a minute, and not in step with others."""

    def __init__(self) -> None:
        self._tries = 0
        self._random = random.Random()  # noqa: S311 - it spreads tries, and keeps no secret

    def next_s(self) -> float:
        """Between half of what is due and all of it."""
        due_s: float = min(_FIRST_S * 2**self._tries, _LAST_S)
        self._tries = min(self._tries + 1, 16)
        return due_s * self._random.uniform(0.5, 1.0)

    def reset(self) -> None:
        self._tries = 0


class ProblemReporter:
    """Says what is wrong when it begins or becomes something else, and when it is over."""

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
    """What was asked has not answered, or not with targets; the message is one line for people."""


async def followed(
    follow: Callable[[Callable[[], None]], Awaitable[None]],
    state: Callable[[], State | None],
    settle_s: float = SETTLE_S,
) -> AsyncGenerator[State, None]:
    """The states, for as long as somebody listens.

    `follow(changed)` goes on in a task of its own until it is cancelled, and calls `changed` when `state()` may be
    another; None: it is not known yet.
    """
    may_differ = asyncio.Event()
    task = asyncio.ensure_future(follow(may_differ.set))
    task.add_done_callback(lambda _: may_differ.set())
    last: State | None = None
    try:
        while True:
            await may_differ.wait()
            if task.done():
                task.result()  # whatever it was: an error of ours
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
    ask: Callable[[], Awaitable[State]], every_s: float, told: ProblemReporter, settle_s: float = 0.0
) -> AsyncGenerator[State, None]:
    """The states of what has to be asked again and again. `ask` raises AskError; then it is asked sooner, and the state
    before stays. What it says through `told` itself, beside a state, it also takes back itself.
    """
    backoff = Backoff()
    latest: State | None = None

    async def follow(changed: Callable[[], None]) -> None:
        nonlocal latest
        while True:
            try:
                latest = await ask()
            except PollError as error:
                told.problem(str(error))
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
