from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.sim.cost import PROFILES, Profile, StepCost, jittered

seconds = st.floats(0, 10)
counts = st.integers(0, 10_000)
costs = st.builds(StepCost, seconds, seconds, seconds)


@given(costs, counts, counts, counts, counts)
def test_a_step_with_more_in_it_never_costs_less(
    cost: StepCost, sequences: int, tokens: int, more_sequences: int, more_tokens: int
) -> None:
    small = cost.step_seconds(sequences=sequences, tokens=tokens)
    large = cost.step_seconds(sequences=sequences + more_sequences, tokens=tokens + more_tokens)
    assert cost.host_s <= small <= large


def test_a_step_costs_its_three_terms() -> None:
    assert StepCost(1.0, 0.1, 0.01).step_seconds(sequences=2, tokens=30) == pytest.approx(1.5)


@pytest.mark.parametrize("term", [-1.0, float("inf"), float("nan")])
def test_a_cost_that_is_no_time_is_refused(term: float) -> None:
    with pytest.raises(ValueError, match="cost"):
        StepCost(0.0, term, 0.0)


def test_noise_moves_no_average_and_never_turns_time_back() -> None:
    generator = Random(1)
    samples = [jittered(2.0, 0.2, generator) for _ in range(20_000)]
    assert min(samples) > 0
    assert sum(samples) / len(samples) == pytest.approx(2.0, rel=0.01)
    assert max(samples) > 2.5


def test_without_noise_a_step_takes_exactly_its_cost() -> None:
    assert jittered(0.5, 0.0, Random(1)) == 0.5


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
        ({"noise_ratio": 1.0}, "noise_ratio"),
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
    assert tiny.step_seconds(sequences=1, tokens=128) == pytest.approx(0.025, rel=0.1)
    assert tiny.step_seconds(sequences=1, tokens=1) == pytest.approx(0.004, rel=0.1)
    assert llama.step_seconds(sequences=1, tokens=1) == pytest.approx(0.012, rel=0.1)
