"""The search's rules: where it goes, when it ends, and what it publishes. Whole searches on servers of known capacity
are in benchmarks/capacity, and one of them in tests/slow/test_search_virtual.py.
"""

import itertools
from dataclasses import replace
from typing import Any

import pytest
from example_records import CHAT, snapshot, step
from plain_records import record
from simulated_servers import CHAT as _LENGTHS
from simulated_servers import FAST, profile, promise, twin_of, workload

from probe.capacity.model.bottleneck import Bottleneck
from probe.capacity.model.hints import Hints
from probe.capacity.model.twin import Twin
from probe.capacity.model.windows import MetricsWindow
from probe.capacity.search.knee_estimate import KneeEstimate
from probe.capacity.search.live_users import LiveUsers
from probe.capacity.search.pulses import pulse_plan
from probe.capacity.search.search import Search
from probe.capacity.search.search_state import Guess
from probe.capacity.search.search_step import is_steady, sent_requests
from probe.capacity.search.verdict import find_doubt, overloaded_steps
from probe.core.reasons import FAILED_REQUESTS, SERVER_RESTARTED, SERVER_UNREADABLE
from probe.core.result import Stopped
from probe.core.step import Distribution, RequestCounts, StepPlan, StepRun, StepSummary, TrafficBeside

DONE = Stopped("done")


def _run(search: Search, summary: StepSummary, tripped: str | None = None) -> StepPlan:
    """Run one step that the search asks for on a server without metrics. Return its outcome."""
    plan = search.next_step()
    assert plan is not None
    assert plan.arrivals is not None
    user_arrivals = replace(summary, offered_rps=plan.arrivals.rate_rps)
    begin_ns = len(search.state.steps) * 40 * 10**9
    window = begin_ns, begin_ns + 30 * 10**9
    search.step_finished(user_arrivals, StepRun(plan, (), window, (), is_cut_short=tripped is not None), [], tripped)
    return plan


def _search(forecast_rps: float | None = None) -> Search:
    """Return a search with a model that predicts this, whatever is measured."""
    search = Search(_LENGTHS, CHAT, explain=False)
    # Without a gap between tokens there is no guess, which would take a second.
    baseline = replace(step(), e2e_s=replace(step().e2e_s, mean=2.0), itl_s=Distribution())
    search.observe_idle([snapshot(), snapshot()], baseline, TrafficBeside())
    if forecast_rps is not None:
        _says(search, forecast_rps)
    return search


def _says(search: Search, rate_rps: float, limits: Bottleneck | None = None, *, half: float = 0.1) -> None:
    search.state.forecast_rps = rate_rps
    knee = KneeEstimate(rate_rps, ((1 - half) * rate_rps, (1 + half) * rate_rps), "ttft", 4.0, limits)
    search._estimate_knee = lambda **_: knee  # type: ignore[assignment]
    search._knee = None


def test_without_live_traffic_it_begins_with_about_one_request_in_flight_and_rises() -> None:
    search = _search()
    rates = [_run(search, step()).arrivals.rate_rps for _ in range(4)]  # type: ignore[union-attr]
    assert rates[0] * 2.0 <= 1
    assert rates == sorted(rates)
    assert max(b / a for a, b in itertools.pairwise(rates)) < 2


def _answered_alone(tpot_s: float) -> Search:
    """Return a search whose first request took 25 ms to its first token and 20 ms for each other."""
    search = Search(workload(100, 20, 0), promise(5.0, tpot_s), explain=False)
    ttft, gap, e2e = Distribution(max=0.025), Distribution(p50=0.020), Distribution(mean=0.405)
    baseline = replace(step(), ttft_s=ttft, itl_s=gap, e2e_s=e2e, plan=pulse_plan(1))
    search.observe_idle([snapshot(), snapshot()], baseline, TrafficBeside())
    search.state.make_guess = lambda: Guess(30.0, 9.0)  # type: ignore[method-assign]
    return search


def test_where_no_pulse_is_safe_it_begins_at_a_third_of_what_the_unloaded_baseline_allows() -> None:
    assert _run(_answered_alone(tpot_s=0.027), step()).load == pytest.approx(10.0)


