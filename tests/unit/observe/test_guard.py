"""Whether load may go on."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_records import poll

from probe.core import reasons
from probe.core.objectives import Objective, Objectives
from probe.core.request import Outcome
from probe.core.snapshot import Histogram, ServerSnapshot
from probe.observe.guard import (
    GO,
    GuardLimits,
    broken_for_certain,
    decide,
    may_start,
    page_fault,
    preemptions,
)

LIMITS = GuardLimits()
COUNTS = st.none() | st.floats(0, 50)
POLLS = st.builds(poll, waiting=COUNTS, running=COUNTS, preemptions=COUNTS, kv_cache_usage=st.none() | st.floats(0, 1))
FAILURES = st.lists(st.sampled_from([o for o in Outcome if o not in (Outcome.OK, Outcome.ABORTED)]), max_size=3)


def reason(*polls: ServerSnapshot | None, failures: tuple[Outcome, ...] = ()) -> str | None:
    verdict = decide(polls, failures, LIMITS)
    assert verdict.allows_load == (verdict.reason is None)
    return verdict.reason


def test_an_idle_server_may_be_loaded() -> None:
    assert may_start(poll(), LIMITS) == GO
    assert decide([], [], LIMITS) == GO
    assert reason(poll(), poll()) is None


@pytest.mark.parametrize("server", [None, poll(waiting=None)])
def test_a_blind_guard_lets_nothing_start(server: ServerSnapshot | None) -> None:
    assert may_start(server, LIMITS).reason == "no_server_metrics"


@pytest.mark.parametrize("server", [poll(waiting=1), poll(kv_cache_usage=0.96)])
def test_a_busy_server_gets_no_load(server: ServerSnapshot) -> None:
    verdict = may_start(server, LIMITS)
    assert (verdict.allows_load, verdict.reason) == (False, "busy")
    assert verdict.detail


@pytest.mark.parametrize("outcome", [o for o in Outcome if o not in (Outcome.OK, Outcome.ABORTED)])
def test_any_failed_probe_request_stops_the_load(outcome: Outcome) -> None:
    assert reason(poll(), failures=(outcome,)) in ("server_errors", "rate_limited", "failed_requests")
    assert reason(failures=(outcome,)) is not None


def test_a_refusal_by_rate_is_no_server_error() -> None:
    assert reason(poll(), failures=(Outcome.REJECTED, Outcome.SERVER_ERROR)) == "rate_limited"
    assert reason(poll(), failures=(Outcome.SERVER_ERROR, Outcome.REJECTED)) == "server_errors"


def test_a_single_rejection_stops_the_load_and_a_failure_beside_it_names_the_stop() -> None:
    assert decide([poll()], (), LIMITS, rejected=1).reason == "rejections"
    assert decide([], (), LIMITS, rejected=1).reason == "rejections", "without a page too"
    assert decide([poll()], (Outcome.SERVER_ERROR,), LIMITS, rejected=9).reason == "server_errors"
    assert reasons.is_overload("rejections")
    assert not reasons.is_precaution("rejections"), "users may have got it"


@pytest.mark.parametrize(
    ("counted", "verdict"),
    [
        ((7.0, 7.0), None),
        ((7.0, 8.0), "rejections"),
        ((None, 8.0), None),
        ((7.0, None, 8.0), "rejections"),
        ((None, None), None),
    ],
)
def test_rejections_of_users_stop_the_load(counted: tuple[float | None, ...], verdict: str | None) -> None:
    assert reason(*(poll(rejections=count) for count in counted)) == verdict


def _page(at_s: float, requests: float) -> ServerSnapshot:
    """Return a page of a server that counts finished requests."""
    return replace(poll(), at_ns=int(at_s * 1e9), finished={"stop": requests}, histograms={})


def _fault(answered_ns: Sequence[int], pages: Sequence[ServerSnapshot]) -> str | None:
    fault = page_fault(answered_ns, pages)
    return fault.word if fault is not None else None


@pytest.mark.parametrize(
    ("counted", "last_s", "fault"),
    [
        (0, 16.0, "other_server"),
        (1, 16.0, "other_server"),
        (4, 16.0, "several_servers"),  # one of ten replicas
        (20, 16.0, "several_servers"),
        (30, 16.0, None),
        (40, 16.0, None),
        (900, 16.0, None),  # users too
        (0, 14.9, None),  # it may be exported every few seconds
    ],
)
@pytest.mark.fault("D03")
def test_a_page_that_does_not_count_forty_requests_is_another_server_s_or_one_of_several(
    counted: int, last_s: float, fault: str | None
) -> None:
    answered = [10 * 10**9] * 40
    pages = [_page(5.0, 1000.0), _page(last_s, 1000.0 + counted)]
    assert _fault(answered, pages) == fault


@pytest.mark.parametrize(
    ("counted", "fault"), [(50, "several_servers"), (51, "several_servers"), (53, None), (60, None)]
)
@pytest.mark.fault("TR18")
def test_of_two_replicas_that_are_read_a_third_one_shows(counted: int, fault: str | None) -> None:
    def pages(at_s: float, requests: float) -> ServerSnapshot:
        return replace(_page(at_s, requests), replicas={"one": _page(at_s, requests), "other": _page(at_s, 0.0)})

    snapshots = [pages(5.0, 1000.0), pages(16.0, 1000.0 + counted)]
    assert _fault([10 * 10**9] * 63, snapshots) == fault
    assert page_fault([10 * 10**9] * 39, snapshots) is None, "too few requests to tell"


def test_few_requests_and_a_page_without_counters_say_nothing_of_the_server() -> None:
    pages = [_page(5.0, 0.0), _page(60.0, 0.0)]
    assert not page_fault([10 * 10**9] * 19, pages)
    assert not page_fault([10 * 10**9] * 99, [replace(page, finished={}) for page in pages])
    assert _fault([10 * 10**9] * 99, pages) == "other_server"
    late = [replace(page, delay_s=60.0) for page in pages]
    assert not page_fault([10 * 10**9] * 99, late), "such a page counts them later"
    assert not page_fault([], pages)
    assert not page_fault([1], [])


def test_one_missed_poll_is_forgiven_and_two_are_not() -> None:
    assert reason(poll(), None) is None
    assert reason(poll(), None, None) == "server_unreadable"
    assert reason(None, None) == "server_unreadable"
    assert reason(None, None, poll()) is None


def test_preemptions_stop_the_load_at_once() -> None:
    assert reason(poll(preemptions=100), poll(preemptions=102)) is None
    assert reason(poll(preemptions=100), poll(preemptions=103)) == "preemptions"


def test_preemptions_are_counted_across_a_restart_of_the_server() -> None:
    """The counter starts again at zero; what it counts after that is ours."""
    assert preemptions([poll(preemptions=100), poll(preemptions=0), poll(preemptions=50)]) == 50


def test_preemptions_are_seen_when_the_first_poll_did_not_show_them() -> None:
    assert reason(poll(preemptions=None), poll(preemptions=5), poll(preemptions=50)) == "preemptions"


def test_a_queue_has_to_stand() -> None:
    queued = poll(waiting=5)
    assert reason(queued, queued) is None
    assert reason(queued, poll(waiting=4), queued, queued) is None
    assert reason(queued, queued, queued) == "queue"


def test_a_queue_that_cannot_be_seen_any_more_is_not_an_empty_one() -> None:
    """Without its queue a server could not have been loaded to begin with."""
    hidden = poll(waiting=None)
    assert reason(poll(), hidden, hidden, hidden) == "server_unreadable"


def test_the_kv_cache_may_swing() -> None:
    """Usage falls while requests are pushed out, so the high polls need not be neighbours."""
    full, half = poll(kv_cache_usage=0.99), poll(kv_cache_usage=0.8)
    assert reason(full, half, half, half) is None
    assert reason(full, half, half, half, full) == "kv_cache"
    assert reason(full, half, half, half, half, full) is None


def test_the_worst_sign_is_named() -> None:
    worst = poll(waiting=50, kv_cache_usage=1.0, preemptions=50)
    assert reason(poll(), worst, worst, worst) == "preemptions"


@given(st.lists(st.none() | POLLS, max_size=8), FAILURES)
def test_any_history_has_one_verdict_in_words(polls: list[ServerSnapshot | None], failures: list[Outcome]) -> None:
    verdict = decide(polls, failures, LIMITS)
    assert verdict.allows_load == (verdict.reason is None) == (verdict.detail is None)
    assert not (failures and verdict.allows_load)


def _one_server(polls: list[ServerSnapshot]) -> list[ServerSnapshot]:
    """Return the same with a counter that never falls."""
    most = list(accumulate((poll.preemptions or 0.0 for poll in polls), max))
    return [replace(poll, preemptions=count) for poll, count in zip(polls, most, strict=True)]


@given(st.lists(POLLS, min_size=1, max_size=8), st.floats(0, 20), st.floats(0, 20), st.floats(0, 1))
def test_a_worse_server_never_gets_a_better_verdict(
    polls: list[ServerSnapshot], preemptions: float, waiting: float, kv: float
) -> None:
    polls = _one_server(polls)
    worse = [
        replace(
            p,
            preemptions=None if p.preemptions is None else p.preemptions + preemptions * i,
            waiting=None if p.waiting is None else p.waiting + waiting,
            kv_cache_usage=None if p.kv_cache_usage is None else min(p.kv_cache_usage + kv, 1.0),
        )
        for i, p in enumerate(polls)
    ]
    assert decide(polls, [], LIMITS).allows_load or not decide(worse, [], LIMITS).allows_load
    assert may_start(polls[0], LIMITS).allows_load or not may_start(worse[0], LIMITS).allows_load


@given(st.lists(st.none() | POLLS, max_size=8), FAILURES, st.integers(1, 5))
def test_stricter_limits_never_give_a_better_verdict(
    polls: list[ServerSnapshot | None], failures: list[Outcome], by: int
) -> None:
    strict = GuardLimits(preemptions=LIMITS.preemptions / by, waiting=LIMITS.waiting / by, kv_cache_usage=0.95 / by)
    assert decide(polls, failures, LIMITS).allows_load or not decide(polls, failures, strict).allows_load


# What users see.

INF = float("inf")
PROMISED = replace(LIMITS, ttft=Objective(0.95, 0.5), tpot=Objective(0.95, 0.05))


def _latencies(slow: float = 0, quick: float = 0, gaps: float = 0, gap_s: float = 0.01) -> ServerSnapshot:
    """A poll: so many first tokens after more than 1 s and within 0.5 s so far; so many gaps, each so long."""
    ttft = Histogram(((0.5, quick), (1.0, quick), (2.5, quick + slow), (INF, quick + slow)), 0.0)
    itl = Histogram(((0.1, gaps), (INF, gaps)), gaps * gap_s)
    return poll(histograms={"ttft": ttft, "itl": itl})


def _judged(
    *polls: ServerSnapshot | None, limits: GuardLimits = PROMISED, unanswered_s: Sequence[float] = ()
) -> str | None:
    return decide(polls, (), limits, unanswered_s).reason


@pytest.mark.parametrize(
    ("slow", "quick", "verdict"),
    [(3, 0, "users_latency"), (3, 40, "users_latency"), (2, 0, None), (3, 58, None), (4, 57, "users_latency")],
)
def test_first_tokens_over_twice_the_objective_stop_the_load(slow: float, quick: float, verdict: str | None) -> None:
    """Three at least, and more than may miss the objective itself."""
    assert _judged(_latencies(), _latencies(slow, quick)) == verdict


def test_only_the_last_polls_count_towards_latencies() -> None:
    before = [_latencies(2), _latencies(4)]
    assert _judged(*before) is None
    assert _judged(_latencies(0), *before) == "users_latency"
    assert _judged(_latencies(0), *[_latencies(4)] * PROMISED.latency_polls) is None


@pytest.mark.parametrize(
    ("slow", "quick", "verdict"), [(20, 80, None), (21, 80, "users_latency"), (3, 0, "users_latency")]
)
def test_users_who_always_wait_long_are_no_reason_unless_it_gets_worse(
    slow: float, quick: float, verdict: str | None
) -> None:
    """Before the load one of ten waited so long, of 200: long prompts. Twice that is more than usual."""
    assert _judged(_latencies(20, 180), _latencies(20 + slow, 180 + quick)) == verdict


def test_what_is_usual_is_what_was_before_any_load_of_the_run() -> None:
    """A search outlives an overload, in which 90 of 150 first tokens were late. Three of ten are no more usual then."""
    before = _latencies(0, 300)
    after, then = _latencies(90, 360), _latencies(99, 381)
    assert decide([after, then], (), PROMISED, before=before).reason == "users_latency"
    assert decide([after, then], (), PROMISED).reason is None, "the first poll is taken for it where there is no other"


def test_few_samples_do_not_show_what_a_server_usually_does() -> None:
    assert _judged(_latencies(199, 0), _latencies(202, 0)) == "users_latency"


@pytest.mark.parametrize(("gaps", "gap_s", "verdict"), [(20, 0.11, "users_latency"), (20, 0.1, None), (19, 9.0, None)])
def test_a_mean_gap_over_twice_the_objective_stops_the_load(gaps: float, gap_s: float, verdict: str | None) -> None:
    assert _judged(_latencies(), _latencies(gaps=gaps, gap_s=gap_s)) == verdict


def test_an_objective_between_two_bounds_is_judged_by_the_upper_one() -> None:
    """Nothing that may have been within twice the objective is held against the server."""
    limits = replace(PROMISED, ttft=Objective(0.95, 0.6))  # 1.2 s lies between 1.0 and 2.5
    assert _judged(_latencies(), _latencies(slow=50), limits=limits) is None
    assert _judged(_latencies(), _latencies(slow=50), limits=replace(PROMISED, ttft=Objective(0.95, 9.0))) is None


def test_without_an_objective_or_a_histogram_no_latency_is_judged() -> None:
    bad = _latencies(50, gaps=50, gap_s=9.0)
    assert _judged(_latencies(), bad, limits=LIMITS, unanswered_s=[99.0] * 5) is None
    assert _judged(poll(), poll()) is None
    assert _judged(poll(), bad) is None


def test_a_probe_request_without_a_first_token_stops_the_load() -> None:
    assert _judged(poll(), unanswered_s=[0.2, 1.0, 1.0, 1.0]) is None
    assert _judged(poll(), unanswered_s=[1.01, 0.2, 1.01, 1.01]) == "no_first_token"
    assert _judged(unanswered_s=[1.01] * 3) == "no_first_token"
    assert _judged(unanswered_s=[1.5, 1.5]) is None, "two long prompts"
    assert _judged(unanswered_s=[2.0]) is None
    assert _judged(unanswered_s=[2.01]) == "no_first_token"


def test_at_a_known_rate_more_may_wait_and_still_be_in_time() -> None:
    queued = [poll(waiting=9.0)] * 3
    assert _judged(*queued) == "queue"
    assert _judged(*queued, limits=PROMISED.offered(18.0)) is None
    assert _judged(*queued, limits=PROMISED.offered(16.0)) == "queue"
    assert _judged(*queued, limits=LIMITS.offered(1000.0)) == "queue", "no objective says how long they may wait"


# Another server.


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"prompt_tokens": 10.0}, {"prompt_tokens": 9.0}),
        ({"generation_tokens": 10.0}, {"generation_tokens": 0.0}),
        ({"preemptions": 1.0}, {"preemptions": 0.0}),
        ({"finished": {"length": 5.0}}, {"finished": {"length": 4.0}}),
        ({"version": "0.31"}, {"version": "0.32"}),
    ],
)
def test_a_counter_that_fell_or_another_version_is_another_server(
    before: dict[str, object], after: dict[str, object]
) -> None:
    assert reason(poll(**before), poll(**after)) == "server_restarted"
    assert reason(poll(**before), None, poll(**after)) == "server_restarted"
    assert reason(poll(**after)) is None


def test_a_replica_that_came_or_went_is_no_restart() -> None:
    one, other = {"one": poll(version="0.32")}, {"other": poll(version="0.32")}
    for before, after in ((one, one | other), (one | other, one), (one, other)):
        assert reason(poll(replicas=before), poll(replicas=after)) == "replicas_changed"
    assert reason(poll(replicas=one), poll(replicas={"one": poll(version="0.31")})) == "server_restarted"
    assert reason(poll(replicas=one), poll(replicas=one)) is None


def test_a_histogram_that_lost_observations_is_another_server() -> None:
    assert _judged(_latencies(quick=9), _latencies(quick=3)) == "server_restarted"


def test_missing_values_are_no_sign_of_a_restart() -> None:
    assert reason(poll(version="0.31"), poll(version="unknown"), poll(version="0.31")) is None
    assert reason(poll(prompt_tokens=10.0), poll(prompt_tokens=None)) is None
    assert reason(poll(finished={"length": 5.0}), poll(finished={"abort": 1.0})) is None


@given(st.lists(st.none() | POLLS, max_size=8), FAILURES, st.lists(st.floats(0, 5), max_size=5))
def test_every_reason_is_one_that_is_counted(
    polls: list[ServerSnapshot | None], failures: list[Outcome], unanswered_s: list[float]
) -> None:
    verdict = decide(polls, failures, PROMISED, unanswered_s)
    assert verdict.allows_load or reasons.find(reasons.TRIPS, verdict.reason) is not None


@pytest.mark.parametrize(
    ("missed", "planned", "broken"),
    [(0, 100, None), (10, 100, None), (11, 100, "ttft"), (4, 20, None), (5, 20, "ttft")],
)
def test_an_objective_is_broken_for_certain_by_more_than_may_miss_it_and_chance(
    missed: int, planned: float, broken: str | None
) -> None:
    """Of 100 a twentieth may be late, and two standard deviations more: 5 + 4.5 + 1."""
    objectives = Objectives("o", ttft=Objective(0.95, 0.5), tpot=Objective(0.9, 0.05))
    assert broken_for_certain({"ttft": missed, "availability": 100}, planned, objectives) == broken


@pytest.mark.fault(
    "LO24",
    "A server falls asleep under load",
    area="Load",
    users_see="the guard ends the load",
    stays="-",
)
def test_a_server_that_falls_asleep_ends_the_load_whatever_fails_with_it() -> None:
    assert reason(poll(), poll(is_asleep=True), failures=(Outcome.BROKEN_STREAM,)) == "asleep"
    assert reason(poll(is_asleep=True), poll(is_asleep=False)) is None
    assert may_start(poll(is_asleep=True), GuardLimits()).reason == "asleep"
    assert may_start(poll(is_asleep=False), GuardLimits()).allows_load
