"""A search goes on until its capacity is verified or its budget ends, and says what a capacity lacks."""

from dataclasses import replace

import pytest
from example_records import CHAT, snapshot, step
from simulated_servers import CHAT as _LENGTHS
from simulated_servers import FAST, profile, twin_of

from probe.capacity.model.hints import Hints
from probe.capacity.model.server_model import ModelFit
from probe.capacity.model.step_cost_fit import StepCostModel
from probe.capacity.search import knee_estimate
from probe.capacity.search.knee_estimate import KneeEstimate, estimate_knee, why_wide
from probe.capacity.search.search import Search
from probe.capacity.search.unverified import UNLIMITED, Spending, is_crowded, load_to_verify, steps_lacking
from probe.core.result import Stopped
from probe.core.step import Arrivals, Distribution, StepPlan, StepRun, TrafficBeside

DONE = Stopped("done")
_MANY = replace(step(), requests=replace(step().requests, ok=100))


def _search(half: float, *, budget: Spending = UNLIMITED, least_half: float = 0.06) -> Search:
    """Return a search that forecasts 10 requests/s with this interval, on a server that holds every load."""
    search = Search(_LENGTHS, CHAT, budget=budget, explain=False)
    # Without a gap between tokens there is no guess, which would take a second.
    baseline = replace(step(), e2e_s=replace(step().e2e_s, mean=2.0), itl_s=Distribution())
    search.observe_idle([snapshot(), snapshot()], baseline, TrafficBeside())
    search.state.forecast_rps = 10.0
    search.state.model.max_num_seqs = 64
    _narrow(search, half, least_half)
    return search


def _narrow(search: Search, half: float, least_half: float = 0.06) -> None:
    knee = KneeEstimate(
        10.0, (10 * (1 - half), 10 * (1 + half)), "ttft", 4.0, None, least_half, "the server's speed drifts by 7 %"
    )
    search._estimate_knee = lambda **_: knee  # type: ignore[assignment]
    search._knee = None


def _hold(search: Search, most: int = 20) -> list[float]:
    """Run every step that it asks for; return their rates."""
    rates: list[float] = []
    while (plan := search.next_step()) is not None and len(rates) < most:
        _finish(search, plan)
        rates.append(plan.load)
    return rates


def _finish(search: Search, plan: StepPlan) -> None:
    begin_s = 40 * len(search.state.steps)
    window = begin_s * 10**9, (begin_s + 30) * 10**9
    search.step_finished(_MANY, StepRun(plan, (), window, (), is_cut_short=False), [], None)


def test_a_search_that_is_verified_ends() -> None:
    search = _search(0.07)
    assert _hold(search)[-1] == pytest.approx(9.5)
    assert search.capacity([_MANY], DONE).mode == "verified"


def test_one_that_is_not_goes_on_near_the_knee_until_it_is() -> None:
    search = _search(0.16)
    rates = _hold(search, 4)
    assert rates[-1] == pytest.approx(9.0)
    _narrow(search, 0.08)
    assert search.next_step() is None
    assert search.capacity([_MANY], DONE).mode == "verified"


def test_it_goes_on_where_only_the_estimate_that_is_published_is_too_wide() -> None:
    """An estimate between steps has fewer simulated requests than the one at the end."""
    search = _search(0.07)
    enough = len(_hold(search)) + 2

    def estimate(*, is_final: bool = True) -> KneeEstimate:
        half = 0.09 if is_final and len(search.state.steps) < enough else 0.07
        return KneeEstimate(10.0, (10 * (1 - half), 10 * (1 + half)), "ttft", 4.0, None, 0.06)

    search._estimate_knee = estimate  # type: ignore[assignment]
    search._knee = None
    assert len(_hold(search)) == 2
    assert search.capacity([_MANY], DONE).mode == "verified"


def test_it_ends_when_the_budget_has_no_room_for_another_step_and_says_what_would_verify_it() -> None:
    search = _search(0.16, budget=Spending(60.0, 10**9))
    rates = _hold(search, 4)
    search._spent = Spending(50.0, 40_000)
    assert search.next_step() is None
    assert max(rates) < 10
    found = search.capacity([_MANY], DONE)
    assert found.mode == "forecast"
    words = str(found.reason)
    assert words.startswith("interval 16 %, 8 % needed; `kneewatch ramp --max-seconds ")
    assert "may verify it: " in words
    assert words.endswith(" tokens more")


