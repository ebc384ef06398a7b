"""The guard from the stream alone: what the run's own answers show, beside those of the unloaded server."""

from dataclasses import replace

import pytest
from example_records import CHAT, record, spec

from probe.core.objectives import Objective, Objectives
from probe.core.request import Outcome, RequestRecord
from probe.observe.guard import GuardLimits
from probe.observe.stream_guard import StreamGuard

LIMITS = GuardLimits()
ALL = replace(CHAT, e2e=Objective(0.95, 0.8), itl=Objective(0.95, 0.3))  # beside TTFT 0.5 s, TPOT 0.05 s


def _answer(ttft_s: float = 0.1, gap_s: float = 0.01, outcome: Outcome = Outcome.OK) -> RequestRecord:
    return record(ttft_s=ttft_s, gap_s=gap_s, outcome=outcome, asked=spec(8, 10))


def _guard(*answers: RequestRecord) -> StreamGuard:
    guard = StreamGuard(LIMITS, ALL)
    assert guard.observe_unloaded([_answer()] * 5) is None
    for answer in answers:
        guard.answered(answer)
    return guard


def _stalled() -> RequestRecord:
    """Return an answer with one long gap, so that its TPOT and E2E are good."""
    good = _answer()
    later_ns = [at_ns + (i > 4) * 700_000_000 for i, at_ns in enumerate(good.events.at_ns)]
    return replace(good, events=replace(good.events, at_ns=later_ns), done_ns=good.done_ns + 700_000_000)


@pytest.mark.parametrize(
    ("slow", "words"),
    [
        (_answer(ttft_s=1.1), "TTFT of more than 1 s"),
        (_answer(gap_s=0.11), "TPOT of more than 0.1 s"),
        (_answer(ttft_s=0.9, gap_s=0.09), "E2E of more than 1.6 s"),
        (_stalled(), "longest gap of more than 0.6 s"),
    ],
    ids=["ttft", "tpot", "e2e", "itl"],
)
def test_half_of_the_last_ten_answers_beyond_twice_an_objective_end_the_load(slow: RequestRecord, words: str) -> None:
    assert _guard(*[_answer()] * 50, *[slow] * 4).decide() is None
    verdict = _guard(*[_answer()] * 50, *[slow] * 5).decide()
    assert verdict is not None
    assert (verdict.allows_load, verdict.reason) == (False, "slow_answers")
    assert words in str(verdict.detail)
    assert "without load" in str(verdict.detail)


def test_answers_between_once_and_twice_an_objective_are_left_to_be_measured() -> None:
    assert _guard(*[_answer(ttft_s=0.95)] * 20).decide() is None


def test_old_answers_are_forgotten() -> None:
    guard = _guard(*[_answer(ttft_s=3.0)] * 5, *[_answer()] * 6)
    assert guard.decide() is None
    guard = _guard(*[_answer(ttft_s=3.0)] * 10)
    guard.forget_answers()
    assert guard.decide() is None


def test_a_server_that_is_too_slow_without_load_gets_none() -> None:
    verdict = StreamGuard(LIMITS, ALL).observe_unloaded([_answer(), *[_answer(ttft_s=0.6)] * 4])
    assert verdict is not None
    assert verdict.detail == "without load the median TTFT is 0.6 s"


def test_one_slow_answer_without_load_is_chance() -> None:
    assert StreamGuard(LIMITS, ALL).observe_unloaded([*[_answer()] * 4, _answer(ttft_s=5.0)]) is None


def test_the_server_is_calm_when_a_request_alone_is_answered_as_before() -> None:
    guard = _guard()
    assert guard.is_as_unloaded([_answer(ttft_s=0.19)])
    assert guard.is_as_unloaded([_answer(ttft_s=0.24)]), "well within the objective"
    assert not guard.is_as_unloaded([_answer(ttft_s=0.4)])
    assert not guard.is_as_unloaded([_answer(gap_s=0.04)])
    assert not guard.is_as_unloaded([_answer(outcome=Outcome.ABORTED)])
    assert not guard.is_as_unloaded([])


def test_without_an_objective_no_latency_is_judged() -> None:
    guard = StreamGuard(LIMITS, Objectives(name="a", tpot=Objective(0.95, 0.05)))
    assert guard.observe_unloaded([_answer(ttft_s=9.0)] * 5) is None
    for _ in range(10):
        guard.answered(_answer(ttft_s=9.0))
    assert guard.decide() is None
