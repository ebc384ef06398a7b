"""A search learns from the users that the run reports, and canaries beside it are neither users nor load."""

import math
from dataclasses import replace

import pytest
from example_records import CHAT, record, snapshot, spec, step
from simulated_servers import CHAT as _LENGTHS

from probe.capacity.model.hints import Hints
from probe.capacity.model.windows import join_windows, windows
from probe.capacity.search.search_state import SearchState
from probe.capacity.search.search_step import SearchStep, measure_delay, sent_requests
from probe.core.request import RequestRecord, ServerTimes, Traffic
from probe.core.snapshot import Histogram, ServerSnapshot, UserLoad
from probe.core.step import Arrivals, Pattern, StepPlan, StepRun, TrafficBeside
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
    assert (state.model.live_rps, state.live_equivalent_rps) == (0.0, 0.0)
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