def test_a_load_that_cannot_verify_a_rough_knee_is_not_repeated_and_the_published_knee_decides() -> None:
    """A rough knee is a few per cent too high where requests wait for KV cache."""
    search = _search(0.07)
    knees: list[bool] = []

    def estimate(*, is_final: bool = True) -> KneeEstimate:
        knees.append(is_final)
        rate = 9.4 if is_final else 10.0
        return KneeEstimate(rate, (0.93 * rate, 1.07 * rate), "ttft", 4.0, None, 0.06)

    search._estimate_knee = estimate  # type: ignore[assignment]
    plans = [StepPlan(8, 30.0, "open", arrivals=Arrivals(rate_rps=rate, counted_s=(30.0,))) for rate in (5.0, 8.3, 8.8)]
    _finish(search, plans[0])
    _finish(search, plans[1])
    tripped = replace(_MANY, plan=plans[2], reason="cut_short", tripped="preemptions")
    window = 80 * 10**9, 110 * 10**9
    search.step_finished(tripped, StepRun(plans[2], (), window, (), is_cut_short=True), [], "preemptions")
    assert search.next_step() is None
    assert knees == [False, True]
    assert search.capacity([_MANY], DONE).mode == "verified"


@pytest.mark.parametrize(("stopped_rps", "mode"), [(9.2, "forecast"), (10.2, "verified")])
def test_a_knee_above_a_load_whose_requests_got_no_token_is_not_verified(stopped_rps: float, mode: str) -> None:
    """Such a load shows what the model does not have, such as a max_num_seqs that no poll showed."""
    search = _search(0.07)
    _hold(search)
    plan = StepPlan(8, 30.0, "open", arrivals=Arrivals(rate_rps=stopped_rps, counted_s=(30.0,)))
    search.state.steps = [replace(one, load_rps=9.0) for one in search.state.steps]
    run = StepRun(plan, (), (200 * 10**9, 230 * 10**9), (), is_cut_short=True)
    search.step_finished(replace(_MANY, plan=plan, reason="cut_short"), run, [], "no_first_token")
    assert search.next_step() is None
    found = search.capacity([_MANY], DONE)
    assert found.mode == mode
    assert found.lower == pytest.approx(9.0 * (1 - 0.17) if mode == "forecast" else 9.3), "what held, in short steps"
    if mode == "forecast":
        assert found.reason == (
            "9.2 requests/s were too many (no_first_token), which the model of this server does not say"
        )


def test_below_such_a_load_it_goes_on_until_the_bracket_is_narrow() -> None:
    search = _search(0.07)
    for load_rps, tripped in ((5.0, None), (7.2, None), (9.6, "no_first_token")):
        plan = StepPlan(8, 30.0, "open", arrivals=Arrivals(rate_rps=load_rps, counted_s=(30.0,)))
        ended = _MANY if tripped is None else replace(_MANY, plan=plan, reason="cut_short")
        window = 40 * len(search.state.steps) * 10**9, (40 * len(search.state.steps) + 30) * 10**9
        search.step_finished(ended, StepRun(plan, (), window, (), is_cut_short=bool(tripped)), [], tripped)
    assert _hold(search) == [pytest.approx(0.95 * 0.95 * 9.6), pytest.approx((0.95 * 0.95 + 1) / 2 * 9.6)]


@pytest.mark.slow
def test_where_max_num_seqs_is_unknown_an_overload_bounds_the_capacity_from_above() -> None:
    search = _search(0.07)
    search.state.twin = twin_of(profile(FAST), _LENGTHS)
    search.state.model.max_num_seqs = None
    search.state.model.learn([snapshot(running=8.0)])
    crowd = KneeEstimate(10.0, (9.3, 10.7), "ttft", 400.0, None, 0.06)
    search._estimate_knee = lambda **_: crowd  # type: ignore[assignment]
    for load_rps, tripped in ((5.0, None), (9.6, "no_first_token")):
        plan = StepPlan(8, 30.0, "open", arrivals=Arrivals(rate_rps=load_rps, counted_s=(30.0,)))
        ended = _MANY if tripped is None else replace(_MANY, plan=plan, reason="cut_short")
        window = 40 * len(search.state.steps) * 10**9, (40 * len(search.state.steps) + 30) * 10**9
        search.step_finished(ended, StepRun(plan, (), window, (), is_cut_short=bool(tripped)), [], tripped)
    search._knee = crowd
    search.state._is_stale = False
    found = search.capacity([_MANY], DONE)
    assert str(found.reason).startswith("a lower bound: max_num_seqs is not known to be more than 8")
    assert found.upper == pytest.approx(9.6 * 1.08)
    assert found.lower is not None
    assert found.requests_per_second is not None
    assert found.lower < found.requests_per_second <= 9.6


