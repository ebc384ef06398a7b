"""Metrics pages of every engine that is read, to the same snapshot. Pages that say so in their first line were made
from names and buckets in the engine's source.
"""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import engine_table
from probe.core.snapshot import EngineSnapshot, ServerSnapshot
from probe.scrape import engines
from probe.scrape.engines import ENGINES, NotMetricsError, parse
from probe.scrape.reads import Engine, Proof

PAGES = Path(__file__).parents[2] / "pages"
REAL = (Path(__file__).parents[2] / "golden/vllm-0.32/metrics.txt").read_text()


def _read(name: str) -> ServerSnapshot:
    return parse((PAGES / f"{name}.prom").read_text(), 5, 7.0, "1.2")


def _counts(found: ServerSnapshot) -> dict[str, float]:
    return {name: histogram.count for name, histogram in found.histograms.items()}


@pytest.mark.parametrize("path", sorted(PAGES.glob("*.prom")), ids=lambda path: path.stem)
def test_each_page_is_recognised_by_its_names(path: Path) -> None:
    found = parse(path.read_text(), 5, 7.0, "1.2")
    assert path.stem.startswith(found.engine)
    assert (found.at_ns, found.wall_s, found.version) == (5, 7.0, "1.2")


def test_vllm_with_two_engines_speculation_and_adapters() -> None:
    found = _read("vllm")
    assert (found.running, found.waiting, found.preemptions, found.rejections) == (45, 5, 41, 19)
    assert [one.running for one in found.by_engine.values()] == [24, 21]
    assert sum(one.generation_tokens or 0.0 for one in found.by_engine.values()) == found.generation_tokens
    assert found.waiting_by_reason == {"capacity": 3, "deferred": 2}
    assert found.others.items() >= {"drafts": 800993, "draft_tokens": 2402979, "accepted_tokens": 1433556}.items()
    assert found.adapters == ("chat-adapter", "sql-adapter"), "those of the last time, not of all times"
    assert _counts(found)["preemptions_per_request"] == _counts(found)["decode"] == 9321
    assert {"kv_block_lifetime", "kv_block_idle", "kv_block_reuse_gap"} <= set(found.histograms)
    assert len(found.histograms["kv_block_idle"].buckets) == 21 + 1


def test_vllm_with_several_api_servers() -> None:
    """Counters are sums, gauges the last word of any; which adapters run cannot be told."""
    found = _read("vllm-api-servers")
    assert (found.engines, found.running, found.waiting, found.kv_cache_usage) == (2, 47, 4, 0.67)
    assert (found.generation_tokens, found.progress) == (72_000, 72_720)
    assert found.by_engine["1"] == EngineSnapshot(24, 4, 0.67, 10, 40_000)
    assert found.models == ("meta-llama/Llama-3.1-8B-Instruct",)
    assert (found.kv_cache_tokens, found.flags["engines"]) == (2 * 27496 * 16, "2")
    assert found.adapters == ()
    lora = 'vllm:lora_requests_info{{running_lora_adapters="{0}"}} {1}\n'
    added_up = lora.format("sql", 2 * 1795270331.6) + lora.format("chat", 1795270332.6)
    assert parse(added_up, 0, 0.0).adapters == (), "both processes had the first one, nobody knows when"


@pytest.mark.parametrize("engine", ["v0", "v1"])
def test_vllm_0_8(engine: str) -> None:
    found = _read(f"vllm-0.8-{engine}")
    assert (found.running, found.waiting, found.kv_cache_usage, found.preemptions) == (24, 5, 0.8312, 37)
    assert found.kv_cache_tokens == 439936
    assert (found.prefix_cache_queries is None) is (engine == "v0"), "that one has rates only"
    assert found.value("drafts") is None, "there was no speculation, although 0.8 has its counters"
    assert _counts(found)["queue"] == 4812, "one of its two names, not both"
    assert {"ttft", "itl", "e2e", "prefill", "decode"} <= set(found.histograms)


def test_sglang_adds_data_parallel_ranks_and_nothing_else() -> None:
    found = _read("sglang")
    assert (found.engines, found.running, found.waiting, found.kv_cache_usage) == (2, 44, 4, 0.62)
    assert (found.preemptions, found.progress) == (17, 8_892_581), "prompts' tokens too: it grows while one is read"
    assert [(one.running, one.waiting, one.preemptions) for one in found.by_engine.values()] == [
        (23, 4, 17),
        (21, 0, 0),
    ]
    assert found.by_engine["1"].generation_tokens == 977_145
    assert found.models == ("meta-llama/Llama-3.1-8B-Instruct",)
    assert found.prefix_cache_hits == 1779117, "the total of its levels, not twice"
    assert _counts(found)["ttft"] < _counts(found)["e2e"], "without streaming, TTFT is all of the time"


