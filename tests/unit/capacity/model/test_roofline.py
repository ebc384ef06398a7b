"""How far a server is from what its GPU can do at most."""

from dataclasses import astuple, replace

import pytest
from simulated_servers import CHAT, FAST, profile, watched, workload

from probe.capacity.model.hints import Hints, ModelSize
from probe.capacity.model.roofline import (
    compute_roofline,
    decode_floor_s,
    live_use,
    prefill_peak_tokens_s,
    prefill_rate,
)
from probe.capacity.model.server_model import ServerModel
from probe.capacity.model.step_cost_fit import StepCostModel
from probe.core.snapshot import ServerSnapshot
from probe.gpu.peak_specs import GpuSpec, gpu
from probe.simulator.cost import Batch, StepCost

pytestmark = pytest.mark.slow

H100 = "NVIDIA H100 80GB HBM3"
EIGHT_B = ModelSize(parameters=8e9)
KNOWN = Hints(gpu=H100, model=EIGHT_B)
COST = StepCost(0.005, 2e-5, 4e-5, 0.0078, 5e-8)


def h100() -> GpuSpec:
    found = gpu(H100)
    assert found is not None
    return found


def cost_model(cost: StepCost = COST, **errors: float) -> StepCostModel:
    """Return a cost model; `errors` are relative standard errors of its terms."""
    terms = astuple(cost)[:5]
    names = ("host", "sequence", "token", "weights", "kv")
    variances = [(errors.get(name, 0.0) * term) ** 2 for name, term in zip(names, terms, strict=True)]
    covariance = tuple(tuple(v if i == j else 0.0 for j in range(5)) for i, v in enumerate(variances))
    return StepCostModel(
        cost=cost,
        residual=0.01,
        drift=0.0,
        covariance=covariance,
        slowdown=(1.0,),
        batches=(1.0, 50.0),
        windows=100,
    )


def snapshot(at_s: float, flops: float | None, read: float | None, **more: object) -> ServerSnapshot:
    plain = ServerSnapshot(at_ns=round(at_s * 1e9), wall_s=at_s, estimated_flops=flops, estimated_read_bytes=read)
    return replace(plain, **more)  # type: ignore[arg-type]


def test_both_limits_of_a_model() -> None:
    assert decode_floor_s(EIGHT_B, h100()) == pytest.approx(16e9 / 3350e9)
    assert prefill_peak_tokens_s(EIGHT_B, h100()) == pytest.approx(989.5e12 / 16e9)
    four = replace(EIGHT_B, gpus=4)
    assert decode_floor_s(four, h100()) == pytest.approx(decode_floor_s(EIGHT_B, h100()) / 4)
    assert prefill_peak_tokens_s(four, h100()) == pytest.approx(4 * prefill_peak_tokens_s(EIGHT_B, h100()))


def test_fewer_bits_are_read_sooner_and_eight_of_them_computed_sooner() -> None:
    eight, four = (replace(EIGHT_B, weight_bits=bits) for bits in (8, 4))
    assert decode_floor_s(eight, h100()) == pytest.approx(decode_floor_s(EIGHT_B, h100()) / 2)
    assert decode_floor_s(four, h100()) == pytest.approx(decode_floor_s(EIGHT_B, h100()) / 4)
    assert prefill_peak_tokens_s(eight, h100()) == pytest.approx(2 * prefill_peak_tokens_s(EIGHT_B, h100()))
    assert prefill_peak_tokens_s(four, h100()) == prefill_peak_tokens_s(EIGHT_B, h100())


def test_how_far_a_server_is_from_them() -> None:
    found = compute_roofline(cost_model(), [], KNOWN)
    assert found is not None
    assert (found.gpu, found.sure) == ("H100 SXM", True)
    assert found.step_s == pytest.approx(0.01282, rel=1e-3)
    assert found.floor_s == pytest.approx(0.004776, rel=1e-3)
    assert found.decode_ratio == pytest.approx(0.3726, rel=1e-3)
    assert found.prefill_ratio == pytest.approx(2048 / 0.087 / 61_844, rel=0.02)
    assert (found.bandwidth_ratio, found.flops_ratio) == (None, None)


def test_the_prefill_rate_needs_no_hints_and_is_withheld_where_the_data_do_not_show_it() -> None:
    assert prefill_rate(cost_model()) == pytest.approx(2048 / 0.087, rel=0.02)
    assert prefill_rate(cost_model(token=0.5)) is None


def test_limits_that_are_not_confirmed_are_marked() -> None:
    found = compute_roofline(cost_model(), [], replace(KNOWN, gpu="NVIDIA H20"))
    assert found is not None
    assert not found.sure


@pytest.mark.parametrize(
    ("learnt", "hints"),
    [
        (cost_model(), Hints()),
        (cost_model(), Hints(model=EIGHT_B)),
        (cost_model(), Hints(gpu=H100)),
        (cost_model(), replace(KNOWN, gpu="NVIDIA H100 80GB HBM3 MIG 3g.40gb")),
        (None, KNOWN),
        (cost_model(StepCost(0, 0, 0)), KNOWN),
    ],
)
def test_where_something_is_not_known_there_is_no_distance(learnt: StepCostModel | None, hints: Hints) -> None:
    assert compute_roofline(learnt, [], hints) is None


