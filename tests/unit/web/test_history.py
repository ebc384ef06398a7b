"""Uptime, strips and budgets: from canaries alone, and a gap is never good."""

import time

import pytest
from example_records import CHAT, record, status

from probe.core.canary_history import SLOT_S, CanaryHistory
from probe.core.objectives import Objective, Objectives
from probe.core.request import Outcome
from probe.web.history import Period, budgets, budgets_left, periods, target_history

NOW_S = 1_000_000 * SLOT_S + 900.0


def _history(*canaries: tuple[int, int, int]) -> CanaryHistory:
    """Return a history of (half hours ago, answered, failed)."""
    history = CanaryHistory()
    for ago, answered, failed in canaries:
        at_s = NOW_S - ago * SLOT_S
        for outcome, count in ((Outcome.OK, answered), (Outcome.TIMEOUT, failed)):
            for _ in range(count):
                history.add(record(outcome=outcome, done_wall_s=at_s), CHAT)
    return history


def _bars(period: Period) -> dict[str, int]:
    return {kind: path.count("M") for kind, path in period.strip.paths}


def test_without_canaries_everything_is_unknown() -> None:
    for period in periods(CanaryHistory(), NOW_S):
        assert period.uptime is None
        assert list(_bars(period)) == ["gap"]
    assert budgets(CanaryHistory(), CHAT, NOW_S) == []


def test_uptime_is_of_canaries_and_a_gap_is_neither_up_nor_down() -> None:
    day, week, month = periods(_history((40, 0, 10), (0, 90, 0)), NOW_S)
    assert day.uptime == week.uptime == month.uptime == pytest.approx(0.9)
    assert _bars(day) == {"good": 1, "failed": 1, "gap": 46}
    assert day.known == month.known == "1 h", "the half hour with failures and the one under way"
    assert day.strip.words == "last 24 h: 90 % up; failures in 1 of 48 slices, 46 unknown"
    assert (sum(_bars(week).values()), sum(_bars(month).values())) == (84, 90)


def test_periods_end_where_they_say() -> None:
    day, week, month = periods(_history((49, 0, 1), (400, 0, 1), (0, 1, 0)), NOW_S)
    assert (day.uptime, week.uptime, month.uptime) == (1.0, 0.5, pytest.approx(1 / 3))


def test_one_failure_among_many_is_visible() -> None:
    (day,) = periods(_history((0, 999, 1)), NOW_S, 1)
    assert _bars(day) == {"good": 1, "failed": 1, "gap": 47}
    assert day.uptime == pytest.approx(0.999)


def test_budgets_say_what_is_left_or_how_far_they_are_overspent() -> None:
    left = {one.objective: one for one in budgets(_history((1439, 1, 0), (9, 1, 0), (0, 3998, 1)), CHAT, NOW_S)}
    assert left["availability"].words == "75 % left for 30d"
    assert (left["ttft"].left, left["tpot"].left) == (1.0, 1.0)
    (overspent, *_) = budgets(_history((3, 90, 10), (2, 1, 0), (1, 1, 0)), CHAT, NOW_S)
    assert overspent.left == pytest.approx(1 - 10 / 102 / 0.001)
    assert overspent.words.startswith("overspent, over 10x used for 30d, of canaries since ")
    (overspent, *_) = budgets(_history((3, 995, 3), (2, 1, 0), (1, 1, 0)), CHAT, NOW_S)
    assert overspent.words.startswith("overspent, 300 % of it used for 30d")


@pytest.mark.fault(
    "NM43",
    "A target was added a minute ago, and its first canary failed",
    area="Truth",
    users_see="its error budgets: too little data, until it has had 100 canaries in more than an hour",
    stays="the API's figures",
)
@pytest.mark.parametrize("canaries", [[(0, 3, 1)], [(0, 999, 1)], [(9, 9, 0), (5, 9, 0), (0, 9, 1)]])
def test_of_too_little_data_no_budget_is_said(canaries: list[tuple[int, int, int]]) -> None:
    (first, *_) = budgets(_history(*canaries), CHAT, NOW_S)
    assert (first.left, first.words) == (None, "too little data: it takes an hour and 100 canaries")


def test_every_latency_objective_has_a_budget() -> None:
    limit = Objective(0.9, 0.5)
    every = Objectives("all", availability=0.99, ttft=limit, tpot=limit, e2e=limit, itl=limit)
    history = CanaryHistory()
    for ttft_s in (0.1, 0.1, 0.1, 0.9):  # one misses TTFT and E2E
        history.add(record(ttft_s=ttft_s, done_wall_s=NOW_S), every)
    left = budgets_left(history, every, NOW_S)
    assert left == pytest.approx({"availability": 1.0, "ttft": -1.5, "tpot": 1.0, "e2e": -1.5, "itl": 1.0})
    assert [budget.objective for budget in budgets(history, every, NOW_S)] == [*left]


def test_the_overview_has_the_smallest_budget_and_a_passive_target_none() -> None:
    history = CanaryHistory()
    for ttft_s in (0.1, 0.9):
        history.add(record(ttft_s=ttft_s, done_wall_s=time.time()), CHAT)
    found = target_history(status(history=history), time.time())
    assert found is not None
    assert (found.budget, found.month_uptime) == (None, 1.0), "of two canaries a budget is not known"
    many = CanaryHistory()
    for hours_ago, ttft_s in ((2, 0.1), (1, 0.1), (0, 0.9)):
        for _ in range(40):
            many.add(record(ttft_s=ttft_s, done_wall_s=time.time() - 3600 * hours_ago), CHAT)
    found = target_history(status(history=many), time.time())
    assert found is not None
    assert found.budget is not None
    assert found.budget[0] == "ttft"
    assert target_history(status(passive=True), time.time()) is None
