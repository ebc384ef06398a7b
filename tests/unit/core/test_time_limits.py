"""How long Kneewatch waits for an answer."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.config.objectives import DEFAULT_OBJECTIVES, RESULT_OBJECTIVES
from probe.config.workloads import PRESET_ROWS, PRESETS
from probe.core.objectives import Objective, Objectives
from probe.core.time_limits import LEAST_S, TimeLimits, cannot_end, longest_good_s, out_of_time, was_arriving

CHAT = DEFAULT_OBJECTIVES.objectives("default")
SECONDS = st.floats(0.001, 1000.0)


def within(**seconds: float) -> Objectives:
    return Objectives("", **{name: Objective(0.95, limit_s) for name, limit_s in seconds.items()})


@pytest.mark.fault(
    "CO60",
    "An answer that takes longer than 30 s within its objectives, or a few times that",
    area="Configuration",
    users_see="its latencies; the limit follows from objectives and length",
    stays="a server that hangs is found after 30 s",
)
@pytest.mark.parametrize("tpot_s", [0.02, 0.05, 0.067, 0.11])
@pytest.mark.parametrize("tokens", [1024, 4096, 7168])
@pytest.mark.parametrize("objectives", [CHAT, within(tpot=0.02), Objectives("")], ids=["usual", "strict", "none"])
def test_a_long_answer_of_a_slow_server_ends_within_its_limit(
    objectives: Objectives, tokens: int, tpot_s: float
) -> None:
    limits = TimeLimits(objectives, tokens)
    assert limits.answer_s() > 1.0 + tokens * tpot_s
    assert limits.silence_s == LEAST_S


@pytest.mark.parametrize(
    ("objectives", "tokens", "answer_s", "silence_s"),
    [
        (CHAT, 128, 30.0, 30.0),
        (CHAT, 1024, 4 * (0.5 + 1023 * 0.05), 30.0),
        (within(ttft=30.0, tpot=5.0), 256, 4 * (30 + 255 * 5), 120.0),
        (within(ttft=0.5, itl=0.4), 1024, 4 * (0.5 + 1023 * 0.4), 30.0),
        (within(ttft=0.5, tpot=0.05, itl=20.0), 1024, 4 * (0.5 + 1023 * 0.05), 80.0),
        (within(e2e=300.0), 1024, 1200.0, 600.0),  # it may come all at once
        (within(ttft=0.5, tpot=0.05, e2e=120.0), 1024, 480.0, 30.0),
        (RESULT_OBJECTIVES.objectives("result"), 0, 30.0, 30.0),
        (within(e2e=60.0), 0, 240.0, 120.0),
    ],
)
def test_the_limits_follow_from_the_objectives(
    objectives: Objectives, tokens: int, answer_s: float, silence_s: float
) -> None:
    limits = TimeLimits(objectives, tokens)
    assert limits.answer_s() == pytest.approx(answer_s)
    assert limits.silence_s == pytest.approx(silence_s)


def test_a_limit_that_is_set_is_the_only_one() -> None:
    limits = TimeLimits(CHAT, 4096, set_s=5.0, most_s=1.0)
    assert (limits.answer_s(), limits.answer_s(10_000), limits.silence_s) == (5.0, 5.0, math.inf)


def test_a_longer_request_than_the_workload_has_gets_more_time_and_a_shorter_one_the_same() -> None:
    limits = TimeLimits(CHAT, 1024)
    assert limits.answer_s(16) == limits.answer_s()
    assert limits.answer_s(4096) == TimeLimits(CHAT, 4096).answer_s()


def test_canaries_in_flight_are_bounded() -> None:
    assert TimeLimits(CHAT, 4096, most_s=64.0).answer_s() == 64.0


@given(SECONDS, SECONDS, st.integers(0, 20_000))
def test_an_answer_within_its_objectives_is_never_cut(ttft_s: float, tpot_s: float, tokens: int) -> None:
    for objectives in (within(ttft=ttft_s, tpot=tpot_s), within(ttft=ttft_s, tpot=tpot_s, e2e=ttft_s)):
        limits = TimeLimits(objectives, tokens)
        assert limits.answer_s() >= 3.9 * longest_good_s(objectives, tokens)
        assert limits.silence_s >= max(ttft_s, tpot_s)


@pytest.mark.parametrize("name", [row.name for row in PRESET_ROWS])
def test_every_preset_works_within_the_usual_objectives_and_the_usual_budget(name: str) -> None:
    longest = PRESETS[name].with_parts(PRESETS).longest_answer
    limits = TimeLimits(CHAT, longest)
    assert cannot_end(CHAT, longest, limits.answer_s(), "") is None
    assert cannot_end(CHAT, longest, 300.0, "") is None


def test_a_limit_that_is_too_short_says_for_what() -> None:
    assert cannot_end(CHAT, 1024, 30.0, "30s") == (
        "an answer of 1024 tokens may take 51.7 s by its objectives, and cannot end within 30s; raise it"
    )
    assert cannot_end(CHAT, 1024, 52.0, "52s") is None


def test_the_words_of_a_limit_tell_an_answer_that_still_arrived_from_one_that_had_stopped() -> None:
    assert was_arriving(out_of_time("no full answer within 90 s", "--timeout"))
    assert not was_arriving(out_of_time("no full answer within 90 s (nothing more after 3 s)", "--timeout"))
    assert not was_arriving(out_of_time("no answer within 90 s", ""))
    assert not was_arriving("HTTP 500: no full answer within 90 s")
    assert not was_arriving(None)
