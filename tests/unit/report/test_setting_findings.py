"""Findings on startup flags: each beside the setting just inside it, of which nothing is said."""

from dataclasses import replace
from math import inf

import pytest
from plain_records import poll

from probe.core.objectives import Objective, Objectives
from probe.core.snapshot import Gpu, GpuSnapshot, Histogram, ServerSnapshot, UserTotals
from probe.observe.kv_size import KvSize
from probe.report.cross_check_text import Finding
from probe.report.setting_findings import (
    LongRequests,
    RequestLengths,
    long_requests,
    request_lengths,
    setting_findings,
    unused_memory,
)
from probe.scrape.replicas import merged

CHAT = Objectives("chat", ttft=Objective(0.95, 0.5))
LENGTHS = RequestLengths(requests=100, prompt_tokens=800, output_tokens=400, is_recent=True)


def _found(
    flags: dict[str, str], server: ServerSnapshot, lengths: RequestLengths | None = LENGTHS, speed: float | None = None
) -> list[Finding]:
    return list(setting_findings(server, flags, lengths, CHAT, speed))


@pytest.fixture
def server() -> ServerSnapshot:
    return replace(poll(), kv_cache_tokens=64_000.0, engines=1, preemptions=0.0, prefix_cache_queries=None)


def test_of_a_server_that_fits_nothing_is_said(server: ServerSnapshot) -> None:
    flags = {"max_num_seqs": "64", "enable_prefix_caching": "True", "enforce_eager": "False"}
    assert _found({**flags, "max_num_batched_tokens": "2048"}, server, speed=10_000.0) == []


def test_replicas_that_were_started_with_other_flags_are_named(server: ServerSnapshot) -> None:
    same, other = (replace(server, flags={"block_size": "16", "cache_dtype": dtype}) for dtype in ("auto", "fp8"))
    assert _found(dict(merged({"a:8000": same, "b:8000": same}).flags), server) == []
    (found,) = _found(dict(merged({"a:8000": same, "b:8000": other}).flags), server)
    assert found.words == "the replicas differ in cache_dtype (auto | fp8): start them with the same flags"
    assert found.is_problem


def test_more_sequences_than_the_kv_cache_has_room_for(server: ServerSnapshot) -> None:
    (found,) = _found({"max_num_seqs": "256"}, server)
    assert "room for 64 requests of the mean length, and max_num_seqs is 256" in found.words
    assert "--max-num-seqs to 64" in found.words
    assert not found.is_problem
    (preempted,) = _found({"max_num_seqs": "256"}, replace(server, preemptions=3.0))
    assert preempted.is_problem


def _lengths_of(*buckets: tuple[float, float]) -> Histogram:
    return Histogram(buckets, sum=1000.0)


def test_a_context_far_longer_than_what_users_send(server: ServerSnapshot) -> None:
    lengths = {
        "prompt_length": _lengths_of((500, 60), (1000, 199), (inf, 200)),
        "output_length": _lengths_of((200, 198), (500, 200), (inf, 200)),
    }
    longest = long_requests(replace(server, histograms=lengths))
    assert longest == LongRequests(prompt_tokens=1000, output_tokens=200)
    (found,) = setting_findings(server, {"max_model_len": "32K"}, LENGTHS, CHAT, None, longest=longest)
    assert found.words == (
        "max_model_len is 32768, and 99 % of prompts are within 1,000 tokens, of answers within 200; one of that length"
        " takes 51% of an engine's KV cache, and others are preempted: lower --max-model-len, unless longer requests"
        " are wanted"
    )
    assert not found.is_problem
    assert list(setting_findings(server, {"max_model_len": "9599"}, LENGTHS, CHAT, None, longest=longest)) == []
    assert list(setting_findings(server, {"max_model_len": "32K"}, LENGTHS, CHAT, None)) == []


def test_of_few_requests_or_beyond_the_last_bound_no_longest_is_known(server: ServerSnapshot) -> None:
    few = _lengths_of((1000, 99), (inf, 99))
    above = _lengths_of((1000, 190), (inf, 200))
    right = _lengths_of((1000, 200), (inf, 200))
    for prompts, outputs in ((few, few), (above, right), (right, above)):
        found = replace(server, histograms={"prompt_length": prompts, "output_length": outputs})
        assert long_requests(found) is None
    assert long_requests(replace(server, histograms={})) is None


