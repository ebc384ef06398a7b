"""How many tokens a KV cache has room for: by its page, by traffic, and what is certain before there is any."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from probe.core.snapshot import EngineSnapshot, Histogram, ServerSnapshot
from probe.core.token_length import LognormalLength
from probe.observe.kv_size import KvSize, kv_size, mean_held
from probe.scrape.replicas import merged

BLOCK = 16
RUNNING = 10.0


def held_blocks(tokens: float, full: int, sliding: int, window: int) -> float:
    """Return the blocks of a request: of each group, those of its tokens or of their window (vLLM's KV managers)."""
    return full * math.ceil(tokens / BLOCK) + sliding * math.ceil(min(tokens, window) / BLOCK)


def traffic(
    blocks: float,
    each: float,
    *,
    stated: float | None = None,
    longest: float | None = None,
    prompt: float = 403.0,
    output: float = 200.0,
    hits: float = 0.0,
    seconds: int = 20,
) -> list[ServerSnapshot]:
    """Return snapshots of a server with so many blocks, of which a running request holds `each` on average.

    Ten run, two begin each second, and all their time is decoding.
    """

    def at(second: int) -> ServerSnapshot:
        begun = 2.0 * second
        sums = {"ttft": (begun, begun), "itl": (begun * output, begun * 5), "prefill": (begun, 0.0)}
        others = {} if longest is None else {"kv_longest_requests": longest}
        return ServerSnapshot(
            at_ns=second * 10**9,
            wall_s=float(second),
            running=RUNNING,
            kv_cache_usage=RUNNING * each / blocks,
            kv_cache_tokens=blocks * BLOCK if stated is None else stated,
            prompt_tokens=begun * prompt,
            generation_tokens=begun * output,
            prefix_cache_hits=begun * prompt * hits,
            others={"kv_block_tokens": blocks * BLOCK, **others},
            histograms={key: Histogram(((math.inf, count),), total) for key, (count, total) in sums.items()},
        )

    return [at(second) for second in range(seconds)]


def size(snapshots: Sequence[ServerSnapshot], held_tokens: float | None = None) -> KvSize:
    found = kv_size(snapshots, held_tokens)
    assert found is not None
    return found


HELD = 528.0  # of 403 + 200 tokens on average, with the spread of a chat


def test_a_page_is_believed_where_traffic_fits_it() -> None:
    found = size(traffic(1000, HELD / BLOCK))
    assert (found.tokens, found.is_as_stated, found.words) == (16_000, True, "")


def test_a_page_that_says_seven_times_as_much_is_not() -> None:
    found = size(traffic(7000, 7 * HELD / BLOCK), HELD)
    assert found.tokens == pytest.approx(16_000)
    assert found.words == (
        "the KV cache has room for about 16,000 tokens of such requests (learnt from traffic; the server says"
        " 112,000, 7 times as many)"
    )


def test_lengths_that_go_together_are_no_reason_to_doubt_a_page() -> None:
    """Long prompts with long answers: a request holds 40 % more than its mean lengths say."""
    assert size(traffic(1000, 1.4 * HELD / BLOCK)).is_as_stated


@pytest.mark.parametrize("ratio", [0.2, 0.5])
def test_requests_that_share_blocks_do_not_make_the_cache_larger(ratio: float) -> None:
    assert size(traffic(1000, ratio * HELD / BLOCK)).tokens == 16_000


# Five layers with a window of 256 tokens to each full one, as Gemma 3: 3,000 blocks, requests of at most 8,192 tokens.
GEMMA = {"full": 1, "sliding": 5, "window": 256}
LONGEST = 3000 / held_blocks(8192, **GEMMA)
STATED = LONGEST * 8192


def gemma(held: float = HELD, **more: float) -> list[ServerSnapshot]:
    return traffic(3000, held_blocks(held, **GEMMA), stated=STATED, longest=LONGEST, **more)  # type: ignore[arg-type]


def test_the_size_of_a_model_with_several_kinds_of_attention_is_learnt_from_its_traffic() -> None:
    found = size(gemma(), HELD)
    assert found.tokens == pytest.approx(3000 * HELD / held_blocks(HELD, **GEMMA))
    assert found.tokens < 0.5 * STATED
    assert (found.is_learnt, found.is_lower_bound) == (True, False)


def test_before_traffic_and_for_other_lengths_it_is_a_lower_bound_and_said_to_be_one() -> None:
    before = size(gemma()[:1], HELD)
    assert before.is_lower_bound
    assert before.tokens <= 3000 * HELD / held_blocks(HELD, **GEMMA)
    assert "at least" in before.words
    assert "not yet learnt from traffic; the server says" in before.words
    for other in (150.0, 3000.0):
        found = size(gemma(), other)
        assert (found.is_learnt, found.is_lower_bound) == (True, True)
        assert found.tokens <= 3000 * other / held_blocks(other, **GEMMA)


@examples(200)
@given(
    full=st.integers(1, 3),
    sliding=st.integers(0, 8),
    window=st.integers(1, 512).map(lambda blocks: BLOCK * blocks),
    longest=st.integers(64, 4096).map(lambda blocks: BLOCK * blocks),
    seen=st.integers(1, 512).map(lambda blocks: BLOCK * blocks),
    asked=st.integers(1, 512).map(lambda blocks: BLOCK * blocks),
)
def test_no_size_is_more_than_there_is(
    *, full: int, sliding: int, window: int, longest: int, seen: int, asked: int
) -> None:
    """Whatever the groups of a model, its longest request, the requests that were seen and those that are asked of."""
    blocks, seen, asked = 100_000, min(seen, longest), min(asked, longest)
    true = blocks * asked / held_blocks(asked, full, sliding, window)
    requests = blocks / held_blocks(longest, full, sliding, window)
    shown = traffic(
        blocks, held_blocks(seen, full, sliding, window), stated=requests * longest, longest=requests,
        prompt=seen * 403 / HELD, output=seen * 200 / HELD,
    )  # fmt: skip
    for snapshots in (shown[:1], shown):
        found = size(snapshots, asked)
        assert found.tokens <= 1.001 * true or (not found.is_lower_bound and found.tokens <= 1.25 * true)


def test_sliding_windows_alone_hold_at_least_what_their_blocks_have_room_for() -> None:
    """The stated size is for long requests, whose old tokens leave."""
    shown = traffic(1000, 16.0, stated=99_000, longest=3.0)
    assert size(shown[:1], 100.0).tokens == 16_000
    assert size(shown).tokens == pytest.approx(1000 * HELD / 16)


def test_a_size_that_prompts_in_the_prefix_cache_may_share_is_a_lower_bound() -> None:
    found = size(gemma(hits=0.6), HELD)
    assert found.is_lower_bound
    assert found.tokens < 3000 * HELD / held_blocks(HELD, **GEMMA)


@pytest.mark.parametrize(
    "shown",
    [
        gemma()[:9],  # too few scrapes
        [replace(one, running=0.0) for one in gemma()],
        [replace(one, running=1.0) for one in gemma()[:12]],
        [replace(one, kv_cache_usage=None) for one in gemma()],
        [replace(one, prompt_tokens=None) for one in gemma()],
        [replace(one, histograms={}) for one in gemma()],
        [replace(one, engines=2) for one in gemma()],  # the usage of the fullest
    ],
)
def test_too_little_traffic_teaches_nothing(shown: list[ServerSnapshot]) -> None:
    found = size(shown, HELD)
    assert (found.is_learnt, found.is_lower_bound) == (False, True)


def test_engines_and_replicas_are_asked_one_by_one() -> None:
    def of_two(one: ServerSnapshot) -> ServerSnapshot:
        usage = one.kv_cache_usage or 0.0
        each = {
            name: EngineSnapshot(running=5.0, kv_cache_usage=share * usage) for name, share in (("0", 0.5), ("1", 1.5))
        }
        return replace(one, engines=2, by_engine=each, kv_cache_usage=1.5 * usage)

    true = 3000 * HELD / held_blocks(HELD, **GEMMA)
    assert size([of_two(one) for one in gemma()], HELD).tokens == pytest.approx(true)
    together = [merged({"a": one, "b": one}) for one in gemma()]
    assert size(together, HELD).tokens == pytest.approx(2 * true)


def test_a_restart_between_scrapes_is_left_out() -> None:
    shown = gemma()
    found = size([*shown, *(replace(one, at_ns=one.at_ns + 30 * 10**9) for one in shown)], HELD)
    assert found.tokens == pytest.approx(size(shown, HELD).tokens)


def test_a_server_without_a_size_has_none() -> None:
    assert kv_size([], HELD) is None
    assert kv_size([replace(one, kv_cache_tokens=None) for one in gemma()], HELD) is None


def test_what_a_running_request_holds_on_average() -> None:
    """All of its prompt and half of its answer; longer answers run longer."""
    assert mean_held(400, 200) == 500
    assert mean_held(400, LognormalLength(200, 0.5, 2000)) == pytest.approx(
        400 + 200 * math.exp(1.5 * 0.25) / 2, rel=0.02
    )
