"""vLLM's startup flags as it reports them itself. The answer is vLLM 0.32's, with fewer of its sections."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hostile_server import HANG, Asked, Script, hostile, whole
from hypothesis import given
from hypothesis import strategies as st
from scraping import PAGE, SECRET, VERSION, scraping

from probe.core.foreign_json import ForeignJsonError
from probe.scrape import page_scraper as scrapes
from probe.scrape.page_scraper import PageScraper, flags_of

ANSWER = (Path(__file__).parents[2] / "golden/vllm-0.32/server_info.json").read_bytes()
FOUND = {
    "max_num_seqs": "48",
    "max_num_batched_tokens": "2048",
    "long_prefill_token_threshold": "0",
    "scheduling_policy": "fcfs",
    "async_scheduling": "False",
    "enable_chunked_prefill": "True",
    "max_model_len": "4096",
    "dtype": "bfloat16",
    "enforce_eager": "False",
    "enable_sleep_mode": "False",
    "tensor_parallel_size": "1",
    "pipeline_parallel_size": "1",
    "data_parallel_size": "1",
    "enable_expert_parallel": "False",
    "block_size": "128",
    "gpu_memory_utilization": "0.92",
    "kv_cache_dtype": "auto",
    "enable_prefix_caching": "True",
}
REFUSED = whole(404, {"detail": "Not Found"})


def test_the_flags_that_a_capacity_depends_on_are_taken() -> None:
    assert flags_of(ANSWER) == FOUND


def test_a_flag_that_is_not_at_its_default_is_taken() -> None:
    document = json.loads(ANSWER)
    config = document["vllm_config"]
    config["scheduler_config"] |= {"max_num_active_seqs": 64, "prefill_schedule_interval": 4, "watermark": 0.05}
    config["parallel_config"] |= {"decode_context_parallel_size": 2}
    config |= {"performance_mode": "throughput", "offload_config": {"uva": {"cpu_offload_gb": 4.0}}}
    assert flags_of(json.dumps(document).encode()) == FOUND | {
        "max_num_active_seqs": "64",
        "prefill_schedule_interval": "4",
        "watermark": "0.05",
        "decode_context_parallel_size": "2",
        "performance_mode": "throughput",
        "cpu_offload_gb": "4.0",
    }


def test_speculation_and_kv_transfer_are_taken_without_their_other_settings() -> None:
    document = json.loads(ANSWER)
    document["vllm_config"] |= {
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "model": None, "hf_token": SECRET},
        "kv_transfer_config": {
            "kv_connector": "NixlConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"redis": f"redis://:{SECRET}@h"},
        },
    }
    found = flags_of(json.dumps(document).encode())
    assert json.loads(found["speculative_config"]) == {"method": "ngram", "num_speculative_tokens": 3}
    assert (found["kv_connector"], found["kv_role"]) == ("NixlConnector", "kv_both")
    assert SECRET not in str(found)


@pytest.mark.parametrize(
    "answer",
    [
        b'{"vllm_config": "model=m, max_seq_len=4096"}',  # before vLLM 0.11
        b'{"vllm_config": {"scheduler_config": "text", "model_config": [1], "speculative_config": 1}}',
        b'{"vllm_config": {"scheduler_config": {"max_num_seqs": null, "policy": {}}}}',
        b"[]",
        b'{"status": "ok"}',
    ],
)
def test_an_answer_without_them_has_no_flags(answer: bytes) -> None:
    assert flags_of(answer) == {}


def test_a_long_value_is_cut() -> None:
    assert flags_of(b'{"vllm_config": {"model_config": {"dtype": "%s"}}}' % (b"x" * 5000)) == {"dtype": "x" * 200}


@pytest.mark.parametrize("answer", [b"<html>", b"[" * 100, b"[" + b"0," * 30_000 + b"0]", b'"' + b"x" * 2**20 + b'"'])
def test_an_answer_over_a_limit_is_refused(answer: bytes) -> None:
    with pytest.raises(ForeignJsonError):
        flags_of(answer)


VALUES = st.none() | st.integers() | st.text(max_size=3) | st.lists(st.none(), max_size=1)
SECTIONS = st.sampled_from(("scheduler_config", "model_config", "speculative_config", "kv_transfer_config"))
NAMES = st.sampled_from(("max_num_seqs", "dtype", "method", "kv_role"))


@given(VALUES | st.dictionaries(SECTIONS, VALUES | st.dictionaries(NAMES, VALUES, max_size=3), max_size=3))
def test_no_document_raises_an_error(document: object) -> None:
    flags_of(json.dumps({"vllm_config": document}).encode())


def asking(info: Script, use: Callable[[PageScraper], Any], *, engine: str | None = None) -> tuple[Any, list[Asked]]:
    """Return what `use` returns, and the requests for /server_info."""

    def answer(asked: Asked) -> Script:
        if "/server_info" in asked.line:
            return info
        return [VERSION] if "/version" in asked.line else [PAGE]

    async def main() -> tuple[Any, list[Asked]]:
        async with hostile(answer) as server, scraping(server, engine=engine) as scraper:
            found = await use(scraper)
            return found, [asked for asked in server.asked if "/server_info" in asked.line]

    return asyncio.run(main())


def test_a_scraper_asks_below_the_base_url_with_the_key() -> None:
    found, (asked,) = asking([whole(200, ANSWER)], lambda scraper: scraper.read_flags())
    assert found == FOUND
    assert asked.line == "GET /server_info?config_format=json HTTP/1.1"
    assert asked.headers["authorization"] == f"bearer {SECRET}"


def test_a_server_without_the_page_is_asked_once_until_a_scrape_fails() -> None:
    async def use(scraper: PageScraper) -> list[object]:
        found = [await scraper.read_flags(), await scraper.read_flags()]
        scraper._address = "http://127.0.0.1:1/metrics"
        with pytest.raises(Exception, match="no metrics"):
            await scraper.read()
        return [*found, await scraper.read_flags()]

    found, asked = asking([REFUSED], use)
    assert found == [{}, {}, {}]
    assert len(asked) == 2


@pytest.mark.slow
@pytest.mark.parametrize("info", [[whole(503, b"")], [whole(200, b"<html>")], [HANG]], ids=["503", "no JSON", "hangs"])
def test_a_server_that_cannot_answer_now_is_asked_again(info: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrapes, "_INFO_TIMEOUT_S", 0.2)

    async def use(scraper: PageScraper) -> list[object]:
        return [await scraper.read_flags(), await scraper.read_flags()]

    found, asked = asking(info, use)
    assert found == [None, None]
    assert len(asked) == 2


def test_another_engine_is_not_asked() -> None:
    found, asked = asking([whole(200, ANSWER)], lambda scraper: scraper.read_flags(), engine="sglang")
    assert (found, asked) == ({}, [])
