"""The twin: what a load does to it, and where it breaks."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from simulated_servers import CHAT, FAST, profile, promise, twin_of, workload

from probe.capacity.model.twin import Prediction, _root, find_capacity, predict
from probe.core.objectives import Objective, Objectives
from probe.core.percentiles import percentile
from probe.core.workload import lengths
from probe.simulator.simulated_request import SimulatedRequest
from probe.simulator.virtual_server import BackgroundTraffic, VirtualServer

pytestmark = pytest.mark.slow

USUAL = promise(0.5, 0.03)
NOBODY = BackgroundTraffic(0.0, CHAT)
TWIN = twin_of(profile(FAST), CHAT)


def test_a_prediction_is_what_the_server_of_that_cost_model_does() -> None:
    server = VirtualServer(profile(FAST), seed=9, users=BackgroundTraffic(15.0, CHAT))
    server.advance(300.0)
    seen = [request for request in server.ended_requests if request.arrival_s > 60]
    found = predict(TWIN, 15.0, USUAL, requests=2000)
    assert found.ttft_p50_s == pytest.approx(percentile(sorted(v.ttft_s for v in seen), 0.5), rel=0.08)
    assert found.tpot_s == pytest.approx(percentile(sorted(v.tpot_s for v in seen), 0.95), rel=0.08)
    assert found.running == pytest.approx(15.0 * sum(v.last_s - v.entered_s for v in seen) / len(seen), rel=0.15)


@pytest.mark.parametrize(("name", "within_s"), [("e2e", 5.0), ("itl", 0.09)])
def test_e2e_and_the_longest_gap_limit_a_capacity(name: str, within_s: float) -> None:
    """On another server of the same costs, the share that the objective asks for is within the limit at its knee."""
    objectives = Objectives("o", **{name: Objective(0.95, within_s)})
    found = find_capacity(TWIN, objectives, 10.0, seeds=(0,), requests=1500)
    for share, holds in ((0.9, True), (1.1, False)):
        server = VirtualServer(profile(FAST), seed=9, users=BackgroundTraffic(share * found, CHAT))
        server.advance(200.0)
        seen = [request for request in server.ended_requests if request.arrival_s > 60]
        values = [one.e2e_s if name == "e2e" else _longest(one) for one in seen]
        assert (sum(value <= within_s for value in values) >= 0.95 * len(values)) is holds, (found, share)


def _longest(request: SimulatedRequest) -> float:
    return max((after - before for before, after in pairwise(request.token_times_s())), default=0.0)


@pytest.mark.parametrize(("kv_tokens", "accepted"), [(400_000, 0.0), (8000, 0.0), (400_000, 1.5)])
def test_the_longest_gap_is_that_of_all_token_times(kv_tokens: int, accepted: float) -> None:
    """Also of a request that was preempted, and of one that gets several tokens in a step."""
    users = BackgroundTraffic(12.0, CHAT)
    server = VirtualServer(profile(FAST, kv_tokens=kv_tokens), seed=3, users=users, accepted_tokens=accepted)
    server.advance(60.0)
    ended = server.ended_requests
    assert [one.longest_gap_s() for one in ended] == [_longest(one) for one in ended]
    assert any(one.preemptions for one in ended) == (kv_tokens == 8000)


def test_gaps_are_computed_only_for_their_objective() -> None:
    assert predict(TWIN, 5.0, USUAL, requests=300).itl_s == 0.0
    assert predict(TWIN, 5.0, replace(USUAL, itl=Objective(0.9, 0.1)), requests=300).itl_s > 0.0


def test_a_queue_without_end_is_infinite() -> None:
    found = predict(TWIN, 1000.0, USUAL, requests=500)
    assert (found.ttft_s, found.tpot_p50_s) == (math.inf, math.inf)
    assert found.worst_objective_ratio(USUAL) == math.inf


def test_a_delay_in_front_of_the_server_is_in_every_ttft() -> None:
    bare = predict(TWIN, 5.0, USUAL, requests=300)
    later = predict(replace(TWIN, added_s=0.1), 5.0, USUAL, requests=300)
    assert later.ttft_s - bare.ttft_s == pytest.approx(0.1)
    assert later.e2e_s - bare.e2e_s == pytest.approx(0.1)
    assert later.tpot_s == bare.tpot_s


def test_a_latency_without_an_objective_is_never_over() -> None:
    found = Prediction(2.0, 0.02, 1.0, 0.01, 5.0, 0.0)
    assert found.worst_objective_ratio(promise(1.0, None)) == 2.0
    assert found.worst_objective_ratio(promise(None, 0.04)) == 0.5
    assert found.worst_objective_ratio(promise(None, None)) == 0.0


def test_live_users_take_room_from_the_workload() -> None:
    live = BackgroundTraffic(2.0, workload(3000, 200, 0.3))
    room = find_capacity(replace(TWIN, live=live), USUAL, 15.0, seeds=(0,), requests=300)
    assert room < 0.85 * find_capacity(TWIN, USUAL, 15.0, seeds=(0,), requests=300)


def test_a_capacity_is_where_the_objective_breaks() -> None:
    found = find_capacity(TWIN, USUAL, 20.0, seeds=(0,), requests=1000)
    assert predict(TWIN, 0.93 * found, USUAL, requests=2000, seed=7).worst_objective_ratio(USUAL) < 1
    assert predict(TWIN, 1.07 * found, USUAL, requests=2000, seed=7).worst_objective_ratio(USUAL) > 1


def test_without_an_objective_or_a_guess_there_is_no_capacity() -> None:
    with pytest.raises(ValueError, match="objective for a latency"):
        find_capacity(TWIN, promise(None, None), 10.0)
    for guess in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="first guess"):
            find_capacity(TWIN, USUAL, guess)


def test_answers_of_one_token_break_no_tpot() -> None:
    """Their TPOT is not defined; the server holds them until its queue is too long."""
    twin = twin_of(profile(FAST), workload(400, 1, 0))
    assert predict(twin, 5.0, USUAL, requests=300).tpot_s == 0.0
    both = find_capacity(twin, USUAL, 10.0, seeds=(0,), requests=500)
    assert both == pytest.approx(find_capacity(twin, promise(0.5, None), 10.0, seeds=(0,), requests=500))
    assert 20 < both < 70  # 400 tokens take 16 ms, and a step 9 ms
    assert 20 < find_capacity(twin, promise(None, 0.03), 10.0, seeds=(0,), requests=500) < 120  # no queue without end


def test_few_blocks_preempt() -> None:
    small = twin_of(profile(FAST, kv_tokens=8000), CHAT)
    assert predict(small, 8.0, USUAL, requests=400).preemptions > 0
    assert predict(TWIN, 8.0, USUAL, requests=400).preemptions == 0


ROOTS = st.floats(-5.5, 5.5)


@given(ROOTS, st.floats(0.05, 40), st.floats(-0.5, 0.5), st.sampled_from(["line", "cliff", "bend", "step"]))
@examples(200)
def test_a_root_is_found_in_few_looks(at: float, slope: float, guess: float, shape: str) -> None:
    """Of whatever rises: straight, from nothing to the ceiling, or a flat part with a cliff behind it."""
    looks = 0

    def excess(rate: float) -> float:
        nonlocal looks
        looks += 1
        x = math.log(rate) - at
        value = {
            "line": slope * x,
            "cliff": math.expm1(min(slope * x, 700.0)),
            "bend": x * (0.05 if x < 0 else slope),
            "step": -1e-3 if x < 0 else 1.0,
        }[shape]
        return min(max(value, -13.8), math.log(4.0))

    found = _root(excess, math.exp(guess))
    assert looks < 60
    assert abs(excess(found)) < 0.005 or abs(math.log(found) - at) < 0.009


def test_a_root_out_of_reach_is_an_end_of_the_search() -> None:
    looks: list[float] = []

    def never(rate: float) -> float:
        looks.append(rate)
        return -1.0

    assert _root(never, 1.0) > 400
    assert len(looks) < 15
    assert _root(lambda rate: looks.append(rate) or 1.0, 1.0) == 0.0
    assert len(looks) < 30


def test_the_same_seed_gives_the_same_capacity() -> None:
    assert find_capacity(TWIN, USUAL, 9.0, seeds=(3,), requests=150) == find_capacity(
        TWIN, USUAL, 9.0, seeds=(3,), requests=150
    )


def test_lengths_of_a_twin_are_the_workload_s() -> None:
    pairs = lengths(CHAT)
    longest = TWIN.profile().max_model_len
    assert all(prompt + output <= longest for prompt, output, _ in (next(pairs) for _ in range(2000)))