def test_such_a_load_asks_for_max_num_seqs_where_it_is_unknown() -> None:
    search = _search(0.07)
    _hold(search)
    search.state.model.max_num_seqs = None
    search.state.model.learn([snapshot(running=100.0)])
    stopped = replace(
        search.state.steps[-1], load_rps=9.2, tripped="no_first_token", summary=replace(_MANY, reason="cut_short")
    )
    search.state.steps = [*(replace(step, load_rps=9.0) for step in search.state.steps), stopped]
    reason = str(search.capacity([_MANY], DONE).reason)
    assert reason.startswith("9.2 requests/s were too many (no_first_token)")
    assert "; set capacity.server.max_num_seqs" in reason


def test_a_search_that_ends_after_its_most_steps_names_no_budget_that_would_verify_it() -> None:
    search = _search(0.16)
    rates = _hold(search)
    reason = search.capacity([_MANY], DONE).reason
    assert reason == f"interval 16 %, 8 % needed; {len(rates)} steps, the most of a search, were not enough"
    search.state.correction = {"tpot": 1.2}
    unmended = "TPOT was 1.20 times what the model of this server says, so it does not know what takes the time"
    assert search.capacity([_MANY], DONE).reason == unmended, "no step would mend it"


def test_no_load_is_added_where_it_would_not_narrow_the_interval() -> None:
    search = _search(0.16, least_half=0.1)
    assert max(_hold(search)) == pytest.approx(9.5)
    words = "interval 16 %, 8 % needed; more load would not narrow it, since the server's speed drifts by 7 %"
    assert search.capacity([_MANY], DONE).reason == words


@pytest.mark.parametrize(
    ("drift", "slope", "words"),
    [
        (0.07, 2.0, "the server's speed drifts by 7 %"),
        (0.0, 0.2, "near the knee latency rises slowly with the load"),
        (0.01, 0.2, "near the knee latency rises slowly with the load"),
    ],
)
def test_an_interval_that_stays_wide_is_explained_by_the_larger_cause(drift: float, slope: float, words: str) -> None:
    assert why_wide(drift, slope) == words


def test_where_no_step_near_the_knee_held_another_one_is_tried() -> None:
    search = _search(0.07)
    for _ in range(2):
        plan = search.next_step()
        assert plan is not None
        _finish(search, plan)
    search.state.steps = search.state.steps[:1]
    assert "or more held" in str(search.capacity([_MANY], DONE).reason)


def test_where_max_num_seqs_is_unknown_a_load_nearer_to_the_knee_may_show_that_so_many_run() -> None:
    search = _search(0.07)
    search.state.model.max_num_seqs = None
    crowd = KneeEstimate(10.0, (9.3, 10.7), "ttft", 400.0, None, 0.06)
    search._estimate_knee = lambda **_: crowd  # type: ignore[assignment]
    for load_rps in (5.0, 8.3):
        plan = search.next_step()
        assert plan is not None
        arrivals = replace(plan.arrivals, rate_rps=load_rps)  # type: ignore[type-var]
        _finish(search, replace(plan, arrivals=arrivals))
    assert _hold(search) == [pytest.approx(9.5)]
    assert "max_num_seqs" in str(search.capacity([_MANY], DONE).reason)


@pytest.mark.parametrize(("ran", "tries"), [(3.0, 4), (30.0, 4), (2.0, 1)])
def test_a_load_near_the_knee_is_repeated_until_more_run_than_the_likely_limit(ran: float, tries: int) -> None:
    """Not where far more would run than ever did: chance would not have it."""
    search = _search(0.07)
    search.state.model.max_num_seqs = None
    search.state.model.learn([snapshot(running=ran)])
    crowd = KneeEstimate(10.0, (9.3, 10.7), "ttft", 3.5, None, 0.06, usual_limit_matters=True)
    search._estimate_knee = lambda **_: crowd  # type: ignore[assignment]
    rates = _hold(search)
    assert [rate for rate in rates if rate > 8.6] == [pytest.approx(9.5)] * tries
    assert "max_num_seqs" in str(search.capacity([_MANY], DONE).reason)
    search._estimate_knee = lambda **_: replace(crowd, usual_limit_matters=False)  # type: ignore[assignment]
    search._knee = None
    assert (search.capacity([_MANY], DONE).mode == "verified") is (tries > 1)


