"""One request against servers that misbehave: every failure is one Outcome and one line."""

import asyncio
import gc
import gzip
import json
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import httpx
import pytest
from hostile_server import (
    CLOSE,
    DONE,
    GOOD,
    HANG,
    STREAM_HEAD,
    THREE_TOKENS,
    Asked,
    Hostile,
    Script,
    chunked,
    event,
    head,
    hostile,
    token,
    whole,
)
from hypothesis import given
from hypothesis import strategies as st
from plain_records import spec
from property_examples import examples
from set_clock import SetClock

from probe.client.client import Client
from probe.client.endpoint import Endpoint
from probe.client.secrets import AuthHeader
from probe.core import latency
from probe.core.clock import SystemClock
from probe.core.errors import TargetError
from probe.core.request import Api, Outcome, RequestRecord, RequestSpec, ServerTimes, Traffic, tokens_spent

SECRET = "sk-not-to-be-shown-0123456789"
CLOCK = SystemClock()
SPEC = spec(8, 3)
TIMEOUT_S = 0.25


def client(base_url: str, secret: Callable[[], str | None] = lambda: SECRET, timeout_s: float = 2.0) -> Client:
    # Loading the system's certificates takes longer than most of these tests.
    return Client(Endpoint("llama", base_url, secret=secret, verify=False), CLOCK, timeout_s)


async def sent(to: Client, what: RequestSpec = SPEC) -> RequestRecord:
    record = await to.send(what, "tiny", Traffic.CANARY, CLOCK.monotonic_ns())
    check(record)
    return record


def check(record: RequestRecord) -> None:
    """Assert what holds of every record, however the server behaved."""
    assert record.scheduled_ns <= record.sent_ns <= record.done_ns
    assert (record.outcome is Outcome.OK) == (record.detail is None)
    if record.detail is not None:
        assert record.detail.isprintable(), ascii(record.detail)
        assert 0 < len(record.detail) < 400
        assert SECRET not in record.detail
    assert SECRET not in str(record.finish_reason)
    stamps = list(record.events.at_ns)
    assert stamps == sorted(stamps)
    assert all(record.sent_ns <= stamp <= record.done_ns for stamp in stamps)
    assert record.prompt_tokens >= 0
    assert record.output_tokens >= 0


def answer_to(script: Script | Callable[[Asked], Script], *, timeout_s: float = 2.0) -> RequestRecord:
    async def main() -> RequestRecord:
        async with hostile(script) as server, client(server.base_url, timeout_s=timeout_s) as to:
            return await sent(to)

    return asyncio.run(main())


# --- What goes well ------------------------------------------------------------------------------------------


def test_a_good_answer_is_measured() -> None:
    record = answer_to([GOOD])
    assert (record.outcome, record.http_status, record.finish_reason) == (Outcome.OK, 200, "length")
    assert (record.prompt_tokens, record.output_tokens, len(record.events)) == (8, 3, 3)
    assert record.reads >= 1


def test_a_record_has_the_servers_own_times() -> None:
    """As vLLM sends them with --enable-per-request-metrics, in the chunk with the usage."""
    metrics = {"queue_time_ms": 2.0, "time_to_first_token_ms": 5.0, "mean_itl_ms": 10.0}
    last = event({"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": 3}, "metrics": metrics})
    first, *others, done = THREE_TOKENS
    record = answer_to([STREAM_HEAD, 0.02, chunked(first, end=False), 0.01, chunked(*others, last, done)])
    assert record.server_times == ServerTimes(queue_s=0.002, prefill_s=0.005)
    parts, since_sent_ns = latency.ttft_parts_s(record), record.events.at_ns[0] - record.sent_ns
    assert (parts["queue"], parts["prefill"], sum(parts.values())) == (0.002, 0.005, pytest.approx(since_sent_ns / 1e9))


def test_every_read_has_its_own_stamp() -> None:
    parts: list[bytes | float] = [STREAM_HEAD]
    for part in THREE_TOKENS:
        parts += [0.05, chunked(part, end=False)]
    record = answer_to([*parts, chunked()])
    first, second, third = record.events.at_ns
    assert second - first > 20_000_000
    assert third - second > 20_000_000
    assert first - record.sent_ns > 40_000_000


ROLE = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})


@pytest.mark.parametrize("early", [b": ping\n\n", b"event: ping\ndata: {}\n\n", ROLE], ids=["comment", "event", "role"])
def test_what_a_gateway_sends_before_the_first_token_is_not_its_begin(early: bytes) -> None:
    """The guard counts the requests that wait for their first token by `reads`."""

    async def main() -> list[int]:
        script: Script = [STREAM_HEAD + chunked(early, end=False), 0.1, chunked(*THREE_TOKENS)]
        async with hostile(script) as server, client(server.base_url) as to:
            prepared = to.prepare(SPEC, "tiny", Traffic.CAPACITY)
            sending = asyncio.create_task(prepared.send(time.monotonic_ns()))
            while not (prepared.exchange and prepared.exchange.received.reads):  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.001)
            before = prepared.reads
            await sending
            return [before, prepared.reads]

    waiting, begun = asyncio.run(main())
    assert waiting == 0
    assert begun > 1


def test_the_head_has_its_own_stamp_where_it_comes_before_the_body() -> None:
    whole, apart = answer_to([GOOD]), answer_to([STREAM_HEAD, 0.05, chunked(b"".join(THREE_TOKENS))])
    assert whole.wire is not None
    assert whole.wire.head_ns is None
    assert apart.wire is not None
    assert apart.wire.head_ns is not None
    assert apart.wire.first_read_ns is not None
    assert 0 < apart.wire.written_ns < apart.wire.head_ns < apart.wire.first_read_ns - 40_000_000
    assert apart.wire.first_read_ns == apart.events.at_ns[0] - apart.sent_ns


def test_asks_as_vllm_wants_to_be_asked() -> None:
    async def main() -> list[Asked]:
        async with hostile([GOOD]) as server, client(server.base_url) as to:
            await sent(to)
            await sent(to, spec(8, 3, Api.CHAT))
            return server.asked

    completion, chat = asyncio.run(main())
    body = completion.json()
    assert completion.line == "POST /v1/completions HTTP/1.1"
    assert completion.headers["authorization"] == f"bearer {SECRET}"
    assert body["prompt"] == list(SPEC.prompt)
    assert (body["max_tokens"], body["ignore_eos"], body["temperature"], body["stream"]) == (3, True, 0, True)
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert chat.line == "POST /v1/chat/completions HTTP/1.1"
    assert chat.json()["messages"] == [{"role": "user", "content": "hello there"}]


