"""The load plan for given steps."""

from collections.abc import Iterable
from dataclasses import replace

from plain_records import step as plain_step

from probe.capacity.search.fixed_steps import FixedSteps
from probe.core.result import Stopped
from probe.core.snapshot import UserLoad
from probe.core.step import Arrivals, StepPlan, StepRun, StepSummary

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
