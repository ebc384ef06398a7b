from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from sim_virtual import closed_loop, percentile

from probe.mock_server.profiles import PROFILES
from probe.simulator.cost import Profile, StepCost
from probe.simulator.engine import SimulatedEngine
from probe.simulator.engine_step import ScheduledStep, StepOutcome


def _profile(*, seqs: int = 4, block: int = 4, blocks: int = 17, batched: int = 16, length: int = 64) -> Profile:
    return Profile(
        name="t",
        description="",
        cost=StepCost(0.001, 0, 0),
        max_num_seqs=seqs,
        block_size=block,
        num_blocks=blocks,
        max_num_batched_tokens=batched,
        max_model_len=length,
    )


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    """Small servers, from roomy to so tight that a second request must preempt the first."""
    seqs, block, length = draw(st.integers(1, 6)), draw(st.integers(1, 8)), draw(st.integers(2, 48))
    of_each = draw(st.integers(0, 3))
    least = -(-length // block) + of_each + 1
    drawn = _profile(
        seqs=seqs,
        block=block,
        blocks=draw(st.integers(least, 4 * least)),
        batched=draw(st.integers(seqs, seqs + 40)),
        length=length,
    )
    return replace(drawn, plans_ahead=draw(st.booleans()), request_blocks=of_each)


@dataclass(frozen=True)
class Submit:
    prompt: float  # shares of max_model_len
    output: float


@dataclass(frozen=True)
class Abort:
    which: float  # share of the requests so far
    in_step: bool


@dataclass(frozen=True)
class Step:
    pass


shares = st.floats(0, 1)
stories = st.lists(
    st.one_of(st.builds(Submit, shares, shares), st.builds(Abort, shares, st.booleans()), st.just(Step())),
    min_size=1,
    max_size=40,
)


class Audited:
    """An engine that is checked against its rules at every step, and what came out of it."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.engine = SimulatedEngine(profile)
        self.wanted: dict[int, int] = {}
        self.prompts: dict[int, int] = {}
        self.got: dict[int, int] = {}
        self.admitted: list[int] = []
        self.finished: list[int] = []
        self.aborted: set[int] = set()
        self.steps = 0

    def submit(self, prompt: int, output: int) -> int:
        number = self.engine.submit(prompt_tokens=prompt, output_tokens=output)
        self.wanted[number], self.prompts[number], self.got[number] = output, prompt, 0
        return number

    def abort(self, number: int) -> None:
        was_here = self.got[number] < self.wanted[number] and number not in self.aborted
        assert self.engine.abort(number) is was_here
        if was_here:
            self.aborted.add(number)
        self.audit()

    def step(self, abort: int | None = None) -> StepOutcome | None:
        plan = self.engine.plan_step()
        if plan is None:
            assert len(self.finished) + len(self.aborted) == len(self.wanted)
            return None
        self.audit()
        self.check_plan(plan)
        if abort is not None:
            self.abort(abort)
        outcome = self.engine.complete_step()
        self.audit()
        assert plan.batch.sequences == len(plan.scheduled)
        assert plan.batch.tokens == sum(tokens for _, tokens in plan.scheduled)
        for number in outcome.emitted:
            assert number not in self.aborted
            self.got[number] += 1
        assert list(outcome.finished) == [n for n in outcome.emitted if self.got[n] == self.wanted[n]]
        self.admitted += plan.admitted
        self.finished += outcome.finished
        self.steps += 1
        return outcome

    def drain(self) -> None:
        while self.step() is not None:
            assert self.steps <= self.most_steps()

    def most_steps(self) -> int:
        """The oldest running request moves in every step, and nothing ever takes its blocks.

        Planned ahead, a step may be empty after one in which a request ended.
        """
        chunk = self.profile.max_num_batched_tokens
        moves = sum(-(-(self.prompts[n] + self.wanted[n]) // chunk) + self.wanted[n] for n in self.wanted)
        return moves + len(self.wanted) * self.profile.plans_ahead

    def check_plan(self, plan: ScheduledStep) -> None:
        numbers = [number for number, _ in plan.scheduled]
        assert numbers or self.profile.plans_ahead, "a step with nothing in it would repeat for ever"
        assert len(set(numbers)) == len(numbers)
        assert all(tokens > 0 for _, tokens in plan.scheduled)
        assert plan.batch.tokens <= self.profile.max_num_batched_tokens
        assert not set(plan.preempted) & set(numbers)
        assert not (plan.preempted and (plan.admitted or plan.resumed))

    def audit(self) -> None:
        engine, profile = self.engine, self.profile
        held = engine.held_blocks()
        assert engine.free_blocks >= 0
        assert all(blocks >= 0 for blocks in held.values())
        leaving = sum(request.blocks for request in engine.in_flight.finished)
        assert engine.free_blocks + sum(held.values()) + leaving == profile.usable_blocks
        assert engine.running + engine._leaving <= profile.max_num_seqs
        assert all(request.blocks == 0 for request in engine._waiting)
        running = (*engine._decoding.requests.values(), *engine._prompts)
        queued = [request.number for request in (*running, *engine._waiting)]
        assert sorted(queued) == sorted(held), "each request is in exactly one place"
        assert 0 <= engine.kv_usage <= 1
        for request in running:
            own = held[request.number] - profile.request_blocks
            assert request.computed <= own * profile.block_size


@pytest.mark.slow
@given(profiles(), stories)
@examples(300)
def test_rules_hold_whatever_happens(profile: Profile, story: list[Submit | Abort | Step]) -> None:
    audited = Audited(profile)
    for event in story:
        known = len(audited.wanted)
        if isinstance(event, Submit):
            prompt = 1 + int(event.prompt * (profile.max_model_len - 2))
            audited.submit(prompt, 1 + int(event.output * (profile.max_model_len - prompt - 1)))
        elif isinstance(event, Step):
            audited.step()
        elif known:
            which = min(known - 1, int(event.which * known))
            if event.in_step:
                audited.step(abort=which)
            else:
                audited.abort(which)
    audited.drain()
    done = [number for number in audited.wanted if number not in audited.aborted]
    assert sorted(audited.finished) == done
    assert all(audited.got[number] == audited.wanted[number] for number in done)
    assert audited.admitted == sorted(audited.admitted), "first come, first served"
    assert audited.engine.free_blocks == profile.usable_blocks
    assert (audited.engine.running, audited.engine.waiting) == (0, 0)


def _tokens_and_outcome(engine: SimulatedEngine) -> tuple[int, StepOutcome]:
    plan = engine.plan_step()
    assert plan is not None
    return plan.batch.tokens, engine.complete_step()


def test_one_request_prefills_then_decodes_a_token_a_step() -> None:
    engine = SimulatedEngine(_profile())
    engine.submit(prompt_tokens=10, output_tokens=3)
    assert [_tokens_and_outcome(engine) for _ in range(3)] == [
        (10, StepOutcome(decoded=(), prefilled=(0,), finished=())),
        (1, StepOutcome(decoded=(0,), prefilled=(), finished=())),
        (1, StepOutcome(decoded=(0,), prefilled=(), finished=(0,))),
    ]
    assert engine.step() is None


def test_a_long_prompt_is_cut_into_chunks_and_gives_its_token_after_the_last() -> None:
    engine = SimulatedEngine(_profile(batched=16))
    engine.submit(prompt_tokens=40, output_tokens=1)
    steps = [_tokens_and_outcome(engine) for _ in range(3)]
    assert [(tokens, outcome.emitted) for tokens, outcome in steps] == [(16, ()), (16, ()), (8, (0,))]


def test_decodes_come_before_a_chunk_of_a_prompt() -> None:
    engine = SimulatedEngine(_profile(seqs=2, batched=8))
    engine.submit(prompt_tokens=4, output_tokens=9)
    engine.step()
    engine.submit(prompt_tokens=30, output_tokens=1)
    plan = engine.plan_step()
    assert plan is not None
    assert plan.scheduled == ((0, 1), (1, 7))


def test_requests_beyond_max_num_seqs_wait_in_order() -> None:
    engine = SimulatedEngine(_profile(seqs=2))
    for _ in range(4):
        engine.submit(prompt_tokens=2, output_tokens=2)
    first = engine.plan_step()
    assert first is not None
    assert first.admitted == (0, 1)
    engine.complete_step()
    assert (engine.running, engine.waiting) == (2, 2)
    engine.step()
    third = engine.plan_step()
    assert third is not None
    assert third.admitted == (2, 3)


@pytest.mark.parametrize(("ahead", "admitted"), [(False, [0, 0, 2, 3]), (True, [0, 0, 3, 4])])
def test_a_request_that_ends_in_a_step_keeps_its_place_while_the_next_is_planned(
    *, ahead: bool, admitted: list[int]
) -> None:
    """Of two places, one is free after the second step; planned ahead, the third step does not know yet."""
    engine = SimulatedEngine(replace(_profile(seqs=2), plans_ahead=ahead))
    seen: dict[int, int] = {}
    for output in (2, 3, 2, 2):
        engine.submit(prompt_tokens=2, output_tokens=output)
    for step in range(8):
        plan = engine.plan_step()
        if plan is not None:
            seen |= dict.fromkeys(plan.admitted, step)
            engine.complete_step()
    assert list(seen.values()) == admitted
    assert engine.free_blocks == _profile().usable_blocks


def test_what_a_request_holds_beside_its_tokens_is_held_once_and_until_its_end() -> None:
    """Windows of other kinds of attention: three blocks, and 4 tokens in each block of its own."""
    for prompt, is_admitted in ((32, True), (33, False)):  # of 16 blocks 11 are left: 8 and 3, or 9 and 3
        engine = SimulatedEngine(replace(_profile(blocks=17, length=40), request_blocks=3))
        engine.submit(prompt_tokens=8, output_tokens=6)
        engine.submit(prompt_tokens=prompt, output_tokens=2)
        engine.step()
        assert engine.held_blocks() == {0: 5, 1: 5 if is_admitted else 0}
        while engine.has_work:
            engine.step()
        assert engine.free_blocks == 16


def test_a_request_is_not_admitted_before_all_of_its_prompt_would_fit() -> None:
    engine = SimulatedEngine(_profile(blocks=17, batched=16))
    engine.submit(prompt_tokens=40, output_tokens=20)
    for _ in range(3):
        engine.step()
    engine.submit(prompt_tokens=24, output_tokens=1)  # 6 blocks; 16 - 11 are free
    assert engine.free_blocks == 6
    engine.step()  # the first one takes a block, and 5 are left
    assert (engine.running, engine.waiting, engine.free_blocks) == (1, 1, 5)


def _preempting() -> tuple[SimulatedEngine, ScheduledStep]:
    """Two requests that together outgrow 16 blocks of 4 tokens, at the step that preempts."""
    engine = SimulatedEngine(_profile(seqs=4, batched=64))
    for _ in range(2):
        engine.submit(prompt_tokens=24, output_tokens=40)
    engine.submit(prompt_tokens=24, output_tokens=1)  # waits: 4 blocks are free
    for _ in range(100):
        plan = engine.plan_step()
        assert plan is not None
        if plan.preempted:
            return engine, plan
        engine.complete_step()
    raise AssertionError("nothing was preempted")


def test_the_request_admitted_last_is_preempted_and_goes_to_the_front() -> None:
    engine, plan = _preempting()
    assert plan.preempted == (1,)
    assert plan.scheduled == ((0, 1),)
    assert [request.number for request in engine._waiting] == [1, 2]


def test_a_preempted_request_computes_its_prompt_and_its_output_again() -> None:
    engine, _ = _preempting()
    engine.complete_step()
    generated = engine._waiting[0].generated
    assert generated > 1
    plan = engine.plan_step()
    while plan is not None and not plan.resumed:
        engine.complete_step()
        plan = engine.plan_step()
    assert plan is not None
    assert plan.resumed == (1,)
    assert plan.admitted == (2,), "a request that fits behind it may start in the same step"
    assert dict(plan.scheduled)[1] == 24 + generated


def test_an_abort_in_a_step_frees_blocks_at_once_and_gives_no_token() -> None:
    engine = SimulatedEngine(_profile())
    engine.submit(prompt_tokens=10, output_tokens=3)
    engine.plan_step()
    assert engine.free_blocks == 13
    assert engine.abort(0)
    assert engine.free_blocks == 16
    assert engine.complete_step().emitted == ()
    assert not engine.has_work


@pytest.mark.parametrize(("prompt", "output"), [(0, 1), (1, 0), (33, 32)])
def test_a_request_that_could_never_end_is_refused(prompt: int, output: int) -> None:
    with pytest.raises(ValueError, match="token"):
        SimulatedEngine(_profile()).submit(prompt_tokens=prompt, output_tokens=output)


def test_a_request_as_large_as_the_cache_ends() -> None:
    audited = Audited(_profile(seqs=2, blocks=17, length=64))
    audited.submit(32, 32)
    audited.submit(32, 32)
    audited.drain()
    assert audited.finished == [0, 1]


def test_steps_are_planned_and_completed_in_turn() -> None:
    engine = SimulatedEngine(_profile())
    engine.submit(prompt_tokens=1, output_tokens=2)
    with pytest.raises(RuntimeError, match="plan_step"):
        engine.complete_step()
    engine.plan_step()
    with pytest.raises(RuntimeError, match="complete_step"):
        engine.plan_step()


def _held(name: str, concurrency: int, prompt: int) -> bool:
    """Whether p95 TTFT within 500 ms and p95 TPOT within 50 ms hold at a concurrency."""
    seen = closed_loop(PROFILES[name], concurrency=concurrency, prompt=prompt, output=64, requests=100)
    return percentile(seen.ttft_s, 0.95) <= 0.5 and percentile(seen.tpot_s, 0.95) <= 0.05


@pytest.mark.slow
def test_the_knees_of_the_profiles_are_where_they_say() -> None:
    assert [_held("tiny", n, 128) for n in (1, 2, 4, 8, 16)] == [True, True, True, True, False]
    assert [_held("llama-8b", n, 256) for n in (1, 2, 4, 8, 16, 32)] == [True, True, True, True, True, False]


def test_the_small_cache_preempts_beyond_eight_requests_and_the_large_one_does_not() -> None:
    def preemptions(name: str, concurrency: int) -> int:
        return closed_loop(PROFILES[name], concurrency=concurrency, prompt=128, output=64, requests=60).preemptions

    assert preemptions("small-kv", 8) == 0
    assert preemptions("small-kv", 12) > 5
    assert preemptions("tiny", 16) == 0
