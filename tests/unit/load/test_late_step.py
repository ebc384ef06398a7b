"""Steps that the client was late in: what shows all the same that the server holds their load."""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_records import MS, failure, record

from probe.core.objectives import Objective, Objectives, certainly_met, met
from probe.core.request import RequestRecord, TokenEvents
from probe.core.step import Arrivals, StepPlan, StepRun, StepSummary
from probe.load.late_step import may_explain
from probe.load.step_summary import summarize

WINDOW = (0, 10_000 * MS)
TTFT, TPOT, ITL = Objective(0.95, 0.5), Objective(0.9, 0.05), Objective(0.9, 0.1)
BOTH = Objectives("chat", availability=0.99, ttft=TTFT, tpot=TPOT)
OPEN = StepPlan(64, 10.0, loop="open", arrivals=Arrivals(rate_rps=10.0))
LATE_S = 0.1  # how late the process ran: more than a tenth of these objectives


def _step(
    records: Sequence[RequestRecord], promised: Objectives = BOTH, plan: StepPlan = OPEN, late_s: float = LATE_S
) -> StepSummary:
    return summarize(StepRun(plan, tuple(records), WINDOW, (late_s,), is_cut_short=False), promised)


def _answer(at_ms: float = 0.0, *, late_ms: float = 0.0, **values: float) -> RequestRecord:
    """Return an answer of 41 tokens whose first one was read so late, as is known."""
    made = record(at_ms=at_ms, tokens=41, **values)  # type: ignore[arg-type]
    return replace(made, events=replace(made.events, late_ns=array("q", [round(late_ms * MS)] + [0] * 40)))


def _each(count: int, every_ms: float, **values: float) -> list[RequestRecord]:
    return [_answer(i * every_ms, **values) for i in range(count)]


@pytest.mark.fault(
    "LO80",
    "Kneewatch's machine is busy during a step, and yet every objective is met",
    area="Starvation",
    users_see="`passed, though late`; its latencies are compared with nothing, and no model learns from them",
    stays="the load that was really sent counts as held: lateness only makes latencies longer",
)
def test_a_late_step_that_met_its_objectives_has_held_what_was_sent() -> None:
    step = _step(_each(100, 100.0))
    assert (step.valid, step.reason, step.is_late, step.broken, step.load) == (True, None, True, (), 10.0)
    fewer = _step([*_each(80, 100.0), *_each(20, 1.0, lag_ms=10_001.0)[:4]])
    assert (fewer.valid, fewer.load) == (True, 8.0), "four of the 84 were sent after the window"
    assert fewer.certain_rps <= 8.0
    more = _step(_each(125, 80.0))
    assert (more.valid, more.offered_rps, more.load, more.certain_rps) == (True, 12.5, 10.0, 10.0)


def test_a_step_on_time_has_the_load_of_its_plan() -> None:
    step = _step(_each(80, 100.0), late_s=0.0)
    assert (step.valid, step.is_late, step.load) == (True, False, 10.0)
    assert step.certain_rps == step.throughput_rps


def _unread_ends(count: int) -> list[RequestRecord]:
    """Return answers whose tokens all came in two reads: half in the first, half 0.4 s later."""
    events = TokenEvents(
        array("q", [100 * MS] * 20 + [500 * MS] * 21), array("q", bytes(8 * 41)), array("i", [1] * 41), 0
    )
    return [record(tokens=41, events=events) for _ in range(count)]


@pytest.mark.fault(
    "LO81",
    "Kneewatch's lateness hides what it measures: first tokens that are read late shorten TPOT, reads of several tokens"
    " hide a gap, requests that are sent late spread a burst",
    area="Starvation",
    users_see="the step is `client_bound`: what the lateness may hide counts at its worst",
    stays="no load is called held that may not have been",
)
@pytest.mark.parametrize(
    ("records", "promised", "held"),
    [
        # 40 gaps of 47 ms: 100 ms of waking make them 49.5 ms, and a first token known to be 120 ms late 52.5 ms.
        (_each(50, 100.0, gap_ms=47.0, ttft_ms=300.0), BOTH, True),
        (_each(50, 100.0, gap_ms=47.0, ttft_ms=300.0, late_ms=120.0), BOTH, False),
        # The first token came after the request was due, however late it was read.
        (_each(50, 100.0, gap_ms=47.0, ttft_ms=100.0, late_ms=120.0), BOTH, True),
        (_each(100, 100.0, ttft_ms=501.0), BOTH, False),
        ([*_each(94, 100.0), *_each(6, 100.0, ttft_ms=501.0)], BOTH, False),
        ([*_each(95, 100.0), *_each(5, 100.0, ttft_ms=501.0)], BOTH, True),
        ([*_each(98, 100.0), failure(), failure()], BOTH, False),
        # Gaps of 10 ms may have been 110 ms where the read before was 100 ms late.
        (_each(100, 100.0), Objectives("o", itl=ITL), False),
        (_each(100, 100.0), Objectives("o", itl=Objective(0.9, 0.12)), True),
        # A tenth of an answer's 500 ms: later ones are no longer part of their burst.
        (_each(100, 100.0, lag_ms=50.0), BOTH, True),
        (_each(100, 100.0, lag_ms=60.0), BOTH, False),
        # 41 tokens in two reads: TPOT is unknown for lack of gaps, or at its worst.
        ([*_each(80, 100.0), *_unread_ends(10)], BOTH, True),
        ([*_each(80, 100.0), *[replace(each, output_tokens=81) for each in _unread_ends(10)]], BOTH, True),
        (_unread_ends(50), Objectives("o", itl=Objective(0.9, 0.45)), False),
    ],
)
def test_what_lateness_may_hide_counts_at_its_worst(
    records: Sequence[RequestRecord], promised: Objectives, *, held: bool
) -> None:
    step = _step(records, promised)
    assert step.is_late
    assert (step.valid, step.reason, step.broken) == ((True, None, ()) if held else (False, "client_bound", ()))


