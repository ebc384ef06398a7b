"""The quick scheduler against the plain one of sim_reference.py: the same plans, outcomes and blocks in any story."""

from dataclasses import dataclass

import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from property_examples import examples
from reference_scheduler import Reference

from probe.simulator.cost import Profile, StepCost
from probe.simulator.engine import SimulatedEngine


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    """Small servers, from roomy to so tight that a second request preempts the first."""
    seqs, block, length = draw(st.integers(1, 6)), draw(st.integers(1, 6)), draw(st.integers(12, 48))
    least = -(-length // block) + 1
    return Profile(
        name="t",
        description="",
        cost=StepCost(0.001, 0, 0),
        max_num_seqs=seqs,
        block_size=block,
        num_blocks=draw(st.integers(least, 2 * least)),
        max_num_batched_tokens=draw(st.integers(seqs, seqs + 60)),
        max_model_len=length,
        prefix_caching=draw(st.booleans()),
    )


@dataclass(frozen=True)
class Submit:
    prompt: float  # shares of what is possible
    output: float
    shared: float


@dataclass(frozen=True)
class Abort:
    which: float  # share of the requests so far
    in_step: bool


@dataclass(frozen=True)
class Steps:
    count: int


@dataclass(frozen=True)
class Skip:
    share: float  # of the calm steps


shares = st.integers(0, 100).map(lambda percent: percent / 100)
submits = st.builds(Submit, shares.map(lambda share: share**2), shares, st.sampled_from((0.0, 0.4, 0.8, 1.0)))
steps = st.builds(Steps, st.integers(1, 20))
aborts = st.builds(Abort, shares, st.booleans())
events = st.one_of(submits, submits, submits, steps, steps, aborts, st.builds(Skip, shares))
stories = st.lists(events, min_size=10, max_size=50)


class Pair:
    """Both schedulers in step, compared after everything that happens to them."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.engine = SimulatedEngine(profile)
        self.reference = Reference(profile)
        self.seen: set[str] = set()

    def tell(self, happening: Submit | Abort | Steps | Skip) -> None:
        known = self.reference.submitted
        if isinstance(happening, Submit):
            self.submit(happening)
        elif isinstance(happening, Steps):
            for _ in range(happening.count):
                self.step()
        elif isinstance(happening, Skip):
            self.skip(round(happening.share * self.engine.decode_only_steps()))
        elif known:
            which = min(known - 1, int(happening.which * known))
            if happening.in_step:
                self.step(abort=which)
            else:
                self.abort(which)
        self.compare()

    def submit(self, wanted: Submit) -> None:
        longest = self.profile.max_model_len
        prompt = 1 + int(wanted.prompt * (longest - 2))
        output = 1 + int(wanted.output * (longest - prompt - 1))
        shared = int(wanted.shared * prompt)
        number = self.engine.submit(prompt_tokens=prompt, output_tokens=output, shared_tokens=shared)
        assert number == self.reference.submit(prompt, output, shared)

    def abort(self, number: int) -> None:
        assert self.engine.abort(number) == self.reference.abort(number)

    def step(self, abort: int | None = None) -> bool:
        plan = self.engine.plan_step()
        assert plan == self.reference.plan_step()
        self.compare()
        if plan is None:
            return False
        if abort is not None:
            self.abort(abort)
            self.compare()
        assert self.engine.complete_step() == self.reference.complete_step()
        self.compare()
        self.seen |= {what for what in ("preempted", "resumed", "prefills") if getattr(plan, what)}
        return True

    def skip(self, steps: int) -> None:
        if not steps:
            return
        mean_kv_tokens, tokens = self.engine.mean_kv_tokens(steps), 0
        decoding = tuple(request.number for request in self.reference.running)
        assert self.engine.skip(steps) == len(decoding)
        for _ in range(steps):
            plan = self.reference.plan_step()
            assert plan is not None
            assert (plan.decoding, plan.preempted, plan.batch.tokens) == (decoding, (), len(decoding))
            tokens += plan.batch.kv_tokens
            outcome = self.reference.complete_step()
            assert (outcome.decoded, outcome.finished) == (decoding, ())
        assert mean_kv_tokens == pytest.approx(tokens / steps, abs=0.5)
        self.seen.add("skipped")

    def compare(self) -> None:
        engine, reference = self.engine, self.reference
        assert engine.free_blocks == reference.free_blocks()
        assert engine.running == len(reference.running)
        assert [request.number for request in engine._waiting] == [request.number for request in reference.waiting]
        if engine.shared_blocks:
            self.seen.add("shared")
        held = engine.held_blocks()
        assert {n: b for n, b in held.items() if b} == {
            request.number: own
            for request in reference.running
            if (own := len(set(request.blocks) - set(reference.prefix)))
        }
        assert engine.shared_blocks == len(set(reference.prefix) & reference.blocks_in_use())
        assert engine.cached_tokens(1_000, 1_000) == min(len(reference.prefix), 999 // self.profile.block_size) * (
            self.profile.block_size
        )


@pytest.mark.slow
@given(profiles(), stories)
@examples(200)
def test_the_quick_scheduler_does_what_the_plain_one_does(
    profile: Profile, story: list[Submit | Abort | Steps | Skip]
) -> None:
    pair = Pair(profile)
    for happening in story:
        pair.tell(happening)
    while pair.step():
        pass
    assert pair.engine.free_blocks == profile.usable_blocks
    for what in sorted(pair.seen):
        event(what)
