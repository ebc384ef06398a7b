"""Pulses: never more requests at once than meet the objectives, on servers of many costs; and what they show."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from example_records import step
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from simulated_servers import FAST, profile, promise, workload

from probe.capacity.model.twin import Twin, find_capacity
from probe.capacity.search.pulses import (
    MOST,
    Pulse,
    Room,
    guess_cost,
    measure_pulse,
    next_size,
    pulse_plan,
)
from probe.core.objectives import Objective, Objectives
from probe.core.step import Distribution
from probe.core.workload import Workload
from probe.simulator.cost import Profile, StepCost
from probe.simulator.simulated_request import SimulatedRequest
from probe.simulator.virtual_server import VirtualServer

_COSTS = st.builds(
    StepCost,
    host_s=st.floats(5e-4, 0.01),
    per_sequence_s=st.floats(0, 1e-3),
    per_token_s=st.floats(1e-6, 3e-4),
    weights_s=st.floats(5e-4, 0.06),
    per_kv_token_s=st.floats(0, 5e-7),
)

# By how much of a single request's step another one may lengthen it: twice what is assumed until a pulse has shown it,
# for which the margins make up. From 0.35 on, where a step mostly reads KV cache, a pulse of four may miss TPOT.
_STEEPEST = 0.3


def _steepness(cost: StepCost, lengths: Workload) -> float:
    """Return by how much of a single request's step another request lengthens it."""
    tokens = int(lengths.prompt_tokens) + int(lengths.output_tokens)  # type: ignore[arg-type]
    more_s = cost.per_sequence_s + cost.per_token_s + cost.per_kv_token_s * tokens
    return more_s / (cost.host_s + cost.weights_s + more_s)


def _at_once(server: Profile, count: int, lengths: Workload) -> Sequence[SimulatedRequest]:
    """Return the answers of so many requests that arrive together at an idle server."""
    virtual = VirtualServer(replace(server, max_model_len=65_536, num_blocks=8192))
    sent = [virtual.submit(1.0, int(lengths.prompt_tokens), int(lengths.output_tokens)) for _ in range(count)]  # type: ignore[arg-type]
    while not all(request.ended for request in sent):
        virtual.advance(virtual.now_s + 60.0)
    return sent


