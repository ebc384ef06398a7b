"""The startup flags of a real vLLM, from each place where they are read, and its sleep by /is_sleeping."""

import asyncio
import re

import httpx
import pytest
from real_vllm import RealVllm
from stub_server import stub_server

from probe.client.endpoint import Endpoint
from probe.core.clock import SystemClock
from probe.core.server_limits import limits_of
from probe.core.snapshot import ServerSnapshot
from probe.scrape.local_process import flags_of_local_server
from probe.scrape.page_scraper import PageScraper

pytestmark = [pytest.mark.vllm, pytest.mark.long]
STATED = {"max_num_seqs": "16", "max_num_active_seqs": "16", "max_num_batched_tokens": "512", "max_model_len": "1024"}


def read(vllm: RealVllm, metrics_url: str = "") -> tuple[ServerSnapshot, dict[str, str] | None]:
    async def main() -> tuple[ServerSnapshot, dict[str, str] | None]:
        scraper = PageScraper(Endpoint("real", vllm.base_url, metrics_url), SystemClock(), 5.0)
        try:
            return await scraper.read(), await scraper.read_flags()
        finally:
            await scraper.close()

    return asyncio.run(main())


def test_each_source_has_the_same_limits(vllm: RealVllm) -> None:
    snapshot, reported = read(vllm)
    assert reported is not None
    local = flags_of_local_server(vllm.base_url)
    shown = {name: str(value) for name, value in snapshot.scheduler_limits.items()}
    for source in (reported, local, shown):
        assert {name: source.get(name) for name in STATED} == STATED, source
        assert limits_of(source).running == 16
    assert snapshot.flags["block_size"] == local["block_size"] == reported["block_size"] == "32"
    assert reported["enforce_eager"] == local["enforce_eager"] == "True"
    assert reported["max_num_queued_reqs"] == local["max_num_queued_reqs"] == shown["max_num_queued_reqs"]


def test_a_real_server_says_whether_it_sleeps_where_its_page_does_not_show_it(vllm: RealVllm) -> None:
    """As with vLLM's Rust front end, whose page has no engine_sleep_state."""
    page = httpx.get(f"{vllm.base_url}/metrics", timeout=20, trust_env=False).text
    with stub_server(200, re.sub(r"vllm:engine_sleep_state.*\n", "", page)) as without:
        assert read(vllm, f"{without}/metrics")[0].is_asleep is False
        httpx.post(f"{vllm.base_url}/sleep?level=1", timeout=60, trust_env=False).raise_for_status()
        try:
            assert read(vllm, f"{without}/metrics")[0].is_asleep is True
        finally:
            httpx.post(f"{vllm.base_url}/wake_up", timeout=60, trust_env=False).raise_for_status()