def test_after_a_pulse_that_failed_it_begins_with_about_one_request_in_flight() -> None:
    search = _answered_alone(tpot_s=0.1)
    pulse = search.next_step()
    assert pulse is not None
    assert pulse.is_pulse
    failed = replace(step(reason="cut_short"), plan=pulse, ttft_s=Distribution())
    search.step_finished(failed, StepRun(pulse, (), (0, 1), (), is_cut_short=True), [], "queue")
    assert _run(search, step()).load == pytest.approx(0.7 / 0.405)


def test_after_a_guess_that_was_far_too_high_it_goes_down_until_one_request_runs() -> None:
    search = _answered_alone(tpot_s=0.027)
    tried = [_run(search, step(reason="cut_short"), tripped="queue").load for _ in range(3)]
    assert tried == pytest.approx([10.0, 5.0, 2.5])
    assert search.next_step() is None, "at 2.5 requests/s one request of 0.4 s runs"


@pytest.mark.fault(
    "TR14",
    "A server without the metrics that a forecast needs",
    area="Truth",
    users_see="no capacity: not enough evidence",
    stays="-",
)
def test_it_also_ends_on_a_server_without_metrics_and_says_so() -> None:
    search = _search()
    for _ in range(20):
        if search.next_step() is None:
            break
        _run(search, step())
    assert search.next_step() is None
    found = search.capacity([step()], DONE)
    assert found.requests_per_second is None
    assert "not enough evidence" in (found.reason or "")


def test_users_who_come_meanwhile_and_leave_no_room_end_it() -> None:
    search = _search(10.0)
    assert search.next_step() is not None
    _run(search, step())
    search.state.users = LiveUsers(100.0, 10.0)
    assert search.next_step() is None


def test_two_overloads_end_it_and_after_the_first_it_asks_for_less() -> None:
    search = _search()
    tried = [_run(search, step(reason="cut_short"), tripped="queue") for _ in range(2)]
    first, second = (plan.arrivals.rate_rps for plan in tried if plan.arrivals)
    assert 0 < second < first
    assert search.next_step() is None


@pytest.mark.fault(
    "R18",
    "a server hangs at every load that a search tries",
    area="Truth",
    users_see="no capacity; the guard's reason and the lowest load it stopped",
    stays="-",
)
def test_a_server_that_hangs_at_every_load_is_said_to() -> None:
    search = _search()
    hung = step(reason="cut_short")
    tried = [_run(search, hung, tripped="no_first_token").arrivals for _ in range(2)]
    found = search.capacity([hung, hung], DONE)
    assert (found.requests_per_second, found.limiting) == (None, "no_first_token")
    least = min(arrivals.rate_rps for arrivals in tried if arrivals)
    words = f"the guard stopped every load that was tried, also {least:.3g} requests/s (no_first_token)"
    assert found.reason == words
    assert "when the server is idle" in str(found.advice)


@pytest.mark.parametrize(("reason", "tries"), [("client_bound", 3), ("worker_lost", 1)])
def test_steps_that_our_own_side_spoilt_end_it_without_a_figure(reason: str, tries: int) -> None:
    """A moment in which this machine was late may pass, so the load is tried again, twice."""
    search = _search()
    spoilt = step(reason=reason)
    tried = [_run(search, spoilt).load for _ in range(tries)]
    assert tried == [pytest.approx(tried[0])] * tries
    assert search.next_step() is None
    found = search.capacity([spoilt], DONE)
    assert found.requests_per_second is None
    assert reason in (found.reason or "")


def test_what_was_found_before_this_machine_was_late_is_reported() -> None:
    search = _search(10.0)
    search.state.model.max_num_seqs = 8
    _run(search, step())
    late = [step(reason="client_bound")] * 3
    for each in late:
        _run(search, each)
    assert search.next_step() is None
    found = search.capacity([step(), *late], DONE)
    assert (found.mode, found.requests_per_second) == ("forecast", 10.0)
    assert "3 steps were not judged: this machine was too late (client_bound)" in str(found.reason)


