"""The time limits of a request, in virtual time: a long answer that arrives is never cut, and a hang is found early."""

import asyncio
import json
import math
import re
import socket
import time
from collections.abc import AsyncIterator, Iterable

import httpx
import pytest
import uvloop
from virtual_time import VirtualClock, virtually

from probe.client.client import Client
from probe.client.endpoint import Endpoint
from probe.client.patience import Patience
from probe.client.response_buffer import ResponseBuffer
from probe.config.objectives import DEFAULT_OBJECTIVES
from probe.core.clock import SystemClock
from probe.core.request import Api, Outcome, RequestRecord, RequestSpec, Traffic
from probe.core.time_limits import TimeLimits, was_arriving

CHAT = DEFAULT_OBJECTIVES.objectives("default")
PING = b": ping\n\n"
TYPED_PING = b'event: ping\ndata: {"type": "ping"}\n\n'
Part = tuple[float, bytes]  # after so many seconds, these bytes
DAY_S = 86_400.0


class Played(httpx.AsyncBaseTransport):
    """A server that answers 200 at once, and then says each part after its pause."""

    def __init__(self, parts: Iterable[Part]) -> None:
        self._parts = parts

    async def handle_async_request(self, _: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=_Body(self._parts))


class _Body(httpx.AsyncByteStream):
    def __init__(self, parts: Iterable[Part]) -> None:
        self._parts = parts

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for pause_s, data in self._parts:
            await asyncio.sleep(pause_s)
            yield data


def token(usage: int = 0) -> bytes:
    counted = {"usage": {"prompt_tokens": 3, "completion_tokens": usage}} if usage else {}
    return b"data: " + json.dumps({"choices": [{"text": "a"}], **counted}).encode() + b"\n\n"


def answer(tokens: int, tpot_s: float, every: int = 64) -> list[Part]:
    """Return an answer with an event for each `every` tokens."""
    events = [(every * tpot_s, token(n)) for n in range(every, tokens, every)]
    end = token(tokens).replace(b'"text": "a"', b'"text": "a", "finish_reason": "length"')
    return [*events, (every * tpot_s, end), (0.0, b"data: [DONE]\n\n")]


def asked(parts: Iterable[Part], limits: TimeLimits, tokens: int) -> tuple[RequestRecord, float]:
    """Return the record of a request for so many tokens, and how long it took."""

    async def main() -> tuple[RequestRecord, float]:
        clock, began_s = VirtualClock(), asyncio.get_running_loop().time()
        spec = RequestSpec("w", Api.COMPLETIONS, (1, 2, 3), 3, tokens)
        async with Client(Endpoint("a", "http://a"), clock, limits, Played(parts)) as client:
            record = await client.send(spec, "m", Traffic.CANARY, clock.monotonic_ns())
        return record, asyncio.get_running_loop().time() - began_s

    return virtually(main(), within_s=DAY_S)


@pytest.mark.fault("CO60")
@pytest.mark.parametrize("tpot_s", [0.02, 0.067, 0.11])
@pytest.mark.parametrize("tokens", [1024, 4096, 7168])
def test_a_long_answer_is_measured_whole(tokens: int, tpot_s: float) -> None:
    record, took_s = asked(answer(tokens, tpot_s), TimeLimits(CHAT, tokens), tokens)
    assert (record.outcome, record.detail, record.output_tokens) == (Outcome.OK, None, tokens)
    assert took_s == pytest.approx(tokens * tpot_s, rel=0.01)


@pytest.mark.fault(
    "CO61",
    "A server that hangs in a long answer: before it, within it, with keep-alives of a gateway",
    area="Configuration",
    users_see="canary `timeout` after 30 s of silence, as with a short answer",
    stays="an answer that arrives is not cut",
)
@pytest.mark.parametrize(
    ("parts", "after_s", "words"),
    [
        ([(DAY_S, b"")], 30.0, "no answer for 30 s"),
        ([(1.0, PING)] * 10_000, 30.0, "no answer for 30 s"),
        ([(7.0, TYPED_PING)] * 10_000, 30.0, "no answer for 30 s"),
        ([(7.0, b'data: {"choices": []}\n\n')] * 10_000, 30.0, "no answer for 30 s"),
        ([(1.0, token())] * 100 + [(DAY_S, b"")], 130.0, "nothing more of the answer for 30 s"),
        ([(1.0, token())] * 100 + [(9.0, PING)] * 10_000, 130.0, "nothing more of the answer for 30 s"),
    ],
    ids=["nothing", "comments", "pings", "empty events", "stops", "stops with comments"],
)
def test_a_server_that_hangs_is_found_as_soon_as_in_a_short_answer(
    parts: list[Part], after_s: float, words: str
) -> None:
    record, took_s = asked(parts, TimeLimits(CHAT, 7168, raised_by="canary.timeout"), 7168)
    assert record.outcome is Outcome.TIMEOUT
    assert record.detail == f"{words}, Kneewatch's time limit; canary.timeout raises it"
    assert took_s == pytest.approx(after_s, abs=0.01)


