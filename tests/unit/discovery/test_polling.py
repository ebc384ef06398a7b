"""How discoveries go on: bursts, failures, waits. In virtual time."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from itertools import pairwise

import pytest
from virtual_time import virtually

from probe.discovery.polling import Backoff, PollError, ProblemReporter, followed, polled
from probe.discovery.types import DiscoveredServer, State, state_of


def state(*ids: str) -> State:
    return state_of(DiscoveredServer(name, f"http://{name}") for name in ids)


class Heard:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.reported = ProblemReporter(self.said.append, lambda: self.said.append("well"))


def test_a_state_is_sorted_and_has_each_id_once() -> None:
    first, second = DiscoveredServer("b", "http://1"), DiscoveredServer("b", "http://2")
    assert state_of([first, second, DiscoveredServer("a", "http://3")]) == (DiscoveredServer("a", "http://3"), first)


def test_waits_grow_to_half_a_minute_and_start_again() -> None:
    backoff = Backoff()
    waits = [backoff.next_s() for _ in range(40)]
    assert all(0.1 <= wait <= 30.0 for wait in waits)
    assert waits[0] <= 0.2
    assert min(waits[10:]) >= 15.0
    assert len(set(waits)) == 40, "never in step"
    backoff.reset()
    assert backoff.next_s() <= 0.2


def test_a_problem_is_reported_when_it_begins_changes_and_ends() -> None:
    heard = Heard()
    heard.reported.well()
    for words in ("away\nfor now", "away for now", "refused"):
        heard.reported.problem(words)
    heard.reported.well()
    heard.reported.well()
    heard.reported.problem("refused")
    assert heard.said == ["away for now", "refused", "well", "refused"]


@pytest.mark.fault(
    "KU35",
    "A burst of pod changes",
    area="Kubernetes",
    users_see="few new states",
    stays="no flapping",
)
def test_a_burst_is_one_state_and_what_changes_back_is_none() -> None:
    async def story() -> list[State]:
        now: State | None = None

        async def follow(changed: Callable[[], None]) -> None:
            nonlocal now
            changed()  # and it is not known yet
            await asyncio.sleep(1.0)
            for i in range(10):
                now = state(*map(str, range(i + 1)))
                changed()
                await asyncio.sleep(0.01)
            await asyncio.sleep(1.0)
            before, now = now, state("other")
            changed()
            now = before
            await asyncio.sleep(1.0)
            now = state("last")
            changed()
            await asyncio.sleep(1000.0)

        seen: list[State] = []
        async with aclosing(followed(follow, lambda: now)) as states:
            async for one in states:
                seen.append(one)
                if one == state("last"):
                    break
        return seen

    assert virtually(story()) == [state(*map(str, range(10))), state("last")]


def test_who_listens_slowly_gets_the_newest_state() -> None:
    async def story() -> list[State]:
        count = 0

        async def follow(changed: Callable[[], None]) -> None:
            nonlocal count
            while True:
                count += 1
                changed()
                await asyncio.sleep(0.5)

        seen: list[State] = []
        async with aclosing(followed(follow, lambda: state(str(count)))) as states:
            async for one in states:
                seen.append(one)
                await asyncio.sleep(10.0)
                if len(seen) == 3:
                    break
        return seen

    first, second, third = (int(one[0].id) for one in virtually(story()))
    assert first == 1
    assert 19 <= second - first <= 22
    assert 19 <= third - second <= 22


def test_a_programming_error_is_raised_and_not_retried() -> None:
    async def follow(_: Callable[[], None]) -> None:
        raise ZeroDivisionError

    async def story() -> None:
        async with aclosing(followed(follow, state)) as states:
            await anext(states)

    with pytest.raises(ZeroDivisionError):
        virtually(story())


def test_who_cannot_be_asked_is_asked_sooner_and_the_state_before_stays() -> None:
    heard = Heard()

    async def story() -> list[float]:
        loop = asyncio.get_running_loop()
        asked: list[float] = []

        async def ask() -> State:
            asked.append(loop.time())
            if 2 <= len(asked) <= 5:
                raise PollError("away")
            return state("a") if len(asked) < 6 else state("b")

        seen: list[State] = []
        async with aclosing(polled(ask, 60.0, heard.reported)) as states:
            async for one in states:
                seen.append(one)
                if len(seen) == 2:
                    break
        assert seen == [state("a"), state("b")]
        return [later - before for before, later in pairwise(asked)]

    waits = virtually(story())
    assert waits[0] == 60.0
    assert all(wait < 2.0 for wait in waits[1:5])
    assert heard.said == ["away"]
