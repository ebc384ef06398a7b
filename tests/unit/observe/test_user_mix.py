"""The workload that a server's length histograms show."""

import math
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from probe.core.request import Api
from probe.core.snapshot import Histogram
from probe.core.token_length import MeasuredLength
from probe.core.workload import MAX_TOKENS, Workload, longest, requests
from probe.observe.user_mix import MIN_REQUESTS, are_alike, measured_length, users_workload
from probe.simulator.metrics_model import GrowingHistogram, one_two_five

LONGEST = 16_384


def counted(lengths: Sequence[float]) -> Histogram:
    histogram = GrowingHistogram(one_two_five(LONGEST))
    for length in lengths:
        histogram.add(length)
    return histogram.histogram()


def lognormal(median: float, sigma: float, count: int = 5000, seed: int = 1) -> list[int]:
    chance = Random(seed)
    return [min(max(round(chance.lognormvariate(math.log(median), sigma)), 1), LONGEST - 1) for _ in range(count)]


def chats_and_documents() -> list[int]:
    return lognormal(200, 0.4, 4500) + lognormal(4100, 0.2, 500)


@pytest.mark.parametrize(
    ("lengths", "within"), [(lognormal(360, 1.0), 0.12), (lognormal(120, 0.5), 0.12), (chats_and_documents(), 0.2)]
)
def test_quantiles_drawn_are_near_those_that_users_sent(lengths: list[int], within: float) -> None:
    found, ordered = measured_length(counted(lengths), LONGEST), sorted(lengths)
    assert found is not None
    assert found.mean == pytest.approx(sum(lengths) / len(lengths), rel=1e-3)
    for share in (0.05, 0.25, 0.5, 0.75, 0.95, 0.99):
        assert found.quantile(share) == pytest.approx(ordered[int(share * len(ordered))], rel=within), share


@examples(50)
@given(st.lists(st.integers(1, LONGEST - 1), min_size=1, max_size=60))
def test_any_lengths_give_a_distribution_that_rises(lengths: list[int]) -> None:
    found = measured_length(counted(lengths), LONGEST - 1)
    assert found is not None
    assert list(found.tokens) == sorted(found.tokens)
    assert list(found.shares) == sorted(found.shares)
    assert (found.shares[0], found.shares[-1]) == (0.0, 1.0)
    assert 1 <= found.tokens[0] <= found.tokens[-1] <= LONGEST - 1


def test_lengths_above_the_last_bound_reach_the_longest_possible() -> None:
    found = measured_length(counted([12_000.0] * 10), LONGEST - 1)
    assert found is not None
    assert 10_000 < found.quantile(0.5) < LONGEST
    assert found.mean == pytest.approx(12_000, rel=1e-3)


def test_nothing_is_learnt_from_too_few_requests() -> None:
    few, enough = counted([300.0] * (MIN_REQUESTS - 1)), counted([300.0] * MIN_REQUESTS)
    assert users_workload(few, enough, api=Api.CHAT) is None
    assert users_workload(enough, few, api=Api.CHAT) is None
    found = users_workload(enough, enough, api=Api.CHAT)
    assert found is not None
    assert (found.name, found.api, found.shared_tokens) == ("users", Api.CHAT, 0)


def test_without_max_model_len_no_request_is_longer_than_the_largest_bound() -> None:
    long = counted([12_000.0] * MIN_REQUESTS)
    unknown = users_workload(long, long, api=Api.COMPLETIONS)
    known = users_workload(long, long, api=Api.COMPLETIONS, context_tokens=LONGEST)
    assert unknown is not None
    assert known is not None
    assert (unknown.context_tokens, known.context_tokens) == (10_000, LONGEST)


def test_prefix_hits_become_a_shared_prefix_that_hits_as_much() -> None:
    found = users_workload(counted(lognormal(600, 0.5)), counted([200.0] * 300), api=Api.COMPLETIONS, hit_ratio=0.4)
    assert found is not None
    assert isinstance(found.prompt_tokens, MeasuredLength)
    assert found.prompt_tokens.mean_within(found.shared_tokens) == pytest.approx(
        0.4 * found.prompt_tokens.mean, rel=0.01
    )


def learnt(median: float, seed: int = 1) -> Workload:
    prompts, outputs = counted(lognormal(median, 0.8, seed=seed)), counted(lognormal(150, 0.5, seed=seed))
    found = users_workload(prompts, outputs, api=Api.COMPLETIONS, context_tokens=LONGEST)
    assert found is not None
    return found


@pytest.mark.slow
def test_two_days_of_the_same_users_are_alike_and_another_mix_is_not() -> None:
    assert are_alike(learnt(400), learnt(400, seed=2))
    assert not are_alike(learnt(400), learnt(600))
    assert not are_alike(learnt(400), replace(learnt(400), context_tokens=8192))
    assert not are_alike(learnt(400), replace(learnt(400), shared_tokens=400))


@pytest.mark.parametrize(
    ("bounds", "context"), [((10.0, 1e12), None), ((10.0, 1e100), 10**9), ((10.0, 100.0), 10**400)]
)
@pytest.mark.fault(
    "LO48",
    "A server reports users' requests of a billion tokens, or a `max_model_len` of any size, under `workload: users`",
    area="Load",
    users_see="requests of at most 2,000,000 tokens",
    stays="memory: no prompt, and no shared prefix, is longer",
)
def test_lengths_that_no_request_has_make_no_such_prompts(bounds: tuple[float, float], context: int | None) -> None:
    low, high = bounds
    lied = Histogram(((low, 0.0), (high, 500.0), (math.inf, 500.0)), 500 * high)
    found = users_workload(lied, lied, api=Api.COMPLETIONS, context_tokens=context, hit_ratio=1.0)
    assert found is not None
    assert max(*longest(found), found.shared_tokens, found.context_tokens or 0) <= MAX_TOKENS
    assert 1 <= len(next(requests(found)).prompt) <= MAX_TOKENS


@pytest.mark.fault("LO48")
def test_lengths_below_one_token_are_none() -> None:
    lied = Histogram(((-5.0, 500.0), (math.inf, 500.0)), 500.0)
    assert users_workload(lied, lied, api=Api.COMPLETIONS) is None
