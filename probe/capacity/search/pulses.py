"""Pulses: the first load on a server before its step cost model is known. Pure.

A pulse is a few requests at once, one answer each. Together they show what a step costs with that many requests, how
fast prompts are computed, and max_num_seqs where more were sent than run. That is a first guess of the capacity, near
enough to choose the first step; the steps then judge.

In: the unloaded baseline and the pulses so far. Out: how many requests may be sent at once next, and the first guess.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from probe.core.objectives import Objectives
from probe.core.step import StepPlan, StepSummary
from probe.core.token_length import mean_length
from probe.core.workload import Workload, longest_request
from probe.simulator.cost import StepCost

MOST = 64  # requests at once: steps show what more do
_GROWTH = 4  # a pulse has at most this many times the requests of the one before: three pulses to the most
_WORTH = 1.5  # and at least this many times: with fewer it shows nothing new
_MARGIN = 0.5  # of an objective: a pulse's expected time stays below, and may be half of the actual one
_LONGEST_QUEUE_S = 1.2  # the guard takes a queue of three polls for an overload
_KV_SHARE = 0.8  # of the KV cache: the rest is for users who come meanwhile
# A request more in a step, relative to the step of a single one, until a pulse has shown it: more than on any server of
# benchmarks/ (0.11 at most), and _MARGIN makes up for twice as much; above that a first pulse of four may miss TPOT.
# Measured ones count as half as much again, since memory traffic and computing add up differently in a larger batch.
_UNKNOWN_SLOPE = 0.15
_SLOPE_MARGIN = 1.5


@dataclass(frozen=True, slots=True)
class Pulse:
    """What `requests` at once showed: when the last of them had its first token, and the gap between tokens."""

    requests: int
    last_first_token_s: float
    gap_s: float


@dataclass(frozen=True, slots=True)
class Room:
    """The server's room for a pulse: users' `running` requests, and free tokens of KV cache; None: unknown."""

    running: float = 0.0
    kv_tokens: float | None = None
    engines: int = 1


def pulse_plan(requests: int) -> StepPlan:
    """Return the step that sends so many requests at once, and none after."""
    return StepPlan(concurrency=requests, seconds=0.0, requests=requests)


def measure_pulse(step: StepSummary) -> Pulse | None:
    """Return what a pulse, or the baseline of one request, showed; None if too few were answered."""
    sent, gap_s = step.plan.concurrency, step.itl_s.p50
    if step.ttft_s.max is None or gap_s is None or 2 * step.requests.ok < sent:
        return None
    # Of speculation: a gap brings several tokens.
    return Pulse(sent, step.ttft_s.max, (gap_s or step.tpot_s.p50 or 0.0) / max(step.tokens_per_event or 1.0, 1.0))


def next_size(pulses: Sequence[Pulse], workload: Workload, objectives: Objectives, room: Room, most: float) -> int:
    """Return how many requests to send at once next; 0 if more would not be safe or would show nothing new.

    `most`: how many will ever run at once, if that is known.
    """
    if not pulses:
        return 0
    largest = pulses[-1]
    wanted = int(min(_GROWTH * largest.requests, MOST, max(most, 1.0)))
    sizes = range(wanted, int(_WORTH * largest.requests), -1)
    return next((size for size in sizes if is_safe(size, pulses, workload, objectives, room)), 0)


def is_safe(size: int, pulses: Sequence[Pulse], workload: Workload, objectives: Objectives, room: Room) -> bool:
    """Return whether so many requests at once are expected to meet the objectives, with a margin, and to fit."""
    prompts_s = prompts_seconds(size, pulses)
    ttft, limits = objectives.ttft, objectives.latencies()
    if prompts_s > min(_MARGIN * ttft.within_s if ttft else _LONGEST_QUEUE_S, _LONGEST_QUEUE_S):
        return False
    gaps = max(mean_length(workload.output_tokens) - 1, 1.0)
    running = size + room.running
    gap_s = gap_seconds(running / room.engines, pulses)
    # All prompts in one step would be the longest gap.
    expected = {"tpot": gap_s + prompts_s / gaps, "e2e": prompts_s + gaps * gap_s, "itl": prompts_s + gap_s}
    if any(limits[name].within_s * (1 - _MARGIN / 2) < expected[name] for name in expected if name in limits):
        return False
    if room.kv_tokens is None:
        return True
    longest = longest_request(workload)
    mean = mean_length(workload.prompt_tokens) + mean_length(workload.output_tokens)
    return min(size * mean + longest - mean, size * longest) <= _KV_SHARE * room.kv_tokens


def prompts_seconds(size: int, pulses: Sequence[Pulse]) -> float:
    """Return how long the prompts of so many requests take at most: no longer each than the largest pulse's did."""
    return pulses[-1].last_first_token_s * size / pulses[-1].requests


def gap_seconds(running: float, pulses: Sequence[Pulse]) -> float:
    """Return the gap between tokens that is expected at most with so many requests in a step."""
    last = pulses[-1]
    slope = _slope(pulses)
    grown = _UNKNOWN_SLOPE * last.gap_s if slope is None else _SLOPE_MARGIN * slope
    return last.gap_s + max(running - last.requests, 0.0) * grown


def guess_cost(pulses: Sequence[Pulse], workload: Workload, engines: int) -> StepCost | None:
    """Return the step cost that the pulses show roughly; None without any.

    By the unloaded baseline alone, decoding one more request costs nothing.
    """
    if not pulses:
        return None
    slope, last = _slope(pulses) or 0.0, pulses[-1]
    per_token_s = last.last_first_token_s / (last.requests * mean_length(workload.prompt_tokens)) * engines
    step_s = max(last.gap_s - slope * last.requests, 0.1 * last.gap_s)
    return StepCost(host_s=0.0, per_sequence_s=slope * engines, per_token_s=per_token_s, weights_s=step_s)


def _slope(pulses: Sequence[Pulse]) -> float | None:
    """Return by how much one more request lengthens the gap: the steepest line to the largest pulse; None of one."""
    last = pulses[-1]
    before = [pulse for pulse in pulses if pulse.requests < last.requests]
    if not before:
        return None
    return max(0.0, *((last.gap_s - one.gap_s) / (last.requests - one.requests) for one in before))
