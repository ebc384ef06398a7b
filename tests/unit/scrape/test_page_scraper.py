"""Reading a metrics page over the network: how it becomes a snapshot."""

import asyncio
import gzip
import re
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

import httpx
import pytest
from hostile_server import CLOSE, HANG, Asked, Script, chunked, head, hostile, whole
from scraping import GZIP, PAGE, PAGES, PLAIN, RECORDED, SECRET, VERSION, by_path, in_turn, read, scraping
from virtual_time import VirtualClock, virtually

from probe.client.endpoint import Endpoint
from probe.core.errors import TargetError
from probe.core.snapshot import ServerSnapshot
from probe.observe.restarts import restarted
from probe.scrape.page_scraper import PageScraper


def test_a_page_is_a_snapshot() -> None:
    snapshot, asked = read(by_path([PAGE]))
    assert (snapshot.version, snapshot.prompt_tokens, snapshot.running) == ("0.32.0", 18, 0)
    assert {a.line for a in asked} == {"GET /metrics HTTP/1.1", "GET /version HTTP/1.1"}
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
@pytest.mark.fault("FA94")
def test_a_version_that_never_comes_does_not_cost_the_metrics(version: Script) -> None:
    assert read(by_path([PAGE], version), timeout_s=0.6)[0].prompt_tokens == 18


def test_a_version_that_never_comes_costs_no_read_that_is_given_up_early() -> None:
    """The polls of a guard are given up after a second, before the question for the version ends."""

    async def main() -> list[str]:
        pages = iter([[PAGE], [whole(503, b"")], *[[PAGE]] * 6])
        script = lambda asked: [HANG] if "/version" in asked.line else next(pages)  # noqa: E731 - as by_path
        read = list[str]()
        async with hostile(script) as server, scraping(server, timeout_s=0.6) as scraper:
            for _ in range(8):
                with suppress(TimeoutError, TargetError):
                    async with asyncio.timeout(0.2):
                        read.append((await scraper.read()).version)
                await asyncio.sleep(0.01)
        return read

    read = asyncio.run(main())
    assert len(read) >= 5, "all but the failure, and those that learned of the silence"
    assert set(read) == {"unknown"}


def test_after_a_failure_the_version_is_asked_again() -> None:
    """The server may have been replaced by another one in between."""
    versions = iter(["0.31.0", "0.32.0"])
    pages = in_turn(PAGE, whole(503, b""), PAGE)

    def redeployed(asked: Asked) -> Script:
        return [whole(200, {"version": next(versions)})] if "/version" in asked.line else pages(asked)

    async def main() -> list[str]:
        async with hostile(redeployed) as server, scraping(server) as scraper:
            first = await scraper.read()
            with pytest.raises(TargetError):
                await scraper.read()
            second = await scraper.read()
            return [first.version, second.version]

    assert asyncio.run(main()) == ["0.31.0", "0.32.0"]


def test_a_failure_does_not_take_the_version_from_a_page_that_is_being_read() -> None:
    """A scrape, the guard of a run and a look for sleep may be under way at the same time."""
    pages: Iterator[Script] = iter([[0.2, PAGE], [whole(503, b"")]])

    async def main() -> ServerSnapshot:
        async with (
            hostile(lambda asked: [VERSION] if "/version" in asked.line else next(pages)) as server,
            scraping(server) as scraper,
        ):
            slow = asyncio.create_task(scraper.read())
            await server.until_asked(2)
            with pytest.raises(TargetError):
                await scraper.read()
            return await slow

    assert asyncio.run(main()).version == "0.32.0"


def test_the_key_goes_to_the_target_alone() -> None:
    async def main() -> tuple[list[Asked], list[Asked]]:
        async with hostile([VERSION]) as server, hostile([PAGE]) as elsewhere:
            async with scraping(server, metrics_url=f"{elsewhere.base_url}/metrics") as scraper:
                await scraper.read()
            return server.asked, elsewhere.asked

    at_home, abroad = asyncio.run(main())
    assert "authorization" in at_home[0].headers
    assert "authorization" not in abroad[0].headers


def test_a_configured_engine_is_scraped_at_its_path_and_read_as_that() -> None:
    page = (PAGES / "trtllm.prom").read_bytes()
    snapshot, asked = read(by_path([whole(200, page)]), engine="trtllm")
    assert {a.line for a in asked} == {"GET /prometheus/metrics HTTP/1.1", "GET /version HTTP/1.1"}
    assert snapshot.engine == "trtllm"


def test_a_metrics_url_counts_more_than_where_an_engine_s_page_usually_is() -> None:
    async def main() -> set[str]:
        async with hostile([whole(200, (PAGES / "nim.prom").read_bytes())]) as server:
            async with scraping(server, engine="nim", metrics_url=f"{server.base_url}/there") as scraper:
                await scraper.read()
            return {asked.line for asked in server.asked}

    assert asyncio.run(main()) == {"GET /there HTTP/1.1", "GET /version HTTP/1.1"}


