"""The page of vLLM's Rust front end has no cache_config_info, engine_sleep_state and process_*: what is asked."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from hostile_server import HANG, Asked, Script, hostile, whole
from scraping import PAGES, RECORDED, VERSION, read, scraping

from probe.core.errors import TargetError
from probe.core.snapshot import ServerSnapshot, with_kv_cache_tokens
from probe.scrape.page_scraper import PageScraper
from probe.scrape.scraper import Scraper

RUST = (PAGES / "vllm-rust.prom").read_bytes()
PAGE = whole(200, RUST, "text/plain; version=0.0.4")
AWAKE, ASLEEP = (whole(200, {"is_sleeping": is_asleep}) for is_asleep in (False, True))
FALLING = RUST.replace(b"# EOF\n", b'vllm:sleep_mode_operations_in_flight{operation="sleep"} 1\n# EOF\n')


def server(*answers: bytes | Script, page: bytes = PAGE) -> Callable[[Asked], Script]:
    """Answer /is_sleeping in turn, the last one again and again."""
    left = list(answers)

    def answer(asked: Asked) -> Script:
        if "/is_sleeping" not in asked.line:
            return [VERSION] if "/version" in asked.line else [page]
        found = left.pop(0) if len(left) > 1 else left[0]
        return [found] if isinstance(found, bytes) else found

    return answer


def asked_for(asked: list[Asked]) -> int:
    return sum("/is_sleeping" in each.line for each in asked)


@pytest.mark.parametrize(("answer", "state"), [(AWAKE, False), (ASLEEP, True)])
def test_a_server_whose_page_does_not_show_it_says_whether_it_sleeps(answer: bytes, state: object) -> None:
    snapshot, asked = read(server(answer), times=3)
    assert (snapshot.is_asleep, asked_for(asked)) == (state, 3)
    assert (snapshot.kv_cache_tokens, snapshot.flags, snapshot.started_s) == (None, {}, None)
    assert (snapshot.engine, snapshot.models, snapshot.rejections) == ("vllm", ("tiny",), None)
    assert (snapshot.prompt_tokens, snapshot.generation_tokens, snapshot.outcomes) == (3, 3, {"ok": 1})
    assert {"ttft", "itl", "queue", "prefill", "decode", "iteration_tokens"} <= snapshot.histograms.keys()


def test_a_page_that_shows_it_is_believed() -> None:
    snapshot, asked = read(server(ASLEEP, page=whole(200, RECORDED, "text/plain")))
    assert (snapshot.is_asleep, asked_for(asked)) == (False, 0)


def test_a_server_that_is_falling_asleep_shows_it_on_the_page() -> None:
    snapshot, _ = read(server(AWAKE, page=whole(200, FALLING, "text/plain")))
    assert snapshot.is_asleep is True


@pytest.mark.parametrize(
    ("answer", "times"),
    [(whole(404, b""), 1), (whole(401, b""), 1), (whole(200, b"<html>"), 1), (whole(200, {"x": 1}), 1),
     (whole(503, b""), 3), (whole(200, {"is_sleeping": "yes"}), 3)],
)  # fmt: skip
def test_without_an_answer_it_is_unknown_and_one_that_refuses_is_asked_once(answer: bytes, times: int) -> None:
    snapshot, asked = read(server(answer), times=3)
    assert (snapshot.is_asleep, asked_for(asked)) == (None, times)


def test_a_failed_scrape_forgets_the_refusal() -> None:
    async def main() -> tuple[bool | None, int]:
        async with hostile(server(whole(404, b""), ASLEEP)) as one, scraping(one) as scraper:
            await scraper.read()
            address, scraper._address = scraper._address, "http://127.0.0.1:1/metrics"
            with pytest.raises(TargetError):
                await scraper.read()
            scraper._address = address
            return (await scraper.read()).is_asleep, asked_for(one.asked)

    assert asyncio.run(main()) == (True, 2)


@pytest.mark.slow
def test_an_engine_that_does_not_answer_holds_up_no_scrape_and_its_last_answer_counts() -> None:
    async def main() -> list[tuple[bool | None, float]]:
        async with hostile(server(ASLEEP, [HANG])) as one, scraping(one, timeout_s=0.5) as scraper:
            found = []
            for _ in range(2):
                began_s = asyncio.get_running_loop().time()
                snapshot = await scraper.read()
                found.append((snapshot.is_asleep, asyncio.get_running_loop().time() - began_s))
            await asyncio.sleep(0.5)  # the question is given up
            return [*found, ((await scraper.read()).is_asleep, 0.0)]

    found = asyncio.run(main())
    assert [is_asleep for is_asleep, _ in found] == [True, True, None]
    assert max(seconds for _, seconds in found) < 0.45


def test_the_configured_size_of_the_kv_cache_is_that_of_each_page() -> None:
    async def main() -> list[ServerSnapshot]:
        async with hostile(server(AWAKE)) as one, hostile(server(AWAKE)) as other, scraping(one) as scraper:
            where = replace(scraper._endpoint, metrics_urls=(f"{one.base_url}/metrics", f"{other.base_url}/metrics"))
            both = Scraper(where, scraper._clock, 1.0, kv_cache_tokens=64_000)
            single = PageScraper(scraper._endpoint, scraper._clock, 1.0, kv_cache_tokens=64_000)
            try:
                return [await single.read(), await both.read()]
            finally:
                await asyncio.gather(single.close(), both.close())

    single, both = asyncio.run(main())
    assert (single.kv_cache_tokens, both.kv_cache_tokens) == (64_000, 128_000)


def test_a_configured_size_stands_for_all_that_a_page_says_of_it() -> None:
    page, _ = read(server(AWAKE, page=whole(200, RECORDED, "text/plain")))
    found = with_kv_cache_tokens(page, 1000.0)
    assert (page.kv_cache_tokens, found.kv_cache_tokens) == (2048, 1000)
    assert found.value("kv_block_tokens") is None
    assert with_kv_cache_tokens(page, None) is page
