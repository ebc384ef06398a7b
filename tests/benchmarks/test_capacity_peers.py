"""The peers' patterns, on a server whose knee is a number and on a simulated one; and what they are charged."""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from benchmarks.capacity.cases import CASES
from benchmarks.capacity.peer_load import Level, PeerLoad, over_objective, score, spoilt, spoilt_without_run
from benchmarks.capacity.peers import PEERS, answer, concurrency_bisection, guidellm_sweep, rate_bisection
from benchmarks.capacity.truth_file import read
from probe.capacity.run.runner import over_objective as over_objective_of_a_record
from probe.core.objectives import Objective, Objectives
from probe.core.request import Outcome
from probe.simulator.simulated_request import SimulatedRequest
from tests.plain_records import record, spec

CASE = CASES["32b-h100"]
OBJECTIVES = Objectives(name="o", ttft=Objective(0.95, 0.5), tpot=Objective(0.95, 0.05))


class Exact:
    """A server that holds below `knee_rps`, gives 0.5 requests/s to each that is in flight, and at most 40."""

    live_rps = 2.0

    def __init__(self, knee_rps: float) -> None:
        self.knee_rps = knee_rps
        self.closed_at: list[int] = []
        self.rates: list[float] = []
        self.gaps: list[float] = []

    def closed(self, in_flight: int, seconds: float = 60.0, *, drain_s: float = 0.0) -> Level:  # noqa: ARG002
        self.closed_at.append(in_flight)
        rps = min(0.5 * in_flight, 40.0)
        return Level(in_flight, rps, rps / self.knee_rps)

    def open(self, rate_rps: float, due_s: Iterator[float], seconds: float = 60.0, *, drain_s: float = 0.0) -> Level:  # noqa: ARG002
        self.rates.append(rate_rps)
        times = list(islice(due_s, 3))
        self.gaps = [later - sooner for sooner, later in pairwise(times)]
        return Level(rate_rps, rate_rps, rate_rps / self.knee_rps)


def test_a_sweep_goes_evenly_from_one_at_a_time_to_the_throughput() -> None:
    load = Exact(knee_rps=23.0)
    found = answer(guidellm_sweep(load), load.live_rps)  # type: ignore[arg-type]
    assert load.closed_at == [1, 512]
    assert load.rates == pytest.approx([0.5 + 39.5 * i / 8 for i in range(1, 9)])
    assert load.gaps == pytest.approx([1 / 40] * 2)
    assert found == pytest.approx(0.5 + 39.5 * 4 / 8 + load.live_rps)


def test_concurrency_is_doubled_to_512() -> None:
    load = Exact(knee_rps=20.0)
    found = answer(PEERS["concurrency doubling"](load, 60.0, 0), load.live_rps)  # type: ignore[arg-type]
    assert load.closed_at == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    assert found == 16.0 + load.live_rps


@given(st.floats(0.02, 1500.0))
def test_rates_are_halved_to_five_percent(knee_rps: float) -> None:
    load = Exact(knee_rps)
    found = answer(rate_bisection(load), 0.0)  # type: ignore[arg-type]
    assert found is not None
    assert knee_rps / 1.06 <= found <= knee_rps


@given(st.integers(1, 500))
def test_streams_are_halved_to_ten_percent(streams: int) -> None:
    load = Exact(knee_rps=0.5 * streams)
    load.closed = lambda in_flight, *_, **__: Level(in_flight, in_flight, in_flight / streams)  # type: ignore[method-assign,assignment]
    found = answer(concurrency_bisection(load), 0.0)  # type: ignore[arg-type]
    assert found is not None
    assert found <= streams
    assert streams - found <= max(1, 0.1 * streams)


def test_a_knee_that_no_load_is_under_or_over_ends_every_search() -> None:
    for pattern in PEERS.values():
        assert answer(pattern(Exact(1e-9), 60.0, 0), 0.0) is None  # type: ignore[arg-type]
        assert answer(pattern(Exact(1e9), 60.0, 0), 0.0) is not None  # type: ignore[arg-type]


@pytest.mark.parametrize("peer", PEERS)
def test_a_peer_finds_something_on_a_simulated_server(peer: str) -> None:
    """Short levels, so only roughly; its load is over the top, as theirs is."""
    truth = read()["32b-h100"].truth.rps
    load = PeerLoad(CASE, 1, 0.2 * truth)
    found = answer(PEERS[peer](load, 20.0, 1), load.live_rps)
    spent = load.spent()
    assert found == pytest.approx(truth, rel=0.5)
    assert spent.over_objective_s > 0
    assert spent.spoilt > spoilt_without_run(CASE, 1, load.live_rps, spent.seconds)
    assert spent.seconds > 100


