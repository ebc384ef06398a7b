"""Bounds by arithmetic, against numbers worked out by hand."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.capacity.model.hardware_bounds import KvShape, ModelShape, hardware_bounds
from probe.gpu.peak_specs import GpuSpec, gpu

LLAMA_8B = KvShape(layers=32, heads=8, elements=2 * 128)


def _gpu(name: str) -> GpuSpec:
    found = gpu(name)
    assert found is not None
    return found


def test_an_8b_model_on_one_h100() -> None:
    bounds = hardware_bounds(ModelShape(8e9, kv=LLAMA_8B), _gpu("H100"), 256, 128)
    assert bounds.kv_bytes_per_token == 131_072  # 2 x 32 layers x 8 heads x 128 x 2 bytes
    assert bounds.at(1).step_s == pytest.approx((16e9 + 131_072 * 320) / 3.35e12)
    assert bounds.prefill_tokens_s == pytest.approx(989.5e12 / 16e9)
    assert bounds.ttft_s == pytest.approx(256 * 16e9 / 989.5e12)
    free = 80 * 2**30 * 0.9 - 16e9
    assert bounds.kv_bytes == free
    assert bounds.kv_blocks == int(free / (16 * 131_072)), "whole blocks, as vLLM allocates them"
    assert bounds.kv_tokens == 16 * bounds.kv_blocks
    assert bounds.sequences == int(free / 131_072) // 384


def test_shared_tokens_of_a_prompt_are_not_computed() -> None:
    bounds = hardware_bounds(ModelShape(8e9, kv=LLAMA_8B), _gpu("H100"), 4096, 256, shared_tokens=3840)
    assert bounds.ttft_s == pytest.approx(256 * 16e9 / 989.5e12)
    assert bounds.at(10_000).requests_s <= bounds.prefill_tokens_s / (256 + 256)
    cold = hardware_bounds(ModelShape(8e9, kv=LLAMA_8B), _gpu("H100"), 4096, 256)
    assert bounds.at(32).requests_s > cold.at(32).requests_s
    assert bounds.at(32).step_s == cold.at(32).step_s
    whole = hardware_bounds(ModelShape(8e9), _gpu("H100"), 4096, 1, shared_tokens=4096)
    assert whole.ttft_s > 0, "the last token of a prompt is always computed"


def test_a_batch_reads_the_cache_of_all_its_requests() -> None:
    bounds = hardware_bounds(ModelShape(8e9, kv=LLAMA_8B), _gpu("H100"), 256, 128)
    assert bounds.at(64).step_s == pytest.approx((16e9 + 64 * 131_072 * 320) / 3.35e12)
    assert bounds.at(64).kv_share == pytest.approx(64 * 384 * 131_072 / (bounds.kv_bytes or 1))


def test_a_model_that_does_not_fit_has_no_room_for_a_request() -> None:
    bounds = hardware_bounds(ModelShape(70e9, kv=LLAMA_8B), _gpu("H100"), 256, 128)
    assert bounds.kv_bytes is not None
    assert bounds.kv_bytes < 0
    assert (bounds.kv_tokens, bounds.sequences, list(bounds.loads())) == (0, 0, [])


def test_given_weights_and_activations_leave_the_rest_to_whole_blocks() -> None:
    on = replace(_gpu("A100 SXM 80GB"), given_memory_gib=80e9 / 2**30)
    kv = KvShape(layers=80, heads=8, elements=2 * 128)
    model = ModelShape(70e9, gpus=4, kv=kv, gpu_weight_bytes=32.5e9, gpu_activation_bytes=2e9)
    bounds = hardware_bounds(model, on, 1024, 128)
    assert bounds.kv_bytes == pytest.approx(4 * (72e9 - 34.5e9))
    assert (bounds.kv_blocks, bounds.kv_tokens) == (28_610, 457_760)  # 150 GB / (16 x 327,680)
    assert bounds.at(1).step_s == pytest.approx((130e9 + 327_680 * 1088) / (4 * 2.039e12))


def test_more_gpus_than_heads_hold_copies_of_the_cache() -> None:
    assert LLAMA_8B.bytes_per_token(4) == LLAMA_8B.bytes_per_token(8) == 131_072
    assert LLAMA_8B.bytes_per_token(16) == 2 * 131_072
    latent = KvShape(layers=61, heads=1, elements=512 + 64)  # DeepSeek-V3
    assert latent.bytes_per_token(1) == 61 * 576 * 2
    assert latent.bytes_per_token(8) == 8 * 61 * 576 * 2


def test_of_a_mixture_of_experts_a_token_takes_the_active_ones_and_memory_all() -> None:
    bounds = hardware_bounds(ModelShape(47e9, active=13e9, gpus=2), _gpu("A100 SXM 80GB"), 1000, 100)
    assert bounds.at(1).step_s == pytest.approx(26e9 / (2 * 2.039e12))
    assert bounds.kv_bytes == 2 * 80 * 2**30 * 0.9 - 94e9
    assert bounds.kv_bytes_per_token is None
    assert bounds.sequences is None


@given(
    st.floats(1e8, 1e12), st.sampled_from(["H100", "L4", "A100 SXM 80GB", "MI300X"]),
    st.integers(1, 8), st.integers(1, 10_000), st.integers(1, 5_000),
)  # fmt: skip
def test_more_in_flight_takes_no_less_time_a_step_and_no_bound_exceeds_computing(
    parameters: float, name: str, gpus: int, prompt: int, output: int
) -> None:
    bounds = hardware_bounds(ModelShape(parameters, gpus=gpus, kv=LLAMA_8B), _gpu(name), prompt, output)
    loads = list(bounds.loads())
    for less, more in pairwise(loads):
        assert less.step_s <= more.step_s
        assert less.requests_s <= more.requests_s * (1 + 1e-9) or more.step_s > less.step_s
    computing = bounds.prefill_tokens_s / (prompt + output)
    assert all(each.requests_s <= computing * (1 + 1e-9) for each in loads)
