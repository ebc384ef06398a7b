"""A search learns from the users that the run reports, and canaries beside it are neither users nor load."""

import math
from dataclasses import replace

import pytest
from example_records import CHAT, record, snapshot, spec, step
from simulated_servers import CHAT as _LENGTHS

from probe.capacity.model.hints import Hints
from probe.capacity.model.windows import join_windows, windows
from probe.capacity.search.knee import find_knee
from probe.capacity.search.knee_estimate import KneeEstimate
from probe.capacity.search.live_users import LiveUsers
from probe.capacity.search.search import Search
from probe.capacity.search.search_state import SearchState
from probe.capacity.search.search_step import SearchStep, measure_delay, sent_requests
from probe.capacity.search.step_plan import plan_step
from probe.core.reasons import USERS_CHANGED
from probe.core.request import Outcome, RequestRecord, ServerTimes, TokenEvents, Traffic
from probe.core.result import Capacity, Stopped
from probe.core.snapshot import Histogram, ServerSnapshot, UserLoad
from probe.core.step import Arrivals, Pattern, StepPlan, StepRun, TrafficBeside, total_rps
from probe.load.step_summary import summarize

NO_USERS = UserLoad(0.0, 0.0)
RATE_RPS = 2.0


def _canaries(from_s: int, to_s: int) -> tuple[RequestRecord, ...]:
    """One every 3 s, as in a demo."""
    short = spec(8, 2, "canary")
    return tuple(record(start_s=float(at), asked=short, traffic=Traffic.CANARY) for at in range(from_s, to_s, 3))


def _counted(requests: tuple[RequestRecord, ...], from_s: int, to_s: int) -> list[ServerSnapshot]:
    """What a server shows that counts these requests."""

    def page(at_s: int) -> ServerSnapshot:
        begun = [r for r in requests if r.events.at_ns[0] <= at_s * 1e9]
        ended = sum(len(r.events) - 1 for r in begun)
        shown = {
            "ttft": Histogram(((math.inf, float(len(begun))),), 0.1 * len(begun)),
            "itl": Histogram(((math.inf, float(ended)),), 0.01 * ended),
        }
        generated = float(sum(r.output_tokens for r in begun))
        prompts = float(sum(r.prompt_tokens for r in begun))
        page = snapshot(histograms=shown, prompt_tokens=prompts, generation_tokens=generated)
        return replace(page, at_ns=at_s * 10**9)

    return [page(at_s) for at_s in range(from_s, to_s + 1)]


def _step(users: UserLoad, *, canaries: bool) -> tuple[SearchState, SearchStep]:
    """A minute without load, then 30 s of load, with a canary every 3 s in both or in neither."""
    state = SearchState(_LENGTHS, CHAT, Hints())
    idle, beside = (_canaries(0, 60), _canaries(60, 90)) if canaries else ((), ())
    state.observe_live(_counted(idle, 0, 60), step(), TrafficBeside(users, idle))
    sent = tuple(record(start_s=60 + i / RATE_RPS, asked=spec(300, 40)) for i in range(58))
    plan = StepPlan(50, 30.0, loop="open", arrivals=Arrivals(Pattern.POISSON, RATE_RPS, counted_s=(30.0,)))
    run = StepRun(plan, sent, (60 * 10**9, 90 * 10**9), (), is_cut_short=False, other_probes=beside)
    state.add_step(replace(step(), users=users), run, _counted((*idle, *sent, *beside), 60, 90), None)
    return state, state.steps[0]


def test_canaries_are_no_users_of_a_search() -> None:
    state, step = _step(NO_USERS, canaries=True)
    assert (state.model.live_rps, state.live_rps) == (0.0, 0.0)
    assert sum(each.count for each in step.user_arrivals) == 0
    assert not state.model.has_other_live_lengths


def test_canaries_are_no_users_of_a_replay_even_where_the_users_are_unknown() -> None:
    assert sum(each.count for each in _step(UserLoad(), canaries=True)[1].user_arrivals) == 0


def test_canaries_do_not_change_the_load_of_a_step() -> None:
    assert [_step(NO_USERS, canaries=canaries)[1].load_rps for canaries in (True, False)] == [RATE_RPS, RATE_RPS]