@pytest.mark.parametrize(("broke_rps", "is_tried"), [(None, True), (8.9, False), (9.6, False)])
def test_what_held_is_repeated_only_where_nothing_near_the_knee_broke(
    broke_rps: float | None, *, is_tried: bool
) -> None:
    """So near to a load that broke it may harm users."""
    search = _search(0.07)
    search.state.model.max_num_seqs = None
    search.state.model.learn([snapshot(running=30.0)])
    crowd = KneeEstimate(10.0, (9.3, 10.7), "ttft", 3.5, None, 0.06, usual_limit_matters=True)
    search._estimate_knee = lambda **_: crowd  # type: ignore[assignment]
    for load_rps in (5.0, 8.7, *([] if broke_rps is None else [broke_rps])):
        plan = StepPlan(8, 30.0, "open", arrivals=Arrivals(rate_rps=load_rps, counted_s=(30.0,)))
        tripped = "objective_broken" if load_rps == broke_rps else None
        ended = replace(_MANY, plan=plan, reason="cut_short") if tripped else _MANY
        begin_s = 40 * len(search.state.steps)
        window = begin_s * 10**9, (begin_s + 30) * 10**9
        search.step_finished(ended, StepRun(plan, (), window, (), is_cut_short=bool(tripped)), [], tripped)
    load = load_to_verify(search.state, crowd, 0.95 * (broke_rps or 100.0))
    assert (load is not None) is is_tried
    assert load is None or load[0] == pytest.approx(8.7)


def test_never_more_steps_are_asked_for_than_there_were() -> None:
    search = _search(0.5)
    _hold(search, 3)
    search.state.model._segments = [[object()]] * 4  # type: ignore[list-item]
    knee = search._estimate_knee()
    assert knee is not None
    assert steps_lacking(search.state, knee) == 4


@pytest.mark.parametrize(("least_half", "mode"), [(0.06, "verified"), (0.1, "forecast")])
def test_a_server_is_watched_for_long_enough_to_see_another_speed_by_few_long_steps(
    least_half: float, mode: str
) -> None:
    """Verified or not: a longer look is nearer to its usual speed."""
    search, begin_s, seconds = _search(0.07 if mode == "verified" else 0.16, least_half=least_half), 0.0, []
    while (plan := search.next_step()) is not None and len(seconds) < 9:
        lasts_s = plan.warm_up_s + plan.seconds if len(seconds) > 3 else 12.0
        window = round(begin_s * 1e9), round((begin_s + lasts_s) * 1e9)
        search.step_finished(_MANY, StepRun(plan, (), window, (), is_cut_short=False), [], None)
        begin_s += lasts_s
        seconds.append(plan.seconds)
        if len(seconds) == 4:
            found = search.capacity([_MANY], DONE)
            words = "the steps took 48 s, 100 s needed, since a server's speed may drift"
            assert str(found.reason).startswith(words) is (mode == "verified")
            assert plan.load == pytest.approx(3.5)
    assert begin_s == pytest.approx(100.0)
    assert seconds[4] == 30.0
    assert search.capacity([_MANY], DONE).mode == mode


def test_the_bottleneck_is_not_sought_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knee_estimate, "QUICK_REQUESTS", 60)
    state = _search(0.07).state
    state.twin = twin_of(profile(FAST), _LENGTHS)
    found = estimate_knee(state, explain=True, is_final=False)
    assert found is not None
    assert found.bottleneck is None


@pytest.mark.slow
@pytest.mark.parametrize(("drift", "may_verify"), [(0.005, True), (0.02, False)])
def test_a_search_that_met_a_part_of_a_drift_verifies_nothing(
    monkeypatch: pytest.MonkeyPatch, drift: float, *, may_verify: bool
) -> None:
    """Half a sine wave of 10 % is 6 % away from the wave's mean, and varies by 3 %."""
    monkeypatch.setattr(knee_estimate, "QUICK_REQUESTS", 300)
    state = _search(0.07).state
    state.twin = twin_of(profile(FAST), _LENGTHS)
    state.forecast_rps = state.capacity(state.twin, 10.0, 300)
    cost_model = StepCostModel(state.twin.cost, 0.01, drift, (), (), (1.0, 8.0), 9)
    state.fit = ModelFit(state.twin, cost_model, (0.0,) * 6)
    found = estimate_knee(state, explain=False, is_final=False)
    assert found is not None
    assert (found.least_half < 0.08) is may_verify


