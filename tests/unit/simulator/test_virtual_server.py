"""The server in virtual time: what is conserved, and what is counted. What queueing theory says of it: tests/slow."""

import math
import time
from dataclasses import replace
from statistics import fmean, pvariance

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from probe.core.percentiles import percentile
from probe.core.request import Api
from probe.core.snapshot import Histogram
from probe.core.workload import LognormalLength, Workload
from probe.mock_server.profiles import PROFILES
from probe.simulator.clocks import FrontEndThread
from probe.simulator.cost import Batch, FrontEnd, Jitter, Profile, StepCost
from probe.simulator.simulated_request import SimulatedRequest
from probe.simulator.virtual_server import BackgroundTraffic, VirtualServer

pytestmark = pytest.mark.slow

CHAT = Workload("t", Api.COMPLETIONS, LognormalLength(200, 0.5, 1200), LognormalLength(60, 0.5, 360))
BUSY = PROFILES["8b-a100"]
TIGHT = replace(BUSY, num_blocks=121, max_model_len=1600, max_num_seqs=16)  # preempts
STREAM = replace(BUSY, front_end=FrontEnd(0.004, 0.0, 2e-4))
STEADY = replace(BUSY, jitter=Jitter())
# Hiccups that never come: no step is skipped, and nothing else is changed.
STEP_BY_STEP = Jitter(noise_ratio=0.03, hiccup_every_s=1e12)

servers = st.builds(
    VirtualServer,
    st.sampled_from((BUSY, TIGHT, STREAM, PROFILES["rough"], replace(BUSY, prefix_caching=True))),
    seed=st.integers(0, 5),
    users=st.sampled_from(
        (None, BackgroundTraffic(4.0, CHAT), BackgroundTraffic(4.0, replace(CHAT, shared_tokens=100)))
    ),
    shares=st.sampled_from(((1.0,), (0.7, 0.3))),
    accepted_tokens=st.sampled_from((0.0, 1.3)),
)
lengths = st.tuples(st.integers(1, 1000), st.integers(1, 300))
stories = st.lists(
    st.tuples(st.floats(0, 2), st.lists(lengths, max_size=4), st.integers(0, 3)),  # wait, submit, abort so many
    min_size=1,
    max_size=12,
)


