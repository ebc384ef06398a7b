"""A closed loop over one HTTP library as its own documentation shows it: what the library alone costs and delays.

Input: `--library httpx|aiohttp` and a load. Output: a JSON file with the figures of a Reading. Each piece of an answer
is stamped when the library hands it over, and parsed after its request's end, as Kneewatch does.
"""

import argparse
import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import uvloop

Pieces = Callable[[dict[str, Any]], AsyncIterator[bytes]]
_LIMIT_S = 300.0


def main() -> None:
    options = _options()
    run = {"httpx": _with_httpx, "aiohttp": _with_aiohttp}[options.library]
    result = uvloop.run(run(options))
    options.out.write_text(json.dumps(result))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.client.plain_client", description=__doc__)
    parser.add_argument("--library", choices=("httpx", "aiohttp"), required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--concurrency", type=int, required=True)
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--body", type=json.loads, required=True)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


async def _with_httpx(options: argparse.Namespace) -> dict[str, Any]:
    limits = httpx.Limits(max_connections=options.concurrency, max_keepalive_connections=options.concurrency)
    async with httpx.AsyncClient(limits=limits, timeout=_LIMIT_S, trust_env=False) as client:

        async def pieces(body: dict[str, Any]) -> AsyncIterator[bytes]:
            async with client.stream("POST", options.url, json=body) as response:
                async for piece in response.aiter_raw():
                    yield piece

        return await _closed_loop(pieces, options)


async def _with_aiohttp(options: argparse.Namespace) -> dict[str, Any]:
    connector = aiohttp.TCPConnector(limit=options.concurrency)
    timeout = aiohttp.ClientTimeout(total=_LIMIT_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as client:

        async def pieces(body: dict[str, Any]) -> AsyncIterator[bytes]:
            async with client.post(options.url, json=body) as response:
                async for piece in response.content.iter_any():
                    yield piece

        return await _closed_loop(pieces, options)


async def _closed_loop(pieces: Pieces, options: argparse.Namespace) -> dict[str, Any]:
    left = iter(range(options.requests))
    ttft_s: list[float] = []
    itl_s: list[float] = []
    began_s = time.perf_counter()

    async def stream() -> None:
        for _ in left:
            sent_s = time.perf_counter()
            stamped = [(time.perf_counter(), piece) async for piece in pieces(options.body)]
            at_s = _events(stamped)
            ttft_s.append(at_s[0] - sent_s)
            itl_s.extend(later - earlier for earlier, later in pairwise(at_s))

    await asyncio.gather(*(stream() for _ in range(options.concurrency)))
    seconds = time.perf_counter() - began_s
    return {"ok": len(ttft_s), "tokens": len(itl_s) + len(ttft_s), "seconds": seconds, **_percentiles(ttft_s, itl_s)}


def _events(stamped: list[tuple[float, bytes]]) -> list[float]:
    """Return when each event with a token was handed over."""
    at_s, rest = [], b""
    for stamp_s, piece in stamped:
        *events, rest = (rest + piece).split(b"\n\n")
        at_s += [stamp_s for event in events if _has_token(event)]
    return at_s


def _has_token(event: bytes) -> bool:
    return event != b"data: [DONE]" and bool(json.loads(event.removeprefix(b"data: "))["choices"])


def _percentiles(ttft_s: list[float], itl_s: list[float]) -> dict[str, float]:
    def at(values: list[float], share: float) -> float:
        return sorted(values)[min(len(values) - 1, int(share * len(values)))] * 1e3

    return {
        "ttft_p50_ms": at(ttft_s, 0.5),
        "ttft_p99_ms": at(ttft_s, 0.99),
        "itl_p50_ms": at(itl_s, 0.5),
        "itl_p99_ms": at(itl_s, 0.99),
    }


if __name__ == "__main__":
    main()
