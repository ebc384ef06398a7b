"""Rows: how the bytes of a stream are cut, ended and filled."""

from hostile_server import chunked, event
from memory_wire import RESET

from probe.client.api_request import RequestShape
from probe.core.request import Api, Outcome
from wire_cases.wire import (
    DONE,
    FOUR,
    GOOD,
    SSE_STANDARD,
    UNCOUNTED,
    VLLM,
    WireCase,
    chat,
    comp,
    counts,
    cut,
    failed,
    final,
    head,
    stream,
)

_MARK = b"\xef\xbb\xbf"
_ALL = b"".join(GOOD)
_KEEP_ALIVE = (
    (b"data:\n\n", "empty data", "openai-go #651, wave-agent #1326, MCP python-sdk #1670"),
    (b"data: \n\n", "a blank as data", "omnigent #1474"),
    (b"data\n\n", "a data field without a colon", SSE_STANDARD),
    (b": OPENROUTER PROCESSING\n\n", "comments", "openrouter.ai/docs/api-reference/streaming"),
    (b": ping\n", "comments without an empty line", "llmgateway #2334"),
    (b"retry: 3000\n\n", "retry alone", "openai-python #2721, #3833"),
    (b"id: 7\n\n", "an id alone", "openai-python #2722"),
    (b'event: ping\ndata: {"type":"ping"}\n\n', "a ping with JSON", "Anthropic, streaming messages"),
    (b'event: ping\ndata: {"message":"still there"}\n\n', "a ping with words", "gateways"),
    (b'data: {"type":"ping","message":"still there"}\n\n', "a ping by its type, with words", "gateways"),
    (b'event: heartbeat\ndata: {"detail":"queued"}\n\n', "a heartbeat with a detail", "gateways"),
    (b'event: ping\ndata: ""\n\n', "a ping with an empty string", "copilot-api #88"),
    (b"event: heartbeat\ndata: 2026-11-27T10:00:00Z\n\n", "a named event with text", SSE_STANDARD),
    (b"data: {}\n\n", "an empty object", "gateways"),
    (b"\n\n\n", "empty lines", SSE_STANDARD),
)


def _among(extra: bytes) -> tuple[bytes, ...]:
    """Return a good answer with this before each of its events."""
    return tuple(extra + each for each in GOOD)


def _ended(end: bytes) -> tuple[bytes, ...]:
    return tuple(each.replace(b"\n", end) for each in GOOD)