@pytest.mark.fault("LO80")
def test_a_late_step_that_held_counts_by_what_was_sent_and_teaches_no_latency() -> None:
    search = _search(10.0)
    _run(search, step())
    plan = search.next_step()
    assert plan is not None
    own = plan.load
    summary = replace(step(), is_late=True, plan=plan, offered_rps=0.96 * own)
    search.step_finished(summary, StepRun(plan, (), (0, 30 * 10**9), (), is_cut_short=False), [], None)
    late = search.state.steps[-1]
    assert (late.has_held, late.is_informative, late.load_rps) == (True, False, pytest.approx(0.96 * own))
    following = search.next_step()
    assert following is not None
    assert following.load > own, "it is not repeated"
    few = replace(summary, valid=False, reason="too_few_requests")
    search.step_finished(few, StepRun(plan, (), (0, 30 * 10**9), (), is_cut_short=False), [], None)
    assert search.state.steps.pop().load_rps == pytest.approx(0.96 * own)
    search.state.steps[-1] = replace(late, summary=replace(summary, valid=False, reason="client_bound"))
    again = search.next_step()
    assert again is not None
    assert again.load == pytest.approx(late.load_rps)


def test_no_interval_lies_below_a_load_that_held() -> None:
    """Three late steps held 9.5 requests/s, which the model then says are too many: at most 9.0."""
    search = _search(10.0)
    search.state.model.max_num_seqs = 8
    for _ in range(2):
        _run(search, step())
    plan = search.next_step()
    assert plan is not None
    late = replace(step(), is_late=True, offered_rps=plan.load)
    search.step_finished(late, StepRun(plan, (), (0, 30 * 10**9), (), is_cut_short=False), [], None)
    search.state.worst_objective_ratio = lambda _: 0.9  # type: ignore[method-assign]
    _says(search, 0.9 * plan.load)
    once = search.capacity([step()], DONE)
    assert once.upper == pytest.approx(0.99 * plan.load), "it may have been too short for its queue to fill"
    search.step_finished(late, StepRun(plan, (), (0, 30 * 10**9), (), is_cut_short=False), [], None)
    _says(search, 0.9 * plan.load)
    found = search.capacity([step()], DONE)
    assert found.mode == "forecast"
    assert found.requests_per_second == pytest.approx(0.9 * plan.load)
    assert found.upper == pytest.approx(1.035 * plan.load)
    _says(search, 0.9 * plan.load, half=0.99)
    assert search.capacity([step()], DONE).lower == pytest.approx(0.83 * plan.load)


@pytest.mark.parametrize("stopped", [Stopped("guard", SERVER_RESTARTED.word), Stopped("error", "worker_lost")])
def test_a_run_that_broke_publishes_nothing(stopped: Stopped) -> None:
    search = _search(10.0)
    found = search.capacity([step()], stopped)
    assert (found.requests_per_second, found.mode) == (None, "forecast")


def test_a_load_that_breaks_far_below_the_forecast_discards_the_model() -> None:
    search = _search(10.0)
    search.state.model.max_num_seqs = 8
    _run(search, step())
    first, again = (_run(search, step(broken=("ttft",))) for _ in range(2))
    assert search.state.steps[-1].load_rps < 8.5
    assert first.arrivals == again.arrivals, "it may have been a slow moment"
    _run(search, step())
    found = search.capacity([step()], DONE)
    assert found.mode == "empirical"
    assert "were too many" in (found.reason or "")


def test_a_load_that_breaks_once_and_holds_the_next_time_refutes_nothing() -> None:
    search = _search(10.0)
    _run(search, step())
    _run(search, step(broken=("ttft",)))
    assert overloaded_steps(search.state)
    _run(search, step())
    assert overloaded_steps(search.state) == []
    assert search.capacity([step()], DONE).mode == "forecast"


def test_a_step_that_a_budget_ended_neither_held_nor_broke() -> None:
    search = _search(10.0)
    _run(search, step(reason="cut_short"))
    assert (search.state.steps[0].has_held, search.state.steps[0].has_broken) == (False, False)
    assert overloaded_steps(search.state) == []


def test_a_load_that_holds_far_above_the_forecast_discards_the_model() -> None:
    search = _search(3.0)
    _run(search, replace(step(), requests=replace(step().requests, ok=39)))
    search.state.steps = [replace(search.state.steps[0], load_rps=9.0)]
    assert find_doubt(search.state) is None, "few may have been in time by luck"
    many = replace(step(), requests=replace(step().requests, ok=40))
    search.state.steps = [replace(search.state.steps[0], summary=many)]
    doubt = find_doubt(search.state)
    assert doubt is not None
    assert doubt.load_rps == pytest.approx(9.0)
    assert "held the objectives" in doubt.words