def test_sglang_where_every_rank_and_every_priority_tells() -> None:
    found = _read("sglang-all-ranks")
    assert (found.running, found.waiting, found.kv_cache_usage, found.kv_cache_tokens) == (12, 3, 0.4, 50_000)
    assert found.generation_tokens == 101_300, "these are told by priority, without a total"


def test_tgi_without_an_event_has_zeros_and_not_nothing() -> None:
    found = parse("tgi_queue_size 0\n", 0, 0.0)
    assert (found.running, found.waiting, found.generation_tokens, found.rejections) == (0, 0, 0, 0)
    full = _read("tgi")
    assert (full.running, full.waiting, full.rejections, full.prompt_tokens) == (14, 5, 21, 1101431)
    assert full.finished["success"] == 1467
    assert full.progress == 88214 + 1220, "steps, since tokens count at the end of a request only"
    assert _counts(full)["prompt_length"] == 1479, "101 buckets"


def test_trtllm_counts_identical_processes_once() -> None:
    found = _read("trtllm")
    assert found.models == ("Llama-3.1-8B-Instruct",)
    assert (found.running, found.waiting, found.kv_cache_usage) == (18, 2, 0.418)
    line = 'trtllm_num_requests_running{engine_type="pytorch",model_name="m",pid="%d"} %d\n'
    assert parse(line % (1, 5) + line % (2, 4), 0, 0.0).running == 5
    assert "itl" not in found.histograms, "its time per output token is a request's mean"
    assert _counts(found)["tpot"] == 1781


def test_triton_has_many_quantities_in_one_family() -> None:
    found = _read("triton")
    assert (found.running, found.waiting, found.kv_cache_usage) == (17, 3, 3042 / 6240)
    assert found.kv_cache_tokens == 6240 * 64
    assert found.finished == {"success": 912, "failure": 4}, "of one model of the ensemble"


def test_nim_calls_itl_a_time_per_output_token() -> None:
    found = _read("nim")
    assert found.models == ("meta/llama-3.1-8b-instruct",)
    assert (found.running, found.waiting, found.kv_cache_usage) == (9, 1, 0.271)
    assert _counts(found)["itl"] > 100 * _counts(found)["e2e"]


def test_litellm_knows_no_queue() -> None:
    found = _read("litellm")
    assert found.models == ("llama",)
    assert (found.running, found.waiting, found.kv_cache_usage) == (7, None, None)
    assert (found.rejections, found.finished["200"]) == (28, 2415)


def test_dynamos_frontend_says_how_its_workers_were_started() -> None:
    found = _read("dynamo")
    assert found.models == ("llama",)
    assert (found.running, found.waiting, found.engines) == (0, 0, 1)
    assert (found.prompt_tokens, found.generation_tokens, found.finished) == (4160, 2080, {"success": 62})
    assert (found.scheduler_limits["max_num_seqs"], found.kv_cache_tokens) == (16, 2000 * 16)
    assert found.flags == {"max_num_seqs": "16", "max_num_batched_tokens": "8192"}, "a length of 0 is none"
    assert _counts(found)["ttft"] == _counts(found)["e2e"] == 62
    in_prefill = 'dynamo_frontend_inflight_requests{model="a"} 7\ndynamo_frontend_queued_requests{model="a"} 3\n'
    assert parse(in_prefill, 0, 0.0).running == 4, "those that wait are in flight too"
    fresh = parse('dynamo_frontend_model_max_num_seqs{model="a"} 16\n', 0, 0.0)
    assert (fresh.running, fresh.waiting, fresh.generation_tokens) == (0, 0, 0), "no request yet, so no series"
    assert parse(in_prefill.splitlines()[0] + "\n", 0, 0.0).waiting is None, "a page of another version"


def test_llama_cpp_counts_tokens_and_no_requests() -> None:
    found = _read("llamacpp")
    assert (found.running, found.waiting, found.kv_cache_usage) == (0, 0, None)
    assert (found.prompt_tokens, found.generation_tokens, found.progress) == (4160, 2080, 915)
    assert (found.finished, found.histograms, found.value("drafts")) == ({}, {}, None)


