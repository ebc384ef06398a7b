"""Kneewatch's simulated scheduler beside vLLM's own, step by step: equal arrivals, equal law. Runs in vLLM's Python.

Both plan each step; vLLM's content sets the time. `.vllm/bin/python -m benchmarks.timed.twin_steps --model FOLDER
[CASE ...]` prints for each case how many steps were equal and the first that was not. Exits 1 if there is one.
"""

import argparse
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random

from benchmarks.timed.arrivals import poisson
from benchmarks.timed.cases import BLOCK_SIZE, CASES, Case
from benchmarks.timed.virtual_twin import profile
from benchmarks.timed.virtual_vllm import Step, VirtualVllm
from probe.simulator.engine import SimulatedEngine
from probe.simulator.engine_step import ScheduledStep


@dataclass(frozen=True, slots=True)
class Comparison:
    """Steps until the schedulers parted, and what each planned then; `parted` is None if they never did."""

    steps: int
    preemptions: int
    parted: str | None


def compare(model: Path, case: Case, rate_rps: float, count: int, seed: int = 1) -> Comparison:
    """Serve the same requests by both schedulers, until a step differs or all have ended."""
    theirs, simulated = VirtualVllm(model, case), SimulatedEngine(profile(case))
    clock, arrivals = case.law.clock(Random(seed)), poisson(case, rate_rps, count, seed)
    now_s, submitted, steps = 0.0, 0, 0
    events: Counter[str] = Counter()
    while True:
        while submitted < count and arrivals[submitted].at_s <= now_s:
            one = arrivals[submitted]
            theirs.submit(submitted, one.prompt_tokens, one.output_tokens)
            simulated.submit(prompt_tokens=one.prompt_tokens, output_tokens=one.output_tokens)
            submitted += 1
        if not theirs.has_requests:
            if submitted == count:
                return Comparison(steps, events["preempted"], None)
            now_s = arrivals[submitted].at_s
            continue
        step, planned = theirs.plan(), simulated.plan_step()
        if not step.tokens:  # vLLM plans an empty step to report what has finished
            list(theirs.complete(step))
            continue
        difference = _difference(step, planned)
        if difference:
            return Comparison(steps, events["preempted"], difference)
        steps += 1
        events["preempted"] += len(step.preempted)
        now_s += clock(case.law.mean_s(len(step.tokens), step.total, step.cached, step.pairs), now_s)
        list(theirs.complete(step))
        simulated.complete_step()


def _difference(step: Step, planned: ScheduledStep | None) -> str:
    """Return how the simulated step differs from vLLM's, or nothing."""
    if planned is None:
        return f"simulated none, vLLM {len(step.tokens)} requests"
    simulated = dict(planned.scheduled)
    parts = []
    if simulated != step.tokens:
        only = {n: t for n, t in simulated.items() if step.tokens.get(n) != t}
        other = {n: t for n, t in step.tokens.items() if simulated.get(n) != t}
        parts.append(f"tokens simulated {only}, vLLM {other}")
    if set(planned.preempted) != step.preempted:
        parts.append(f"preempted simulated {sorted(planned.preempted)}, vLLM {sorted(step.preempted)}")
    if not parts and planned.batch.kv_tokens != step.cached:
        parts.append(f"cached tokens simulated {planned.batch.kv_tokens}, vLLM {step.cached}")
    return "; ".join(parts)


def main() -> None:
    """Compare the named cases, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--model", type=Path, required=True, help="folder of tests/integration/tiny_model.py")
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--rate", type=float, default=0.0, help="requests/s; else twice what the server can take")
    options = parser.parse_args()
    has_parted = False
    for name in options.cases:
        case = CASES[name]
        found = compare(options.model, case, options.rate or _filling_rps(case), options.requests)
        has_parted |= found.parted is not None
        print(
            f"{name:14} {found.steps:6} equal steps, {found.preemptions} preemptions; {found.parted or 'all'}",
            flush=True,
        )
    sys.exit(has_parted)


def _filling_rps(case: Case) -> float:
    """Return twice the rate that the server can take, so that it queues and preempts."""
    tokens = case.prompt_tokens + case.output_tokens
    running = min(case.max_num_seqs, case.num_blocks * BLOCK_SIZE // tokens)
    step_s = case.law.mean_s(running, running, running * (case.prompt_tokens + case.output_tokens // 2))
    return 2 * running / (step_s * case.output_tokens)


if __name__ == "__main__":
    main()