class Story:
    """A server to which something happens, and every probe request."""

    def __init__(self, server: VirtualServer) -> None:
        self.server = server
        self.ended_requests: list[SimulatedRequest] = []
        self.aborted: list[SimulatedRequest] = []

    def tell(self, story: list[tuple[float, list[tuple[int, int]], int]]) -> None:
        for wait_s, asked, aborts in story:
            now_s = self.server.now_s
            self.ended_requests += [self.server.submit(now_s + wait_s / 2, *lengths) for lengths in asked]
            self.server.advance(now_s + wait_s)
            open_ = [request for request in self.ended_requests if not request.ended]
            for request in open_[:: len(open_) // aborts + 1] if aborts else []:
                self.server.abort(request)
                self.aborted.append(request)

    def drain(self) -> None:
        if self.server._users:
            self.server.set_users(0.0)
        for _ in range(400):
            self.server.advance(self.server.now_s + 1.0)
        assert self.server.in_flight() == (0, 0)


def _count(histogram: Histogram) -> float:
    return histogram.buckets[-1][1]


@given(servers, stories)
@examples(60)
def test_every_requests_ends_and_the_counters_are_their_sums(
    server: VirtualServer, story: list[tuple[float, list[tuple[int, int]], int]]
) -> None:
    reported = Story(server)
    reported.tell(story)
    reported.drain()
    done, page = server.ended_requests, server.snapshot()
    users = [request for request in done if not request.is_probe]
    assert len(done) - len(users) + len(reported.aborted) == len(reported.ended_requests)
    assert not set(map(id, done)) & set(map(id, reported.aborted))
    for request in done:
        assert request.arrival_s <= request.entered_s <= request.scheduled_s < request.made_first_s <= request.first_s
        assert request.made_first_s <= request.made_last_s <= request.last_s
        assert (request.made_first_s == request.made_last_s) == (request.steps == 1)
        times = request.token_times_s()
        assert len(times) == request.steps
        assert times == sorted(times)
        assert (times[0], times[-1]) == (request.first_s, request.last_s)
    for replica in server._replicas:
        assert replica.engine.free_blocks == server.profile.usable_blocks
        assert replica._tokens_a_step == pytest.approx(0.0, abs=1e-9)
    if reported.aborted:
        return  # what they got before is in some counters, as in vLLM's
    h = page.histograms
    assert page.finished == {"length": len(done)}
    assert page.prompt_tokens == sum(request.prompt_tokens for request in done)
    assert page.generation_tokens == pytest.approx(sum(request.output_tokens for request in done))
    assert page.preemptions == sum(request.preemptions for request in done)
    assert page.prefix_cache_hits == sum(request.found_tokens for request in done)
    assert _count(h["itl"]) == sum(request.steps - 1 for request in done)
    assert h["itl"].sum == pytest.approx(sum(request.made_last_s - request.made_first_s for request in done))
    assert h["queue"].sum == pytest.approx(sum(request.scheduled_s - request.entered_s for request in done))
    assert h["prefill"].sum == pytest.approx(sum(request.made_first_s - request.scheduled_s for request in done))
    assert h["iteration_tokens"].sum == pytest.approx(
        sum(request.prompt_tokens - request.found_tokens + request.output_tokens for request in done)
    )
    for name in ("ttft", "tpot", "e2e", "prompt_length", "output_length"):
        assert _count(h[name]) == len(done)


@pytest.mark.parametrize("profile", [BUSY, TIGHT, STREAM, PROFILES["rough"]], ids=lambda profile: profile.name)
def test_the_same_seed_gives_the_same_and_another_another(profile: Profile) -> None:
    def run(seed: int, slices: int) -> tuple[list[float], object]:
        server = VirtualServer(
            profile, seed=seed, users=BackgroundTraffic(3.0, CHAT), shares=(0.5, 0.5), accepted_tokens=0.5
        )
        for i in range(1, slices + 1):
            server.advance(30.0 * i / slices)
        return sorted(request.last_s for request in server.ended_requests), server.snapshot()

    assert run(1, 10) == run(1, 10)
    assert run(1, 10) != run(2, 10)


def test_skipping_steps_changes_nothing_but_the_noise() -> None:
    def run(jitter: Jitter) -> VirtualServer:
        server = VirtualServer(replace(BUSY, jitter=jitter), seed=3, users=BackgroundTraffic(3.0, CHAT))
        server.advance(600.0)
        return server

    skipping, stepping = run(Jitter(noise_ratio=0.03)), run(STEP_BY_STEP)
    assert len(skipping.ended_requests) == pytest.approx(len(stepping.ended_requests), abs=3)
    for of in (lambda request: request.ttft_s, lambda request: request.tpot_s):
        ours, theirs = (sorted(map(of, server.ended_requests)) for server in (skipping, stepping))
        assert fmean(ours) == pytest.approx(fmean(theirs), rel=0.02)
        assert percentile(ours, 0.95) == pytest.approx(percentile(theirs, 0.95), rel=0.03)
    ours, theirs = (server.snapshot().histograms["itl"] for server in (skipping, stepping))
    assert ours.sum / _count(ours) == pytest.approx(theirs.sum / _count(theirs), rel=0.01)


def test_without_noise_a_skip_takes_what_its_steps_take() -> None:
    def run(jitter: Jitter) -> SimulatedRequest:
        server = VirtualServer(replace(BUSY, jitter=jitter))
        request = server.submit(0.0, 300, 400)
        server.advance(60.0)
        return request

    skipping, stepping = run(Jitter()), run(Jitter(hiccup_every_s=1e12))
    assert skipping.first_s == stepping.first_s
    assert skipping.last_s == pytest.approx(stepping.last_s, rel=1e-4)


def test_a_skip_does_not_pass_a_request_that_the_front_end_holds() -> None:
    server = VirtualServer(replace(STEADY, front_end=FrontEnd(per_request_s=0.5)))
    server.submit(0.0, 100, 2000)
    server.advance(1.0)
    late = server.submit(1.0, 100, 10)
    server.advance(20.0)
    assert late.entered_s == 1.5
    assert late.scheduled_s == pytest.approx(1.5, abs=0.03)


def test_time_does_not_go_back() -> None:
    server = VirtualServer(BUSY)
    server.advance(5.0)
    with pytest.raises(ValueError, match="it is 5 s already"):
        server.submit(4.0, 10, 10)
    with pytest.raises(ValueError, match="it is 5 s already"):
        server.advance(4.0)


def test_a_request_that_the_server_would_refuse_is_refused() -> None:
    with pytest.raises(ValueError, match="at most"):
        VirtualServer(TIGHT).submit(0.0, 1600, 1)


@pytest.mark.parametrize("at_s", [0.0, 0.1, 0.3, 0.305, 0.33, 1.0, 9.0])
def test_an_abort_at_any_moment_frees_everything_and_gives_nothing_more(at_s: float) -> None:
    """Before it arrives, in the front end, waiting, in its prompt, decoding, and when it has ended."""
    server = VirtualServer(replace(STEADY, max_num_seqs=2, front_end=FrontEnd(0.2, 0.0, 0.001)))
    requests = [server.submit(0.1, 4000, 100) for _ in range(4)]
    server.advance(at_s)
    had = [request.token_times_s() for request in requests]
    for request in requests:
        server.abort(request)
        server.abort(request)
    assert server.in_flight() == (0, 0)
    assert all(replica.engine.free_blocks == BUSY.usable_blocks for replica in server._replicas)
    ended = len(server.ended_requests)
    other = server.submit(server.now_s, 10, 10)
    server.advance(server.now_s + 10.0)
    assert server.ended_requests[ended:] == [other]
    assert [request.token_times_s() for request in requests] == had


def test_users_come_at_their_rate_and_at_the_new_one_at_once() -> None:
    server = VirtualServer(BUSY, users=BackgroundTraffic(0.001, CHAT))
    server.advance(10.0)
    for rate_rps in (8.0, 0.0, 2.0):
        before, from_s = server._count, server.now_s
        server.set_users(rate_rps)
        server.advance(from_s + 500.0)
        user_arrivals = server._count - before - (rate_rps > 0)  # one is always expected
        assert user_arrivals == pytest.approx(500 * rate_rps, abs=4 * math.sqrt(500 * rate_rps))
    server.advance(server.now_s + 30.0)
    arrivals = sorted(request.arrival_s for request in server.ended_requests)
    assert not [at_s for at_s in arrivals if 510.0 < at_s < 1010.0]


def test_a_server_without_users_has_no_rate_to_change() -> None:
    with pytest.raises(ValueError, match="has no users"):
        VirtualServer(BUSY).set_users(1.0)


def test_speculation_gives_the_same_tokens_in_fewer_steps() -> None:
    plain, fewer = (VirtualServer(STEADY, users=BackgroundTraffic(1.0, CHAT), accepted_tokens=a) for a in (0.0, 1.5))
    for server in (plain, fewer):
        server.advance(300.0)
    ratio = fmean(v.tpot_s for v in fewer.ended_requests) / fmean(v.tpot_s for v in plain.ended_requests)
    assert 1 / 2.5 < ratio < 1 / 1.7
    pages = [server.snapshot().histograms["itl"] for server in (plain, fewer)]
    assert pages[1].sum / _count(pages[1]) == pytest.approx(pages[0].sum / _count(pages[0]), rel=0.05)


def test_the_front_end_delays_in_order_and_only_clients_see_it() -> None:
    server = VirtualServer(replace(STEADY, front_end=FrontEnd(per_request_s=0.1, per_prompt_token_s=0.001)))
    requests = [server.submit(1.0, prompt, 5) for prompt in (100, 300, 50)]
    server.advance(1.05)
    assert server.in_flight() == (0, 3)
    assert server.snapshot().waiting == 0, "the engine does not know of them yet"
    server.advance(10.0)
    assert [request.entered_s for request in requests] == pytest.approx([1.2, 1.6, 1.75])
    ttft = server.snapshot().histograms["ttft"]
    assert ttft.sum == pytest.approx(sum(request.ttft_s for request in requests) - (0.2 + 0.6 + 0.75))


def test_slow_handing_out_shows_at_the_client_and_not_in_the_engines_times() -> None:
    """vLLM takes inter-token latencies from the engine's own stamps; its TTFT ends when the front end turns to it."""
    server = VirtualServer(replace(STEADY, front_end=FrontEnd(per_output_token_s=0.005)))
    requests = [server.submit(0.0, 100, 50) for _ in range(10)]  # 50 ms to hand out, 13 to 14 ms to make
    server.advance(1.5)
    assert not server.ended_requests, "all made, but not out"
    assert server.snapshot().finished == {"length": 10.0}
    assert all(not math.isnan(request.first_s) and math.isnan(request.last_s) for request in requests)
    server.advance(10.0)
    assert fmean(request.tpot_s for request in requests) == pytest.approx(0.05, rel=0.01)
    itl = server.snapshot().histograms["itl"]
    assert itl.sum / _count(itl) == pytest.approx(STEADY.cost.step_seconds(Batch(10, 10, 1250)), rel=0.05)


def test_engines_behind_one_front_end_hand_out_in_the_order_of_their_steps() -> None:
    """However long the stretches are in which each is moved on."""

    def run(slices: int) -> list[list[float]]:
        server = VirtualServer(replace(BUSY, front_end=FrontEnd(per_output_token_s=0.001)), shares=(0.5, 0.5))
        for i in range(10):
            server.submit(0.01 * i, 200, 100)
        for i in range(1, slices + 1):
            server.advance(5.0 * i / slices)
        return [list(replica.times_s) for replica in server._replicas]

    assert run(1) == run(500)


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 1000), st.booleans()), max_size=30))
def test_the_front_end_does_one_thing_after_the_other(given_: list[tuple[float, int, bool]]) -> None:
    costs = FrontEnd(0.01, 1e-4, 1e-3)
    front, now_s, free_s, worked_s = FrontEndThread(costs), 0.0, 0.0, 0.0
    for wait_s, tokens, request in given_:
        now_s += wait_s
        cost_s = costs.request_seconds(tokens) if request else costs.per_output_token_s * tokens
        done_s = front.pass_on(now_s, tokens) if request else front.hand_out(now_s, tokens)
        worked_s += cost_s
        assert done_s >= now_s + cost_s
        assert not cost_s or done_s == pytest.approx(max(now_s, free_s) + cost_s)
        free_s = done_s if cost_s else free_s
        assert worked_s <= front.free_at_s + 1e-9