def test_a_ratio_that_the_cost_model_does_not_give_is_left_out() -> None:
    short_prompts = compute_roofline(cost_model(token=0.5), [], KNOWN)
    assert short_prompts is not None
    assert short_prompts.decode_ratio is not None
    assert short_prompts.prefill_ratio is None
    drifting = compute_roofline(cost_model(host=0.5), [], KNOWN)
    assert drifting is not None
    assert (drifting.step_s, drifting.floor_s, drifting.decode_ratio) == (None, None, None)
    assert drifting.prefill_ratio is not None
    assert compute_roofline(cost_model(host=0.9, weights=0.9, token=0.9), [], KNOWN) is None


def test_a_tiny_term_with_a_large_error_is_not_reported() -> None:
    """The slope at nothing is nothing: the smooth maximum has its other side there."""
    learnt = cost_model(replace(COST, per_token_s=1e-12), token=1e8)
    found = compute_roofline(learnt, [], KNOWN)
    assert found is not None
    assert found.prefill_ratio is None


@pytest.mark.long
def test_from_live_traffic_it_comes_near_the_truth() -> None:
    seen = ServerModel(CHAT, KNOWN)
    seen.learn(watched(profile(FAST), CHAT, 12.0, 120.0))
    fit = seen.fit()
    assert fit is not None
    assert fit.prefill_tokens_per_second() == pytest.approx(2048 / FAST.step_seconds(Batch(1, 2048)), rel=0.2)
    found = seen.roofline(fit)
    assert found is not None
    assert found.step_s == pytest.approx(FAST.step_seconds(Batch(1, 1)), rel=0.1)
    assert found.prefill_ratio is not None
    true_s = FAST.step_seconds(Batch(1, 2048))
    assert found.prefill_ratio == pytest.approx(2048 / true_s / prefill_peak_tokens_s(EIGHT_B, h100()), rel=0.2)
    assert seen.roofline(None) is None


@pytest.mark.long
def test_short_prompts_do_not_show_the_speed_of_long_ones() -> None:
    short = workload(20, 150)
    seen = ServerModel(short, KNOWN)
    seen.learn(watched(profile(FAST), short, 12.0, 120.0))
    fit = seen.fit()
    found = seen.roofline(fit)
    assert found is not None
    assert found.prefill_ratio is None
    assert found.decode_ratio is not None


def test_live_use_is_the_share_of_both_peaks() -> None:
    begin = snapshot(0, 0, 0, estimated_write_bytes=0.0)
    end = snapshot(10, 989.5e12, 33.5e12 / 4, estimated_write_bytes=33.5e12 / 4)
    found = live_use(begin, end, h100())
    assert found is not None
    assert found.flops_ratio == pytest.approx(0.1)
    assert found.bandwidth_ratio == pytest.approx(0.5)
    in_fp8 = live_use(begin, end, h100(), fp8=True)
    assert in_fp8 is not None
    assert in_fp8.flops_ratio == pytest.approx(0.05)
    two = live_use(replace(begin, engines=2), replace(end, engines=2), h100())
    assert two is not None
    assert two.flops_ratio == pytest.approx(0.05)


@pytest.mark.parametrize(
    "after",
    [
        snapshot(10, None, 1e12),
        snapshot(10, 1e15, None),
        snapshot(10, 0.5e15, 1e12),  # counted from zero again
        snapshot(1, 1e15, 1e12),  # no time has passed
        snapshot(0, 1e15, 1e12),
        snapshot(10, 2e15, 2e12, engines=2),
    ],
)
def test_live_use_of_odd_snapshots_is_unknown(after: ServerSnapshot) -> None:
    assert live_use(snapshot(1, 1e15, 1e12), after, h100()) is None


def test_vllm_s_estimates_are_taken_from_the_busiest_ten_seconds() -> None:
    """A second of much is chance, and half a minute of nothing no evidence."""
    flops = [0.0, *(i * 1e13 for i in range(1, 11)), *(1e14 + i * 2e14 for i in range(1, 11)), 2.1e15]
    times = [*range(21), 51]
    snapshots = [snapshot(float(at), total, total / 100) for at, total in zip(times, flops, strict=True)]
    found = compute_roofline(None, snapshots, Hints(gpu=H100))
    assert found is not None
    assert found.flops_ratio == pytest.approx(2e14 / 989.5e12)
    assert found.bandwidth_ratio == pytest.approx(2e12 / 3350e9)
    assert (found.step_s, found.decode_ratio, found.prefill_ratio) == (None, None, None)
    assert compute_roofline(None, snapshots[:5], Hints(gpu=H100)) is None


def test_estimates_count_in_the_bits_that_the_model_computes_in() -> None:
    snapshots = [snapshot(0.0, 0.0, 0.0), snapshot(10.0, 1979e12, 1.0)]
    found = compute_roofline(None, snapshots, replace(KNOWN, model=replace(EIGHT_B, weight_bits=8)))
    assert found is not None
    assert found.flops_ratio == pytest.approx(0.1)