@pytest.mark.parametrize(
    "page",
    [
        whole(200, gzip.compress(RECORDED), PLAIN, GZIP),
        head(200, PLAIN, GZIP, "transfer-encoding: chunked")
        + chunked(*(gzip.compress(RECORDED)[i : i + 100] for i in range(0, len(gzip.compress(RECORDED)), 100))),
        head(200, PLAIN, "transfer-encoding: chunked") + chunked(RECORDED[:777], RECORDED[777:]),
        whole(200, zlib.compress(RECORDED), PLAIN, "content-encoding: deflate"),
        whole(200, RECORDED, PLAIN, GZIP),
        whole(200, RECORDED, PLAIN, "content-encoding: none"),
        whole(200, RECORDED.replace(b"\n", b"\r\n"), PLAIN),
        whole(200, b"\xef\xbb\xbf" + RECORDED, PLAIN),
        whole(200, RECORDED + b"# EOF\n", "application/openmetrics-text; version=1.0.0"),
        whole(200, re.sub(rb"(?m)^([^#\n].*)$", rb"\1 1700000000000", RECORDED), PLAIN),
        whole(200, re.sub(rb"(?m)^(.*_bucket.*)$", rb'\1 # {id="x"} 0.5 17.25', RECORDED), PLAIN),
        whole(200, RECORDED.rstrip(b"\n"), PLAIN),
        whole(200, RECORDED + RECORDED, PLAIN),
        whole(200, RECORDED + b"vllm:num_requests_running NaN\npython_info NaN\n", PLAIN),
    ],
    ids=[
        "packed",
        "packed in chunks",
        "in chunks",
        "deflate",
        "packed by name",
        "none",
        "CRLF",
        "mark",
        "OpenMetrics",
        "with times",
        "with exemplars",
        "without the last line's end",
        "twice",
        "with NaN",
    ],
)
def test_however_a_page_is_sent_it_says_the_same(page: bytes) -> None:
    plain, _ = read(by_path([PAGE]))
    found, _ = read(by_path([page]))
    assert replace(found, at_ns=0, wall_s=0.0, asked_ns=0) == replace(plain, at_ns=0, wall_s=0.0, asked_ns=0)


def test_a_page_that_ends_with_the_connection_is_whole() -> None:
    assert read(by_path([head(200, PLAIN) + RECORDED, CLOSE]))[0].prompt_tokens == 18


def test_values_that_a_page_lacks_are_not_zero() -> None:
    snapshot, _ = read(by_path([whole(200, "vllm:num_requests_running 3\n")]))
    assert (snapshot.running, snapshot.waiting, snapshot.generation_tokens) == (3, None, None)
    assert snapshot.histograms == {}


def test_counters_that_fall_are_read_and_show_a_restart() -> None:
    pages = in_turn(*(whole(200, f"vllm:generation_tokens_total {count}\n") for count in (500, 20)))

    async def main() -> list[ServerSnapshot]:
        async with hostile(pages) as server, scraping(server) as scraper:
            return [await scraper.read(), await scraper.read()]

    before, after = asyncio.run(main())
    assert restarted(before, after) == "generation_tokens fell from 500 to 20"


def test_how_long_it_took_and_how_much_it_was_is_of_the_last_page_that_was_read() -> None:
    pages = in_turn(whole(200, gzip.compress(RECORDED), PLAIN, GZIP), whole(503, b""))

    async def main() -> None:
        async with hostile(pages) as server, scraping(server) as scraper:
            assert (scraper.seconds, scraper.page_bytes) == (0.0, 0)
            began_s = time.monotonic()
            await scraper.read()
            took_s = scraper.seconds
            assert took_s is not None
            assert 0 < took_s < time.monotonic() - began_s
            with pytest.raises(TargetError):
                await scraper.read()
            assert (scraper.seconds, scraper.page_bytes) == (took_s, len(RECORDED))

    asyncio.run(main())


class Counting(ThreadPoolExecutor):
    """Threads that count what they are given to do."""

    given = 0

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        self.given += 1
        return super().submit(*args, **kwargs)


@pytest.mark.slow
@pytest.mark.fault(
    "ST9",
    "A large metrics page",
    area="Starvation",
    users_see="nothing",
    stays="it is parsed beside the event loop",
)
def test_a_large_page_is_parsed_beside_the_event_loop_and_a_usual_one_is_not() -> None:
    lines = b"".join(b'vllm:e2e_request_latency_seconds_sum{engine="%d"} 1\n' % i for i in range(40_000))
    pages = in_turn(PAGE, whole(200, RECORDED + lines, PLAIN))

    async def main() -> list[int]:
        threads = Counting(1)
        asyncio.get_running_loop().set_default_executor(threads)
        given = []
        async with hostile(pages) as server, scraping(server, timeout_s=5.0) as scraper:
            for _ in range(2):
                assert (await scraper.read()).prompt_tokens == 18
                given.append(threads.given)
            assert scraper.page_bytes is not None
            assert scraper.page_bytes > 2 * 10**6
        return given

    assert asyncio.run(main()) == [0, 1]


def test_cancelling_closes_the_connection() -> None:
    async def main() -> None:
        async with hostile([HANG]) as server, scraping(server, timeout_s=30.0) as scraper:
            task = asyncio.create_task(scraper.read())
            await server.until_asked()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.wait_for(server.gone.wait(), 1)

    asyncio.run(main())


@pytest.mark.parametrize(("late_s", "reads"), [(0.0, 1), (0.2, 1), (8.0, 2)])
@pytest.mark.fault("D08")
def test_a_page_that_was_missed_while_this_process_was_stopped_is_read_once_more(late_s: float, reads: int) -> None:
    """Of a time limit of 3 s, which was found to be over so late."""
    asked: list[str] = []

    class Missed(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            asked.append(request.url.path)
            asyncio.get_running_loop()._leaping.now_s += 3.0 + late_s  # type: ignore[attr-defined]
            raise httpx.ReadTimeout("nothing more within 3 s")

    async def read() -> None:
        scraper = PageScraper(Endpoint("a", "http://127.0.0.1:9"), VirtualClock())
        scraper._version, scraper._metrics = "1", httpx.AsyncClient(transport=Missed())
        with pytest.raises(TargetError, match="nothing more"):
            await scraper.read()

    virtually(read())
    assert asked.count("/metrics") == reads
