"""Kneewatch's simulated scheduler beside vLLM's own, step by step: equal arrivals, equal law. Runs in vLLM's Python.

Both plan each step, synchronously and, with `--ahead`, as vLLM's AsyncScheduler does; vLLM's content sets the time.
`.vllm/bin/python -m benchmarks.timed.twin_steps --model FOLDER [CASE ...]` prints for each case how many steps were
equal and the first that was not. Exits 1 if there is one.
"""

import argparse
import sys
from collections import deque
from dataclasses import dataclass, replace
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


def compare(model: Path, case: Case, rate_rps: float, count: int, *, ahead: bool = False, seed: int = 1) -> Comparison:
    """Serve the same requests by both schedulers, until a step differs or all have ended.

    The loop is that of virtual_vllm.serve. The simulated one ends its step when the next is planned, in no time.
    """
    theirs = VirtualVllm(model, case, 2 if ahead else 1)
    simulated = SimulatedEngine(replace(profile(case), plans_ahead=ahead))
    clock, arrivals = case.law.clock(Random(seed)), poisson(case, rate_rps, count, seed)
    now_s = free_s = 0.0
    submitted = steps = preemptions = 0
    in_flight: deque[tuple[float, Step]] = deque()
    while True:
        while submitted < count and arrivals[submitted].at_s <= now_s:
            one = arrivals[submitted]
            theirs.submit(submitted, one.prompt_tokens, one.output_tokens)
            simulated.submit(prompt_tokens=one.prompt_tokens, output_tokens=one.output_tokens)
            submitted += 1
        if theirs.has_requests:
            step, planned = theirs.plan(), simulated.plan_step()
            if difference := _difference(step, planned):
                return Comparison(steps, preemptions, difference)
            if planned is not None:
                simulated.complete_step()
            if step.tokens:
                steps, preemptions = steps + 1, preemptions + len(step.preempted)
                mean_s = case.law.mean_s(len(step.tokens), step.total, step.cached, step.pairs)
                free_s = max(now_s, free_s) + clock(mean_s, max(now_s, free_s))
            in_flight.append((free_s if step.tokens else now_s, step))
            if len(in_flight) < theirs.depth and (step.tokens or theirs.has_requests):
                continue
        if in_flight:
            due_s, step = in_flight.popleft()
            now_s = max(now_s, due_s)
            list(theirs.complete(step))
        elif submitted < count:
            now_s = arrivals[submitted].at_s
        else:
            return Comparison(steps, preemptions, None)


def _difference(step: Step, planned: ScheduledStep | None) -> str:
    """Return how the simulated step differs from vLLM's, or nothing."""
    if planned is None:  # vLLM plans an empty step to report what has finished
        return f"simulated none, vLLM {len(step.tokens)} requests" if step.tokens else ""
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
    parser.add_argument("--ahead", action="store_true", help="plan steps ahead")
    parser.add_argument("--rate", type=float, default=0.0, help="requests/s; else twice what the server can take")
    options = parser.parse_args()
    has_parted = False
    for name in options.cases:
        case = CASES[name]
        rate_rps = options.rate or _filling_rps(case)
        found = compare(options.model, case, rate_rps, options.requests, ahead=options.ahead)
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
