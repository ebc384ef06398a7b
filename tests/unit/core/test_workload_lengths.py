"""Workloads of several kinds of requests: shares, correlated lengths, warm prefixes, conversations."""

import math
from collections import Counter
from itertools import islice
from statistics import correlation, fmean, median

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from probe.core.request import Api, RequestSpec
from probe.core.token_length import MeasuredLength, measured_of
from probe.core.workload import Draw, LognormalLength, Part, draws, lengths, longest, longest_request, mixed, requests

_MOST = 100_000
_LENGTH = st.integers(1, 200) | st.builds(
    LognormalLength, median=st.integers(1, 100), sigma=st.floats(0.1, 2), maximum=st.integers(100, 300)
)
_PART = st.builds(
    Part,
    name=st.sampled_from("abc"),
    prompt_tokens=_LENGTH,
    output_tokens=_LENGTH,
    share=st.floats(0.1, 10),
    shared_tokens=st.integers(0, 50),
    shared_ratio=st.floats(0.1, 1),
    correlation=st.floats(-0.9, 0.9),
    turns=st.integers(1, 6),
    conversations=st.integers(1, 9),
)
_VARYING = LognormalLength(300, 0.8, 20_000)


def _first(parts: list[Part], count: int, seed: int = 0, most: int = _MOST) -> list[Draw]:
    return list(islice(draws(parts, seed, most), count))


def _sent(part: Part, count: int, *, shard: tuple[int, int] = (0, 1), api: Api = Api.COMPLETIONS) -> list[RequestSpec]:
    return list(islice(requests(mixed("any", api, (part,)), 3, "salt", shard), count))


def _rank_correlation(drawn: list[Draw]) -> float:
    """Return Spearman's; ranks of equal lengths are arbitrary, and few are equal."""
    ranks = []
    for name in ("prompt_tokens", "output_tokens"):
        order = sorted(range(len(drawn)), key=lambda i: getattr(drawn[i], name))
        ranks.append([place for _, place in sorted(zip(order, range(len(order)), strict=True))])
    return correlation(*ranks)


@examples(50)
@given(st.lists(_PART, min_size=1, max_size=3, unique_by=lambda part: part.name), st.integers(0, 99))
def test_no_request_is_longer_than_its_workload_says(parts: list[Part], seed: int) -> None:
    workload = mixed("any", Api.COMPLETIONS, tuple(parts))
    prompt, output = longest(workload)
    for sent in islice(requests(workload, seed), 60):
        assert 1 <= sent.prompt_tokens == len(sent.prompt) <= prompt
        assert 1 <= sent.output_tokens <= output
        assert sent.prompt_tokens + sent.output_tokens <= longest_request(workload)
        assert 0 <= sent.shared_tokens <= sent.prompt_tokens


@examples(50)
@given(st.lists(_PART, min_size=1, max_size=3, unique_by=lambda part: part.name), st.integers(20, 90))
def test_a_context_is_never_exceeded(parts: list[Part], most: int) -> None:
    assert all(one.prompt_tokens + one.output_tokens <= most for one in _first(parts, 100, most=most))


def test_each_kind_has_its_share() -> None:
    parts = [Part("chat", 10, 1, share=6.0), Part("rag", 1000, 1, share=3.0), Part("code", 100, 1, share=1.0)]
    counted = Counter(one.part.name for one in _first(parts, 20_000))
    for name, share in (("chat", 0.6), ("rag", 0.3), ("code", 0.1)):
        assert counted[name] / 20_000 == pytest.approx(share, abs=5 * math.sqrt(share * (1 - share) / 20_000))


@pytest.mark.parametrize("asked", [-0.7, 0.0, 0.4, 0.8])
def test_lengths_are_correlated_as_asked_and_keep_their_distributions(asked: float) -> None:
    """The rank correlation of a Gaussian copula is 6/pi asin(r/2) (Kruskal, 1958)."""
    drawn = _first([Part("a", _VARYING, LognormalLength(100, 0.5, 5000), correlation=asked)], 8000)
    assert _rank_correlation(drawn) == pytest.approx(6 / math.pi * math.asin(asked / 2), abs=0.04)
    assert median(d.prompt_tokens for d in drawn) == pytest.approx(300, rel=0.05)
    assert median(d.output_tokens for d in drawn) == pytest.approx(100, rel=0.05)


def test_measured_lengths_are_correlated_too() -> None:
    measured = MeasuredLength((1.0, 100.0, 1000.0), (0.0, 0.5, 1.0))
    drawn = _first([Part("a", measured, measured, correlation=0.9)], 4000)
    assert median(d.prompt_tokens for d in drawn) == pytest.approx(100, rel=0.1)
    assert _rank_correlation(drawn) > 0.85


