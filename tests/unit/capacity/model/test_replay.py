"""A step once more, on a twin."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from example_records import record, snapshot
from simulated_servers import CHAT, FAST, profile, promise, twin_of, workload

from probe.capacity.model.replay import SentRequest, UserArrivals, replay, replay_once
from probe.capacity.model.twin import Prediction, Twin
from probe.capacity.search.search_step import find_user_arrivals
from probe.core.percentiles import percentile
from probe.core.snapshot import Histogram, UserLoad
from probe.core.step import StepPlan, StepRun
from probe.core.workload import Workload
from probe.simulator.virtual_server import BackgroundTraffic, VirtualServer

pytestmark = pytest.mark.slow

USUAL = promise(0.5, 0.03)
NOBODY = BackgroundTraffic(0.0, CHAT)
TWIN = twin_of(profile(FAST), CHAT)


def again(
    twin: Twin, sent: list[SentRequest], live: BackgroundTraffic = NOBODY, user_arrivals: Sequence[UserArrivals] = ()
) -> Prediction:
    return replay(twin, sent, live, USUAL, settle_s=20.0, user_arrivals=user_arrivals)


def poisson(rate_rps: float, count: int, asked: Workload = CHAT, seed: int = 5) -> list[SentRequest]:
    server = VirtualServer(profile(FAST), seed=seed, users=BackgroundTraffic(rate_rps, asked))
    server.advance(count / rate_rps)
    return sorted(
        (SentRequest(v.arrival_s, v.prompt_tokens, v.output_tokens) for v in server.ended_requests),
        key=lambda s: s.at_s,
    )


def test_a_replay_is_what_the_server_of_that_cost_model_does_with_the_same_requests() -> None:
    sent = poisson(12.0, 400)
    server = VirtualServer(profile(FAST), seed=3)
    requests = [server.submit(s.at_s, s.prompt_tokens, s.output_tokens) for s in sent]
    server.advance(sent[-1].at_s + 60)
    found = again(TWIN, sent)
    assert found.ttft_p50_s == pytest.approx(percentile(sorted(v.ttft_s for v in requests), 0.5), rel=0.05)
    assert found.ttft_s == pytest.approx(percentile(sorted(v.ttft_s for v in requests), 0.95), rel=0.08)
    assert found.tpot_s == pytest.approx(percentile(sorted(v.tpot_s for v in requests), 0.95), rel=0.05)


def test_live_users_of_other_lengths_slow_a_replay_as_they_slow_the_server() -> None:
    heavy = workload(3000, 200, 0.3)
    sent = poisson(5.0, 200)
    server = VirtualServer(profile(FAST), seed=8, others=BackgroundTraffic(2.0, heavy))
    server.advance(30.0)
    requests = [server.submit(30.0 + s.at_s, s.prompt_tokens, s.output_tokens) for s in sent]
    server.advance(30.0 + sent[-1].at_s + 60)
    alone, beside = again(TWIN, sent), again(TWIN, sent, BackgroundTraffic(2.0, heavy))
    assert beside.ttft_p50_s > 1.3 * alone.ttft_p50_s
    assert beside.tpot_p50_s == pytest.approx(percentile(sorted(v.tpot_s for v in requests), 0.5), rel=0.15)


def test_a_chat_template_s_tokens_fit() -> None:
    """The server counts more than was asked for, and the workload is of fixed lengths."""
    twin = twin_of(profile(FAST), workload(256, 64, 0))
    found = again(twin, [SentRequest(i / 2, 268, 64) for i in range(6)])
    assert math.isfinite(found.ttft_s)


def test_a_replay_needs_requests_and_not_their_order() -> None:
    with pytest.raises(ValueError, match="nothing was sent"):
        again(TWIN, [])
    sent = poisson(5.0, 20)
    assert again(TWIN, sent[::-1]).tpot_s == pytest.approx(again(TWIN, sent).tpot_s, rel=0.05)


def test_only_judged_requests_count() -> None:
    assert again(TWIN, [SentRequest(0.0, 100, 50, judged=False)]).ttft_s == math.inf


def test_answers_that_outlast_the_drain_are_judged() -> None:
    """Else the slowest would be missing, and the rest look quick."""
    crawling = replace(TWIN, cost=replace(FAST, host_s=0.5), workload=workload(100, 600, 0))
    sent = [SentRequest(0.0, 100, 600), SentRequest(0.1, 100, 10)]
    assert replay(crawling, sent, NOBODY, USUAL, settle_s=900.0).tpot_p50_s == pytest.approx(0.5, rel=0.05)


def test_live_users_come_when_they_were_seen_to_come() -> None:
    """A hundred in one second, in the middle: probe requests that arrive then are slower, the ones before are not."""
    sent = poisson(5.0, 100)
    crowd = [UserArrivals(-5.0, 9.0, 0), UserArrivals(9.0, 10.0, 100), UserArrivals(10.0, 20.0, 0)]
    with_crowd, without = (
        replay_once(TWIN, sent, NOBODY, settle_s=5.0, user_arrivals=user_arrivals) for user_arrivals in (crowd, [])
    )
    begin_s = with_crowd.judged[0].arrival_s - sent[0].at_s
    for beside, alone in zip(with_crowd.judged, without.judged, strict=True):
        if beside.last_s < begin_s + 9.0:
            assert beside.tpot_s < 1.2 * alone.tpot_s
    then = [i for i, request in enumerate(with_crowd.judged) if 9.5 < request.arrival_s - begin_s < 11]
    assert all(with_crowd.judged[i].tpot_s > 1.3 * without.judged[i].tpot_s for i in then)
    assert then


def test_where_the_users_are_known_chance_moves_a_replay_less() -> None:
    sent, users = poisson(4.0, 80), BackgroundTraffic(8.0, CHAT)
    known = [UserArrivals(float(i), i + 1.0, 8) for i in range(-10, 25)]
    assert again(TWIN, sent, users, known).scatter["tpot_s"] < again(TWIN, sent, users).scatter["tpot_s"]


def test_metrics_read_before_the_users_had_settled_are_no_trouble() -> None:
    found = replay_once(
        TWIN,
        [SentRequest(0.0, 100, 20)],
        NOBODY,
        settle_s=1.0,
        user_arrivals=[UserArrivals(-40.0, -39.0, 3), UserArrivals(-39.0, 1.0, 0)],
    )
    assert found.judged[0].ended


@pytest.mark.parametrize("count", [math.nan, math.inf])
def test_a_counter_that_is_not_a_number_shows_no_users(count: float) -> None:
    run = StepRun(StepPlan(1, 1.0), (record(),), (0, 10**9), (), is_cut_short=False)
    seen = [
        replace(snapshot(histograms={"ttft": Histogram(((math.inf, total),), total)}), at_ns=at)
        for at, total in ((0, 1.0), (10**9, count))
    ]
    assert find_user_arrivals(run, seen, UserLoad()) == ()