def test_without_a_model_it_ends_between_what_held_and_what_broke() -> None:
    """It takes 6 requests/s; the model says 10."""
    search = _search(10.0)
    enough = replace(step(), requests=replace(step().requests, ok=100))
    while (plan := search.next_step()) is not None:
        assert plan.arrivals is not None
        rate = plan.arrivals.rate_rps
        slow = replace(enough, broken=("tpot",), good_ratio={"tpot": 0.8})
        user_arrivals = replace(enough if rate < 6 else slow, offered_rps=rate)
        search.step_finished(user_arrivals, StepRun(plan, (), (0, 10**10), (), is_cut_short=False), [], None)
    found = search.capacity([step()], DONE)
    assert (found.mode, found.requests_per_second) == ("empirical", pytest.approx(6.0, rel=0.08))
    assert found.lower is not None
    assert found.upper is not None
    assert found.lower < 6 < found.upper


@pytest.mark.parametrize(("missed", "judged"), [(3, 48), (5, 48), (30, 500), (40, 5000), (320, 5000)])
def test_an_objective_that_was_missed_by_chance_refutes_nothing(missed: int, judged: int) -> None:
    """By a table of the binomial distribution with 5 %: 3 of 48 and more have 43 %, 5 have 9 %, 30 of 500 18 %."""
    search = _search(10.0)
    seen = replace(step(broken=("ttft",)), requests=replace(step().requests, ok=judged))
    _run(search, replace(seen, good_ratio={"ttft": 1 - missed / judged}))
    assert bool(overloaded_steps(search.state)) is ((missed, judged) in {(5, 48), (320, 5000)})


def test_a_discarded_model_is_never_called_verified() -> None:
    search = _search(10.0)
    knee = KneeEstimate(10.0, (9.5, 10.5), "ttft", 4.0, None)
    search._estimate_knee = lambda **_: knee  # type: ignore[assignment]
    search.state.model.max_num_seqs = 8
    for _ in range(3):
        _run(search, step())
    assert search.capacity([step()], DONE).mode == "verified"
    search._doubt = "of something that has been learnt since"
    found = search.capacity([step()], DONE)
    assert (found.mode, found.requests_per_second) == ("forecast", 10.0)


def test_a_flag_that_no_model_has_leaves_no_figure_of_the_model_alone() -> None:
    """A verified one is the real server's."""
    search = _search(10.0)
    knee = KneeEstimate(10.0, (9.5, 10.5), "ttft", 4.0, None)
    search._estimate_knee = lambda **_: knee  # type: ignore[assignment]
    search.state.model.max_num_seqs = 8
    for _ in range(3):
        _run(search, step())
    for flag, value, modes in (
        ("prefill_schedule_interval", "4", ("verified", "empirical")),
        ("scheduling_policy", "priority", ("verified", "forecast")),
    ):
        search.state.model._hints = Hints(flags={flag: value})
        for doubt, mode in zip((None, "of something that has been learnt since"), modes, strict=True):
            search._doubt = doubt
            found = search.capacity([step()], DONE)
            assert found.mode == mode
            assert (f"({flag}={value})" in str(found.reason)) == (doubt is not None)


def test_a_higher_load_that_held_excuses_a_step_that_broke() -> None:
    search = _search(10.0)
    _run(search, step(broken=("tpot",)))
    assert overloaded_steps(search.state) == search.state.steps
    search.state.steps.append(
        replace(search.state.steps[0], load_rps=search.state.steps[0].load_rps * 1.2, summary=step())
    )
    assert overloaded_steps(search.state) == []


def test_a_capacity_names_what_its_bottleneck_costs_and_how_near_the_gpu_s_limits_it_is() -> None:
    search = Search(_LENGTHS, CHAT, Hints(max_num_seqs=8, gpu="NVIDIA L4"), explain=False)
    busy = [snapshot(estimated_flops=flops, estimated_read_bytes=flops) for flops in (1e12, 2e12)]
    search.state.model.learn([busy[0], replace(busy[1], at_ns=10**10)])
    _says(search, 10.0, Bottleneck("kv_cache", {"host": 0.1, "kv_cache": 0.4}))
    found = search.capacity([step()], DONE)
    assert (found.bottleneck, found.bottleneck_gain) == ("kv_cache", 0.4)
    assert found.roofline is not None
    assert found.roofline.bandwidth_ratio == pytest.approx(1 / 3)
    _says(search, 10.0, Bottleneck(None, {"host": 0.01}))
    assert search.capacity([step()], DONE).bottleneck_gain is None


