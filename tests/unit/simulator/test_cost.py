from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.mock_server.profiles import PROFILES
from probe.simulator.clocks import StepClock
from probe.simulator.cost import Batch, Jitter, Profile, StepCost

FREE = StepCost(0.0, 0.0, 0.0)

seconds = st.floats(0, 10)
counts = st.integers(0, 10_000)
costs = st.builds(StepCost, *[seconds] * 6)
batches = st.builds(Batch, counts, counts, counts, st.floats(0, 1e6))


@given(costs, batches, batches)
def test_a_step_with_more_in_it_never_costs_less(cost: StepCost, batch: Batch, more: Batch) -> None:
    small = cost.step_seconds(batch)
    both = Batch(*(a + b for a, b in zip(batch, more, strict=True)))
    assert cost.host_s <= small <= cost.step_seconds(both) * (1 + 1e-12)


def test_the_longer_of_memory_and_compute_hides_the_other_but_for_where_they_are_equal() -> None:
    cost = StepCost(0.0, 0.0, 0.001, weights_s=0.01, per_kv_token_s=1e-6)
    assert cost.step_seconds(Batch(1, 1, 0)) == pytest.approx(0.01, rel=1e-3)
    assert cost.step_seconds(Batch(1, 100, 0)) == pytest.approx(0.1, rel=1e-3)
    assert cost.step_seconds(Batch(1, 10, 0)) == pytest.approx(0.01 * 2**0.25)
    assert cost.step_seconds(Batch(1, 1, 90_000)) == pytest.approx(0.1, rel=1e-3)


def test_attention_over_a_long_prompt_costs_by_its_pairs() -> None:
    assert StepCost(0, 0, 0, per_pair_s=1e-6).step_seconds(Batch(1, 1, 0, 5e6)) == pytest.approx(5.0)


def test_a_step_costs_its_three_terms() -> None:
    assert StepCost(1.0, 0.1, 0.01).step_seconds(Batch(2, 30)) == pytest.approx(1.5)


def test_random_numbers_are_those_of_the_standard_library() -> None:
    """So a seed gives the same simulation, whoever made the numbers."""
    clock, generator = StepClock(FREE, Jitter(noise_ratio=0.2), Random(1)), Random(1)
    for _ in range(1000):
        assert clock.taken_s(2.0, 0.0) == 2.0 * generator.lognormvariate(-0.2 * 0.2 / 2, 0.2)
        assert clock.mean_taken_s(2.0, 0.0, 1) == 2.0 * max(1 + generator.gauss(0.0, 0.2), 0.5)


@pytest.mark.parametrize("term", [-1.0, float("inf"), float("nan")])
def test_a_cost_that_is_no_time_is_refused(term: float) -> None:
    with pytest.raises(ValueError, match="cost"):
        StepCost(0.0, term, 0.0)


def test_noise_moves_no_average_and_never_turns_time_back() -> None:
    clock = StepClock(FREE, Jitter(noise_ratio=0.2), Random(1))
    samples = [clock.taken_s(2.0, 0.0) for _ in range(20_000)]
    assert min(samples) > 0
    assert sum(samples) / len(samples) == pytest.approx(2.0, rel=0.01)
    assert max(samples) > 2.5


def test_without_noise_a_step_takes_exactly_its_cost() -> None:
    assert StepClock(FREE).taken_s(0.5, 0.0) == 0.5


def test_hiccups_come_as_often_as_they_should() -> None:
    clock = StepClock(FREE, Jitter(hiccup_every_s=10, hiccup_s=1), Random(1))
    paused = sum(clock.taken_s(0.1, 0.0) > 1 for _ in range(20_000))
    assert paused == pytest.approx(200, rel=0.25)


def test_a_drift_goes_up_and_down_and_moves_no_average() -> None:
    clock = StepClock(FREE, Jitter(drift_ratio=0.1, drift_period_s=100))
    seen = [clock.taken_s(1.0, at_s) for at_s in range(100)]
    assert sum(seen) / 100 == pytest.approx(1.0)
    assert (max(seen), min(seen)) == (pytest.approx(1.1, rel=0.01), pytest.approx(0.9, rel=0.01))


@pytest.mark.parametrize("wrong", [{"noise_ratio": 1.0}, {"hiccup_s": -1.0}, {"drift_period_s": 0.0}])
def test_jitter_that_takes_no_time_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="drift"):
        Jitter(**wrong)


GOOD = Profile(
    name="t",
    description="",
    cost=StepCost(0, 0, 0),
    max_num_seqs=4,
    block_size=16,
    num_blocks=9,
    max_num_batched_tokens=64,
    max_model_len=128,
)


def test_a_profile_at_its_limits_is_good() -> None:
    assert GOOD.usable_blocks == 8
    assert GOOD.blocks_for(128) == 8
    assert GOOD.blocks_for(113) == 8
    assert GOOD.blocks_for(112) == 7


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_blocks": 8}, "needs 8 KV blocks, there are 7"),
        ({"max_num_batched_tokens": 3}, "max_num_batched_tokens must be at least max_num_seqs"),
        ({"max_num_seqs": 0}, "at least 1"),
    ],
)
def test_a_profile_that_could_starve_a_request_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(GOOD, **changes)


def test_profiles_are_found_by_their_own_names() -> None:
    assert {"tiny", "llama-8b", "small-kv"} <= set(PROFILES)
    assert all(name == profile.name and profile.description for name, profile in PROFILES.items())


def test_a_light_load_on_each_profile_is_as_fast_as_it_says() -> None:
    tiny, llama = PROFILES["tiny"].cost, PROFILES["llama-8b"].cost
    assert tiny.step_seconds(Batch(1, 128)) == pytest.approx(0.025, rel=0.1)
    assert tiny.step_seconds(Batch(1, 1)) == pytest.approx(0.004, rel=0.1)
    assert llama.step_seconds(Batch(1, 1)) == pytest.approx(0.012, rel=0.1)