def test_memory_that_is_free_while_the_server_may_not_use_it() -> None:
    def gpus(*shares: float) -> GpuSnapshot:
        values = [{"DCGM_FI_DEV_FB_USED": share * 80e3, "DCGM_FI_DEV_FB_FREE": (1 - share) * 80e3} for share in shares]
        return GpuSnapshot(0, 0.0, "dcgm", tuple(Gpu({"gpu": f"{i}"}, each) for i, each in enumerate(values)))

    (found,) = unused_memory(gpus(0.5, 0.55), {"gpu_memory_utilization": "0.5"})
    assert found.words.startswith("45 % of the GPU's memory is free, and gpu_memory_utilization is 0.5: raise")
    for share, used in (("0.9", 0.5), ("0.5", 0.85), ("?", 0.5)):
        assert list(unused_memory(gpus(used), {"gpu_memory_utilization": share})) == []
    assert list(unused_memory(None, {"gpu_memory_utilization": "0.5"})) == []


def test_weights_of_32_bits_are_a_problem(server: ServerSnapshot) -> None:
    (found,) = _found({"dtype": "torch.float32"}, server)
    assert found.is_problem
    assert _found({"dtype": "bfloat16"}, server) == []


def test_prompts_that_are_computed_whole(server: ServerSnapshot) -> None:
    off, longest = {"enable_chunked_prefill": "False"}, LongRequests(8000, 400)
    (found,) = setting_findings(server, off, None, CHAT, None)
    assert found.words.startswith("chunked prefill is off: a prompt is computed in one step")
    assert not found.is_problem
    strict = replace(CHAT, itl=Objective(0.95, 0.5))
    (found,) = setting_findings(server, off, None, strict, 10_000.0, longest=longest)
    assert "meanwhile, up to 800 ms for 99 % of prompts; remove --no-enable-chunked-prefill" in found.words
    assert found.is_problem
    assert _found({"enable_chunked_prefill": "True"}, server) == []


def test_a_lower_limit_of_running_requests_is_the_one_that_counts(server: ServerSnapshot) -> None:
    assert _found({"max_num_seqs": "256", "max_num_active_seqs": "64"}, server) == []
    (found,) = _found({"max_num_seqs": "256", "max_num_active_seqs": "65"}, server)
    assert "max_num_active_seqs is 65" in found.words
    assert "--max-num-active-seqs to 64" in found.words


def test_the_room_is_that_of_one_engine(server: ServerSnapshot) -> None:
    assert _found({"max_num_seqs": "64"}, replace(server, kv_cache_tokens=128_000.0, engines=2)) == []
    assert _found({"max_num_seqs": "65"}, replace(server, kv_cache_tokens=128_000.0, engines=2))


def test_the_room_is_that_for_the_mean_request_whatever_the_page_says(server: ServerSnapshot) -> None:
    """Learnt: 20,000 tokens. Before that, what the blocks have room for is the most that can be."""
    learnt = KvSize(20_000.0, 20_000.0, 64_000.0, 64_000.0, is_learnt=True)
    (found,) = setting_findings(server, {"max_num_seqs": "64"}, LENGTHS, CHAT, None, kv=learnt)
    assert "room for 20 requests of the mean length" in found.words
    unknown = replace(learnt, is_learnt=False, is_lower_bound=True)
    assert list(setting_findings(server, {"max_num_seqs": "64"}, LENGTHS, CHAT, None, kv=unknown)) == []
    (found,) = setting_findings(server, {"max_num_seqs": "65"}, LENGTHS, CHAT, None, kv=unknown)
    assert "room for at most 64 requests" in found.words


@pytest.mark.parametrize("unknown", ["flag", "cache", "lengths"])
def test_without_one_of_the_three_it_is_not_judged(server: ServerSnapshot, unknown: str) -> None:
    flags = {} if unknown == "flag" else {"max_num_seqs": "256"}
    shown = replace(server, kv_cache_tokens=None) if unknown == "cache" else server
    assert _found(flags, shown, None if unknown == "lengths" else LENGTHS) == []


