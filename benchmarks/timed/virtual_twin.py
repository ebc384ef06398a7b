"""Kneewatch's simulated scheduler with a case's law: a case served in virtual time, without vLLM and fast.

It plans every step as vLLM's synchronous scheduler does (twin_steps.py), so it gives the same knee in a twentieth of
the time.
"""

from collections.abc import Sequence
from random import Random

from benchmarks.timed.arrivals import Arrival, Timed
from benchmarks.timed.cases import BLOCK_SIZE, MAX_MODEL_LEN, Case
from probe.simulator.cost import Profile, StepCost
from probe.simulator.engine import SimulatedEngine


def profile(case: Case) -> Profile:
    """Return the case's limits as the simulator takes them. Its cost is a placeholder: the caller keeps the time."""
    return Profile(
        name=case.name,
        description=case.name,
        cost=StepCost(1e-3, 0.0, 0.0),
        max_num_seqs=case.max_num_seqs,
        block_size=BLOCK_SIZE,
        num_blocks=case.num_blocks,
        max_num_batched_tokens=case.max_num_batched_tokens,
        max_model_len=MAX_MODEL_LEN,
        request_blocks=case.window_blocks,
    )


def serve(case: Case, arrivals: Sequence[Arrival], *, seed: int = 1) -> list[Timed]:
    """Serve all arrivals, which are in the order of their times, and return when their tokens came."""
    engine, clock = SimulatedEngine(profile(case)), case.law.clock(Random(seed))
    served = [Timed(one) for one in arrivals]
    now_s, submitted = 0.0, 0
    while True:
        while submitted < len(served) and (one := served[submitted].arrival).at_s <= now_s:
            number = engine.submit(prompt_tokens=one.prompt_tokens, output_tokens=one.output_tokens)
            assert number == submitted
            submitted += 1
        step = engine.plan_step()
        if step is None:
            if submitted == len(served):
                return served
            now_s = served[submitted].arrival.at_s
            continue
        batch = step.batch
        now_s += clock(case.law.mean_s(batch.sequences, batch.tokens, batch.kv_tokens, batch.pairs), now_s)
        outcome = engine.complete_step()
        for number in outcome.prefilled:
            served[number].add(now_s, 1, has_ended=False)
        for number in outcome.finished:
            served[number].add(now_s, 1, has_ended=True)