STREAMS = (
    WireCase("as vLLM sends it", VLLM, stream(*GOOD)),
    WireCase("a byte order mark", SSE_STANDARD, stream(_MARK + GOOD[0], *GOOD[1:])),
    WireCase("a byte order mark, byte by byte", SSE_STANDARD, cut(_MARK + _ALL)),
    WireCase("line ends of CR", SSE_STANDARD, stream(*_ended(b"\r"))),
    WireCase("line ends of CRLF", "sse-starlette's default", stream(*_ended(b"\r\n"))),
    WireCase(
        "line ends of each kind",
        SSE_STANDARD,
        stream(*(_ended(e)[i] for i, e in enumerate([b"\r", b"\n", b"\r\n"] * 2))),
    ),
    WireCase(
        "CRLF cut between CR and LF: the event is complete at the CR",
        SSE_STANDARD,
        (
            (1, head()),
            *((100 + 20 * i, b"\n" * (i > 0) + each.replace(b"\n", b"\r\n")[:-1]) for i, each in enumerate(GOOD)),
        ),
    ),
    WireCase("byte by byte", "TCP", cut(_ALL)),
    *(WireCase(f"keep-alives: {name}", source, stream(*_among(data))) for data, name, source in _KEEP_ALIVE),
    WireCase("keep-alives before the first token", "OpenRouter", stream(b": x\n\ndata:\n\n", *GOOD, first=80)),
    WireCase("id, event and retry in each event", SSE_STANDARD, stream(*_among(b"id: 1\nevent: message\nretry: 10\n"))),
    WireCase("no blank after the colon", SSE_STANDARD, stream(*(each.replace(b"data: ", b"data:") for each in GOOD))),
    WireCase(
        "data in several lines",
        SSE_STANDARD,
        stream(*(each.replace(b', "choices"', b',\ndata: "choices"') for each in GOOD)),
    ),
    WireCase(
        "[DONE] with blanks", "openai-python _streaming.py: startswith", stream(*GOOD[:-1], b"data: [DONE] \t\n\n")
    ),
    WireCase("[DONE] without an empty line", "proxies that trim", stream(*GOOD[:-1], b"data: [DONE]")),
    WireCase("[DONE] twice, and words after it", "openai-python", stream(*GOOD, DONE, b"data: bye\n\n")),
    WireCase("an error after [DONE] is nobody's", "openai-python", stream(*GOOD, event({"error": "late"}))),
    WireCase("a named [DONE]", "gateways", stream(*GOOD[:-1], b"event: done\ndata: [DONE]\n\n")),
    WireCase(
        "two tokens' events in one read",
        "Nagle, proxies",
        stream(*FOUR[:1], FOUR[1] + FOUR[2], FOUR[3], DONE, gap=30),
        itls=2,
    ),
    WireCase(
        "a character cut by a read", "UTF-8", cut(b"".join((comp("\u20ac", 1), comp("\U0001f600", 2), *GOOD[2:])))
    ),
    WireCase(
        "the whole answer in one read: no time but the first is known",
        "nginx proxy_buffering; kekzl/imp #754",
        ((1, head()), (100, _ALL)),
        tpot=None,
    ),
    failed(
        "cut off within the last event",
        SSE_STANDARD,
        stream(*FOUR, b'data: {"choi'),
        Outcome.BROKEN_STREAM,
        "the stream ended without [DONE] after 4 token events",
        tokens=(1, 1, 1, 1),
        usage=(8, 4),
        ttft=100,
    ),
    failed(
        "reset within the stream",
        "TCP",
        stream(*FOUR[:2])[:-1],
        Outcome.BROKEN_STREAM,
        "the answer broke off",
        tokens=(1, 1),
        usage=(8, 2),
        ttft=100,
        end=RESET,
    ),
    failed(
        "no [DONE]",
        "Amazon, transformers serve",
        stream(*GOOD[:-1]),
        Outcome.BROKEN_STREAM,
        "set request.expect_done: false",
        tokens=(1, 1, 1, 1),
        usage=(8, 4),
        ttft=100,
    ),
    WireCase("no [DONE], as configured", "Amazon", stream(*GOOD[:-1]), shape=RequestShape(expects_done=False)),
    failed(
        "the last events lose their field",
        "gpustack #6155",
        stream(*FOUR[:3], FOUR[3].removeprefix(b"data: "), b"[DONE]\n\n"),
        Outcome.BROKEN_STREAM,
        "without [DONE] after 3 token events",
        tokens=(1, 1, 1),
        usage=(8, 3),
        ttft=100,
    ),
    failed(
        "JSON a line, as Ollama's own API",
        "ollama docs/api.md",
        stream(b'{"model":"tiny","response":"a","done":false}\n', kind="application/x-ndjson"),
        Outcome.BROKEN_STREAM,
        "the answer is 'application/x-ndjson', expected an event stream: {\"model\":",
    ),
    failed("an empty body", "gateways", stream(), Outcome.BROKEN_STREAM, "without [DONE] after 0 token events"),
    failed(
        "an event that is no JSON",
        "hostile",
        stream(FOUR[0], b"data: {oops\n\n"),
        Outcome.BROKEN_STREAM,
        "an event is not an API chunk: {oops",
        tokens=(1,),
        usage=(8, 1),
        ttft=100,
    ),
    # What a body may be framed in.
    WireCase(
        "content-length",
        "RFC 9112 6.2",
        ((1, head("text/event-stream", f"content-length: {len(_ALL)}")), *cut(_ALL)[1:]),
    ),
    WireCase("HTTP/1.0, until it closes", "RFC 9112 6.3", ((1, head().replace(b"1.1", b"1.0")), *cut(_ALL)[1:])),
    WireCase(
        "early hints and continue before it",
        "RFC 8297",
        ((0.5, b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"), *stream(*GOOD)),
    ),
    WireCase(
        "chunk extensions and trailers",
        "RFC 9112 7.1",
        (
            (1, head("text/event-stream", "transfer-encoding: chunked")),
            *((100 + 20 * i, chunked(each, end=False).replace(b"\r\n", b";a=b\r\n", 1)) for i, each in enumerate(GOOD)),
            (200, b"0\r\nx-checksum: 1\r\n\r\n"),
        ),
    ),
    WireCase(
        "chat without a usage until the end",
        VLLM,
        stream(
            chat({"role": "assistant", "content": ""}),
            *(chat({"content": x}) for x in "abc"),
            chat({"content": "d"}, None, "length"),
            final(counts(4)),
            DONE,
            first=80,
        ),
        api=Api.CHAT,
    ),
    WireCase("a stream without the running usage", "SGLang, llama.cpp", stream(*UNCOUNTED, final(counts(4)), DONE)),
)
