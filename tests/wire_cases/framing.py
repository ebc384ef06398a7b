"""Rows: how a body is compressed and framed."""

import gzip
import zlib
from typing import Any

from probe.core.request import Api, Outcome
from wire_cases.wire import GOOD, Timed, WireCase, body, failed, head

_ASKED = "fabio #739, tower-http #420: compressed although identity was asked for"
_ALL = b"".join(GOOD)
_BROKEN = Outcome.BROKEN_STREAM


def _flushed(bits: int) -> tuple[bytes, ...]:
    """Return the events of a good answer, compressed, with a flush after each."""
    packer = zlib.compressobj(wbits=bits)
    each = [packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH) for event in GOOD]
    return (*each[:-1], each[-1] + packer.flush())


def _stream(pieces: tuple[bytes, ...], *more: str) -> Timed:
    return ((1, head("text/event-stream", *more)), *((100 + 20 * i, piece) for i, piece in enumerate(pieces)))


def _whole(data: bytes, *more: str) -> Timed:
    return ((1, head("text/event-stream", *more)), (100, data))


_GZIP, _ZLIB, _RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS
_HELD: dict[str, Any] = {"tpot": None}  # all in one read: nothing is known but when it came
_BOMB = gzip.compress(b"data: " + b" " * 2**24)

FRAMING: tuple[WireCase, ...] = (
    WireCase("gzip, flushed after each event", _ASKED, _stream(_flushed(_GZIP), "content-encoding: gzip")),
    WireCase("gzip as X-GZIP", "RFC 9110 8.4.1.3", _stream(_flushed(_GZIP), "content-encoding: X-GZIP")),
    WireCase("deflate", _ASKED, _stream(_flushed(_ZLIB), "content-encoding: deflate")),
    WireCase("deflate without zlib's head", "RFC 9110 8.4.1.2", _stream(_flushed(_RAW), "content-encoding: deflate")),
    WireCase(
        "gzip, held back to the end",
        "graphql-hive #2259",
        _whole(gzip.compress(_ALL), "content-encoding: gzip"),
        **_HELD,
    ),
    WireCase(
        "gzip in two parts",
        "RFC 1952 2.2",
        _whole(gzip.compress(_ALL[:99]) + gzip.compress(_ALL[99:]), "content-encoding: gzip"),
        **_HELD,
    ),
    WireCase(
        "gzip of gzip",
        "two proxies",
        _whole(gzip.compress(gzip.compress(_ALL)), "content-encoding: gzip, gzip"),
        **_HELD,
    ),
    WireCase(
        "gzip by name only",
        "open-webui #23917",
        _stream(GOOD, "content-encoding: gzip"),
    ),
    WireCase("gzip as a transfer coding", "RFC 9112 7.2", _stream(_flushed(_GZIP), "transfer-encoding: gzip")),
    *(
        WireCase(f"content-encoding: {name}", source, _stream(GOOD, f"content-encoding: {name}"))
        for name, source in (
            ("none", "Next.js: terrapod #71"),
            ("identity", "RFC 9110 12.5.3"),
            ("utf-8", "servers that mean charset"),
            ("", "proxies"),
        )
    ),
    WireCase("transfer-encoding: identity", "RFC 2616 3.6", _stream(GOOD, "transfer-encoding: identity")),
    WireCase(
        "transfer-encoding in two headers",
        "RFC 9110 5.3",
        (
            (1, head("text/event-stream", "transfer-encoding: gzip", "transfer-encoding: chunked")),
            *((100 + 20 * i, b"%x\r\n%s\r\n" % (len(x), x)) for i, x in enumerate(_flushed(_GZIP))),
            (200, b"0\r\n\r\n"),
        ),
    ),
    *(
        failed(
            f"compressed with {name}",
            _ASKED,
            _whole(b"\x1b\x01\x02", f"content-encoding: {name}"),
            _BROKEN,
            f"the answer is compressed ({name}), although identity was asked for; turn off",
        )
        for name in ("br", "zstd")
    ),
    failed(
        "a refusal compressed with br",
        "Cloudflare",
        body(b"\x1b\x01", "text/html", "content-encoding: br", status=503),
        Outcome.SERVER_ERROR,
        "HTTP 503: the answer is compressed (br)",
    ),
    failed(
        "a refusal compressed with gzip",
        "nginx gzip_types",
        body(gzip.compress(b'{"error":"queue is full"}'), "application/json", "content-encoding: gzip", status=503),
        Outcome.REJECTED,
        "HTTP 503: queue is full",
    ),
    failed(
        "an error of 200 compressed with gzip",
        "gateways",
        body(gzip.compress(b'{"error":"died"}'), "application/json", "content-encoding: gzip"),
        Outcome.SERVER_ERROR,
        "error inside the stream: died",
    ),
    failed(
        "a body that unpacks to 16 MiB",
        "hostile",
        _whole(_BOMB, "content-encoding: gzip"),
        _BROKEN,
        "the answer is compressed, and unpacks to more than 72 KiB",
    ),
    failed(
        "gzip that is damaged",
        "hostile",
        _whole(gzip.compress(_ALL)[:10] + b"\xff" * 40, "content-encoding: gzip"),
        _BROKEN,
        "the answer is compressed, and damaged (",
    ),
    WireCase(
        "a vector compressed with gzip",
        "gateways",
        body(
            gzip.compress(b'{"data":[{"embedding":[1.5]}],"usage":{"prompt_tokens":8}}'),
            "application/json",
            "content-encoding: gzip",
        ),
        tokens=(0,),
        usage=(8, 0),
        ttft=None,
        tpot=None,
        api=Api.EMBEDDINGS,
    ),
)
