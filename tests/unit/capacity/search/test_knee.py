"""The knee of a series of fixed steps."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_records import step as plain_step
from property_examples import examples

from probe.capacity.search.fixed_steps import FixedSteps
from probe.capacity.search.knee import find_knee
from probe.core import reasons
from probe.core.reasons import Reason
from probe.core.result import Capacity, Stopped
from probe.core.snapshot import UserLoad
from probe.core.step import (
    Arrivals,
    Distribution,
    Pattern,
    RequestCounts,
    StepPlan,
    StepRun,
    StepSummary,
    TrafficBeside,
)


def step(*args: Any, **values: Any) -> StepSummary:
    """Return a step of a server without users."""
    return replace(plain_step(*args, **values), users=UserLoad(0.0, 0.0))


_SHORT = (
    "judged by a step of 15 s, in which the longest queues have no time to grow: the capacity may be up to a"
    " tenth lower"
)
_CLOSED = "measured in a closed loop, which sends a request only after an answer: bursts of arrivals are not in it"
DONE = Stopped("done")
GUARD = Stopped("guard", "queue")
STEPS = st.lists(
    st.builds(
        step,
        concurrency=st.integers(1, 64),
        throughput_rps=st.floats(0.01, 1000),
        broken=st.sampled_from([(), (), ("ttft",), ("availability", "ttft")]),
        reason=st.sampled_from([None, None, None, "too_few_requests", "client_bound", "cut_short"]),
    ),
    max_size=8,
)
STOPS = st.sampled_from([DONE, GUARD, Stopped("budget", "tokens_per_run"), Stopped("interrupt"), Stopped("error", "x")])


def _said(found: Capacity) -> str:
    return f"{found.reason}; {found.advice}"


def test_the_highest_step_that_held() -> None:
    found = find_knee([step(1, 1.0), step(2, 1.9), step(4, 3.0), step(8, 3.2, ["ttft"])], DONE)
    assert found == Capacity(
        mode="empirical",
        requests_per_second=3.0,
        lower=3.0,
        upper=3.2,
        output_tokens_per_second=384.0,
        knee_concurrency=4,
        limiting="ttft",
        reason=f"{_SHORT}; {_CLOSED}",
    )


def test_a_collapse_bounds_by_concurrency() -> None:
    """The broken step did less than the one that held: the knee may be anywhere up to twice the load."""
    assert find_knee([step(4, 3.0), step(8, 1.0, ["ttft"])], DONE).upper == 6.0


def test_nothing_broke_is_a_lower_bound_that_says_so() -> None:
    found = find_knee([step(1, 1.0), step(2, 2.0)], DONE)
    assert (found.requests_per_second, found.upper, found.limiting) == (2.0, None, None)
    assert found.knee_concurrency is None  # there is none
    assert "at least" in str(found.reason)


def test_a_step_that_the_guard_stopped_bounds_nothing_and_is_named() -> None:
    """It was not judged: the guard stops a load before an objective is broken."""
    found = find_knee([step(1, 1.0), step(2, 2.0), step(4, 0.5, reason="cut_short")], GUARD)
    assert (found.requests_per_second, found.upper, found.limiting, found.knee_concurrency) == (
        2.0,
        None,
        "queue",
        None,
    )
    assert "the guard stopped concurrency 4 before it could be judged (queue)" in str(found.reason)


def _lasting(seconds: float, one: StepSummary) -> StepSummary:
    return replace(one, seconds=seconds)


def test_the_longer_step_of_a_load_decides() -> None:
    """Queues near the knee grow for minutes: a short step may hold what a long one does not."""
    short = [_at(1, 1.0), _at(2, 2.0), _at(3, 3.0), _at(4, 4.0, ["ttft"])]
    confirmed = find_knee([*short, _lasting(180.0, _at(3, 3.1))], DONE)
    assert (confirmed.requests_per_second, confirmed.upper, confirmed.reason) == (3.1, 4.0, None)
    broken = find_knee([*short, _lasting(180.0, _at(3, 3.0, ["ttft"])), _lasting(180.0, _at(2, 2.1))], DONE)
    assert (broken.requests_per_second, broken.upper, broken.reason) == (2.1, 3.0, None)
    cut = find_knee([*short, _lasting(180.0, _at(3, 3.0, reason="cut_short"))], Stopped("budget", "tokens_per_run"))
    assert (cut.requests_per_second, cut.upper) == (3.0, 4.0)
    assert "up to a tenth lower" in str(cut.reason)


def test_a_thousand_requests_are_enough_to_judge_a_knee_by() -> None:
    many = [_at(100, 100.0), _at(200, 150.0, ["ttft"])]
    assert find_knee(many, DONE).reason is None


def test_a_closed_loop_says_that_it_is_one() -> None:
    run = [_lasting(200.0, step(4, 4.0)), step(8, 5.0, ["ttft"])]
    assert find_knee(run, DONE).reason == _CLOSED
    rates = [_lasting(200.0, _at(4, 4.0)), _at(8, 5.0, ["ttft"])]
    assert find_knee(rates, DONE).reason is None


@pytest.mark.parametrize(
    "stopped",
    [
        Stopped("budget", "tokens_per_run"),
        Stopped("interrupt"),
        Stopped("error"),
        Stopped("guard", "server_errors"),
        Stopped("guard", "failed_requests"),
    ],
)
def test_a_step_cut_short_for_another_reason_bounds_nothing(stopped: Stopped) -> None:
    found = find_knee([step(1, 1.0), step(2, 0.1, reason="cut_short")], stopped)
    assert (found.requests_per_second, found.upper, found.limiting) == (1.0, None, None)


@pytest.mark.parametrize("reason", ["too_few_requests", "client_bound"])
def test_no_knee_from_an_invalid_step(reason: str) -> None:
    assert find_knee([step(1, 1.0), step(2, 9.0, reason=reason)], DONE).requests_per_second == 1.0
    found = find_knee([step(1, 1.0, reason=reason)], DONE)
    assert found.requests_per_second is None
    assert reason in str(found.reason)


@pytest.mark.fault("LO80")
def test_a_late_step_that_held_is_the_knee_at_the_load_that_was_sent() -> None:
    on_time, broke = _at(8, 8.0), _at(10, 9.0, ["ttft"])
    late = replace(_at(9, 8.9), is_late=True, offered_rps=8.7)
    found = find_knee([on_time, late, broke], DONE)
    assert (found.requests_per_second, found.lower, found.upper) == (8.7, 8.7, 10.0)
    assert found.output_tokens_per_second == pytest.approx(8.7 * 128)
    assert "this machine was late in the step that held" in str(found.reason)
    fewer = replace(late, offered_rps=7.0)
    assert find_knee([on_time, fewer, broke], DONE).requests_per_second == 8.0
    assert find_knee([on_time, replace(late, valid=False, reason="client_bound")], DONE).requests_per_second == 8.0


def test_a_late_step_that_was_over_an_objective_for_long_bounds_nothing() -> None:
    over, stopped = _at(20, 10.0, reason="cut_short"), Stopped("budget", "over_objective_seconds")
    assert find_knee([_at(10, 10.0), over], stopped).upper == 20.0
    assert find_knee([_at(10, 10.0), replace(over, is_late=True)], stopped).upper is None


def test_no_step_at_all_says_why() -> None:
    assert "queue" in str(find_knee([], GUARD).reason)
    assert find_knee([], DONE).requests_per_second is None


def test_already_broken_at_the_lowest_step() -> None:
    found = find_knee([step(1, 1.0, ["ttft"]), step(2, 1.0, ["ttft"])], DONE)
    assert (found.requests_per_second, found.limiting) == (None, "ttft")
    assert "concurrency 1" in str(found.reason)


@pytest.mark.parametrize(
    "steps",
    [
        [step(1, 1.0, reason="too_few_requests"), step(2, 1.0, ["ttft"])],
        [step(4, 1.0, ["ttft"]), step(2, 1.0, ["ttft"])],
    ],
)
def test_the_step_that_broke_is_the_one_that_is_named(steps: list[StepSummary]) -> None:
    assert "concurrency 2" in str(find_knee(steps, DONE).reason)


def test_a_broken_step_below_the_knee_is_said() -> None:
    found = find_knee([step(1, 1.0), step(2, 1.0, ["ttft"]), step(4, 3.0)], DONE)
    assert found.requests_per_second == 3.0
    assert "not monotone" in str(found.reason)


def test_two_steps_of_one_concurrency_that_disagree_are_said() -> None:
    found = find_knee([step(1, 1.0), step(4, 3.0), step(4, 2.9, ["ttft"])], DONE)
    assert "no step broke" not in str(found.reason)


def test_a_step_in_which_nothing_was_served_is_no_capacity() -> None:
    """Without an availability objective nothing counts as broken where everything failed."""
    dead = step(8, 0.0, good_ratio={"availability": 0.0, "all": 0.0})
    assert find_knee([step(1, 1.0), dead], DONE).requests_per_second == 1.0
    assert find_knee([dead], DONE).requests_per_second is None


@pytest.mark.parametrize(
    ("steps", "stopped", "words"),
    [
        (
            [step(8, reason="cut_short")],
            Stopped("guard", "preemptions"),
            "first step (preemptions): the knee is below 8 requests in flight; begin lower, e.g. --concurrency 1,2,4",
        ),
        ([step(1, reason="cut_short")], Stopped("guard", "queue"), "one request in flight is too much already"),
        (
            [step(8, reason="cut_short")],
            Stopped("guard", "server_errors"),
            "first step (server_errors): requests got",
        ),
        (
            [step(1, reason="too_few_requests"), step(4, reason="cut_short")],
            Stopped("guard", "kv_cache"),
            "the guard stopped the step at concurrency 4 (kv_cache): the knee is below 4",
        ),
        ([], Stopped("guard", "server_errors"), "before its first step (server_errors): requests got HTTP 5xx"),
        (
            [],
            Stopped("guard", "queue"),
            "before its first step (queue): the server does not keep up; retry when the server is idle",
        ),
        ([step(1, reason="client_bound")], GUARD, "before a step could be judged (queue)"),
        ([step(8, 1.0, ["ttft"])], DONE, "already broke ttft: the knee is below 8 requests in flight; begin lower"),
        ([step(12, 1.0, ["ttft"])], DONE, "--concurrency 1,2,4,8"),
        ([step(1, 1.0, ["ttft"])], DONE, "one request in flight is too much already"),
        (
            [step(1, reason="client_bound")],
            DONE,
            "(client_bound); use a quieter machine, more --workers or a looser objective",
        ),
        ([step(1, reason="too_few_requests")], DONE, "in a step (too_few_requests); give it more"),
        ([step(1, reason="too_few_requests"), step(2, 1.0, ["ttft"])], DONE, "fewer than 20 requests"),
        ([step(1, reason="cut_short")], Stopped("budget", "seconds"), "raise --max-seconds"),
        ([], Stopped("interrupt", "signal"), "the run was interrupted (signal); let the next one finish"),
        ([step(1, reason="new_reason")], DONE, "(new_reason)"),
        ([step(8, 0.0)], DONE, "no request was answered at concurrency 8"),
        (
            [replace(step(1, 0.0, ["availability"]), requests=RequestCounts(ok=0, failed=20, aborted=0))],
            DONE,
            "no request was answered at concurrency 1; the first failure says why",
        ),
        ([], DONE, "no step was complete"),
    ],
)
def test_no_knee_says_what_it_means_and_what_to_do(steps: list[StepSummary], stopped: Stopped, words: str) -> None:
    assert words in _said(find_knee(steps, stopped))


@pytest.mark.parametrize(
    ("above", "stopped", "words"),
    [
        ([], DONE, "; raise --concurrency to find the knee"),
        ([step(4, reason="client_bound")], DONE, "at least this; this machine was too late"),
        (
            [step(4, reason="cut_short")],
            Stopped("budget", "tokens_per_run"),
            "this; the run's tokens were spent",
        ),
        ([], GUARD, "at least this; the guard ended the run (queue)"),
    ],
)
def test_a_lower_bound_says_how_to_find_the_knee(above: list[StepSummary], stopped: Stopped, words: str) -> None:
    said = _said(find_knee([step(1, 1.0), step(2, 2.0), *above], stopped))
    assert words in said
    assert ("raise --concurrency" in said) == (stopped == DONE and not above)


@examples(60)
@given(STEPS, STOPS)
def test_invariants_of_any_run(steps: list[StepSummary], stopped: Stopped) -> None:
    found = find_knee(steps, stopped)
    held = [s for s in steps if s.valid and not s.broken]
    assert (found.requests_per_second is None) == (not held)
    if found.requests_per_second is None:
        assert found.reason
        assert (found.lower, found.upper, found.knee_concurrency) == (None, None, None)
        return
    best = max(s.plan.concurrency for s in held)
    broke = any(s.broken and s.valid and s.plan.concurrency > best for s in steps)
    assert found.knee_concurrency == (best if broke else None)
    assert found.requests_per_second <= max(s.throughput_rps for s in held)
    assert found.lower == found.requests_per_second
    assert found.upper is None or found.upper >= found.requests_per_second
    assert found.upper is not None or found.reason is not None


@given(STEPS, STOPS)
def test_the_order_of_steps_does_not_matter(steps: list[StepSummary], stopped: Stopped) -> None:
    distinct = list({s.plan.concurrency: s for s in steps}.values())
    one, other = find_knee(distinct, stopped), find_knee(distinct[::-1], stopped)
    assert (one.requests_per_second, one.upper, one.limiting) == (
        other.requests_per_second,
        other.upper,
        other.limiting,
    )


@pytest.mark.parametrize("reason", ["no_first_token", "users_latency"])
def test_latencies_that_stopped_a_step_are_named_and_bound_nothing(reason: str) -> None:
    found = find_knee([step(4, 4.0), step(8, 5.0, reason="cut_short")], Stopped("guard", reason))
    assert (found.requests_per_second, found.upper, found.limiting) == (4.0, None, reason)
    first = find_knee([step(8, 5.0, reason="cut_short")], Stopped("guard", reason))
    assert "begin lower" in str(first.advice)


def test_a_server_that_restarted_has_no_knee() -> None:
    """The steps before and after would be of two servers."""
    found = find_knee([step(4, 4.0), step(8, 5.0, ["ttft"])], Stopped("guard", "server_restarted"))
    row = reasons.SERVER_RESTARTED
    assert found == Capacity(mode="empirical", reason=row.explained, advice=row.advice)


@pytest.mark.parametrize("steps", [[], [step(8, reason="cut_short")]])
@pytest.mark.parametrize("trip", [row for row in reasons.TRIPS if not row.is_overload], ids=lambda row: row.word)
def test_a_stop_that_is_no_overload_says_why_and_what_to_do_about_it(trip: Reason, steps: list[StepSummary]) -> None:
    found = find_knee(steps, Stopped("guard", trip.word))
    assert trip.why in str(found.reason)
    assert found.advice == trip.advice


def test_a_run_that_watched_another_server_has_no_knee() -> None:
    found = find_knee([step(4, 4.0), step(8, 5.0)], Stopped("guard", "other_server"))
    assert found.requests_per_second is None
    assert "it is another server's and guards nothing (other_server); set metrics_url" in _said(found)


@pytest.mark.parametrize("steps", [[], [step(8, reason="cut_short")]])
def test_a_rate_limit_is_no_knee_and_says_what_to_raise(steps: list[StepSummary]) -> None:
    found = find_knee(steps, Stopped("guard", "rate_limited"))
    assert (found.requests_per_second, found.limiting) == (None, None)
    assert "HTTP 429, which is a rate limit or a full queue, and no knee; raise the limit" in _said(found)


def test_steps_that_were_held_back_have_no_knee_and_say_what_to_change() -> None:
    found = find_knee([step(4, reason="held_back")], Stopped("done"))
    assert found.requests_per_second is None
    assert "proxy_buffering off" in str(found.advice)


# Open loop, and live traffic.


def _at(rate_rps: float, throughput_rps: float, broken: Sequence[str] = (), reason: str | None = None) -> StepSummary:
    plan = StepPlan(512, 15.0, loop="open", arrivals=Arrivals(rate_rps=rate_rps))
    return replace(step(1, throughput_rps, broken, reason), plan=plan)


def _among(users_rps: float, one: StepSummary) -> StepSummary:
    return replace(one, users=UserLoad(users_rps, 100 * users_rps))


def _unknown(one: StepSummary) -> StepSummary:
    return replace(one, users=UserLoad())


def test_the_knee_of_rates_is_a_rate_bounded_by_what_was_offered() -> None:
    """In the broken step the server did less than it was asked for; what it did bounds nothing."""
    found = find_knee([_at(1, 1.0), _at(2.5, 2.4), _at(5, 2.9, ["ttft"])], DONE)
    assert (found.requests_per_second, found.lower, found.upper) == (2.4, 2.4, 5.0)
    assert (found.knee_concurrency, found.limiting, found.reason) == (None, "ttft", _SHORT)


def test_by_chance_a_broken_rate_may_have_been_offered_more_than_planned() -> None:
    found = find_knee([_at(2, 2.0), _at(4, 4.6, ["ttft"])], DONE)
    assert found.upper == 4.6
    assert find_knee([_at(2, 2.6), _at(2.2, 1.0, ["tpot"])], DONE).upper == 2.6


def test_a_rate_that_was_over_an_objective_for_too_long_bounds_by_what_was_planned() -> None:
    over = Stopped("budget", "over_objective_seconds")
    found = find_knee([_at(2, 2.0), _at(4, 0.1, reason="cut_short")], over)
    assert (found.requests_per_second, found.upper) == (2.0, 4.0)
    assert find_knee([_at(2, 2.0), _at(4, 0.1, reason="cut_short")], GUARD).upper is None


@pytest.mark.parametrize(
    ("steps", "stopped", "words"),
    [
        ([_at(1, 1.0), _at(2, 2.0)], DONE, "raise --rates to find the knee"),
        (
            [_at(8, 1.0, ["ttft"])],
            DONE,
            "8 requests/s, already broke ttft: the knee is below 8 requests/s; begin lower",
        ),
        ([_at(8, 1.0, ["ttft"])], DONE, "--rates 1,2,4"),
        ([_at(0.5, 0.2, reason="cut_short")], GUARD, "--rates 0.0625,0.125,0.25"),
        ([_at(1, 1.0, ["ttft"]), _at(2, 2.0)], DONE, "not monotone: 1 requests/s broke"),
        ([_at(2, 0.0)], DONE, "no request was answered at 2 requests/s"),
    ],
)
def test_reasons_speak_of_rates(steps: list[StepSummary], stopped: Stopped, words: str) -> None:
    assert words in _said(find_knee(steps, stopped))


def test_users_requests_are_part_of_the_capacity() -> None:
    """The same server, measured at a busy hour and at a calm one, has one capacity."""
    busy = find_knee([_among(6.0, step(4, 4.0)), _among(6.0, step(8, 5.0, ["ttft"]))], DONE)
    calm = find_knee([_among(0.0, step(8, 10.0)), _among(0.0, step(16, 11.0, ["ttft"]))], DONE)
    for found in (busy, calm):
        assert (found.requests_per_second, found.lower, found.upper) == (10.0, 10.0, 11.0)
    assert busy.output_tokens_per_second == 4 * 128 + 600
    rates = find_knee([_among(6.0, _at(4, 4.0)), _among(6.0, _at(8, 5.0, ["ttft"]))], DONE)
    assert (rates.requests_per_second, rates.upper) == (10.0, 14.0)


def test_where_the_users_are_unknown_the_capacity_is_a_lower_bound() -> None:
    """Users may have sent any number of requests beside the step that held."""
    for steps in ([plain_step(4, 4.0), step(8, 5.0, ["ttft"])], [_unknown(_at(4, 4.0)), _at(8, 5.0, ["ttft"])]):
        found = find_knee(steps, DONE)
        assert (found.requests_per_second, found.lower, found.upper, found.limiting) == (4.0, 4.0, None, "ttft")
        assert "user traffic is unknown" in str(found.reason)


@pytest.mark.parametrize("stopped", [DONE, GUARD])
def test_users_that_cancelled_requests_hide_are_those_of_the_step_that_held(stopped: Stopped) -> None:
    closed = find_knee([_among(6.0, step(4, 4.0)), _unknown(step(8, 5.0, ["ttft"]))], stopped)
    assert (closed.requests_per_second, closed.upper) == (10.0, 11.0)
    rates = find_knee([_among(6.0, _at(4, 4.0)), _unknown(_at(8, 5.0, ["ttft"]))], stopped)
    assert (rates.requests_per_second, rates.upper) == (10.0, 14.0)


def test_users_that_were_gone_in_the_step_above_are_not_those_of_the_step_that_held() -> None:
    assert find_knee([_among(1.0, _at(4, 4.0)), _among(0.0, _at(8, 5.0, ["ttft"]))], DONE).upper == 8.0


@given(st.lists(st.tuples(st.floats(0.1, 100), st.floats(0.01, 100), st.booleans()), max_size=8), STOPS)
def test_invariants_of_rates(steps: list[tuple[float, float, bool]], stopped: Stopped) -> None:
    run = [_at(rate, done, ["ttft"] if broke else ()) for rate, done, broke in steps]
    found = find_knee(run, stopped)
    assert (found.requests_per_second is None) == all(broke for *_, broke in steps)
    if found.requests_per_second is not None:
        assert found.knee_concurrency is None
        assert found.upper is None or found.upper >= found.requests_per_second


RATES = [StepPlan(512, 15.0, loop="open", arrivals=Arrivals(rate_rps=rate)) for rate in (1.0, 2.0, 3.0, 4.0)]


def _summary(plan: StepPlan, *, breaks: bool, seconds: float) -> StepSummary:
    found = plain_step(1, plan.load, ["ttft"] if breaks else [])
    return replace(found, plan=plan, seconds=seconds, users=UserLoad(0.0, 0.0))


def _run(plan: FixedSteps, breaks: Iterable[tuple[float, float]]) -> list[StepSummary]:
    """Take all steps. `breaks`: loads that break in a step of at least so many seconds."""
    limits, taken = dict(breaks), []
    while (one := plan.next_step()) is not None:
        seconds = one.seconds if one.requests is None else one.requests / one.load
        taken.append(_summary(one, breaks=seconds >= limits.get(one.load, 1e9), seconds=seconds))
        plan.step_finished(taken[-1], StepRun(one, (), (0, 1), (), is_cut_short=False), (), None)
    return taken


def _loads(taken: Iterable[StepSummary]) -> list[tuple[float, float]]:
    return [(step.plan.load, step.seconds) for step in taken]


def test_the_highest_load_that_held_is_repeated_for_longer() -> None:
    plan = FixedSteps(RATES, confirm_s=180.0)
    taken = _run(plan, [(3.0, 0.0)])
    assert _loads(taken) == [(1.0, 15.0), (2.0, 15.0), (3.0, 15.0), (2.0, 180.0)]
    found = plan.capacity(taken, Stopped("done"))
    assert (found.requests_per_second, found.upper, found.reason) == (2.0, 3.0, None)
    assert plan.end_reason() == "3 requests/s broke ttft"


def test_where_it_breaks_now_the_next_lower_one_is_repeated() -> None:
    plan = FixedSteps(RATES, confirm_s=180.0)
    taken = _run(plan, [(4.0, 0.0), (3.0, 100.0)])
    assert _loads(taken)[-3:] == [(4.0, 15.0), (3.0, 180.0), (2.0, 180.0)]
    assert plan.capacity(taken, Stopped("done")).upper == 3.0
    assert plan.end_reason() == "4 requests/s broke ttft"


def test_a_load_that_nothing_broke_at_is_repeated_too() -> None:
    assert _loads(_run(FixedSteps(RATES, confirm_s=180.0), []))[-1] == (4.0, 180.0)


def test_a_thousand_requests_are_enough() -> None:
    fast = [replace(RATES[0], arrivals=Arrivals(rate_rps=rate)) for rate in (20.0, 40.0, 200.0)]
    assert _loads(_run(FixedSteps(fast, confirm_s=180.0), [(200.0, 0.0)]))[-1] == (40.0, 25.0)
    assert _loads(_run(FixedSteps(fast, confirm_s=180.0), []))[-1] == (200.0, 15.0)


def test_steps_of_a_number_of_requests_are_repeated_with_more() -> None:
    few = [replace(plan, requests=20) for plan in RATES[:2]]
    taken = _run(FixedSteps(few, confirm_s=180.0), [])
    assert [step.plan.requests for step in taken] == [20, 20, 360]


def test_nothing_is_repeated_that_lasted_as_long() -> None:
    assert len(_run(FixedSteps(RATES), [])) == len(RATES)
    assert len(_run(FixedSteps(RATES, confirm_s=15.0), [])) == len(RATES)


def test_nothing_is_repeated_where_nothing_held() -> None:
    assert _loads(_run(FixedSteps(RATES, confirm_s=180.0), [(1.0, 0.0)])) == [(1.0, 15.0)]


@pytest.mark.fault(
    "CO64",
    "Fixed steps that are shorter than an answer",
    area="Configuration",
    users_see="steps as long as an unloaded answer, and so long that 20 are answered once a step is extended",
    stays="steps that are longer are as asked for",
)
def test_a_timed_step_is_at_least_as_long_as_an_answer() -> None:
    closed = StepPlan(4, 15.0, warm_up_s=3.0)
    rising = StepPlan(512, 15.0, loop="open", warm_up_s=3.0, arrivals=Arrivals(Pattern.RISING, 2.0, ramp_s=3.0))
    replayed = StepPlan(512, 15.0, loop="open", arrivals=Arrivals(Pattern.REPLAY, 2.0, times_s=(0.0, 1.0)))
    counted, long = replace(closed, requests=8), replace(closed, seconds=90.0, warm_up_s=18.0)
    plans = FixedSteps([closed, rising, replayed, counted, long])
    answer = replace(plain_step(1, 1.0, []), e2e_s=Distribution(max=80.0), ttft_s=Distribution(max=20.0))
    plans.observe_idle((), answer, TrafficBeside())
    assert plans.next_step() == replace(closed, seconds=120.0, warm_up_s=24.0), "three times that are 24 answers"
    assert plans.next_step() == replace(
        rising, seconds=60.0, warm_up_s=12.0, arrivals=Arrivals(Pattern.RISING, 2.0, ramp_s=12.0)
    )
    assert [plans.next_step() for _ in range(3)] == [replayed, counted, long]
    many = FixedSteps([replace(closed, concurrency=64)])
    many.observe_idle((), answer, TrafficBeside())
    assert many.next_step() == replace(closed, concurrency=64, seconds=60.0, warm_up_s=12.0)


def test_a_load_that_broke_with_fewer_users_than_in_the_step_that_held_is_no_upper_bound() -> None:
    """Together they were 20 requests/s in the step that held, and 12 in the one that broke."""
    held = replace(_at(10.0, 10.0), users=UserLoad(10.0))
    broke = replace(_at(12.0, 12.0, ["ttft"]), users=UserLoad(0.0))
    found = find_knee([held, broke], Stopped("done"))
    assert (found.lower, found.upper) == (20.0, None)
    assert "not monotone: 12 requests/s broke an objective" in str(found.reason)
