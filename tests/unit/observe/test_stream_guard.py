"""The guard from the stream alone: what the run's own answers show, beside those of the unloaded server."""

import pytest
from example_records import CHAT, record, spec

from probe.core.objectives import Objective, Objectives
from probe.core.request import Outcome, RequestRecord
from probe.observe.guard_limits import GuardLimits
from probe.observe.stream_guard import StreamGuard

LIMITS = GuardLimits().promised(CHAT)  # TTFT 0.5 s, TPOT 0.05 s


def _answer(ttft_s: float = 0.1, gap_s: float = 0.01, outcome: Outcome = Outcome.OK) -> RequestRecord:
    return record(ttft_s=ttft_s, gap_s=gap_s, outcome=outcome, asked=spec(8, 10))


def _guard(*answers: RequestRecord) -> StreamGuard:
    guard = StreamGuard(LIMITS)
    assert guard.observe_unloaded([_answer()] * 5) is None
    for answer in answers:
        guard.answered(answer)
    return guard


@pytest.mark.parametrize("slow", [_answer(ttft_s=1.1), _answer(gap_s=0.11)], ids=["ttft", "tpot"])
def test_half_of_the_last_ten_answers_beyond_twice_an_objective_end_the_load(slow: RequestRecord) -> None:
    assert _guard(*[_answer()] * 50, *[slow] * 4).decide() is None
    verdict = _guard(*[_answer()] * 50, *[slow] * 5).decide()
    assert verdict is not None
    assert (verdict.allows_load, verdict.reason) == (False, "slow_answers")
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
    verdict = StreamGuard(LIMITS).observe_unloaded([_answer(), *[_answer(ttft_s=0.6)] * 4])
    assert verdict is not None
    assert verdict.detail == "without load the median TTFT is 0.6 s"


def test_one_slow_answer_without_load_is_chance() -> None:
    assert StreamGuard(LIMITS).observe_unloaded([*[_answer()] * 4, _answer(ttft_s=5.0)]) is None


def test_the_server_is_calm_when_a_request_alone_is_answered_as_before() -> None:
    guard = _guard()
    assert guard.is_as_unloaded([_answer(ttft_s=0.19)])
    assert guard.is_as_unloaded([_answer(ttft_s=0.24)]), "well within the objective"
    assert not guard.is_as_unloaded([_answer(ttft_s=0.4)])
    assert not guard.is_as_unloaded([_answer(gap_s=0.04)])
    assert not guard.is_as_unloaded([_answer(outcome=Outcome.ABORTED)])
    assert not guard.is_as_unloaded([])


def test_without_an_objective_no_latency_is_judged() -> None:
    only_tpot = GuardLimits().promised(Objectives(name="a", tpot=Objective(0.95, 0.05)))
    guard = StreamGuard(only_tpot)
    assert guard.observe_unloaded([_answer(ttft_s=9.0)] * 5) is None
    for _ in range(10):
        guard.answered(_answer(ttft_s=9.0))
    assert guard.decide() is None