def test_latencies_that_are_unknown_are_not_met_in_a_late_step() -> None:
    """Six of fifty answers came in one read: on time they are not judged, late they may have missed TPOT."""
    whole = [record(at_ms=100.0 * i, tokens=41, gap_ms=0.0) for i in range(6)]
    assert _step([*_each(44, 100.0), *whole], late_s=0.0).valid
    assert _step([*_each(44, 100.0), *whole]).reason == "client_bound"
    assert _step([*_each(46, 100.0), *whole[:4]]).valid


def _users(count: int, *, idle_ms: float) -> list[RequestRecord]:
    """Return a closed loop: each user's next request follows its answer of 500 ms after a while."""
    return [_answer(at_ms) for _ in range(count) for at_ms in map(float, range(0, 9_400, round(500 + idle_ms)))]


@pytest.mark.parametrize(("idle_ms", "late_s", "held"), [(5, 0.015, True), (60, 0.015, False), (5, 0.04, False)])
def test_a_late_closed_loop_has_held_only_what_was_in_flight(idle_ms: float, late_s: float, *, held: bool) -> None:
    """Answers of 500 ms: an end that is read 60 ms late leaves a tenth of the users idle."""
    promised = replace(BOTH, ttft=Objective(0.95, 0.13))
    step = _step(_users(4, idle_ms=idle_ms), promised, StepPlan(4, 10.0), late_s)
    assert step.is_late
    assert step.valid == held
    assert step.load == 4


def test_a_pulse_and_a_step_of_which_nothing_is_known_hold_nothing() -> None:
    pulse = StepPlan(50, 10.0, requests=50)
    assert _step([_answer()] * 50, plan=pulse).reason == "client_bound"
    asleep = summarize(StepRun(OPEN, tuple(_each(100, 100.0)), WINDOW, (), is_cut_short=False), BOTH)
    assert asleep.reason == "client_bound"


@pytest.mark.parametrize(
    ("trip", "records", "late_s", "explained"),
    [
        ("objective_broken", _each(50, 100.0, ttft_ms=560.0), 0.1, True),
        ("objective_broken", _each(50, 100.0, ttft_ms=660.0), 0.1, False),
        ("objective_broken", _each(50, 100.0, ttft_ms=660.0, late_ms=70.0), 0.1, True),
        ("queue", _each(50, 100.0), 0.1, False),
        ("queue", [*_each(49, 100.0), _answer(4_900.0, lag_ms=500.0)], 0.1, True),
        ("no_first_token", _each(50, 100.0), 0.5, True),
    ],
)
def test_a_trip_that_lateness_may_explain(
    trip: str, records: Sequence[RequestRecord], late_s: float, *, explained: bool
) -> None:
    run = StepRun(OPEN, tuple(records), WINDOW, (late_s,) * 1000, is_cut_short=True)
    assert may_explain(trip, run, BOTH) == explained
    assert may_explain(trip, replace(run, loop_lag_s=()), BOTH), "nothing is known of the client"


TIMES = st.lists(st.integers(1, 200), min_size=1, max_size=12)


@given(TIMES, st.lists(st.integers(0, 150), min_size=1, max_size=12), st.integers(0, 60))
def test_what_a_late_client_is_certain_of_a_punctual_one_has_measured(
    gaps_ms: list[int], delays_ms: list[int], waking_ms: int
) -> None:
    """Each read is late by what is known of it and by what the system kept the process from running."""
    came = list(accumulate(gaps_ms))
    true = _of_reads(came, came, waking_ms=0)
    late = _of_reads(came, _reads(came, delays_ms), waking_ms)
    for promised in _PROMISES:
        sure, good = certainly_met(late, promised, waking_ms / 1000), met(true, promised)
        assert all(good.get(name, True) for name, value in sure.items() if value)


_LIMITS: Sequence[Callable[[Objective], Objectives]] = (
    lambda limit: Objectives("o", ttft=limit),
    lambda limit: Objectives("o", tpot=limit),
    lambda limit: Objectives("o", e2e=limit),
    lambda limit: Objectives("o", itl=limit),
)
_PROMISES = [make(Objective(0.9, ms / 1000)) for make in _LIMITS for ms in (20, 60, 100, 150, 250, 600)]


def _reads(came_ms: Sequence[int], delays_ms: Sequence[int]) -> list[int]:
    """Return when each token was read: a read takes all that came until then."""
    read, at_ms = [], -1
    for i, came in enumerate(came_ms):
        at_ms = at_ms if came <= at_ms else came + delays_ms[i % len(delays_ms)]
        read.append(at_ms)
    return read


def _of_reads(came_ms: Sequence[int], read_ms: Sequence[int], waking_ms: int) -> RequestRecord:
    """Return the answer as read; of each read's lateness all but `waking_ms` is known."""
    first = {at: came for came, at in reversed(list(zip(came_ms, read_ms, strict=True)))}
    known = array("q", [max(at - first[at] - waking_ms, 0) * MS for at in read_ms])
    events = TokenEvents(array("q", [at * MS for at in read_ms]), known, array("i", [1] * len(read_ms)), 0)
    return record(events=events, tokens=len(read_ms), done_ns=read_ms[-1] * MS)