def test_vllm_behind_ray_serve_is_vllm_whose_page_is_late() -> None:
    found = _read("vllm-ray-serve")
    assert (found.engine, found.delay_s, found.engines) == ("vllm", 15.0, 1)
    assert (found.running, found.waiting, found.prompt_tokens) == (4, 0, 61 * 64), "of seconds ago"
    assert _counts(found)["ttft"] == 61
    assert _read("vllm").delay_s == 0


def test_replicas_on_one_node_of_ray_are_engines() -> None:
    line = 'ray_vllm_num_requests_running{NodeAddress="a",ReplicaId="%s",engine="0",model_name="m"} %d\n'
    found = parse(line % ("x1", 3) + line % ("x2", 4), 0, 0.0)
    assert (found.running, found.engines) == (7, 2)
    assert {name: one.running for name, one in found.by_engine.items()} == {"x1": 3, "x2": 4}
    assert found.models == ("m",)


def test_a_page_of_an_unknown_engine_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no series of vllm, sglang, .* on the page"):
        parse("go_goroutines 5\nmy_vllm:thing 3\n", 0, 0.0)


VLLM, LITELLM = "vllm:num_requests_running 4\n", "litellm_in_flight_requests 7\n"


def test_a_page_is_read_as_the_configured_engine() -> None:
    assert parse(VLLM + LITELLM, 0, 0.0).engine == "vllm"
    found = parse(VLLM + LITELLM, 0, 0.0, engine="litellm")
    assert (found.engine, found.running) == ("litellm", 7)


def test_a_page_of_another_engine_than_configured_names_the_likely_one() -> None:
    with pytest.raises(NotMetricsError, match=r"no series of sglang on the page, which seems to be vllm's"):
        parse(REAL, 0, 0.0, engine="sglang")
    with pytest.raises(NotMetricsError, match=r"no series of sglang on the page, nor of any other"):
        parse("go_goroutines 5\n", 0, 0.0, engine="sglang")


def test_a_page_that_says_nothing_is_damaged_and_not_anothers() -> None:
    for engine in (None, "vllm"):
        with pytest.raises(ValueError, match="with a value") as caught:
            parse("vllm:num_requests_running NaN\n", 0, 0.0, engine=engine)
        assert not isinstance(caught.value, NotMetricsError)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_an_engines_row_says_what_its_pages_show(engine: Engine) -> None:
    pages = [(path.read_text(), _read(path.stem)) for path in sorted(PAGES.glob(f"{engine.name}*.prom"))]
    assert pages, "a page named after the engine, with its source in the first line"
    is_recorded = any("not a recording" not in page.partition("\n")[0] for page, _ in pages)
    assert (engine.facts.proof is Proof.RECORDED) == is_recorded
    assert engine.facts.cells.keys() <= engine_table.CELLS
    assert engines.path(engine.name) == engine.path
    counted = {name for name, words in zip(("ok", "failed", "aborted"), engine.facts.outcomes, strict=True) if words}
    assert {name for _, found in pages for name in found.outcomes} <= counted


@pytest.mark.parametrize("path", sorted(PAGES.glob("*.prom")), ids=lambda path: path.stem)
def test_a_page_that_is_there_twice_is_the_same_page(path: Path) -> None:
    assert parse(path.read_text() + path.read_text(), 5, 7.0) == parse(path.read_text(), 5, 7.0)


def test_each_engine_reads_only_names_of_its_own() -> None:
    for engine in ENGINES:
        if engine.name != "nim":
            # The last two by a KV connector in vLLM's process and by Kneewatch's plugin for it.
            shared = ("nv_llm_", "http_requests_total", "lmcache:", "kneewatch_vllm_")
            assert all(name.startswith((*engine.signs, *shared)) for name in engine.wanted)
    assert sum("vllm:num_requests_running" in engine.wanted for engine in ENGINES) == 1


@given(st.data())
@pytest.mark.fault("FA90")
def test_a_damaged_page_is_a_value_error_or_a_snapshot(data: st.DataObject) -> None:
    page = data.draw(st.sampled_from([path.read_text() for path in sorted(PAGES.glob("*.prom"))] + [REAL]))
    lines = page.split("\n")
    at = data.draw(st.integers(0, len(lines) - 1))
    damage = data.draw(st.sampled_from(["", "{", '{le="x"} 1', " NaN", " +Inf", '="', " 9" * 400]))
    lines[at] = lines[at][: data.draw(st.integers(0, 200))] + damage
    try:
        found = engines.parse("\n".join(lines), 0, 0.0)
    except ValueError:
        return
    assert isinstance(found, ServerSnapshot)