def test_the_users_of_a_search_are_those_that_the_run_reports() -> None:
    state, _ = _step(UserLoad(0.75, 10.0), canaries=True)
    assert state.model.live_rps == pytest.approx(0.75)


def test_unknown_users_leave_the_rate_that_was_known() -> None:
    state, step = _step(UserLoad(0.75, 10.0), canaries=True)
    state.add_step(replace(step.summary, users=UserLoad()), step.run, _counted((), 90, 120), None)
    assert state.model.live_rps == pytest.approx(0.75)


def test_no_more_users_arrive_in_a_replay_than_the_run_reports() -> None:
    """A canary in flight at the end of a step is counted by the server, and not known to the run yet."""
    state = SearchState(_LENGTHS, CHAT, Hints())
    sent = (record(start_s=1.0), record(start_s=5.0))
    unended = _canaries(8, 9)
    run = StepRun(StepPlan(1, 10.0), sent, (0, 10**10), (), is_cut_short=False)
    state.add_step(replace(step(), users=NO_USERS), run, _counted((*sent, *unended), 0, 10), None)
    assert sum(each.count for each in state.steps[0].user_arrivals) == 0


def test_a_replay_has_each_canary_with_its_own_lengths_and_does_not_judge_it() -> None:
    _, step = _step(NO_USERS, canaries=True)
    found = sent_requests(step.run)
    canaries = [one for one in found if one.output_tokens == 2]
    assert [one.at_s for one in canaries] == pytest.approx([float(at) for at in range(0, 30, 3)])
    assert not any(one.judged for one in canaries)
    assert sum(one.judged for one in found) == 58
    assert [one.at_s for one in found] == sorted(one.at_s for one in found)


@pytest.mark.parametrize("canaries", [4, 0])
def test_canaries_do_not_change_the_delay_of_the_front_end(canaries: int) -> None:
    """A canary's prompt is short: it would lower the server's mean TTFT, and the rest would be the network's."""
    sent = tuple(record(start_s=i / 2, ttft_s=1.05, asked=spec(2000, 4)) for i in range(20))
    beside = tuple(record(start_s=at * 3.0, ttft_s=0.15, asked=spec(8, 2, "canary")) for at in range(canaries))
    counted = join_windows(windows(_counted(sent, 0, 12)))
    counted = replace(counted, begin_s=0.0, end_s=12.0, prompts=20.0 + canaries, ttft_sum_s=20 * 1.0 + 0.1 * canaries)
    run = StepRun(StepPlan(1, 10.0), sent, (0, 10**10), (), is_cut_short=False, other_probes=beside)
    found = measure_delay(run, summarize(run, CHAT), counted)
    assert found is not None
    assert found.seconds == pytest.approx(0.05)
    assert found.requests == 20 + canaries


def test_the_delay_of_the_front_end_is_each_request_s_where_the_server_reports_its_times() -> None:
    """The means of all requests would say 1 s: users' first tokens came sooner."""
    sent = tuple(
        replace(
            record(start_s=i / 2, ttft_s=1.05), server_times=ServerTimes(queue_s=0.6, prefill_s=0.4 + 0.01 * (i % 2))
        )
        for i in range(20)
    )
    counted = join_windows(windows(_counted(sent, 0, 12)))
    counted = replace(counted, begin_s=0.0, end_s=12.0, prompts=60.0, ttft_sum_s=60 * 0.05)
    run = StepRun(StepPlan(1, 10.0), sent, (0, 10**10), (), is_cut_short=False)
    found = measure_delay(run, summarize(run, CHAT), counted)
    assert found is not None
    assert found.seconds == pytest.approx(0.045)
    assert found.error_s == pytest.approx(0.005 / math.sqrt(19), rel=0.01)
    assert (found.rate_rps, found.requests) == (5.0, 20)


# Users who come and go.


def _state(watched_rps: float) -> SearchState:
    """A state after a minute without load and this many users."""
    state = SearchState(_LENGTHS, CHAT, Hints())
    users = tuple(record(start_s=i / watched_rps) for i in range(round(60 * watched_rps)))
    state.observe_live(_counted(users, 0, 60), step(), TrafficBeside(UserLoad(watched_rps, 0.0)))
    return state