def test_a_share_of_the_prompts_has_the_common_prefix() -> None:
    part = Part("a", 64, 1, shared_tokens=48, shared_ratio=0.3)
    prompts = [tuple(sent.prompt) for sent in _sent(part, 2000)]
    beginnings = Counter(prompt[:48] for prompt in prompts)
    (_, warm), (_, second) = beginnings.most_common(2)
    assert warm / 2000 == pytest.approx(0.3, abs=0.05)
    assert second == 1, "all others are unique"
    assert len(set(prompts)) == 2000


def test_parts_do_not_share_a_prefix() -> None:
    parts = (Part("a", 40, 1, shared_tokens=32), Part("b", 40, 1, shared_tokens=32))
    sent = list(islice(requests(mixed("any", Api.COMPLETIONS, parts)), 100))
    assert len({tuple(one.prompt)[:32] for one in sent}) == 2


@pytest.mark.parametrize("api", list(Api))
@pytest.mark.parametrize("workers", [1, 3, 8])
def test_a_worker_has_all_turns_of_its_conversations_each_beginning_with_the_one_before(api: Api, workers: int) -> None:
    """So the prefix that a request is said to share was sent before, however busy the other workers are."""
    part = Part("talk", LognormalLength(40, 0.5, 90), 30, shared_tokens=20, turns=4, conversations=5)
    whole = _first([part], 400, seed=3)
    for index in range(workers):
        own = [draw for draw in whole if draw.conversation is not None and sum(draw.conversation) % workers == index]
        sent = _sent(part, len(own), shard=(index, workers), api=api)
        last: dict[object, tuple[RequestSpec, int]] = {}
        continued = 0
        for one, draw in zip(sent, own, strict=True):
            assert (one.prompt_tokens, one.output_tokens) == (draw.prompt_tokens, draw.output_tokens)
            if draw.conversation in last:
                before, answer = last[draw.conversation]
                assert one.prompt[: len(before.prompt)] == before.prompt
                assert one.shared_tokens == before.prompt_tokens
                assert one.prompt_tokens > before.prompt_tokens + answer
                continued += 1
            else:
                assert one.shared_tokens == 20, "of a conversation that begins at a later turn, the prefix alone"
            last[draw.conversation] = one, one.output_tokens
        assert continued == pytest.approx(0.75 * len(sent), abs=10)
        assert len({tuple(one.prompt) for one in sent}) == len(sent)


def test_conversations_are_at_different_turns_from_the_start() -> None:
    """Else contexts would grow together, and the load with them."""
    part = Part("talk", 100, 50, turns=5, conversations=20)
    rounds = [fmean(d.prompt_tokens for d in _first([part], 200)[at : at + 20]) for at in range(0, 200, 20)]
    assert rounds == pytest.approx([rounds[0]] * 10, rel=0.05)


def test_the_lengths_of_a_mixture_are_those_of_all_its_requests() -> None:
    parts = (Part("chat", _VARYING, 200, share=0.9), Part("talk", 80, 150, share=0.1, turns=5, conversations=8))
    workload = mixed("any", Api.COMPLETIONS, parts)
    drawn = list(islice(lengths(workload, 9), 20_000))
    assert isinstance(workload.prompt_tokens, MeasuredLength)
    assert workload.prompt_tokens.mean == pytest.approx(fmean(prompt for prompt, _, _ in drawn), rel=0.05)
    assert isinstance(workload.output_tokens, MeasuredLength)
    assert workload.output_tokens.mean == pytest.approx(195, rel=0.01), "few lengths are exact"
    assert workload.shared_tokens == pytest.approx(fmean(shared for _, _, shared in drawn), abs=10)


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=400))
def test_a_measured_distribution_keeps_mean_and_quantiles(sent: list[int]) -> None:
    found = measured_of(sent)
    ordered = sorted(sent)
    assert found.shares[0] == 0.0
    assert found.shares[-1] == 1.0
    assert list(found.shares) == sorted(found.shares)
    assert (found.tokens[0], found.maximum) == (ordered[0], ordered[-1])
    for share in (0.25, 0.5, 0.75):
        low, high = (ordered[min(max(int((share + by) * len(sent)), 0), len(sent) - 1)] for by in (-0.03, 0.03))
        assert low - 1 <= found.quantile(share) <= high + 1
    if len(set(sent)) <= 20:
        assert found.mean == pytest.approx(fmean(sent), rel=1e-3)