@pytest.mark.fault(
    "CO62",
    "Kneewatch's own time limit ends an answer that still arrives",
    area="Configuration",
    users_see="whose limit it is and what raises it; no advice to look at the server's log",
    stays="guard: `time_limit`",
)
def test_a_limit_that_is_set_is_named_as_ones_own() -> None:
    limits = TimeLimits(CHAT, 1024, set_s=90.0, raised_by="--timeout")
    record, took_s = asked(answer(1024, 0.11), limits, 1024)
    assert record.outcome is Outcome.TIMEOUT
    assert record.detail == "no full answer within 90 s, Kneewatch's time limit; --timeout raises it"
    assert took_s == pytest.approx(90.0)
    stopped, _ = asked([(1.0, token()), (DAY_S, b"")], limits, 1024)
    assert stopped.detail == (
        "no full answer within 90 s (nothing more after 1.0 s), Kneewatch's time limit; --timeout raises it"
    )


def test_an_endless_answer_ends_at_its_limit() -> None:
    limits = TimeLimits(CHAT, 128)
    record, took_s = asked(((1.0, token()) for _ in range(100_000)), limits, 128)
    assert (record.outcome, took_s) == (Outcome.TIMEOUT, pytest.approx(30.0))


@pytest.mark.parametrize(
    ("limits", "ends"),
    [({"between_bytes_s": 60.0}, Outcome.OK), ({}, Outcome.TIMEOUT)],
)
def test_a_limit_of_the_connection_that_is_set_replaces_the_one_for_silence(
    limits: dict[str, float], ends: Outcome
) -> None:
    parts = answer(1024, 0.05)
    parts[5] = (45.0, parts[5][1])

    async def main() -> RequestRecord:
        clock = VirtualClock()
        spec = RequestSpec("w", Api.COMPLETIONS, (1, 2, 3), 3, 1024)
        where = Endpoint("a", "http://a", **limits)
        async with Client(where, clock, TimeLimits(CHAT, 1024), Played(parts)) as client:
            return await client.send(spec, "m", Traffic.CANARY, clock.monotonic_ns())

    assert virtually(main(), within_s=DAY_S).outcome is ends


def waited(sent_before_s: float, answer_s: float, silence_s: float) -> str | None:
    """Return why an exchange ended after a freeze of 0.4 s, None: it did not.

    A byte came `sent_before_s` before the freeze ended, and is unread. The loop freezes in a read: timers come next.
    """

    async def main() -> str | None:
        buffer, clock, loop = ResponseBuffer(), SystemClock(), asyncio.get_running_loop()
        (ours, theirs), (freezes, begins) = socket.socketpair(), socket.socketpair()
        ended = loop.create_future()

        def freeze() -> None:
            loop.remove_reader(freezes)
            time.sleep(0.4 - sent_before_s)
            if sent_before_s:
                theirs.send(b"data: a")
                time.sleep(sent_before_s)

        def read() -> None:
            buffer.head_ns = clock.monotonic_ns()
            buffer.add(buffer.head_ns, buffer.head_ns, ours.recv(100))
            ended.set_result(None)

        loop.add_reader(ours, read)
        loop.add_reader(freezes, freeze)
        patience = Patience(buffer, clock, answer_s=answer_s, first_s=silence_s, next_s=silence_s, raised_by="x")
        with ours, theirs, freezes, begins:
            try:
                async with patience:
                    begins.send(b"now")
                    await ended
            except TimeoutError:
                return patience.lateness
            finally:
                loop.remove_reader(ours)
        return None

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


@pytest.mark.fault("ST110")
@pytest.mark.parametrize(("answer_s", "silence_s"), [(9.0, 0.2), (0.2, math.inf)])
def test_what_came_while_kneewatch_was_frozen_is_read_before_it_is_judged(answer_s: float, silence_s: float) -> None:
    """uvloop runs timers before it reads."""
    assert waited(0.3, answer_s, silence_s) is None


@pytest.mark.fault("ST110")
def test_a_server_that_is_silent_after_a_freeze_too_is_found_and_the_freeze_is_said() -> None:
    words = waited(0.0, 9.0, 0.2)
    assert words is not None
    found = re.fullmatch(
        r"no answer for 0.2 s and 0.[12]\d* s more, for which Kneewatch itself had not run, Kneewatch's time limit;"
        " x raises it",
        words,
    )
    assert found, words


def test_an_answer_with_more_tokens_than_asked_for_is_not_said_to_need_more_time() -> None:
    record, _ = asked([(0.1, token(n)) for n in range(1, 1000)], TimeLimits(CHAT, 128), 128)
    assert record.outcome is Outcome.TIMEOUT
    assert record.detail == "more than the 128 tokens asked for, and no end, Kneewatch's time limit"
    assert not was_arriving(record.detail)