def test_a_thousand_requests_cost_little_more_each_than_ten_at_once() -> None:
    """The scheduler's own work, as a ratio: a hundred times the requests are far from a hundred times the work."""

    def step_s(requests: int) -> float:
        profile = Profile("t", "", StepCost(0.001, 0, 0), 1024, 16, 100_001, 2048, 1600)
        server = VirtualServer(replace(profile, jitter=Jitter(hiccup_every_s=1e12)))
        for _ in range(requests):
            server.submit(0.0, 10, 1500)
        server.advance(0.1)
        begun = time.perf_counter()
        server.advance(0.6)
        return time.perf_counter() - begun

    assert min(step_s(1000) for _ in range(3)) < 20 * min(step_s(10) for _ in range(3))


@pytest.mark.parametrize(("ahead", "first_s"), [(False, 0.28), (True, 0.30)])
def test_a_request_that_finds_the_engine_busy_waits_for_a_planned_step(*, ahead: bool, first_s: float) -> None:
    """Steps of 20 ms and no noise: the second request comes within one, and is scheduled when the next one begins."""
    cost = StepCost(host_s=0.02, per_sequence_s=0.0, per_token_s=0.0)
    server = VirtualServer(replace(STEADY, cost=cost, front_end=FrontEnd(), plans_ahead=ahead))
    first, second = server.submit(0.0, 100, 50), server.submit(0.25, 100, 50)
    alone = server.submit(5.0, 100, 50)
    server.advance(10.0)
    assert (first.ttft_s, alone.ttft_s) == pytest.approx((0.02, 0.02))
    assert second.scheduled_s == pytest.approx(0.26)
    assert second.first_s == pytest.approx(first_s)
    assert [one.e2e_s - one.ttft_s for one in (first, second)] == pytest.approx([0.98, 0.98])


def test_mirrored_users_come_late_where_the_others_come_early() -> None:
    """Each is a Poisson process: counts have a variance of their mean. The mean of both varies a third as much."""
    asked = Workload("t", Api.COMPLETIONS, 10, 1)

    def counted(seed: int, *, is_mirrored: bool) -> float:
        server = VirtualServer(STEADY, seed=seed, users=BackgroundTraffic(10.0, asked, is_mirrored=is_mirrored))
        server.advance(5.0)
        return server.snapshot().histograms["ttft"].count

    pairs = [(counted(seed, is_mirrored=False), counted(seed + 1, is_mirrored=True)) for seed in range(0, 200, 2)]
    for of in zip(*pairs, strict=True):
        assert fmean(of) == pytest.approx(50, rel=0.03)
        assert pvariance(of) == pytest.approx(50, rel=0.4)
    assert pvariance([sum(pair) / 2 for pair in pairs]) < 50 / 2 / 2