def test_eager_mode_and_a_prefix_cache_that_is_off(server: ServerSnapshot) -> None:
    cache, eager = _found({"enforce_eager": "True", "enable_prefix_caching": "False"}, server)
    assert "remove --no-enable-prefix-caching" in cache.words
    assert not cache.is_problem
    assert "remove --enforce-eager" in eager.words
    assert eager.is_problem


def test_more_requests_than_the_largest_graph_is_for(server: ServerSnapshot) -> None:
    roomy = replace(server, kv_cache_tokens=1e9)
    flags = {"max_num_seqs": "600", "max_cudagraph_capture_size": "512"}
    (found,) = _found(flags, roomy)
    assert "the largest CUDA graph is for 512 tokens" in found.words
    assert "lower --max-num-seqs to 512, or raise --max-cudagraph-capture-size" in found.words
    for inside in (
        {"max_num_seqs": "512"}, {"max_num_active_seqs": "512"}, {"max_cudagraph_capture_size": "0"},
        {"speculative_config": "{}"},
    ):  # fmt: skip
        assert _found({**flags, **inside}, roomy) == []
    assert "eager mode" in _found({**flags, "enforce_eager": "True"}, roomy)[0].words


def test_a_log_of_requests_is_named_where_it_is_known_to_be_on(server: ServerSnapshot) -> None:
    (found,) = _found({"enable_log_requests": "True"}, server)
    assert "remove --enable-log-requests" in found.words
    assert not found.is_problem
    assert _found({"enable_log_requests": "False"}, server) == []


def test_a_prefix_cache_that_is_never_hit(server: ServerSnapshot) -> None:
    looked_up = replace(server, prefix_cache_queries=100_000.0, prefix_cache_hits=500.0)
    (found,) = _found({}, looked_up)
    assert "hardly ever hit" in found.words
    assert _found({}, replace(looked_up, prefix_cache_hits=50_000.0)) == []
    assert _found({}, replace(looked_up, prefix_cache_queries=1000.0, prefix_cache_hits=0.0)) == []


def test_prompts_and_steps_longer_than_the_ttft_objective(server: ServerSnapshot) -> None:
    prompt, step = _found({"max_num_batched_tokens": "8192"}, server, speed=1000.0)
    assert "takes 800 ms alone, longer than the TTFT objective of 500 ms" in prompt.words
    assert "a step full of prompts takes 8192 ms" in step.words
    assert "from 8192 to at most 500" in step.words
    assert prompt.is_problem
    assert step.is_problem


def test_the_users_of_now_come_before_those_since_the_start(server: ServerSnapshot) -> None:
    past = {
        "prompt_length": Histogram(((float("inf"), 10.0),), 1000.0),
        "output_length": Histogram(((float("inf"), 10.0),), 500.0),
    }
    server = replace(server, histograms=past)
    now = UserTotals(requests=10.0, prompt_tokens=5000.0, output_tokens=2000.0)
    assert request_lengths(now, server) == RequestLengths(10, 500, 200, is_recent=True)
    assert request_lengths(replace(now, requests=4.0), server) == RequestLengths(10, 100, 50, is_recent=False)
    assert request_lengths(UserTotals(), replace(server, histograms={})) is None


@pytest.mark.fault("FA111")
def test_requests_without_tokens_have_no_mean_length(server: ServerSnapshot) -> None:
    def with_sums(prompt: float, output: float) -> ServerSnapshot:
        lengths = {"prompt_length": prompt, "output_length": output}
        counts = ((float("inf"), 10.0),)
        return replace(server, histograms={name: Histogram(counts, total) for name, total in lengths.items()})

    assert request_lengths(UserTotals(), with_sums(80.0, 40.0)) is not None
    for prompt, output in ((0.0, 0.0), (-80.0, 40.0), (80.0, -40.0)):
        assert request_lengths(UserTotals(), with_sums(prompt, output)) is None
