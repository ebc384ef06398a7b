"""Reading a metrics page over the network: a snapshot, or a TargetError of one line."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from probe.client.endpoint import Endpoint
from probe.clock import SystemClock
from probe.errors import TargetError
from probe.records import ServerSnapshot
from probe.server.scrape import Scraper

sys.path.insert(0, str(Path(__file__).parents[1] / "client"))
from hostile_server import CLOSE, HANG, Asked, Script, chunked, head, hostile, whole

RECORDED = (Path(__file__).parents[2] / "golden/vllm-0.32/metrics.txt").read_bytes()
SECRET = "sk-not-to-be-shown-0123456789"
PAGE = whole(200, RECORDED, "text/plain; version=0.0.4")
VERSION = whole(200, {"version": "0.32.0"})


def by_path(metrics: Script, version: Script = (VERSION,)) -> Callable[[Asked], Script]:
    return lambda asked: version if "/version" in asked.line else metrics


def read(
    script: Callable[[Asked], Script], times: int = 1, timeout_s: float = 1.0
) -> tuple[ServerSnapshot, list[Asked]]:
    async def main() -> tuple[ServerSnapshot, list[Asked]]:
        async with hostile(script) as server:
            scraper = Scraper(
                Endpoint("llama", server.base_url, secret=lambda: SECRET, verify=False), SystemClock(), timeout_s
            )
            try:
                for _ in range(times):
                    snapshot = await scraper.read()
            finally:
                await scraper.close()
            return snapshot, server.asked

    return asyncio.run(main())


def test_a_page_is_a_snapshot() -> None:
    snapshot, asked = read(by_path([PAGE]))
    assert (snapshot.version, snapshot.prompt_tokens, snapshot.running) == ("0.32.0", 18, 0)
    assert [a.line for a in asked] == ["GET /version HTTP/1.1", "GET /metrics HTTP/1.1"]
    assert all(a.headers["authorization"] == f"bearer {SECRET}" for a in asked)


def test_the_version_is_asked_once() -> None:
    _, asked = read(by_path([PAGE]), times=3)
    assert sum("/version" in a.line for a in asked) == 1


@pytest.mark.parametrize(
    "version",
    [
        whole(404, {"detail": "Not Found"}),
        whole(200, "<html>"),
        whole(200, ["0.32"]),
        whole(200, {"version": 5}),
        whole(200, b"5"),
        whole(200, {"version": "x" * 65}),
        whole(500, b""),
        whole(200, b"\xff"),
        whole(200, b"[" * 50_000),
        whole(200, {"version": "a\nb\x1b"}),
        whole(200, rb'{"version": "\ud800"}'),
    ],
)
def test_a_server_that_does_not_say_its_version_is_not_broken(version: bytes) -> None:
    assert read(by_path([PAGE], [version]))[0].version == "unknown"


@pytest.mark.parametrize("version", [[HANG], [CLOSE]])
def test_a_version_that_never_comes_does_not_cost_the_metrics(version: Script) -> None:
    assert read(by_path([PAGE], version), timeout_s=0.6)[0].prompt_tokens == 18


def test_after_a_failure_the_version_is_asked_again() -> None:
    """The server may have been replaced by another one in between."""
    versions = iter(["0.31.0", "0.32.0"])
    pages = iter([[PAGE], [whole(503, b"")], [PAGE]])

    def redeployed(asked: Asked) -> Script:
        return [whole(200, {"version": next(versions)})] if "/version" in asked.line else next(pages)

    async def main() -> list[str]:
        async with hostile(redeployed) as server:
            scraper = Scraper(Endpoint("llama", server.base_url, verify=False), SystemClock(), 1.0)
            first = await scraper.read()
            with pytest.raises(TargetError):
                await scraper.read()
            second = await scraper.read()
            await scraper.close()
            return [first.version, second.version]

    assert asyncio.run(main()) == ["0.31.0", "0.32.0"]


def test_the_key_goes_to_the_target_alone() -> None:
    async def main() -> tuple[list[Asked], list[Asked]]:
        async with hostile([VERSION]) as server, hostile([PAGE]) as elsewhere:
            where = Endpoint("llama", server.base_url, f"{elsewhere.base_url}/metrics", lambda: SECRET, verify=False)
            scraper = Scraper(where, SystemClock(), 1.0)
            await scraper.read()
            await scraper.close()
            return server.asked, elsewhere.asked

    at_home, abroad = asyncio.run(main())
    assert "authorization" in at_home[0].headers
    assert "authorization" not in abroad[0].headers


BAD: dict[str, tuple[Script, str]] = {
    "refused": ([CLOSE], "no metrics of a server"),
    "404": ([whole(404, {"detail": "Not Found"})], "HTTP 404"),
    "401": ([whole(401, {"error": SECRET})], "HTTP 401"),
    "302": ([whole(302, b"", "text/html", f"location: /login?{SECRET}")], "HTTP 302"),
    "HTML": ([whole(200, "<html>", "text/html")], "no series of vllm"),
    "nothing": ([whole(200, b"")], "no series of vllm"),
    "garbage": ([whole(200, bytes(range(256)))], "no series of vllm"),
    "a long line": ([whole(200, "vllm:num_requests_running " + "x" * 100_000 + "\n")], "no metrics of a server"),
    "control characters": ([whole(200, "vllm:num_requests_running \x1b[31mred\n")], "no metrics of a server"),
    "a bucket without a bound": ([whole(200, "vllm:time_to_first_token_seconds_bucket 1\n")], "no metrics of a server"),
    "too large": ([whole(200, b"# " + b"x" * (9 * 2**20))], "more than"),
    "truncated": ([head(200, "text/plain", "content-length: 99999") + RECORDED[:500], CLOSE], "no metrics of a server"),
    "truncated in chunks": (
        [head(200, "text/plain", "transfer-encoding: chunked") + chunked(RECORDED, end=False), CLOSE],
        "",
    ),
    "never": ([HANG], "no metrics of a server"),
    "stalls": ([head(200, "text/plain", "content-length: 99999") + RECORDED[:500], HANG], "no metrics of a server"),
    "endless head": ([b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 90_000, HANG], "no metrics of a server"),
    "not gzip": ([whole(200, b"boo", "text/plain", "content-encoding: gzip")], "no metrics of a server"),
}


@pytest.mark.parametrize(("script", "words"), BAD.values(), ids=BAD)
def test_anything_else_is_an_error_of_one_line(script: Script, words: str) -> None:
    with pytest.raises(TargetError) as caught:
        read(by_path(script), timeout_s=0.3 if HANG in script else 2.0)
    message = str(caught.value)
    assert words in message
    assert message.startswith("http://127.0.0.1:")
    assert message.isprintable()
    assert len(message) < 500
    assert SECRET not in message


def _raise(error: Exception) -> str | None:
    raise error


@pytest.mark.parametrize(
    "endpoint",
    [
        Endpoint("llama", "http://127.0.0.1:1", verify=False),
        Endpoint("llama", "http://127.0.0.1:99999", verify=False),
        Endpoint("llama", "http://127.0.0.1:port", verify=False),
        Endpoint("llama", "http://127.0.0.1:1", secret=lambda: "two\nlines", verify=False),
        Endpoint(
            "llama", "http://127.0.0.1:1", secret=lambda: _raise(FileNotFoundError(2, "No such file")), verify=False
        ),
        Endpoint(
            "llama",
            "http://127.0.0.1:1",
            secret=lambda: _raise(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "x")),
            verify=False,
        ),
    ],
)
def test_an_endpoint_that_cannot_be_used_is_an_error_of_one_line(endpoint: Endpoint) -> None:
    async def main() -> None:
        scraper = Scraper(endpoint, SystemClock(), 1.0)
        try:
            await scraper.read()
        finally:
            await scraper.close()

    with pytest.raises(TargetError) as caught:
        asyncio.run(main())
    assert str(caught.value).isprintable()


def test_cancelling_closes_the_connection() -> None:
    async def main() -> None:
        async with hostile([HANG]) as server:
            scraper = Scraper(Endpoint("llama", server.base_url, verify=False), SystemClock(), 30.0)
            task = asyncio.create_task(scraper.read())
            await server.until_asked()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.wait_for(server.gone.wait(), 1)
            await scraper.close()

    asyncio.run(main())