def _measured(sent: Sequence[SimulatedRequest]) -> Pulse:
    gaps = sorted(after - before for one in sent for before, after in pairwise(one.token_times_s()))
    return Pulse(len(sent), max(one.ttft_s for one in sent), gaps[len(gaps) // 2])


def _pulses(server: Profile, lengths: Workload, objectives: Objectives, room: Room) -> list[list[SimulatedRequest]]:
    """Return the answers of each pulse on that server, after the baseline of one request."""
    played = [list(_at_once(server, 1, lengths))]
    while size := next_size(list(map(_measured, played)), lengths, objectives, room, math.inf):
        played.append(list(_at_once(server, size, lengths)))
    return played


@settings(deadline=None)
@given(
    cost=_COSTS,
    chunk=st.sampled_from([512, 2048, 8192]),
    lengths=st.builds(workload, st.integers(10, 3000), st.integers(16, 200), st.just(0)),
    ttft=st.floats(1.2, 30),
    tpot=st.floats(1.2, 5),
)
def test_every_pulse_meets_ttft_and_tpot(
    cost: StepCost, chunk: int, lengths: Workload, ttft: float, tpot: float
) -> None:
    assume(_steepness(cost, lengths) <= _STEEPEST)
    server = profile(cost, chunk=chunk)
    (alone,) = _at_once(server, 1, lengths)
    objectives = promise(ttft * alone.ttft_s, tpot * alone.tpot_s)
    for sent in _pulses(server, lengths, objectives, Room()):
        assert max(one.ttft_s for one in sent) <= ttft * alone.ttft_s
        assert max(one.tpot_s for one in sent) <= tpot * alone.tpot_s


@settings(deadline=None)
@given(
    cost=_COSTS,
    chunk=st.sampled_from([512, 2048, 8192]),
    lengths=st.builds(workload, st.integers(10, 3000), st.integers(16, 200), st.just(0)),
    e2e=st.floats(1.2, 5),
    itl=st.floats(1.2, 20),
)
def test_every_pulse_meets_e2e_and_itl(cost: StepCost, chunk: int, lengths: Workload, e2e: float, itl: float) -> None:
    assume(_steepness(cost, lengths) <= _STEEPEST)
    server = profile(cost, chunk=chunk)
    (alone,) = _at_once(server, 1, lengths)
    gap_s = alone.longest_gap_s()
    objectives = Objectives("o", e2e=Objective(0.95, e2e * alone.e2e_s), itl=Objective(0.95, itl * gap_s))
    for sent in _pulses(server, lengths, objectives, Room()):
        assert max(one.e2e_s for one in sent) <= e2e * alone.e2e_s
        assert max(one.longest_gap_s() for one in sent) <= itl * gap_s


@given(
    first=st.builds(Pulse, st.just(1), st.floats(1e-3, 0.3), st.floats(1e-3, 0.04)),
    second=st.none() | st.builds(Pulse, st.integers(2, MOST), st.floats(1e-3, 0.6), st.floats(1e-3, 0.07)),
    kv_tokens=st.none() | st.floats(0, 1e5),
    running=st.floats(0, 50),
    most=st.floats(1, 1000),
)
def test_a_pulse_grows_little_fits_the_cache_and_is_no_larger_than_what_will_ever_run(
    first: Pulse, second: Pulse | None, kv_tokens: float | None, running: float, most: float
) -> None:
    pulses = [first, second] if second is not None else [first]
    size = next_size(pulses, workload(300, 100, 0), promise(1.0, 0.1), Room(running, kv_tokens), most)
    largest = pulses[-1]
    if not size:
        return
    assert 1.5 * largest.requests < size <= min(4 * largest.requests, MOST, most)
    assert size * largest.last_first_token_s / largest.requests <= 0.5
    assert kv_tokens is None or size * 400 <= 0.8 * kv_tokens


def test_it_grows_by_four_while_that_is_safe() -> None:
    played = _pulses(profile(FAST), workload(100, 50, 0), promise(1.0, 0.05), Room())
    assert [len(sent) for sent in played] == [1, 4, 16, 64]


def test_users_leave_less_room() -> None:
    pulses = [Pulse(1, 0.05, 0.010), Pulse(4, 0.06, 0.013)]
    sizes = [next_size(pulses, workload(100, 50, 0), promise(1.0, 0.05), Room(n), math.inf) for n in (0, 10, 40)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[1] > sizes[2] == 0


@pytest.mark.slow
def test_pulses_show_the_capacity_roughly() -> None:
    server, lengths, objectives = profile(FAST), workload(100, 50, 0), promise(0.5, 0.02)
    cost = guess_cost([_measured(sent) for sent in _pulses(server, lengths, objectives, Room())], lengths, 1)
    assert cost is not None
    found = [find_capacity(Twin(one, 400_000, lengths), objectives, 20.0, requests=800) for one in (FAST, cost)]
    assert found[1] == pytest.approx(found[0], rel=0.25)


def test_where_no_pulse_is_safe_a_third_of_what_the_baseline_shows_is_below_the_capacity_and_not_far() -> None:
    lengths = workload(100, 20, 0)
    alone = _measured(_at_once(profile(FAST), 1, lengths))
    objectives = promise(20 * alone.last_first_token_s, 1.4 * alone.gap_s)
    assert next_size([alone], lengths, objectives, Room(), math.inf) == 0
    cost = guess_cost([alone], lengths, 1)
    assert cost is not None
    found = [find_capacity(Twin(one, 4000, lengths), objectives, 12.0, seeds=[0], requests=150) for one in (FAST, cost)]
    assert 0.1 < found[1] / 3 / found[0] < 0.8


def test_no_answer_shows_no_cost() -> None:
    assert guess_cost([], workload(100, 50), 1) is None


def test_a_pulse_is_one_answer_each_and_no_step() -> None:
    plan = pulse_plan(16)
    assert (plan.concurrency, plan.requests, plan.arrivals) == (16, 16, None)
    assert plan.is_pulse


def test_gaps_that_bring_several_tokens_count_as_several() -> None:
    summary = replace(
        step(), plan=pulse_plan(4), itl_s=Distribution(p50=0.03), ttft_s=Distribution(max=0.2), tokens_per_event=3.0
    )
    assert measure_pulse(summary) == Pulse(4, 0.2, pytest.approx(0.01))


def test_a_pulse_that_was_hardly_answered_shows_nothing() -> None:
    summary = replace(step(), plan=pulse_plan(64))
    assert measure_pulse(replace(summary, requests=replace(summary.requests, ok=31))) is None
    assert measure_pulse(replace(summary, ttft_s=Distribution())) is None
