"""One row of the matrix: bytes of a server, with their times, and what Kneewatch must make of them.

The real Client sends one request of 8 prompt and 4 output tokens; a real Connection gets the bytes, without a network
and at times that the row gives. So each latency is exact.
"""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import httpx
from hostile_server import chunked, event
from memory_wire import EOF, wire
from plain_records import spec

from probe.client.api_request import PLAIN_REQUESTS, RequestShape
from probe.client.client import Client
from probe.client.endpoint import Endpoint
from probe.core.request import Api, Outcome, RequestRecord, Traffic

MS = 1_000_000
PROMPT, OUTPUT = 8, 4
Timed = tuple[tuple[float, bytes], ...]

VLLM = "vLLM 0.32, recorded"
SSE_STANDARD = "WHATWG HTML 9.2.6, interpreting an event stream"


@dataclass(frozen=True)
class WireCase:
    """`sent`: bytes and when they arrive (ms). `source`: a public report, a standard, or a server's file.

    `tokens`: of each event with any. `usage`: prompt and output tokens of the record. `ttft`, `tpot`: in ms; None:
    unknown, and so not measured. `visible`: until the first text, where tokens without any came before. `itls`: how
    many gaps between tokens are known; None: those between the events. `words`: a part of the line that explains the
    outcome. `unsaid`: what would be wrong in it. `end`: of the connection.
    """

    name: str
    source: str
    sent: Timed
    outcome: Outcome = Outcome.OK
    tokens: tuple[int, ...] = (1, 1, 1, 1)
    usage: tuple[int, int] = (PROMPT, OUTPUT)
    ttft: float | None = 100.0
    tpot: float | None = 20.0
    visible: float | None = None
    itls: int | None = None
    words: str = ""
    unsaid: tuple[str, ...] = ()
    api: Api = Api.COMPLETIONS
    shape: RequestShape = PLAIN_REQUESTS
    end: str = EOF


def failed(
    name: str,
    source: str,
    sent: Timed,
    outcome: Outcome,
    words: str,
    **others: Any,
) -> WireCase:
    """Return a row of an answer that failed, by default before any token."""
    nothing: dict[str, Any] = {"tokens": (), "usage": (0, 0), "ttft": None, "tpot": None}
    return WireCase(name, source, sent, outcome, words=words, **{**nothing, **others})


def head(kind: str = "text/event-stream", *more: str, status: int = 200) -> bytes:
    """Return the head of an answer."""
    lines = [f"HTTP/1.1 {status} Any", *([f"content-type: {kind}"] if kind else []), *more]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def stream(*events: bytes, first: float = 100, gap: float = 20, kind: str = "text/event-stream") -> Timed:
    """Return a chunked answer, one event a chunk and one chunk a read."""
    pieces = [(first + gap * i, chunked(each, end=False)) for i, each in enumerate(events)]
    last = pieces[-1][0] if pieces else first
    return ((1, head(kind, "transfer-encoding: chunked")), *pieces, (last, b"0\r\n\r\n"))


def cut(data: bytes, first: float = 100, gap: float = 20) -> Timed:
    """Return a body that comes byte by byte, all bytes up to an event's end (an empty line) at its time."""
    pieces: list[tuple[float, bytes]] = [(1, head())]
    at = first
    for i in range(len(data)):
        pieces.append((at, data[i : i + 1]))
        at += gap if data[max(i - 1, 0) : i + 1] == b"\n\n" else 0
    return tuple(pieces)


def body(data: bytes | str | object, kind: str = "application/json", *more: str, status: int = 200) -> Timed:
    """Return an answer that is no stream; what is neither bytes nor text is sent as JSON."""
    text = data if isinstance(data, bytes | str) else json.dumps(data)
    raw = text.encode() if isinstance(text, str) else text
    return ((100, head(kind, f"content-length: {len(raw)}", *more, status=status) + raw),)


def comp(text: object = "x", count: object = None, finish: object = None, **others: Any) -> bytes:
    """Return an event of completions; `count`: the output tokens so far, with the prompt's."""
    choice = {"index": 0, "text": text, "finish_reason": finish}
    usage = {} if count is None else {"usage": counts(count)}
    return event({"object": "text_completion", "model": "tiny", "choices": [choice], **usage, **others})


def chat(delta: object, count: object = None, finish: object = None, **others: Any) -> bytes:
    """Return an event of chat."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    usage = {} if count is None else {"usage": counts(count)}
    return event({"object": "chat.completion.chunk", "model": "tiny", "choices": [choice], **usage, **others})


def counts(output: object, prompt: object = PROMPT) -> dict[str, object]:
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": 12}


def final(usage: object, choices: object = ()) -> bytes:
    """Return the last chunk, which has the usage and no choice."""
    return event({"model": "tiny", "choices": list(choices) if isinstance(choices, tuple) else choices, "usage": usage})


DONE = event(b"[DONE]")
FOUR = (comp("a", 1), comp("b", 2), comp("c", 3), comp("d", 4, "length"))
GOOD = (*FOUR, final(counts(4)), DONE)
UNCOUNTED = (comp("a"), comp("b"), comp("c"), comp("d", None, "length"))  # without the running usage


@dataclass
class _Clock:
    """Time as the row gives it."""

    now_ns: int = 0

    def monotonic_ns(self) -> int:
        return self.now_ns

    def wall_s(self) -> float:
        return 1.7e9

    def waited_ns(self) -> int:
        return 0


@dataclass
class _ScriptedTransport(httpx.AsyncBaseTransport):
    """Feeds the row's bytes to a real connection."""

    case: WireCase
    clock: _Clock = field(default_factory=_Clock)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        with _time_of(self.clock):
            on = wire()
            on.start(request.extensions["received"])
            for at_ms, data in self.case.sent:
                self.clock.now_ns = round(at_ms * MS)
                on.feed(data)
            on.end(self.case.end)
            await asyncio.wait_for(on.connection.wait(), 1)
        return httpx.Response(200)


@contextmanager
def _time_of(clock: _Clock) -> Iterator[None]:
    with (
        patch("probe.client.connection.perf_counter_ns", clock.monotonic_ns),
        patch("probe.client.loop_lateness.perf_counter_ns", clock.monotonic_ns),
        patch("probe.client.loop_lateness.thread_time_ns", lambda: 0),
    ):
        yield


async def play(case: WireCase, secret: str | None = None) -> RequestRecord:
    """Send the row's request, and return the record of its answer."""
    transport = _ScriptedTransport(case)
    place = Endpoint("llama", "http://llama", secret=lambda: secret, shape=case.shape)
    async with Client(place, transport.clock, 5.0, transport) as client:
        return await client.send(spec(PROMPT, OUTPUT, case.api), "tiny", Traffic.CANARY, 0)