@pytest.mark.fault("R07c")
def test_an_answer_that_others_leave_no_memory_for_is_the_client_s_fault() -> None:
    """All answers of a step hold 160 MiB at most until they are parsed; here, as much as one."""

    async def main() -> list[RequestRecord]:
        async with hostile([GOOD]) as server, client(server.base_url) as to:
            alone = await to.prepare(SPEC, "tiny", Traffic.CAPACITY).send(CLOCK.monotonic_ns())
            to.share_memory(160 * 2**20 // (2 * alone.held - 1))
            prepared = [to.prepare(SPEC, "tiny", Traffic.CAPACITY) for _ in range(3)]
            first = await prepared[0].send(CLOCK.monotonic_ns())
            second = await prepared[1].send(CLOCK.monotonic_ns())
            parsed = [first.record(), second.record()]
            return [*parsed, (await prepared[2].send(CLOCK.monotonic_ns())).record()]

    first, second, third = asyncio.run(main())
    assert (first.outcome, third.outcome) == (Outcome.OK, Outcome.OK)
    assert second.outcome is Outcome.CLIENT_BOUND
    assert "with all others in flight; send fewer at once" in str(second.detail)


@pytest.mark.fault("R07d")
def test_a_fast_stream_is_parsed_in_portions_whatever_its_reads() -> None:
    """Other streams are served between them."""
    many = [token(number, last=number == 10_000) for number in range(1, 10_001)]

    async def main() -> list[RequestRecord | None]:
        async with hostile([STREAM_HEAD + chunked(b"".join(many), DONE)]) as server, client(server.base_url) as to:
            response = await to.prepare(spec(8, 10_000), "tiny", Traffic.CAPACITY).send(CLOCK.monotonic_ns())
            assert response.held > 2**20
            return list(response.read())

    *portions, record = asyncio.run(main())
    assert (record and record.outcome) is Outcome.OK
    assert len(portions) >= 4


def test_a_connection_is_used_again() -> None:
    async def main() -> Hostile:
        async with hostile([GOOD]) as server, client(server.base_url) as to:
            for _ in range(3):
                assert (await sent(to)).outcome is Outcome.OK
            return server

    server = asyncio.run(main())
    assert (server.connections, len(server.asked)) == (1, 3)


@pytest.mark.fault(
    "FA56",
    "A kept connection that the server closed in silence",
    area="Foreign answers",
    users_see="nothing: the request is sent on a new connection",
    stays="the next canary is sent as scheduled",
)
def test_a_kept_connection_that_the_server_closed_in_silence_is_no_failure() -> None:
    async def main() -> list[Outcome]:
        async with hostile([GOOD, CLOSE]) as server, client(server.base_url) as to:
            outcomes = []
            for _ in range(3):
                outcomes.append((await sent(to)).outcome)
                await asyncio.sleep(0.02)
            return outcomes

    assert asyncio.run(main()) == [Outcome.OK] * 3


def test_speaks_to_an_ipv6_address() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")

    async def main() -> RequestRecord:
        async with hostile([GOOD], host="::1") as server, client(server.base_url) as to:
            return await sent(to)

    assert asyncio.run(main()).outcome is Outcome.OK


def test_requests_in_flight_together_do_not_mix() -> None:
    def by_length(asked: Asked) -> Script:
        wanted = asked.json()["max_tokens"]
        tokens = [token(i + 1, last=i + 1 == wanted) for i in range(wanted)]
        return [0.01 * (10 - wanted), STREAM_HEAD + chunked(*tokens, DONE)]

    async def main() -> list[RequestRecord]:
        async with hostile(by_length) as server, client(server.base_url) as to:
            return await asyncio.gather(*(sent(to, spec(8, n)) for n in range(1, 9)))

    records = asyncio.run(main())
    assert [record.output_tokens for record in records] == list(range(1, 9))
    assert {record.outcome for record in records} == {Outcome.OK}


@pytest.mark.fault(
    "FA61",
    "A load balancer's cookie",
    area="Foreign answers",
    users_see="nothing: cookies are not kept",
    stays="canaries reach every replica",
)
def test_no_cookie_ties_us_to_one_replica() -> None:
    """A load balancer's cookie would send every canary to the server that took the first one."""
    cookie = head(200, "text/event-stream", "transfer-encoding: chunked", "set-cookie: replica=7")

    async def main() -> list[Asked]:
        async with hostile([cookie + chunked(*THREE_TOKENS)]) as server, client(server.base_url) as to:
            await sent(to)
            await sent(to)
            return server.asked

    assert ["cookie" in asked.headers for asked in asyncio.run(main())] == [False, False]


@pytest.mark.fault(
    "FA60",
    "A gateway that compresses if asked",
    area="Foreign answers",
    users_see="nothing: compression is not requested",
    stays="each token keeps its own time",
)
def test_a_gateway_that_compresses_on_request_is_not_asked_to() -> None:
    """Compression delays tokens until a block is full, and the raw reads that are stamped could not be read."""

    def gateway(asked: Asked) -> Script:
        kind = "text/event-stream" if "completions" in asked.line else "application/json"
        body = b"".join(THREE_TOKENS) if "completions" in asked.line else b'{"data": [{"id": "tiny"}]}'
        if "gzip" in asked.headers.get("accept-encoding", ""):
            return [whole(200, gzip.compress(body), kind, "content-encoding: gzip")]
        return [whole(200, body, kind)]

    async def main() -> tuple[RequestRecord, list[str]]:
        async with hostile(gateway) as server, client(server.base_url) as to:
            return await sent(to), list(await to.models())

    record, models = asyncio.run(main())
    assert record.outcome is Outcome.OK
    assert models == ["tiny"]


# --- What goes wrong -----------------------------------------------------------------------------------------

# As vLLM 0.32 answers with --max-num-queued-reqs.
QUEUE_FULL = {
    "error": {
        "message": "The engine is currently busy and cannot accept new requests. Please try again later or on a"
        " different instance.",
        "type": "Service Unavailable",
        "param": None,
        "code": 503,
    }
}
LONG_PAGE = "<html>" + "all is lost " * 20_000
CASES: dict[str, tuple[Script, Outcome, str]] = {
    "closed before an answer": ([CLOSE], Outcome.UNREACHABLE, "cannot be reached"),
    "closed inside the head": ([b"HTTP/1.1 200 O", CLOSE], Outcome.UNREACHABLE, "cannot be reached"),
    "not HTTP": ([b"SSH-2.0-OpenSSH_9.2\r\n\r\n", CLOSE], Outcome.UNREACHABLE, "cannot be reached"),
    "binary": ([bytes(range(256)) * 4, CLOSE], Outcome.UNREACHABLE, "cannot be reached"),
    "401": ([whole(401, {"error": "Unauthorized"})], Outcome.UNAUTHORIZED, "HTTP 401: Unauthorized"),
    "403": ([whole(403, {"detail": "Forbidden"})], Outcome.UNAUTHORIZED, "HTTP 403: Forbidden"),
    "404": ([whole(404, {"error": {"message": "no such model"}})], Outcome.NOT_FOUND, "HTTP 404: no such model"),
    "404 with a long page": ([whole(404, LONG_PAGE, "text/html")], Outcome.NOT_FOUND, "HTTP 404: <html>"),
    "429": ([whole(429, {"error": {"message": "queue is full"}})], Outcome.REJECTED, "HTTP 429: queue is full"),
    "429 of a rate limit": (
        [whole(429, {"error": {"message": "Rate limit reached"}})],
        Outcome.REJECTED,
        "HTTP 429: Rate limit reached",
    ),
    "503 of vLLM's queue limit": ([whole(503, QUEUE_FULL)], Outcome.REJECTED, "HTTP 503: The engine is currently busy"),
    "503 that asks to come again": (
        [whole(503, b"", "text/html", "retry-after: 2")],
        Outcome.REJECTED,
        "HTTP 503",
    ),
    "503 without words": ([whole(503, b"")], Outcome.SERVER_ERROR, "HTTP 503"),
    "503 of Envoy without a server": (
        [whole(503, "no healthy upstream", "text/plain")],
        Outcome.SERVER_ERROR,
        "HTTP 503: no healthy upstream",
    ),
    "503 of Envoy's circuit breaker": (
        [whole(503, "upstream connect error or disconnect/reset", "text/plain", "x-envoy-overloaded: true")],
        Outcome.REJECTED,
        "HTTP 503: upstream connect error",
    ),
    "queue full inside the stream": (
        [STREAM_HEAD + chunked(event({"error": {"message": "The request queue is full.", "code": 503}}))],
        Outcome.REJECTED,
        "error inside the stream: The request queue is full.",
    ),
    "400": ([whole(400, {"error": {"message": "too long"}})], Outcome.BAD_REQUEST, "HTTP 400: too long"),
    "500": ([whole(500, "Internal Server Error", "text/plain")], Outcome.SERVER_ERROR, "HTTP 500: Internal Server"),
    "500 with a long page": ([whole(500, LONG_PAGE, "text/html")], Outcome.SERVER_ERROR, "HTTP 500: <html>"),
    "500 that breaks off": (
        [head(500, "text/html", "content-length: 99") + b"Traceback", CLOSE],
        Outcome.SERVER_ERROR,
        "HTTP 500",
    ),
    "503 that never ends": (
        [head(503, "text/html", "content-length: 99") + b"Starting", HANG],
        Outcome.SERVER_ERROR,
        "HTTP 503",
    ),
    "599": ([whole(599, b"")], Outcome.SERVER_ERROR, "HTTP 599"),
    "302": (
        [whole(302, b"", "text/html", "location: https://login/")],
        Outcome.BAD_REQUEST,
        "redirects to 'https://login/'",
    ),
    "302 to nowhere": ([whole(302, b"")], Outcome.BAD_REQUEST, "HTTP 302"),
    "302 to itself": ([whole(302, b"", "text/html", "location: /v1/completions")], Outcome.BAD_REQUEST, "redirects"),
    "204": ([head(204)], Outcome.BAD_REQUEST, "HTTP 204"),
    "101": (
        [b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", HANG],
        Outcome.UNREACHABLE,
        "cannot be",
    ),
    "HTML": (
        [whole(200, "<html>Welcome</html>", "text/html")],
        Outcome.BROKEN_STREAM,
        "'text/html', expected an event",
    ),
    "no content type": ([b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"], Outcome.BROKEN_STREAM, "no content type"),
    "JSON, not streamed": ([whole(200, {"choices": []})], Outcome.BROKEN_STREAM, "'application/json', expected"),
    "empty stream": ([whole(200, b"", "text/event-stream")], Outcome.BROKEN_STREAM, "without [DONE]"),
    "only [DONE]": ([STREAM_HEAD + chunked(DONE)], Outcome.WRONG_ANSWER, "no content"),
    "error inside the stream": (
        [STREAM_HEAD + chunked(token(1), event({"error": {"message": "EngineDeadError", "code": 500}}))],
        Outcome.SERVER_ERROR,
        "error inside the stream: EngineDeadError",
    ),
    "error inside the stream, unpaired surrogate": (
        [STREAM_HEAD + chunked(token(1), event(rb'{"error": "\ud800 died"}'))],
        Outcome.SERVER_ERROR,
        "died",
    ),
    "500 with an unpaired surrogate": ([whole(500, rb'{"error": "\udfff died"}')], Outcome.SERVER_ERROR, "died"),
    "truncated": ([STREAM_HEAD + chunked(token(1), end=False), CLOSE], Outcome.BROKEN_STREAM, "the answer broke off"),
    "truncated inside an event": (
        [STREAM_HEAD + chunked(token(1), token(2)[:30], end=False), CLOSE],
        Outcome.BROKEN_STREAM,
        "broke off",
    ),
    "no [DONE]": ([STREAM_HEAD + chunked(*THREE_TOKENS[:3])], Outcome.BROKEN_STREAM, "without [DONE] after 3 token"),
    "too few bytes": (
        [head(200, "text/event-stream", "content-length: 999") + token(1), CLOSE],
        Outcome.BROKEN_STREAM,
        "broke",
    ),
    "no usage": (
        [STREAM_HEAD + chunked(event({"choices": [{"text": "x", "finish_reason": "length"}]}), DONE)],
        Outcome.WRONG_ANSWER,
        "no usage",
    ),
    "too few tokens": (
        [STREAM_HEAD + chunked(token(1, last=True), DONE)],
        Outcome.WRONG_ANSWER,
        "1 output tokens, 3 were",
    ),
    "too many tokens": ([STREAM_HEAD + chunked(token(9, last=True), DONE)], Outcome.WRONG_ANSWER, "9 output tokens"),
    "another prompt": (
        [STREAM_HEAD + chunked(token(3, last=True, prompt_tokens=7), DONE)],
        Outcome.WRONG_ANSWER,
        "7 prompt tokens of 8",
    ),
    "invalid JSON": (
        [STREAM_HEAD + chunked(token(1), event(b"{oops"), DONE)],
        Outcome.BROKEN_STREAM,
        "not an API chunk: {oops",
    ),
    "JSON that is deep": (
        [STREAM_HEAD + chunked(event(b"[" * 50_000), DONE)],
        Outcome.BROKEN_STREAM,
        "not an API chunk",
    ),
    "bad chunk size": ([STREAM_HEAD + b"zz\r\nboo\r\n", CLOSE], Outcome.BROKEN_STREAM, "broke off"),
    "huge chunk size": ([STREAM_HEAD + b"f" * 30 + b"\r\nboo\r\n", CLOSE], Outcome.BROKEN_STREAM, "broke off"),
    "one huge event": (
        [STREAM_HEAD + chunked(event(b"x" * 2**15), DONE)],
        Outcome.BROKEN_STREAM,
        "not an API chunk: xxx",
    ),
    "more than the tokens take": (
        [STREAM_HEAD + chunked(event(b"x" * 2**21), DONE)],
        Outcome.BROKEN_STREAM,
        "cut off: more than 70 KiB",
    ),
    "an event that unfolds": (
        [STREAM_HEAD + chunked(event(b'{"choices":[' + b"{}," * 20_000 + b"{}]}"), DONE)],
        Outcome.BROKEN_STREAM,
        'not an API chunk: {"choices":[{},{}',
    ),
    "an event that is deep": (
        [STREAM_HEAD + chunked(event(b'{"choices":' + b"[" * 200 + b"]" * 200 + b"}"), DONE)],
        Outcome.BROKEN_STREAM,
        "not an API chunk: ",
    ),
    "endless head": (
        [b"HTTP/1.1 200 OK\r\n" + b"x-more: and more\r\n" * 50_000, HANG],
        Outcome.UNREACHABLE,
        "cannot be",
    ),
    "endless header": ([b"HTTP/1.1 200 OK\r\nx-more: " + b"a" * 2**20, HANG], Outcome.UNREACHABLE, "cannot be"),
    "two lengths": (
        [head(200, "text/event-stream", "content-length: 5", "content-length: 6") + b"hello!"],
        Outcome.UNREACHABLE,
        "",
    ),
    "control characters": (
        [whole(500, "\x1b[31mred\x00\r\nINFO fake log line\u202e\u2028 end", "text/plain")],
        Outcome.SERVER_ERROR,
        "red",
    ),
    "control characters in a header": (
        [whole(302, b"", "text/html", "location: /\x1b[31m\xff")],
        Outcome.UNREACHABLE,
        "not HTTP",
    ),
    "strange content type": ([whole(200, b"", "\x9b\xff" * 200)], Outcome.BROKEN_STREAM, "expected an event stream"),
    "secret in the body": (
        [whole(401, {"error": f"Invalid key {SECRET}!"})],
        Outcome.UNAUTHORIZED,
        "Invalid key (hidden)!",
    ),
    "secret in a page": ([whole(500, f"<p>{SECRET}", "text/html")], Outcome.SERVER_ERROR, "(hidden)"),
    "secret in an event": ([STREAM_HEAD + chunked(event({"error": SECRET}))], Outcome.SERVER_ERROR, "(hidden)"),
    "secret in a redirect": (
        [whole(302, b"", "text/html", f"location: /login?key={SECRET}")],
        Outcome.BAD_REQUEST,
        "(hidden)",
    ),
    "secret as a chunk": ([STREAM_HEAD + chunked(event(SECRET.encode()))], Outcome.BROKEN_STREAM, "(hidden)"),
    "secret as a type": ([whole(200, b"", f"text/{SECRET}")], Outcome.BROKEN_STREAM, "(hidden)"),
    "secret as the finish reason": (
        [
            STREAM_HEAD
            + chunked(
                token(1),
                event(
                    {
                        "choices": [{"text": "x", "finish_reason": SECRET}],
                        "usage": {"prompt_tokens": 8, "completion_tokens": 3},
                    }
                ),
                DONE,
            )
        ],
        Outcome.WRONG_ANSWER,
        "finish reason",
    ),
    "a long finish reason": (
        [
            STREAM_HEAD
            + chunked(
                event(
                    {
                        "choices": [{"text": "x", "finish_reason": "stop" * 999}],
                        "usage": {"prompt_tokens": 8, "completion_tokens": 3},
                    }
                ),
                DONE,
            )
        ],
        Outcome.WRONG_ANSWER,
        "finish reason",
    ),
}


@pytest.mark.parametrize(
    ("case", "is_overload"),
    [
        ("503 of vLLM's queue limit", True),
        ("503 of Envoy's circuit breaker", True),
        ("queue full inside the stream", True),
        ("429", True),
        ("429 of a rate limit", False),
        ("503 without words", False),
    ],
)
def test_a_record_says_whether_the_server_was_too_busy(case: str, is_overload: bool) -> None:  # noqa: FBT001 - a parameter
    script, *_ = CASES[case]

    async def main() -> RequestRecord:
        async with hostile(script) as server, client(server.base_url) as to:
            return await sent(to)

    assert asyncio.run(main()).is_overload is is_overload


@pytest.mark.parametrize(("script", "outcome", "words"), CASES.values(), ids=CASES)
@pytest.mark.fault("A61")
@pytest.mark.fault(
    "FA1",
    "Server closes the connection before it answers",
    area="Foreign answers",
    users_see="canary `unreachable`: cannot be reached",
    stays="the next canary is sent as scheduled",
    case="closed before an answer",
)
@pytest.mark.fault(
    "FA2",
    "Server closes inside the response head",
    area="Foreign answers",
    users_see="canary `unreachable`",
    stays="the next canary is sent as scheduled",
    case="closed inside the head",
)
@pytest.mark.fault(
    "FA3",
    "Something answers that is not HTTP (an SSH server)",
    area="Foreign answers",
    users_see="canary `unreachable`",
    stays="the next canary is sent as scheduled",
    case="not HTTP",
)
@pytest.mark.fault(
    "FA4",
    "Binary bytes instead of a response",
    area="Foreign answers",
    users_see="canary `unreachable`",
    stays="the next canary is sent as scheduled",
    case="binary",
)
@pytest.mark.fault(
    "FA5",
    "HTTP 401",
    area="Foreign answers",
    users_see="canary `unauthorized`, with the server's words",
    stays="the next canary is sent as scheduled",
    case="401",
)
@pytest.mark.fault(
    "FA6",
    "HTTP 403",
    area="Foreign answers",
    users_see="canary `unauthorized`, with the server's words",
    stays="the next canary is sent as scheduled",
    case="403",
)
@pytest.mark.fault(
    "FA7",
    "HTTP 404 for the model",
    area="Foreign answers",
    users_see="canary `not_found`: no such model",
    stays="the next canary is sent as scheduled",
    case="404",
)
@pytest.mark.fault(
    "FA8",
    "An error page of 240 kB",
    area="Foreign answers",
    users_see="canary `not_found`; the line has less than 400 characters",
    stays="the next canary is sent as scheduled",
    case="404 with a long page",
)
@pytest.mark.fault(
    "FA9",
    "HTTP 429: the queue is full",
    area="Foreign answers",
    users_see="canary `rejected`",
    stays="the next canary is sent as scheduled",
    case="429",
)
@pytest.mark.fault(
    "FA120",
    "HTTP 503 of vLLM's own queue limit",
    area="Foreign answers",
    users_see="canary `rejected`, with the server's words",
    stays="the next canary is sent as scheduled",
    case="503 of vLLM's queue limit",
)
@pytest.mark.fault(
    "FA10",
    "HTTP 400",
    area="Foreign answers",
    users_see="canary `bad_request`, with the server's words",
    stays="the next canary is sent as scheduled",
    case="400",
)
@pytest.mark.fault(
    "FA11",
    "HTTP 500 as plain text",
    area="Foreign answers",
    users_see="canary `server_error`",
    stays="the next canary is sent as scheduled",
    case="500",
)
@pytest.mark.fault(
    "FA12",
    "HTTP 500 whose body breaks off",
    area="Foreign answers",
    users_see="canary `server_error`",
    stays="the next canary is sent as scheduled",
    case="500 that breaks off",
)
@pytest.mark.fault(
    "FA13",
    "HTTP 503 whose body never ends",
    area="Foreign answers",
    users_see="canary `server_error` after the time limit; nothing is kept open",
    stays="the next canary is sent as scheduled",
    case="503 that never ends",
)
@pytest.mark.fault(
    "FA14",
    "Redirect to a log-in page",
    area="Foreign answers",
    users_see="canary `bad_request` that names the address; the redirect is not followed",
    stays="the next canary is sent as scheduled",
    case="302",
)
@pytest.mark.fault(
    "FA15",
    "Redirect to the same address",
    area="Foreign answers",
    users_see="canary `bad_request`; no loop",
    stays="the next canary is sent as scheduled",
    case="302 to itself",
)
@pytest.mark.fault(
    "FA16",
    "HTTP 204 instead of a stream",
    area="Foreign answers",
    users_see="canary `bad_request`",
    stays="the next canary is sent as scheduled",
    case="204",
)
@pytest.mark.fault(
    "FA17",
    "HTTP 101, a switch of protocols that nobody asked for",
    area="Foreign answers",
    users_see="canary `unreachable`",
    stays="the next canary is sent as scheduled",
    case="101",
)
@pytest.mark.fault(
    "FA18",
    "HTTP 200 with an HTML page (a captive portal)",
    area="Foreign answers",
    users_see="canary `broken_stream`: expected an event stream",
    stays="the next canary is sent as scheduled",
    case="HTML",
)
@pytest.mark.fault(
    "FA19",
    "HTTP 200 without a content type",
    area="Foreign answers",
    users_see="canary `broken_stream`",
    stays="the next canary is sent as scheduled",
    case="no content type",
)
@pytest.mark.fault(
    "FA20",
    "A gateway that does not stream",
    area="Foreign answers",
    users_see="canary `broken_stream`: `application/json`, expected an event stream",
    stays="the next canary is sent as scheduled",
    case="JSON, not streamed",
)
@pytest.mark.fault(
    "FA21",
    "A stream without any event",
    area="Foreign answers",
    users_see="canary `broken_stream`: without `[DONE]`",
    stays="the next canary is sent as scheduled",
    case="empty stream",
)
@pytest.mark.fault(
    "FA22",
    "A stream with no content but its end",
    area="Foreign answers",
    users_see="canary `wrong_answer`",
    stays="the next canary is sent as scheduled",
    case="only [DONE]",
)
@pytest.mark.fault(
    "FA23",
    "The engine dies in the middle of a stream (vLLM's error event)",
    area="Foreign answers",
    users_see="canary `server_error`: EngineDeadError",
    stays="the next canary is sent as scheduled",
    case="error inside the stream",
)
@pytest.mark.fault(
    "FA24",
    "An error event with half a Unicode character",
    area="Foreign answers",
    users_see="canary `server_error`; the line is printable",
    stays="the next canary is sent as scheduled",
    case="error inside the stream, unpaired surrogate",
)
@pytest.mark.fault(
    "FA25",
    "The connection closes between two events",
    area="Foreign answers",
    users_see="canary `broken_stream`: the answer broke off",
    stays="the next canary is sent as scheduled",
    case="truncated",
)
@pytest.mark.fault(
    "FA26",
    "The connection closes inside an event",
    area="Foreign answers",
    users_see="canary `broken_stream`",
    stays="the next canary is sent as scheduled",
    case="truncated inside an event",
)
@pytest.mark.fault(
    "FA27",
    "A stream that ends without `[DONE]`",
    area="Foreign answers",
    users_see="canary `broken_stream`, with the tokens received",
    stays="the next canary is sent as scheduled",
    case="no [DONE]",
)
@pytest.mark.fault(
    "FA28",
    "Fewer bytes than `content-length` promised",
    area="Foreign answers",
    users_see="canary `broken_stream`",
    stays="the next canary is sent as scheduled",
    case="too few bytes",
)
@pytest.mark.fault(
    "FA29",
    "A stream without a token count",
    area="Foreign answers",
    users_see="canary `wrong_answer`: no usage",
    stays="the next canary is sent as scheduled",
    case="no usage",
)
@pytest.mark.fault(
    "FA30",
    "Fewer tokens than requested",
    area="Foreign answers",
    users_see="canary `wrong_answer`: 1 output tokens, 3 were requested",
    stays="the next canary is sent as scheduled",
    case="too few tokens",
)
@pytest.mark.fault(
    "FA31",
    "More tokens than requested",
    area="Foreign answers",
    users_see="canary `wrong_answer`",
    stays="the next canary is sent as scheduled",
    case="too many tokens",
)
@pytest.mark.fault(
    "FA32",
    "The server counted another prompt than was sent",
    area="Foreign answers",
    users_see="canary `wrong_answer`: 7 prompt tokens of 8",
    stays="the next canary is sent as scheduled",
    case="another prompt",
)
@pytest.mark.fault(
    "FA33",
    "An event that is no JSON",
    area="Foreign answers",
    users_see="canary `broken_stream`, with the first characters",
    stays="the next canary is sent as scheduled",
    case="invalid JSON",
)
@pytest.mark.fault(
    "FA34",
    "An event of 50,000 nested lists",
    area="Foreign answers",
    users_see="canary `broken_stream`; no recursion error",
    stays="the next canary is sent as scheduled",
    case="JSON that is deep",
)
@pytest.mark.fault(
    "FA35",
    "An invalid HTTP chunk size",
    area="Foreign answers",
    users_see="canary `broken_stream`",
    stays="the next canary is sent as scheduled",
    case="bad chunk size",
)
@pytest.mark.fault(
    "FA36",
    "A chunk size beyond any number",
    area="Foreign answers",
    users_see="canary `broken_stream`",
    stays="the next canary is sent as scheduled",
    case="huge chunk size",
)
@pytest.mark.fault(
    "FA37",
    "One event of 2 MiB",
    area="Foreign answers",
    users_see="canary `broken_stream`",
    stays="the next canary is sent as scheduled",
    case="one huge event",
)
@pytest.mark.fault(
    "FA38",
    "A response head without end",
    area="Foreign answers",
    users_see="canary `unreachable`; what is kept is bounded",
    stays="the next canary is sent as scheduled",
    case="endless head",
)
@pytest.mark.fault(
    "FA39",
    "One header of 1 MiB",
    area="Foreign answers",
    users_see="canary `unreachable`",
    stays="the next canary is sent as scheduled",
    case="endless header",
)
@pytest.mark.fault(
    "FA40",
    "Two contradicting content lengths",
    area="Foreign answers",
    users_see="canary `unreachable`",
    stays="the next canary is sent as scheduled",
    case="two lengths",
)
@pytest.mark.fault(
    "FA41",
    "Terminal escapes and a fake log line in an error",
    area="Foreign answers",
    users_see="canary `server_error`; the line has no control characters",
    stays="the next canary is sent as scheduled",
    case="control characters",
)
@pytest.mark.fault(
    "FA42",
    "Terminal escapes in a redirect's address",
    area="Foreign answers",
    users_see="canary `unreachable`: not HTTP",
    stays="the next canary is sent as scheduled",
    case="control characters in a header",
)
@pytest.mark.fault(
    "FA43",
    "A content type of binary bytes",
    area="Foreign answers",
    users_see="canary `broken_stream`; printable",
    stays="the next canary is sent as scheduled",
    case="strange content type",
)
@pytest.mark.fault(
    "FA44",
    "A finish reason of 4,000 characters",
    area="Foreign answers",
    users_see="canary `wrong_answer`; shortened",
    stays="the next canary is sent as scheduled",
    case="a long finish reason",
)
@pytest.mark.fault(
    "SE1",
    "The server repeats the API key in a refusal",
    area="Security",
    users_see="the line shows `(hidden)`",
    stays="no secret in log, series or pages",
    case="secret in the body",
)
@pytest.mark.fault(
    "SE2",
    "The API key repeated in a stream's error",
    area="Security",
    users_see="`(hidden)`",
    stays="no secret in log, series or pages",
    case="secret in an event",
)
@pytest.mark.fault(
    "SE3",
    "The API key repeated in a redirect's address",
    area="Security",
    users_see="`(hidden)`",
    stays="no secret in log, series or pages",
    case="secret in a redirect",
)
@pytest.mark.fault(
    "SE4",
    "The API key as a content type",
    area="Security",
    users_see="`(hidden)`",
    stays="no secret in log, series or pages",
    case="secret as a type",
)
@pytest.mark.fault(
    "SE5",
    "The API key as a finish reason",
    area="Security",
    users_see="`wrong_answer` without it",
    stays="no secret in log, series or pages",
    case="secret as the finish reason",
)
def test_a_failure_is_one_outcome_and_one_line(script: Script, outcome: Outcome, words: str) -> None:
    record = answer_to(script, timeout_s=1.0 if HANG not in script else TIMEOUT_S)
    assert (record.outcome, words in str(record.detail)) == (outcome, True), record.detail


@pytest.mark.parametrize("cut", range(185, 201))
@pytest.mark.fault(
    "SE6",
    "The API key cut in two by the limit of a line",
    area="Security",
    users_see="the part is hidden too",
    stays="-",
)
def test_a_secret_that_the_limit_of_a_line_cuts_is_hidden_too(cut: int) -> None:
    record = answer_to([whole(500, "x" * cut + SECRET, "text/plain")])
    assert SECRET[:8] not in str(record.detail)


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    async def main() -> RequestRecord:
        async with client(f"http://127.0.0.1:{port}") as to:
            return await sent(to)

    record = asyncio.run(main())
    assert (record.outcome, record.http_status) == (Outcome.UNREACHABLE, None)
    assert "Errno" not in str(record.detail)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:99999", "http://127.0.0.1:port", "http://[::1", "http://:80", "ftp://a", ""]
)
@pytest.mark.fault("NA3")
def test_an_address_that_no_client_can_use(url: str) -> None:
    async def main() -> None:
        async with client(url) as to:
            assert (await sent(to)).outcome is Outcome.UNREACHABLE
            with pytest.raises(TargetError):
                await to.models()

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.fault(
    "FA62",
    "TLS spoken to a server without TLS",
    area="Foreign answers",
    users_see="canary `unreachable` or `timeout`",
    stays="the next canary is sent as scheduled",
)
def test_speaks_tls_to_a_server_that_does_not() -> None:
    """httpx leaves the socket of a failed handshake to the garbage collector, which complains."""

    async def main() -> RequestRecord:
        async with (
            hostile([b"HTTP/1.1 400 no\r\n\r\n", CLOSE]) as server,
            client(server.base_url.replace("http:", "https:"), timeout_s=TIMEOUT_S) as to,
        ):
            return await sent(to)

    assert asyncio.run(main()).outcome in (Outcome.UNREACHABLE, Outcome.TIMEOUT)
    gc.collect()


@pytest.mark.parametrize(
    ("script", "words", "tokens"),
    [
        ([HANG], "no answer within 0.25 s", 0),
        ([b"HTTP/1.1 200 OK\r\n", HANG], "no answer within", 0),
        ([STREAM_HEAD, HANG], "within 0.25 s", 0),
        ([STREAM_HEAD + chunked(token(1), end=False), HANG], "no full answer within 0.25 s (nothing more after 0.0", 1),
        (
            [STREAM_HEAD + chunked(*THREE_TOKENS[:2], end=False), HANG],
            "no full answer within 0.25 s (nothing more",
            2,
        ),
        ([STREAM_HEAD, *[0.02, chunked(event({"choices": []}), end=False)] * 1000], "within 0.25 s", 0),
        ([STREAM_HEAD, *[0.02, chunked(b": ping\n\n", end=False)] * 1000], "within 0.25 s", 0),
        ([*[b"HTTP/1.1 100 Continue\r\n\r\n", 0.02] * 1000], "no answer within", 0),
    ],
    ids=["nothing", "half a head", "a head", "one token", "two tokens", "empty events", "pings", "100 continue"],
)
@pytest.mark.fault(
    "FA49",
    "A server that accepts and is silent",
    area="Foreign answers",
    users_see="canary `timeout` at the request's limit",
    stays="the connection is closed",
    case="nothing",
)
@pytest.mark.fault(
    "FA50",
    "A server that sends half a head and is silent",
    area="Foreign answers",
    users_see="canary `timeout`",
    stays="the connection is closed",
    case="half a head",
)
@pytest.mark.fault(
    "FA51",
    "A server that sends its head and no token",
    area="Foreign answers",
    users_see="canary `timeout`",
    stays="the connection is closed",
    case="a head",
)
@pytest.mark.fault(
    "FA52",
    "A server that hangs after the first token",
    area="Foreign answers",
    users_see="canary `timeout`, with the tokens received",
    stays="the connection is closed, so that the server stops working",
    case="one token",
)
@pytest.mark.fault(
    "FA53",
    "Pings without end instead of tokens",
    area="Foreign answers",
    users_see="canary `timeout` at the request's limit",
    stays="the connection is closed",
    case="pings",
)
@pytest.mark.fault(
    "FA54",
    "Events without content, without end",
    area="Foreign answers",
    users_see="canary `timeout` at the request's limit",
    stays="the connection is closed",
    case="empty events",
)
@pytest.mark.fault(
    "FA55",
    "`100 Continue` without end",
    area="Foreign answers",
    users_see="canary `timeout` at the request's limit",
    stays="the connection is closed",
    case="100 continue",
)
def test_never_waits_longer_than_the_timeout(script: Script, words: str, tokens: int) -> None:
    started = time.perf_counter()
    record = answer_to(script, timeout_s=TIMEOUT_S)
    assert time.perf_counter() - started < 10.0, "each of these scripts goes on for at least 20 s"
    assert (record.outcome, words in str(record.detail)) == (Outcome.TIMEOUT, True), record.detail
    assert len(record.events) == tokens


@pytest.mark.fault("FA49")
def test_a_timeout_closes_the_connection_so_that_the_server_stops_working() -> None:
    async def main() -> None:
        stalls: Script = [STREAM_HEAD + chunked(token(1), end=False), HANG]
        async with hostile(stalls) as server, client(server.base_url, timeout_s=TIMEOUT_S) as to:
            assert (await sent(to)).outcome is Outcome.TIMEOUT
            await asyncio.wait_for(server.gone.wait(), 1)

    asyncio.run(main())


@pytest.mark.parametrize("script", [[HANG], [STREAM_HEAD, HANG], [STREAM_HEAD + chunked(token(1), end=False), HANG]])
def test_cancelling_closes_the_connection_at_once(script: Script) -> None:
    async def main() -> None:
        async with hostile(script) as server, client(server.base_url, timeout_s=30) as to:
            request = asyncio.create_task(to.send(SPEC, "tiny", Traffic.CAPACITY, 0))
            await server.until_asked()
            await asyncio.sleep(0.05)
            request.cancel()
            with pytest.raises(asyncio.CancelledError):
                await request
            await asyncio.wait_for(server.gone.wait(), 1)

    asyncio.run(main())


def test_cancelling_many_at_once_frees_the_client_for_the_next() -> None:
    def busy(asked: Asked) -> Script:
        return [HANG] if asked.json()["max_tokens"] == 99 else [GOOD]

    async def main() -> RequestRecord:
        async with hostile(busy) as server, client(server.base_url, timeout_s=30) as to:
            tasks = [asyncio.create_task(to.send(spec(8, 99), "tiny", Traffic.CAPACITY, 0)) for _ in range(20)]
            await server.until_asked(20)
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(end, asyncio.CancelledError) for end in ended)
            return await sent(to)

    assert asyncio.run(main()).outcome is Outcome.OK


def test_closing_the_client_ends_what_is_in_flight_and_what_comes_after_in_words() -> None:
    async def main() -> list[RequestRecord]:
        async with hostile([STREAM_HEAD + chunked(token(1), end=False), HANG]) as server:
            to = client(server.base_url, timeout_s=5)
            request = asyncio.create_task(sent(to))
            await server.until_asked()
            await asyncio.sleep(0.05)
            await to.close()
            return [await asyncio.wait_for(request, 2), await sent(to)]

    assert all(record.outcome is not Outcome.OK for record in asyncio.run(main()))


def _raise(error: Exception) -> str | None:
    raise error


@pytest.mark.parametrize(
    ("secret", "words"),
    [
        (lambda: "two\nlines", "characters that a header cannot carry"),
        (lambda: "nul\0", "characters that a header cannot carry"),
        (lambda: "schlüssel", "characters that a header cannot carry"),
        (lambda: "key\r\nx-injected: 1", "characters that a header cannot carry"),
        (
            lambda: _raise(FileNotFoundError(2, "No such file or directory")),
            "cannot be read (No such file or directory)",
        ),
        (lambda: _raise(PermissionError(13, "Permission denied")), "cannot be read (Permission denied)"),
        (lambda: _raise(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")), "API key"),
    ],
)
@pytest.mark.fault(
    "SE7",
    "An API key file with a line break (header injection)",
    area="Security",
    users_see="`unauthorized`: characters that a header cannot carry",
    stays="nothing is sent",
)
def test_a_key_that_cannot_be_used_is_said_and_nothing_is_sent(secret: Callable[[], str | None], words: str) -> None:
    async def main() -> tuple[RequestRecord, int]:
        async with hostile([GOOD]) as server, client(server.base_url, secret) as to:
            record = await sent(to)
            with pytest.raises(TargetError):
                await to.models()
            return record, len(server.asked)

    record, asked = asyncio.run(main())
    assert (record.outcome, words in str(record.detail)) == (Outcome.UNAUTHORIZED, True), record.detail
    assert asked == 0


def test_without_a_key_none_is_sent() -> None:
    async def main() -> list[Asked]:
        async with hostile([GOOD]) as server, client(server.base_url, lambda: None) as to:
            await sent(to)
            return server.asked

    assert "authorization" not in asyncio.run(main())[0].headers


@examples(25)
@given(st.binary(max_size=300))
@pytest.mark.fault(
    "FA46",
    "Any bytes instead of an answer",
    area="Foreign answers",
    users_see="an outcome other than ok, and one printable line",
    stays="the next canary is sent as scheduled",
)
def test_any_bytes_in_place_of_an_answer_are_an_outcome(data: bytes) -> None:
    assert answer_to([data, CLOSE]).outcome is not Outcome.OK


@examples(25)
@given(st.binary(max_size=300), st.sampled_from([200, 401, 500]), st.sampled_from(["text/event-stream", "text/html"]))
@pytest.mark.fault(
    "FA45",
    "A body of any bytes, with any status",
    area="Foreign answers",
    users_see="an outcome other than ok, and one printable line",
    stays="the next canary is sent as scheduled",
)
def test_any_body_is_an_outcome(data: bytes, status: int, kind: str) -> None:
    assert answer_to([whole(status, data, kind)]).outcome is not Outcome.OK


@examples(25)
@given(st.lists(st.integers(1, len(GOOD) - 1), max_size=6))
def test_a_good_answer_is_good_however_it_is_cut(cuts: list[int]) -> None:
    places = sorted({0, len(GOOD), *cuts})
    steps: list[bytes | float] = []
    for a, b in pairwise(places):
        steps += [GOOD[a:b], 0.001]
    record = answer_to(steps)
    assert (record.outcome, record.output_tokens, len(record.events)) == (Outcome.OK, 3, 3)


@examples(25)
@given(st.integers(0, len(GOOD) - 1))
@pytest.mark.fault(
    "FA47",
    "A good answer that breaks off at any byte",
    area="Foreign answers",
    users_see="never counted as ok",
    stays="the next canary is sent as scheduled",
)
def test_a_good_answer_that_breaks_off_is_never_good(length: int) -> None:
    """Unless what is missing comes after [DONE]."""
    record = answer_to([GOOD[:length], CLOSE])
    assert record.outcome in (Outcome.UNREACHABLE, Outcome.BROKEN_STREAM)


# --- Models --------------------------------------------------------------------------------------------------


def models(script: Script, wanted: str = "auto", timeout_s: float = 1.0) -> str:
    async def main() -> str:
        async with hostile(script) as server, client(server.base_url, timeout_s=timeout_s) as to:
            return await to.resolve_model(wanted)

    return asyncio.run(main())


def served(*names: Any) -> bytes:
    return whole(200, {"object": "list", "data": [{"id": name} for name in names]})


@pytest.mark.parametrize(
    ("cards", "aliases"),
    [
        ([{"id": "a", "root": "/m"}, {"id": "b", "root": "/m"}], {"a", "b"}),
        ([{"id": "a", "root": "/m"}, {"id": "b", "root": "/adapter"}], {"b"}),
        ([{"id": "a"}, {"id": "b"}], set()),
        ([{"id": "a", "root": "/m"}], set()),
        ("none", set()),
    ],
)
@pytest.mark.fault("A26")
def test_names_are_of_one_model_where_they_are_listed_with_one_root(cards: object, aliases: set[str]) -> None:
    async def main() -> frozenset[str]:
        async with hostile([whole(200, {"data": cards})]) as server, client(server.base_url) as to:
            return await to.aliases("b")

    assert asyncio.run(main()) == aliases


def answered_as(name: str | None) -> str | None:
    """Return the other model that a record names; "tiny" was asked for."""
    chunk = {"choices": [{"index": 0, "text": "x", "finish_reason": None}], "model": name}
    return answer_to([STREAM_HEAD + chunked(event(chunk), *THREE_TOKENS[1:])]).answered_as


def test_a_record_names_the_model_that_answered_if_it_is_another() -> None:
    assert answered_as("other") == "other"
    assert answered_as(f"other {SECRET}\n") == "other (hidden)"
    assert [answered_as(name) for name in ("tiny", "tiny@main", "", None)] == [None, None, None, None]
    assert answered_as("tinyother@main") == "tinyother@main"


@pytest.mark.parametrize(
    ("aliases", "outcome"),
    [(None, Outcome.OK), (frozenset({"alias"}), Outcome.OK), (frozenset(), Outcome.WRONG_ANSWER)],
)
@pytest.mark.fault("LO44")
def test_an_answer_under_another_name_is_wrong_where_names_are_judged(
    aliases: frozenset[str] | None, outcome: Outcome
) -> None:
    first = event({"choices": [{"index": 0, "text": "x", "finish_reason": None}], "model": "alias"})

    async def main() -> RequestRecord:
        script = [STREAM_HEAD + chunked(first, *THREE_TOKENS[1:])]
        async with hostile(script) as server, client(server.base_url) as to:
            asked = to.prepare(spec(8, 3), "tiny", Traffic.CAPACITY, aliases)
            return (await asked.send(CLOCK.monotonic_ns())).record()

    record = asyncio.run(main())
    assert (record.outcome, record.answered_as) == (outcome, "alias")
    if outcome is not Outcome.OK:
        assert record.detail == "the model 'alias' answered, 'tiny' was asked for; fix model, or the routing"


def test_an_answer_by_another_transport_is_unpacked_too() -> None:
    """As of a proxy or over HTTP/2, where httpx would unpack it, and with it each time."""
    packed = gzip.compress(b"".join(THREE_TOKENS))
    headers = {"content-type": "text/event-stream", "content-encoding": "gzip"}
    there = httpx.MockTransport(lambda _: httpx.Response(200, headers=headers, stream=httpx.ByteStream(packed)))

    async def main() -> RequestRecord:
        async with Client(Endpoint("llama", "http://llama"), CLOCK, 2.0, there) as to:
            return await sent(to)

    assert (record := asyncio.run(main())).outcome is Outcome.OK, record.detail
    assert record.output_tokens == 3


def test_a_compressed_list_of_models_is_read() -> None:
    listed = gzip.compress(json.dumps({"data": [{"id": "tiny"}]}).encode())
    assert models([whole(200, listed, "application/json", "content-encoding: gzip")], "auto") == "tiny"


def test_auto_takes_the_first_model() -> None:
    assert models([served("tiny", "adapter")]) == "tiny"
    assert models([served("tiny", "adapter")], "adapter") == "adapter"


@pytest.mark.parametrize(
    ("script", "wanted", "outcome", "words"),
    [
        ([served("tiny")], "huge", Outcome.NOT_FOUND, "'huge' is not served; expected one of: tiny"),
        ([served()], "auto", Outcome.NOT_FOUND, "no model"),
        ([whole(200, "<html>")], "auto", Outcome.NOT_FOUND, "not a list of models"),
        ([whole(200, b"\xff\xfe")], "auto", Outcome.NOT_FOUND, "not a list of models"),
        ([whole(200, {"error": {"message": f"no route {SECRET}"}})], "auto", Outcome.NOT_FOUND, "no route (hidden)"),
        ([whole(200, "<title>Sign in</title>", "text/html")], "auto", Outcome.NOT_FOUND, "list of models: Sign in"),
        (
            [whole(200, b"\x1b", "application/json", "content-encoding: br")],
            "auto",
            Outcome.NOT_FOUND,
            "compressed (br)",
        ),
        ([whole(200, {"data": None})], "auto", Outcome.NOT_FOUND, "not a list of models"),
        ([whole(200, {"data": {"id": "x"}})], "auto", Outcome.NOT_FOUND, "not a list of models"),
        ([whole(200, ["x"])], "auto", Outcome.NOT_FOUND, "not a list of models"),
        ([whole(200, b"[" * 50_000)], "auto", Outcome.NOT_FOUND, "not a list of models"),
        ([whole(200, b'{"data":[' + b"{}," * 99_000 + b"{}]}")], "auto", Outcome.NOT_FOUND, "not a list of models"),
        ([served("m" * 2**20)], "auto", Outcome.BROKEN_STREAM, "cut off: more than 1 MiB"),
        ([served(None)], "auto", Outcome.NOT_FOUND, "models"),
        ([served({"a": 1})], "auto", Outcome.NOT_FOUND, "models"),
        ([served("")], "auto", Outcome.NOT_FOUND, "model"),
        ([served("m" * 100_000)], "auto", Outcome.NOT_FOUND, "model"),
        ([served("\ud800")], "auto", Outcome.NOT_FOUND, "model"),
        ([served("a\nFAKE log line\x1b[31m")], "auto", Outcome.NOT_FOUND, "model"),
        ([served("a\nFAKE log line\x1b[31m")], "tiny", Outcome.NOT_FOUND, "model"),
        ([served(SECRET)], "tiny", Outcome.NOT_FOUND, "model"),
        ([served("m" * 100_000)], "tiny", Outcome.NOT_FOUND, "model"),
        ([whole(401, {"error": "Unauthorized"})], "auto", Outcome.UNAUTHORIZED, "api_key_file"),
        ([whole(404, {"detail": "Not Found"})], "auto", Outcome.NOT_FOUND, "check base_url"),
        ([whole(404, LONG_PAGE)], "auto", Outcome.NOT_FOUND, "check base_url"),
        ([whole(500, f"oops {SECRET}")], "auto", Outcome.SERVER_ERROR, "log"),
        ([whole(302, b"", "text/html", f"location: /?k={SECRET}")], "auto", Outcome.BAD_REQUEST, "redirects"),
        ([CLOSE], "auto", Outcome.UNREACHABLE, "check base_url"),
        ([HANG], "auto", Outcome.TIMEOUT, "no answer within"),
        (
            [head(200, "application/json", "content-length: 99") + b"{", CLOSE],
            "auto",
            Outcome.BROKEN_STREAM,
            "broke off",
        ),
    ],
)
@pytest.mark.fault("A62")
@pytest.mark.fault(
    "FA63",
    "Lists of models that are empty, deep, long, binary or no list; refusals of the list",
    area="Foreign answers",
    users_see="one line that begins with the address and says what to check",
    stays="the next canary is sent as scheduled",
)
@pytest.mark.fault(
    "FA64",
    "A model name with a line break and terminal escapes",
    area="Foreign answers",
    users_see="`not_found`, in one printable line",
    stays="log and pages have no line of the server's",
)
def test_a_server_that_says_no_models_is_one_line_with_the_mend(
    script: Script, wanted: str, outcome: Outcome, words: str
) -> None:
    with pytest.raises(TargetError) as caught:
        models(script, wanted, timeout_s=TIMEOUT_S)
    message = str(caught.value)
    assert (caught.value.outcome, words in message) == (outcome, True), message
    assert message.startswith("http://127.0.0.1:")
    assert message.isprintable()
    assert len(message) < 600
    assert SECRET not in message


# --- A transport that fails ----------------------------------------------------------------------------------

RAISED: list[Exception] = [
    httpx.ConnectError("no"),
    httpx.ConnectTimeout("slow"),
    httpx.ReadError(""),
    httpx.WriteError(""),
    httpx.PoolTimeout(""),
    httpx.RemoteProtocolError("two\nlines \x1b[31m"),
    httpx.ProxyError(""),
    httpx.UnsupportedProtocol("x"),
    httpx.ConnectError(f"key {SECRET}"),
    httpx.ConnectError("x" * 5000),
    ConnectionResetError(104, "Connection reset by peer"),
    OSError("plain"),
    UnicodeError("label empty or too long"),
    OverflowError("getsockaddrarg: port must be 0-65535."),
    RuntimeError("Cannot send a request, as the client has been closed."),
    httpx.InvalidURL("x"),
    httpx.StreamClosed(),
]


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
@pytest.mark.fault(
    "FA65",
    "Any exception of the network stack",
    area="Foreign answers",
    users_see="canary `unreachable` or `timeout`, one line",
    stays="the next canary is sent as scheduled",
)
def test_whatever_the_network_raises_is_a_failed_request(error: Exception) -> None:
    def fail(_: httpx.Request) -> httpx.Response:
        raise error

    async def main() -> RequestRecord:
        where = Endpoint("llama", "http://127.0.0.1:1", secret=lambda: SECRET, verify=False)
        async with Client(where, CLOCK, 1.0, httpx.MockTransport(fail)) as to:
            return await sent(to)

    record = asyncio.run(main())
    assert record.outcome in (Outcome.UNREACHABLE, Outcome.TIMEOUT), record.detail


def test_the_schedule_is_kept_in_the_record() -> None:
    async def main() -> RequestRecord:
        async with hostile([GOOD]) as server, client(server.base_url) as to:
            return await to.send(replace(SPEC, workload="w"), "tiny", Traffic.CAPACITY, 5)

    record = asyncio.run(main())
    assert (record.scheduled_ns, record.traffic, record.spec.workload, record.model) == (
        5,
        Traffic.CAPACITY,
        "w",
        "tiny",
    )
    assert json.dumps(record.detail) == "null"


# --- Headers -------------------------------------------------------------------------------------------------


def _asked_with(where: Endpoint) -> tuple[RequestRecord, str]:
    """Send a request to a server that repeats all that it was sent. Return the record, and what arrived."""
    arrived: list[str] = []

    def repeat(request: httpx.Request) -> httpx.Response:
        arrived.append("\n".join(f"{name}: {value}" for name, value in request.headers.items()))
        return httpx.Response(400, stream=httpx.ByteStream(json.dumps({"error": arrived[-1]}).encode()))

    async def main() -> RequestRecord:
        async with Client(where, CLOCK, 1.0, httpx.MockTransport(repeat)) as to:
            return await sent(to)

    return asyncio.run(main()), arrived[0]


@pytest.mark.fault(
    "SH4",
    "A gateway repeats the secret headers that it was sent",
    area="Security",
    users_see="`(hidden)`",
    stays="the values are in no log, record or `config show`",
)
def test_headers_are_sent_and_the_secret_ones_never_shown() -> None:
    secrets = {"x-gateway-key": "gw-not-to-be-shown"}
    where = Endpoint(
        "llama",
        "http://127.0.0.1:1",
        secret=lambda: SECRET,
        secret_headers=lambda: secrets,
        plain_headers={"x-tenant": "team-a"},
        auth_header=AuthHeader("api-key", ""),
        verify=False,
    )
    record, arrived = _asked_with(where)
    assert f"api-key: {SECRET}" in arrived
    assert "x-tenant: team-a" in arrived
    assert "x-gateway-key: gw-not-to-be-shown" in arrived
    assert "authorization" not in arrived
    assert "team-a" in str(record.detail)
    assert "not-to-be-shown" not in str(record)


@pytest.mark.parametrize("is_own", [True, False], ids=["own transport", "another"])
def test_a_prepared_request_is_sent_with_the_secrets_of_when_it_is_sent(is_own: bool) -> None:  # noqa: FBT001
    """Requests of a step are prepared ahead, and a key that was rotated since may be revoked."""
    key: list[str] = ["first"]
    more = {"x-gateway-key": "one", "x-gone": "two"}
    clock = SetClock()

    def read() -> str:
        if not key:
            raise FileNotFoundError(2, "No such file", "/run/secrets/key")
        return key[0]

    async def main() -> list[dict[str, str]]:
        async with hostile([GOOD]) as server:
            where = Endpoint("llama", server.base_url, secret=read, secret_headers=lambda: dict(more))
            through = None if is_own else httpx.AsyncHTTPTransport(trust_env=False)
            async with Client(where, clock, 5.0, through) as to:
                stock = [to.prepare(SPEC, "tiny", Traffic.CAPACITY) for _ in range(3)]
                await stock[0].send(clock.monotonic_ns())
                key[0] = "second"
                del more["x-gone"]
                clock.now_s += 2.0
                await stock[1].send(clock.monotonic_ns())
                key.clear()  # half-way through a rotation
                clock.now_s += 2.0
                assert (await stock[2].send(clock.monotonic_ns())).record().outcome is Outcome.OK
            return [asked.headers for asked in server.asked]

    first, second, third = asyncio.run(main())
    assert (first["authorization"], first["x-gone"]) == ("bearer first", "two")
    assert (second["authorization"], second["x-gateway-key"]) == ("bearer second", "one")
    assert "x-gone" not in second
    assert third["authorization"] == "bearer second", "the last one that could be read"


def test_a_header_that_cannot_be_sent_is_a_failed_request_of_one_line() -> None:
    def removed() -> dict[str, str]:
        raise FileNotFoundError(2, "No such file", "/run/secrets/x")

    for headers, words in ((lambda: {"x-a": "1\nx-b: 2"}, "header x-a contains"), (removed, "cannot be read")):
        where = Endpoint("llama", "http://127.0.0.1:1", secret_headers=headers, verify=False)

        async def main(where: Endpoint = where) -> RequestRecord:
            async with Client(where, CLOCK, 1.0) as to:
                return await sent(to)

        record = asyncio.run(main())
        assert record.outcome is Outcome.UNAUTHORIZED
        assert words in str(record.detail)


def test_an_answer_cut_for_want_of_memory_keeps_its_tokens_and_no_other_times() -> None:
    """Thousands of token times of each would fill the controller. Its tokens count against budgets all the same."""
    many = [event({"choices": [{"index": 0, "text": "x", "finish_reason": None}]})] * 3000

    async def main() -> RequestRecord:
        async with hostile([STREAM_HEAD + chunked(b"".join(many), DONE)]) as server, client(server.base_url) as to:
            to.share_memory(160 * 2**20 // (sum(map(len, many)) * 9 // 10))
            return (await to.prepare(spec(8, 5000), "tiny", Traffic.CAPACITY).send(CLOCK.monotonic_ns())).record()

    found = asyncio.run(main())
    assert found.outcome is Outcome.CLIENT_BOUND
    assert len(found.events) == 2
    assert 1000 < sum(found.events.tokens) <= 3000
    assert sum(tokens_spent(found)) == 8 + sum(found.events.tokens)