def test_without_load_it_spoils_nothing_that_was_not_spoilt_before() -> None:
    load = PeerLoad(CASE, 3, 16.0)  # more than it can take
    without = spoilt_without_run(CASE, 3, 16.0, 0.0)
    spent = load.spent()
    assert spent.spoilt == without > 0
    assert (spent.requests, spent.tokens, spent.over_objective_s) == (0, 0, 0.0)


def test_the_same_seed_is_the_same_run() -> None:
    def once() -> tuple[object, object]:
        load = PeerLoad(CASE, 5, 2.0)
        levels = load.closed(8, 20.0), load.open(3.0, iter([0.5, 1.0, 30.0]), 20.0)
        return levels, load.spent()

    assert once() == once()


def test_a_request_cancelled_before_the_server_began_it_costs_no_tokens() -> None:
    few = CASES["seats-16"]
    load = PeerLoad(few, 1, 0.0)
    load.closed(512, 0.5)
    spent = load.spent()
    assert spent.requests >= 512
    longest = 16 * 2 * (400 * 6 + 150 * 6)
    assert 0 < spent.tokens < longest


def test_an_open_loop_comes_when_it_is_due() -> None:
    load = PeerLoad(CASE, 1, 0.0)
    load.open(1.0, iter([0.1, 5.0, 19.9, 20.0, 21.0]), 20.0, drain_s=30.0)
    assert load.spent().requests == 3


def _request(ttft_s: float, tpot_s: float, tokens: int) -> SimulatedRequest:
    first = 7.0 + ttft_s
    return SimulatedRequest(
        7.0, 8, tokens, is_probe=True, first_s=first, last_s=first + tpot_s * (tokens - 1), ended=True
    )


@given(st.floats(0.001, 2.0), st.floats(0.001, 0.2), st.integers(1, 50))
def test_time_over_the_objective_is_what_it_is_for_kneewatch(ttft_s: float, tpot_s: float, tokens: int) -> None:
    assume(abs(tpot_s - 0.05) > 1e-5)  # at the limit itself a rounding decides
    request = _request(ttft_s, tpot_s, tokens)
    same = record(at_ms=7000.0, ttft_ms=ttft_s * 1e3, gap_ms=tpot_s * 1e3, tokens=tokens)
    same = replace(same, done_ns=round(request.last_s * 1e9))
    ours = sum(end - begin for begin, end in over_objective(request, OBJECTIVES, 100.0))
    theirs = sum(end - begin for begin, end in over_objective_of_a_record(same, OBJECTIVES))
    assert ours == pytest.approx(theirs, abs=100_000)  # the record's stamps are whole nanoseconds of milliseconds


@given(st.floats(0.1, 10.0))
def test_a_cancelled_request_is_over_once_it_should_have_ended(waited_s: float) -> None:
    request = SimulatedRequest(7.0, 8, 21, is_probe=True)
    same = record(at_ms=7000.0, tokens=0, outcome=Outcome.ABORTED, spec=spec(output_tokens=21))
    same = replace(same, done_ns=round((7.0 + waited_s) * 1e9))
    ours = sum(end - begin for begin, end in over_objective(request, OBJECTIVES, 7.0 + waited_s))
    assert ours == pytest.approx(
        sum(end - begin for begin, end in over_objective_of_a_record(same, OBJECTIVES)), abs=10
    )


def test_the_worst_objective_decides() -> None:
    good, late, slow = _request(0.1, 0.01, 10), _request(1.0, 0.01, 10), _request(0.1, 0.1, 10)
    assert score([good] * 19, OBJECTIVES) == pytest.approx(0.2)
    assert score([good] * 8 + [late] * 2, OBJECTIVES) == pytest.approx(2.0)
    assert score([good] * 8 + [slow] * 2, OBJECTIVES) == pytest.approx(2.0)
    assert score([], OBJECTIVES) == math.inf
    assert spoilt(late, OBJECTIVES)
    assert spoilt(slow, OBJECTIVES)
    assert not spoilt(good, OBJECTIVES)
    assert not spoilt(_request(0.1, 9.0, 1), OBJECTIVES)  # one token has no time between tokens