def _add(state: SearchState, own_rps: float, users_rps: float, *, aborted: int = 0, late: float = 0.0) -> SearchStep:
    """Add 30 s of load with so many users. Where it was cut, `aborted` answers had begun and are never seen."""
    begin = 100 + 40 * len(state.steps)
    own = tuple(record(start_s=begin + i / own_rps) for i in range(round(30 * own_rps)))
    beside = tuple(record(start_s=begin + late + i / users_rps) for i in range(round((30 - late) * users_rps)))
    counted = _counted((*own, *beside), begin, begin + 31)
    cut = (
        [replace(one, outcome=Outcome.ABORTED, events=TokenEvents(), reads=1) for one in own[-aborted:]]
        if aborted
        else []
    )
    plan = StepPlan(50, 30.0, loop="open", arrivals=Arrivals(Pattern.POISSON, own_rps, counted_s=(30.0,)))
    sent = (*own[: len(own) - aborted], *cut)
    run = StepRun(plan, sent, (begin * 10**9, (begin + 30) * 10**9), (), is_cut_short=bool(aborted))
    seen = replace(step(reason="cut_short" if aborted else None), plan=plan, seconds=30.0)
    users = UserLoad() if aborted else UserLoad(users_rps)
    state.add_step(replace(seen, users=users), run, counted, "queue" if aborted else None)
    return state.steps[-1]


@pytest.mark.fault(
    "LO66",
    "Users leave between the minute in which a search watches them and its first step",
    area="Load",
    users_see="the step counts as the load that it was, and the next one is no jump",
    stays="-",
)
def test_a_step_has_the_users_of_its_own_time_and_the_next_one_those_of_now() -> None:
    state = _state(5.0)
    assert state.live_rps == pytest.approx(5.0, rel=0.02)
    assert _add(state, 3.6, 0.2).load_rps == pytest.approx(3.8)
    assert state.live_rps == pytest.approx(0.2)
    plan = plan_step(state, 20.0, has_model=True)
    assert plan is not None
    assert 3.8 < plan.load < 1.65 * 3.8 - 0.2, "1.65 times what held, and the users of now are in it"
    assert plan.most_users_rps == pytest.approx(1.65 * 3.8 - plan.load)


def test_users_who_come_at_the_end_of_a_step_are_those_of_now() -> None:
    state = _state(1.0)
    _add(state, 2.0, 6.0, late=20.0)
    assert state.live_rps == pytest.approx(6.0, rel=0.1)


def test_of_a_step_that_was_cut_short_the_answers_that_had_begun_are_no_users() -> None:
    cut = _add(_state(1.0), 2.0, 4.0, aborted=12)
    assert cut.load_rps == pytest.approx(6.0, rel=0.05)
    assert sum(each.count for each in cut.user_arrivals) == pytest.approx(120, abs=2)


def test_a_step_whose_users_are_unknown_counts_as_what_it_sent() -> None:
    state = _state(1.0)
    _add(state, 2.0, 1.0)
    unknown = replace(state.steps[0].summary, users=UserLoad())
    state.add_step(unknown, state.steps[0].run, (), None)
    assert state.steps[-1].load_rps == pytest.approx(2.0), "no more than is certain has held"
    assert state.live_rps == pytest.approx(1.0), "and the next one still allows for those that were known"