def test_a_limit_that_allows_as_many_requests_as_would_run_is_enough() -> None:
    knee = KneeEstimate(10.0, (9.5, 10.5), "ttft", 100.0, None)
    for least, is_unknown in ((1, True), (128, False)):
        state = Search(_LENGTHS, CHAT, Hints(least_max_num_seqs=least)).state
        state.model.learn([snapshot(running=12.0)])
        assert is_crowded(state, knee) is is_unknown
        assert state.model.least_max_num_seqs == max(least, 12)


@pytest.mark.slow
@pytest.mark.parametrize(("ran", "matters"), [(120, True), (250, False), (260, False)])
def test_the_next_power_of_two_may_be_max_num_seqs(monkeypatch: pytest.MonkeyPatch, ran: int, *, matters: bool) -> None:
    """Where 208 would run in the mean, a limit of 128 makes the knee much lower, one of 256 hardly and 512 not."""
    monkeypatch.setattr(knee_estimate, "QUICK_REQUESTS", 300)
    monkeypatch.setattr(knee_estimate, "_half_interval", lambda *_: 0.07)
    state = _search(0.07).state
    state.twin = twin_of(profile(FAST), _LENGTHS)
    state.forecast_rps = state.capacity(state.twin, 10.0, 300)
    state.model.max_num_seqs = None
    state.model.learn([snapshot(running=float(ran))])
    found = estimate_knee(state, explain=False, is_final=False)
    assert found is not None
    assert found.would_run == pytest.approx(208, abs=20)
    assert found.usual_limit_matters is matters
    assert is_crowded(state, replace(found, would_run=1.0)) is matters


@pytest.mark.parametrize(("factor", "mode"), [(0.95, "verified"), (0.87, "forecast"), (1.15, "forecast")])
def test_a_model_whose_tpot_is_not_the_servers_verifies_nothing(factor: float, mode: str) -> None:
    search = _search(0.07)
    _hold(search)
    search.state.correction = {"tpot": factor}
    found = search.capacity([_MANY], DONE)
    assert found.mode == mode
    if mode == "forecast":
        assert found.reason is not None
        assert found.reason.startswith(f"TPOT was {factor:.2f} times what the model of this server says")
        assert "--max-seconds" not in found.reason, "more load would not help"


def test_a_model_whose_tpot_is_off_gets_the_steps_that_others_need_and_no_more() -> None:
    search, begin_s, rates = _search(0.27), 0, []
    search.state.correction = {"tpot": 1.13}
    while (plan := search.next_step()) is not None and len(rates) < 9:
        window = begin_s * 10**9, (begin_s + 25) * 10**9
        search.step_finished(_MANY, StepRun(plan, (), window, (), is_cut_short=False), [], None)
        begin_s += 25
        rates.append(plan.load)
    assert rates == [pytest.approx(rate) for rate in (5.0, 7.25, 9.5, 3.5)]
    assert str(search.capacity([_MANY], DONE).reason).startswith("TPOT was 1.13 times")


@pytest.mark.parametrize(("tripped", "above"), [("queue", 1.64 / 8.5**0.5 / 10**0.5), ("kv_cache", 0.035)])
def test_a_queue_that_chance_may_have_filled_leaves_room_above_its_load(tripped: str, above: float) -> None:
    """Ten seconds had more requests than planned: by the plan, the upper end lay below what the server holds."""
    search = _search(0.3)
    _hold(search)
    held = (replace(one, load_rps=8.0) for one in search.state.steps)
    stopped = replace(search.state.steps[-1], load_rps=8.5, tripped=tripped)
    stopped = replace(stopped, summary=replace(_MANY, reason="cut_short"))
    search.state.forecast_rps, search.state.steps = 8.5, [*held, stopped]
    search.state._is_stale = False
    found = search.capacity([_MANY], DONE)
    assert found.upper == pytest.approx(8.5 * (1 + above) * 1.08)


def test_where_the_kv_cache_fills_an_interval_is_wider() -> None:
    """Six runs on such a server were 5.3 to 6.5 % too high, with an interval of 6 %."""
    search = _search(0.07)
    _hold(search)
    usual, preempting = (knee_estimate._lasting_error(search.state, 1.0, fills_kv=fills) for fills in (False, True))
    search.state.steps.append(replace(search.state.steps[-1], tripped="kv_cache"))
    assert 1.64 * usual < 0.06
    assert 0.07 < 1.64 * preempting < 0.08
    assert knee_estimate._lasting_error(search.state, 1.0, fills_kv=False) == preempting