def test_memory_that_runs_out_on_the_twin_too_caps_no_capacity_but_no_load_goes_there_again() -> None:
    search = _search(10.0)
    search.state.model.max_num_seqs = 8
    for _ in range(2):
        _run(search, step())
    plan = _run(search, step(reason="cut_short"), tripped="preemptions")
    assert plan.arrivals is not None
    assert overloaded_steps(search.state) == search.state.steps[2:]
    assert search.capacity([step()], DONE).requests_per_second == pytest.approx(plan.arrivals.rate_rps * 1.035)
    for too in (False, True):
        search.state.steps[2] = replace(search.state.steps[2], would_stop_twin=too)
        assert bool(overloaded_steps(search.state)) is not too
    assert search.capacity([step()], DONE).requests_per_second == 10.0
    again = search.next_step()
    assert again is None or (again.arrivals is not None and again.arrivals.rate_rps < plan.arrivals.rate_rps)


@pytest.mark.slow
def test_a_knee_that_an_unknown_max_num_seqs_may_limit_is_a_lower_bound() -> None:
    """The model says 10 requests/s with 40 running; 12 have run, and with no more it would be 6."""
    search = _search(10.0)
    knee = KneeEstimate(10.0, (9.5, 10.5), "ttft", 40.0, None)
    search._estimate_knee = lambda: knee  # type: ignore[assignment]
    search.state.model.learn([snapshot(running=12.0)])
    search.state.twin = twin_of(profile(FAST), _LENGTHS)
    limits = []

    def capacity(twin: Twin, *_: object) -> float:
        limits.append(twin.max_num_seqs)
        return 6.0

    search.state.capacity = capacity  # type: ignore[method-assign]
    found = search.capacity([step()], DONE)
    assert limits == [12]
    assert (found.mode, found.requests_per_second, found.upper) == ("forecast", 6.0, None)
    assert found.lower == pytest.approx(5.7)
    assert "assumes max_num_seqs >= 50" in str(found.reason)
    assert "vLLM's default" in str(found.reason)
    search.state.model.learn([snapshot(running=12.0, engines=2)])
    assert "assumes max_num_seqs >= 25" in str(search.capacity([step()], DONE).reason)
    search.state.model.max_num_seqs = 64
    assert search.capacity([step()], DONE).upper == 10.5


def test_as_many_requests_come_in_a_step_as_it_says() -> None:
    plan = _search(10.0).next_step()
    assert plan is not None
    assert plan.arrivals is not None
    assert plan.arrivals.counted_s[:2] == (plan.warm_up_s, plan.seconds)


def _window(at: float, running: float) -> MetricsWindow:
    figures: dict[str, Any] = dict.fromkeys(MetricsWindow.__dataclass_fields__, 1.0)
    return MetricsWindow(
        **(figures | {"begin_s": at, "end_s": at + 1, "running": running, "waiting": 0.0, "engines": 1})
    )


def test_a_step_whose_batch_still_fills_is_not_steady() -> None:
    assert is_steady([_window(i, 30.0) for i in range(9)])
    assert not is_steady([_window(i, 10.0 + 10 * i) for i in range(9)])
    assert is_steady([])


@pytest.mark.parametrize("last", [0.0, 0.5, 1.0])
def test_a_step_with_hardly_a_request_in_flight_at_any_poll_is_steady(last: float) -> None:
    """A fast server answers few requests a second between two polls."""
    idle = [_window(i, 0.0) for i in range(6)]
    assert is_steady([*idle, *(_window(i, last) for i in range(6, 9))])
    assert not is_steady([*idle, *(_window(i, 4.0) for i in range(6, 9))])


def test_an_unknown_number_in_flight_is_not_taken_for_zero() -> None:
    """Of nothing in flight at either end the comparison says "still growing", and no step would ever count as held."""
    unknown = [replace(_window(i, 30.0), running=None, waiting=None) for i in range(9)]
    assert is_steady(unknown)
    assert not is_steady([w for i, blank in enumerate(unknown) for w in (blank, _window(i, 10.0 + 10 * i))])


def test_sent_requests_are_sorted_by_their_times() -> None:
    late, early = record(scheduled_ns=3 * 10**9), record(scheduled_ns=10**9)
    run = StepRun(StepPlan(1, 10.0), (late, early), (2 * 10**9, 10**10), (), is_cut_short=False)
    found = sent_requests(run)
    assert [one.at_s for one in found] == [0.0, 2.0]
    assert [one.judged for one in found] == [False, True]
    assert sent_requests(StepRun(StepPlan(1, 10.0), (), (0, 1), (), is_cut_short=False)) == ()


