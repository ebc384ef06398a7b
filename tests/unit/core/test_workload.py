"""What requests look like."""

import statistics
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from probe.core.request import Api, RequestSpec
from probe.core.workload import LognormalLength, Workload, requests

CACHE_BLOCK = 16  # the smallest block of tokens a server caches
LENGTHS = st.integers(1, 300) | st.builds(
    LognormalLength, median=st.integers(1, 200), sigma=st.floats(0.01, 3), maximum=st.integers(1, 300)
)
WORKLOADS = st.builds(
    Workload,
    name=st.just("any"),
    api=st.just(Api.COMPLETIONS),
    prompt_tokens=LENGTHS,
    output_tokens=LENGTHS,
    shared_tokens=st.integers(0, 100),
)


def first(workload: Workload, count: int, seed: int = 0, salt: str | None = None) -> list[RequestSpec]:
    return list(islice(requests(workload, seed, salt), count))


def ids(spec: RequestSpec) -> tuple[int, ...]:
    assert isinstance(spec.prompt, tuple)
    return spec.prompt


def chat(prompt_tokens: int, shared_tokens: int = 0) -> Workload:
    return Workload("talk", Api.CHAT, prompt_tokens, 8, shared_tokens)


def plain(prompt_tokens: int = 64, shared_tokens: int = 0) -> Workload:
    return Workload("short", Api.COMPLETIONS, prompt_tokens, 8, shared_tokens)


@examples(50)
@given(WORKLOADS, st.integers())
def test_a_prompt_of_token_ids_is_exactly_as_long_as_it_says(workload: Workload, seed: int) -> None:
    for spec in first(workload, 5, seed):
        assert len(spec.prompt) == spec.prompt_tokens
        assert spec.prompt_tokens >= 1
        assert spec.output_tokens >= 1
        for asked, drawn in (
            (workload.prompt_tokens, spec.prompt_tokens),
            (workload.output_tokens, spec.output_tokens),
        ):
            assert drawn == asked if isinstance(asked, int) else drawn <= asked.maximum


@examples(50)
@given(WORKLOADS, st.integers())
def test_the_same_seed_gives_the_same_lengths_and_other_prompts(workload: Workload, seed: int) -> None:
    one, other = first(workload, 5, seed), first(workload, 5, seed)
    assert [(s.prompt_tokens, s.output_tokens) for s in one] == [(s.prompt_tokens, s.output_tokens) for s in other]
    for a, b in zip(one, other, strict=True):
        if a.prompt_tokens >= workload.shared_tokens + 8:
            assert a.prompt != b.prompt


def test_the_same_seed_and_salt_give_the_same_prompts() -> None:
    assert first(plain(), 5, 7, "salt") == first(plain(), 5, 7, "salt")
    assert first(plain(), 5, 7, "salt") != first(plain(), 5, 7, "pepper")
    assert first(plain(), 5, 7, "salt") != first(plain(), 5, 8, "salt")


def test_no_two_prompts_share_their_first_cache_block() -> None:
    blocks = {ids(spec)[:CACHE_BLOCK] for spec in first(plain(), 500)} | {
        ids(s)[:CACHE_BLOCK] for s in first(plain(), 500)
    }
    assert len(blocks) == 1000


def test_a_shared_prefix_is_the_same_in_every_prompt_and_every_process() -> None:
    workload = plain(64, shared_tokens=32)
    prompts = [ids(spec) for spec in first(workload, 20) + first(workload, 20, seed=5)]
    assert len({prompt[:32] for prompt in prompts}) == 1
    assert len({prompt[32:] for prompt in prompts}) == 40


def test_two_workloads_do_not_share_a_prefix() -> None:
    one, other = (Workload(name, Api.COMPLETIONS, 64, 8, shared_tokens=32) for name in ("a", "b"))
    assert ids(first(one, 1)[0])[:32] != ids(first(other, 1)[0])[:32]


def test_token_ids_are_ordinary_text_in_any_vocabulary() -> None:
    tokens = {token for spec in first(plain(256), 50) for token in ids(spec)}
    assert 1000 <= min(tokens) <= max(tokens) < 4000


def test_lengths_follow_their_distribution() -> None:
    workload = Workload("rag", Api.COMPLETIONS, 1, LognormalLength(median=200, sigma=0.5, maximum=400))
    lengths = [spec.output_tokens for spec in first(workload, 2000)]
    assert 180 <= statistics.median(lengths) <= 220
    assert max(lengths) == 400
    assert min(lengths) >= 1


def test_chat_sends_text_that_is_about_as_long() -> None:
    spec = first(chat(200), 1)[0]
    assert isinstance(spec.prompt, str)
    assert 150 <= len(spec.prompt.split()) <= 200


@pytest.mark.parametrize("prompt_tokens", [16, 24, 64, 200])
def test_chat_prompts_are_unique(prompt_tokens: int) -> None:
    prompts = [spec.prompt for spec in first(chat(prompt_tokens), 200)]
    assert len(set(prompts)) == 200


def test_the_shortest_chat_still_says_something() -> None:
    assert all(spec.prompt for spec in first(chat(1), 5))


@pytest.mark.parametrize("own", [4, 8, 10, 16])
def test_a_shared_prefix_leaves_chat_prompts_their_own_part(own: int) -> None:
    """The allowance for the chat template must come off the shared part, not off what makes a prompt unique."""
    prompts = [spec.prompt for spec in first(chat(100 + own, shared_tokens=100), 50)]
    assert len(set(prompts)) == 50
