"""The prefix cache: what it finds, what it costs, and that it never stands in anybody's way."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from probe.simulator.cost import Profile, StepCost
from probe.simulator.engine import SimulatedEngine
from probe.simulator.kv_blocks import CommonPrefix

ROOMY = Profile(
    name="t",
    description="",
    cost=StepCost(0.001, 0, 0),
    max_num_seqs=8,
    block_size=4,
    num_blocks=1001,
    max_num_batched_tokens=64,
    max_model_len=128,
    prefix_caching=True,
)
TIGHT = replace(ROOMY, num_blocks=33)

requests = st.lists(
    st.tuples(st.integers(1, 96), st.integers(1, 32), st.integers(0, 96)).map(lambda r: (*r[:2], min(r[2], r[0]))),
    min_size=1,
    max_size=12,
)


def _drain(engine: SimulatedEngine) -> tuple[int, int]:
    """Return tokens computed and steps taken until all is done."""
    tokens = steps = 0
    while plan := engine.plan_step():
        assert plan.batch.sequences, "a step with nothing in it would repeat for ever"
        tokens += plan.batch.tokens
        steps += 1
        engine.complete_step()
        assert steps < 5_000, "it never ends"
    return tokens, steps


@given(requests, st.sampled_from((ROOMY, TIGHT)))
def test_every_request_ends_and_every_block_comes_back(asked: list[tuple[int, int, int]], profile: Profile) -> None:
    engine = SimulatedEngine(profile)
    for prompt, output, shared in asked:
        engine.submit(prompt_tokens=prompt, output_tokens=output, shared_tokens=shared)
    while engine.has_work:
        engine.step()
        held = sum(engine.held_blocks().values()) + engine.shared_blocks
        assert engine.free_blocks + held == profile.usable_blocks
        assert engine.free_blocks >= 0
    assert engine.free_blocks == profile.usable_blocks


@given(requests)
def test_cached_tokens_are_those_not_computed(asked: list[tuple[int, int, int]]) -> None:
    engine = SimulatedEngine(ROOMY)
    for prompt, output, shared in asked:
        found = engine.cached_tokens(prompt, shared)
        assert 0 <= found <= shared
        assert found < prompt
        assert found % ROOMY.block_size == 0
        engine.submit(prompt_tokens=prompt, output_tokens=output, shared_tokens=shared)
        assert _drain(engine)[0] == prompt - found + output - 1


@given(requests, st.sampled_from((ROOMY, TIGHT)))
def test_without_common_beginnings_the_cache_changes_nothing(
    asked: list[tuple[int, int, int]], profile: Profile
) -> None:
    done = []
    for caching in (True, False):
        engine = SimulatedEngine(replace(profile, prefix_caching=caching))
        for prompt, output, _ in asked:
            engine.submit(prompt_tokens=prompt, output_tokens=output)
        done.append(_drain(engine))
    assert done[0] == done[1]


@given(requests)
def test_with_it_there_is_never_more_to_compute(asked: list[tuple[int, int, int]]) -> None:
    """Where there is room: a tight cache may preempt others at other times, which costs more or less."""
    tokens = []
    for caching in (True, False):
        engine = SimulatedEngine(replace(ROOMY, prefix_caching=caching))
        for prompt, output, shared in asked:
            engine.submit(prompt_tokens=prompt, output_tokens=output, shared_tokens=shared)
        tokens.append(_drain(engine)[0])
    assert tokens[0] <= tokens[1]


def test_the_second_request_finds_what_the_first_computed_and_holds_it_with_it() -> None:
    engine = SimulatedEngine(ROOMY)
    for _ in range(2):
        engine.submit(prompt_tokens=42, output_tokens=20, shared_tokens=40)
        engine.step()
    assert engine.cached_tokens(42, 40) == 40
    assert engine.shared_blocks == 10
    assert engine.held_blocks() == {0: 1, 1: 1}


def test_requests_with_less_in_common_find_their_part() -> None:
    engine = SimulatedEngine(ROOMY)
    engine.submit(prompt_tokens=90, output_tokens=1, shared_tokens=80)
    _drain(engine)
    assert [engine.cached_tokens(64, shared) for shared in (0, 3, 16, 18, 64, 80)] == [0, 0, 16, 16, 60, 60]


def test_an_unused_prefix_gives_way_from_its_end() -> None:
    engine = SimulatedEngine(TIGHT)
    engine.submit(prompt_tokens=80, output_tokens=1, shared_tokens=80)
    _drain(engine)
    assert engine.cached_tokens(96, 80) == 80
    engine.submit(prompt_tokens=64, output_tokens=1)  # 16 of 32 blocks
    _drain(engine)
    assert engine.cached_tokens(96, 80) == 64
    engine.submit(prompt_tokens=96, output_tokens=32)  # all of them
    _drain(engine)
    assert engine.cached_tokens(96, 80) == 0


def test_a_prefix_in_use_stays() -> None:
    engine = SimulatedEngine(TIGHT)
    engine.submit(prompt_tokens=80, output_tokens=40, shared_tokens=80)
    for _ in range(3):
        engine.step()
    for _ in range(4):
        engine.submit(prompt_tokens=40, output_tokens=20)
    for _ in range(20):
        engine.step()
    assert engine.cached_tokens(96, 80) == 80


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 6)), max_size=30))
def test_held_blocks_are_those_of_the_request_that_uses_most(story: list[tuple[bool, int]]) -> None:
    prefix, users, taken = CommonPrefix(), list[int](), 0
    for leaves, number in story:
        if leaves and users:
            taken -= prefix.release(users.pop(number % len(users)))
        else:
            assert prefix.would_allocate(number) == max(number - prefix.in_use, 0)
            taken += prefix.acquire(number)
            users.append(number)
        assert prefix.in_use == taken == max(users, default=0)
        assert prefix.cached >= prefix.in_use