@pytest.mark.parametrize(
    ("before", "now", "has_changed"),
    [
        (LiveUsers(5.0, 60.0), LiveUsers(0.2, 30.0), True),
        (LiveUsers(0.2, 60.0), LiveUsers(5.0, 30.0), True),
        (LiveUsers(5.0, 60.0), LiveUsers(5.9, 30.0), False),
        (LiveUsers(2.0, 60.0), LiveUsers(3.0, 10.0), False),
        (LiveUsers(200.0, 60.0), LiveUsers(203.0, 30.0), False),
    ],
    ids=["left", "came", "within-the-interval", "by-chance", "by-less-than-the-interval"],
)
def test_users_change_by_more_than_an_interval_and_than_chance(
    before: LiveUsers,
    now: LiveUsers,
    has_changed: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    assert now.has_changed(before, 0.8) is has_changed


@pytest.mark.fault(
    "LO67",
    "Users change during a search by more than its interval",
    area="Load",
    users_see="the run ends with `users_changed` and their rates, and a forecast at best",
    stays="-",
)
def test_users_who_change_by_more_than_the_interval_end_the_search_with_that_reason() -> None:
    search = Search(_LENGTHS, CHAT, explain=False)
    search.state = _state(5.0)
    search.state.forecast_rps = 10.0
    _add(search.state, 3.6, 0.2)
    assert search.next_step() is None
    assert search.end_reason() == "users_changed"
    found = search.capacity([search.state.steps[0].summary], Stopped("guard", "users_changed"))
    assert found.mode != "verified"
    assert found.requests_per_second is None
    assert "users_changed" in str(found.reason)


def test_a_lower_bound_says_too_that_users_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where max_num_seqs is not known, the reason of the lower bound was the only one."""
    search = Search(_LENGTHS, CHAT, explain=False)
    search._knee = KneeEstimate(10.0, (9.0, 11.0), "ttft", 4.0, None)
    bound = Capacity(mode="forecast", requests_per_second=5.0, reason="a lower bound")
    monkeypatch.setattr("probe.capacity.search.search.model_capacity", lambda *_: bound)
    found = search.capacity([], Stopped("guard", "users_changed"))
    assert found.reason == f"{USERS_CHANGED.explained}; a lower bound"


def test_fixed_steps_label_a_load_as_a_search_does() -> None:
    users = UserLoad(2.0)
    plan = StepPlan(50, 200.0, loop="open", arrivals=Arrivals(Pattern.POISSON, 4.0))
    held = replace(step(rps=4.0), plan=plan, users=users, seconds=200.0)
    assert find_knee([held], Stopped("done")).lower == total_rps(4.0, users) == 6.0


# Users who send in bursts.


def _with_bursts(state: SearchState, burst_rps: float, *, tripped: str | None = None) -> SearchStep:
    """Add a step of 4 requests/s for 28 s whose users send at this rate for 7 of them, and hardly else."""
    begin = 100 + 40 * len(state.steps)
    own = tuple(record(start_s=begin + i / 4) for i in range(112))
    burst = tuple(record(start_s=begin + 10 + i / burst_rps) for i in range(round(7 * burst_rps)))
    plan = StepPlan(50, 28.0, loop="open", arrivals=Arrivals(Pattern.POISSON, 4.0, counted_s=(28.0,)))
    run = StepRun(plan, own, (begin * 10**9, (begin + 28) * 10**9), (), is_cut_short=False)
    summary = replace(
        step(), plan=plan, seconds=28.0, users=UserLoad(len(burst) / 28), broken=("ttft",) * bool(tripped)
    )
    state.add_step(summary, run, _counted((*own, *burst), begin, begin + 29), tripped)
    return state.steps[-1]


def test_a_burst_of_users_leaves_the_next_step_less_and_a_larger_one_none() -> None:
    steady, bursts = _state(1.0), _state(1.0)
    _add(steady, 4.0, 1.0)
    _with_bursts(bursts, 3.0)
    usual, less = (plan_step(state, 7.0, has_model=True) for state in (steady, bursts))
    assert usual is not None
    assert less is not None
    assert less.load == pytest.approx(1.65 * 4.75 - 3.0, rel=0.05)
    assert less.load < usual.load - 0.5
    search = Search(_LENGTHS, CHAT, explain=False)
    search.state = _state(1.0)
    _with_bursts(search.state, 8.0)
    assert search._plan_at(9.0) is None
    assert search.end_reason() == "users_changed"


def test_a_load_that_broke_in_a_burst_broke_at_the_burst() -> None:
    """By its mean, the upper end of the capacity lay below what the server holds."""
    found = _with_bursts(_state(1.0), 8.0, tripped="queue")
    assert found.load_rps == pytest.approx(6.0)
    assert found.highest_rps == pytest.approx(12.0, rel=0.05)
    assert _add(_state(4.0), 4.0, 4.0).highest_rps == pytest.approx(8.0)
