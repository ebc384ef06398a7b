"""The truth of servers of known timing: the simulated scheduler in virtual time, and the knee found on it."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.capacity.cold import true_rps
from benchmarks.capacity.timed_cases import timed_case
from benchmarks.capacity.truth import Truth
from benchmarks.capacity.truth_file import Known
from benchmarks.timed.arrivals import Arrival, Timed, judged, poisson, scores
from benchmarks.timed.cases import ALL, CASES
from benchmarks.timed.served_cost import compare
from benchmarks.timed.truth import knee_rps
from benchmarks.timed.virtual_twin import serve
from probe.capacity.search.pulses import Pulse, Room, next_size
from probe.simulator.cost import Batch, FrontEnd, Jitter
from probe.simulator.virtual_server import VirtualServer

_QUIET = replace(CASES["long-prompts"], law=replace(CASES["long-prompts"].law, noise=0.0))


def test_a_single_request_takes_as_long_as_the_law_says() -> None:
    (only,) = serve(_QUIET, [Arrival(1.0, 3000, 3)])
    law = _QUIET.law
    first_s = law.mean_s(1, 2048, 0, pairs=2048 * 1024)
    prompt_s = first_s + law.mean_s(1, 952, 2048, pairs=952 * (2048 + 476))
    assert only.ttft_s == pytest.approx(prompt_s)
    assert only.last_s - only.first_s == pytest.approx(law.mean_s(1, 1, 3000) + law.mean_s(1, 1, 3001))
    assert only.has_ended


@pytest.mark.parametrize("name", ALL)
def test_searches_are_judged_on_servers_as_fast_as_those_of_the_truth(name: str) -> None:
    """A single request of two chunks shows it: attention within a chunk takes time too."""
    case = replace(ALL[name], law=replace(ALL[name].law, noise=0.0, drift=0.0))
    (only,) = serve(case, [Arrival(0.0, 3000, 3)])
    played = timed_case(name).profile
    server = VirtualServer(replace(played, jitter=Jitter(), front_end=FrontEnd()))
    request = server.submit(0.0, 3000, 3)
    server.advance(60.0)
    assert (request.ttft_s, request.tpot_s) == pytest.approx((only.ttft_s, only.tpot_s))


def test_arrivals_at_twice_the_rate_are_the_same_requests_in_half_the_time() -> None:
    slow, fast = (poisson(CASES["mixed"], rate, 50, seed=3) for rate in (1.0, 2.0))
    assert [one.at_s / 2 for one in slow] == pytest.approx([one.at_s for one in fast])
    assert [one.prompt_tokens for one in slow] == [one.prompt_tokens for one in fast]


def test_latencies_are_judged_by_their_95th_percentile_after_the_warm_up() -> None:
    served = [Timed(Arrival(0.0, 10, 11), first_s=6.0 if i >= 95 else 1.5, last_s=2.0) for i in range(100)]
    assert len(judged(served)) == 85
    assert scores(_QUIET, served)["ttft"] == pytest.approx(6.0 / 3.0)
    assert scores(_QUIET, served[:95])["ttft"] == pytest.approx(0.5)


@pytest.mark.parametrize("around_rps", [0.1, 4.9, 7.0, 60.0])
def test_the_knee_is_found_from_either_side(around_rps: float) -> None:
    assert knee_rps(lambda rps: rps / 5.0, around_rps) == pytest.approx(5.0, rel=0.004)


def test_every_recorded_truth_is_of_a_case_and_says_how_sure_it_is() -> None:
    """The synchronous knee and the asynchronous one differ by a few per cent."""
    for name, found in json.loads(Path("benchmarks/timed/truth.json").read_text()).items():
        assert name in ALL
        assert 0 <= found["error"] < 0.05 * found["requests_per_second"]
        assert found["requests_per_second"] == pytest.approx(found["synchronous"]["knee"], rel=0.1)


def test_cold_searches_are_judged_by_vllm_s_own_scheduler_where_its_truth_is_known() -> None:
    simulated = {"1b-l4": Known(Truth(22.0, 0.1, "tpot"), "", 0.0, "")}
    by_vllm = json.loads(Path("benchmarks/timed/truth.json").read_text())["l4-8b"]["requests_per_second"]
    assert true_rps("timed-l4-8b", simulated) == (by_vllm, "vllm")
    assert true_rps("1b-l4", simulated) == (22.0, "simulator")


def test_no_pulse_is_safe_on_a_tight_case() -> None:
    plain, tight = timed_case("h100-8b"), timed_case("h100-8b-tight")
    assert tight.profile == plain.profile
    assert plain.objectives.tpot is not None
    assert tight.objectives.tpot is not None
    alone_s = plain.profile.cost.step_seconds(Batch(1, 1, 256 + 64))
    assert tight.objectives.tpot.within_s == pytest.approx(1.3 * alone_s)
    assert next_size([Pulse(1, 0.008, alone_s)], tight.workload, tight.objectives, Room(), math.inf) == 0


def test_what_serving_costs_is_how_much_higher_the_latency_is_over_its_slope() -> None:
    """l4-8b breaks by TTFT, which rises with the rate to the power of 21.6."""
    served, virtual = ([Timed(Arrival(0.0, 10, 11), first_s=first_s, last_s=3.0)] * 100 for first_s in (1.1, 1.0))
    cost = compare(CASES["l4-8b"], 4.8, served, 0, [virtual, virtual])
    assert cost.ratio == pytest.approx(1.1 ** (-1 / 21.6))
    assert (cost.ttft_ms, cost.tpot_ms) == (pytest.approx((1100.0, 1000.0)), pytest.approx((190.0, 200.0)))
