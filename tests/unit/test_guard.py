"""Whether load may go on."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import poll

from probe.guard import GO, GuardLimits, decide, may_start
from probe.records import Outcome, ServerSnapshot

LIMITS = GuardLimits()
COUNTS = st.none() | st.floats(0, 50)
POLLS = st.builds(poll, waiting=COUNTS, running=COUNTS, preemptions=COUNTS, kv_cache_usage=st.none() | st.floats(0, 1))
FAILURES = st.lists(st.sampled_from([o for o in Outcome if o not in (Outcome.OK, Outcome.ABORTED)]), max_size=3)


def reason(*polls: ServerSnapshot | None, failures: tuple[Outcome, ...] = ()) -> str | None:
    verdict = decide(polls, failures, LIMITS)
    assert verdict.go == (verdict.reason is None)
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
    assert (verdict.go, verdict.reason) == (False, "busy")
    assert verdict.detail


@pytest.mark.parametrize("outcome", [o for o in Outcome if o not in (Outcome.OK, Outcome.ABORTED)])
def test_any_failure_of_ours_stops_the_load(outcome: Outcome) -> None:
    assert reason(poll(), failures=(outcome,)) in ("server_errors", "failed_requests")
    assert reason(failures=(outcome,)) is not None


def test_one_missed_poll_is_forgiven_and_two_are_not() -> None:
    assert reason(poll(), None) is None
    assert reason(poll(), None, None) == "server_unreadable"
    assert reason(None, None) == "server_unreadable"
    assert reason(None, None, poll()) is None


def test_preemptions_stop_the_load_at_once() -> None:
    assert reason(poll(preemptions=100), poll(preemptions=102)) is None
    assert reason(poll(preemptions=100), poll(preemptions=103)) == "preemptions"


def test_preemptions_are_seen_across_a_restart_of_the_server() -> None:
    """The counter starts again at zero; what it counts after that is ours."""
    assert reason(poll(preemptions=100), poll(preemptions=0), poll(preemptions=50)) == "preemptions"


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
    assert verdict.go == (verdict.reason is None) == (verdict.detail is None)
    assert not (failures and verdict.go)


@given(st.lists(POLLS, min_size=1, max_size=8), st.floats(0, 20), st.floats(0, 20), st.floats(0, 1))
def test_a_worse_server_never_gets_a_better_verdict(
    polls: list[ServerSnapshot], preemptions: float, waiting: float, kv: float
) -> None:
    worse = [
        replace(
            p,
            preemptions=None if p.preemptions is None else p.preemptions + preemptions * i,
            waiting=None if p.waiting is None else p.waiting + waiting,
            kv_cache_usage=None if p.kv_cache_usage is None else min(p.kv_cache_usage + kv, 1.0),
        )
        for i, p in enumerate(polls)
    ]
    assert decide(polls, [], LIMITS).go or not decide(worse, [], LIMITS).go
    assert may_start(polls[0], LIMITS).go or not may_start(worse[0], LIMITS).go


@given(st.lists(st.none() | POLLS, max_size=8), FAILURES, st.integers(1, 5))
def test_stricter_limits_never_give_a_better_verdict(
    polls: list[ServerSnapshot | None], failures: list[Outcome], by: int
) -> None:
    strict = GuardLimits(preemptions=LIMITS.preemptions / by, waiting=LIMITS.waiting / by, kv_cache_usage=0.95 / by)
    assert decide(polls, failures, LIMITS).go or not decide(polls, failures, strict).go