def _search_on(search: Search, knee_rps: float) -> list[float]:
    """Run a whole search on a server without metrics that holds its objectives below `knee_rps`. Return its rates."""
    rates: list[float] = []
    while (plan := search.next_step()) is not None:
        assert plan.arrivals is not None
        rates.append(plan.arrivals.rate_rps)
        enough = replace(step().requests, ok=round(plan.arrivals.rate_rps * plan.seconds))
        broken = ("tpot",) if rates[-1] > knee_rps else ()
        summary = replace(step(broken=broken), offered_rps=rates[-1], requests=enough)
        search.step_finished(summary, StepRun(plan, (), (0, 10**10), (), is_cut_short=False), [], None)
    return rates


@pytest.mark.parametrize("knee_rps", [0.6, 1.5, 2.9, 14.6, 20.0])
def test_without_a_page_of_metrics_a_search_keeps_its_bracket(knee_rps: float) -> None:
    search = _search()
    rates = _search_on(search, knee_rps)
    assert len(rates) <= 13
    found = search.capacity([step()], DONE)
    assert found.mode == "empirical"
    assert found.lower is not None
    assert found.upper is not None
    assert found.lower <= knee_rps <= found.upper < 1.45 * found.lower
    assert found.requests_per_second == pytest.approx(knee_rps, rel=0.1)
    assert "measured without a model: the server's metrics do not show" in str(found.reason)
    assert "may be lower" in str(found.reason)


def test_steps_that_were_long_enough_narrow_a_capacity_without_a_model() -> None:
    search = _search()
    _search_on(search, 2.9)
    short = search.capacity([step()], DONE)
    search.state.steps = [replace(one, summary=replace(one.summary, seconds=180.0)) for one in search.state.steps]
    found = search.capacity([step()], DONE)
    assert (found.requests_per_second, found.upper) == (short.requests_per_second, short.upper)
    assert short.lower is not None
    assert found.lower == pytest.approx(short.lower * (1 - 0.035) / (1 - 0.17))
    assert "may be lower" not in str(found.reason)


def test_a_search_whose_requests_all_fail_points_to_the_first_failure() -> None:
    search = _search()
    unanswered = replace(step(broken=("availability",)), requests=RequestCounts(ok=0, failed=20, aborted=0))
    _run(search, unanswered)
    assert search.capacity([unanswered], DONE).reason == "no request was answered; the first failure says why"
    first = search.capacity([], Stopped("guard", FAILED_REQUESTS.word))
    assert first.reason == f"the guard stopped the run before its first step (failed_requests): {FAILED_REQUESTS.why}"
    assert first.advice == FAILED_REQUESTS.advice


def test_a_search_that_the_guard_ends_before_its_first_step_says_why() -> None:
    blind = _search().capacity([], Stopped("guard", SERVER_UNREADABLE.word))
    assert blind.requests_per_second is None
    assert SERVER_UNREADABLE.why in str(blind.reason)
    assert blind.advice == SERVER_UNREADABLE.advice


@pytest.mark.parametrize(
    ("waited", "running", "waiting", "known"),
    [
        (1, 16, [1], None),
        (1, 16, [1] * 6, 16),
        (1, 16, [12], 16),
        (0, 16, [1], 16),
        (0, 16, [0, 0, 1], 16),
        (1, 18, [12], None),
        (0, 18, [1], None),
        (0, 18, [1, 1], 18),
    ],
)
def test_an_overload_shows_max_num_seqs_at_once_where_many_wait_or_none_waited_before(
    waited: int, running: int, waiting: list[int], known: int | None
) -> None:
    """A long prompt may wait for a step's tokens just when more requests run than ever: a power of two is no chance."""
    search = _search()
    seen = [
        replace(snapshot(running=float(ran), waiting=float(wait)), at_ns=i * 10**9)
        for i, (ran, wait) in enumerate([(12, 0), (15, waited), (13, 0), *[(running, each) for each in waiting]])
    ]
    run = StepRun(StepPlan(40, 30.0, loop="open"), (), (0, 30 * 10**9), (), is_cut_short=True)
    search.step_finished(step(), run, seen, "users_latency")
    assert search.state.model.max_num_seqs == known
