"""What the last minutes were like for users, and how full the server was."""

from dataclasses import replace

import pytest
from example_records import CHAT, snapshot

from probe.core.objectives import Objective
from probe.core.snapshot import EngineMinutes, Histogram, UserLatency, UserTotals
from probe.observe.last_minutes import engine_minutes, p95_range, user_minutes

INF = float("inf")
S = 10**9
LIMITS = replace(CHAT, ttft=Objective(0.95, 0.5), tpot=None)


def _totals(fast: float, slow: float, **outcomes: float) -> UserTotals:
    histogram = Histogram(((0.5, fast), (2.5, fast), (5.0, fast + slow), (INF, fast + slow)), 1.0)
    return UserTotals(fast + slow, histograms={"ttft": histogram}, outcomes=outcomes)


def test_only_the_last_minutes_requests_count() -> None:
    history = [(0, _totals(1000, 0, ok=1000, failed=0)), (300 * S, _totals(1003, 77, ok=1050, failed=30))]
    found = user_minutes(history, LIMITS)
    assert found is not None
    assert (found.seconds, found.ended, found.failed) == (300.0, 80.0, 30.0)
    assert found.latencies == {"ttft": UserLatency(80.0, 77.0, is_met=False, p95_s=(2.5, 5.0))}
    unknown = user_minutes([(0, _totals(0, 0, ok=1)), (S, _totals(0, 0, ok=9))], LIMITS)
    assert unknown is not None
    assert (unknown.ended, unknown.failed, unknown.latencies) == (None, None, {}), "failures are not counted"
    assert user_minutes(history[:1], LIMITS) is None


@pytest.mark.parametrize(
    ("counts", "found"),
    [((95, 100, 100), (0.0, 0.5)), ((94, 100, 100), (0.5, 5.0)), ((0, 0, 100), (5.0, None)), ((0, 0, 0), None)],
)
def test_a_p95_lies_between_two_bounds(
    counts: tuple[float, float, float], found: tuple[float, float | None] | None
) -> None:
    assert p95_range(Histogram(tuple(zip((0.5, 5.0, INF), counts, strict=True)), 1.0)) == found


def test_a_full_cache_is_remembered_for_minutes_and_preemptions_are_counted_in_them() -> None:
    calm = snapshot(kv_cache_usage=0.4, waiting=0.0, preemptions=100.0)
    full = replace(calm, at_ns=60 * S, kv_cache_usage=0.97, waiting=5.0, preemptions=379.0)
    after = replace(full, at_ns=300 * S, kv_cache_usage=0.5, waiting=1.0)
    assert engine_minutes([calm, full, after]) == EngineMinutes(300.0, 0.97, 5.0, 279.0)
    assert engine_minutes([]) is None
    assert engine_minutes([snapshot(kv_cache_usage=None, waiting=None, preemptions=None)]) == EngineMinutes(0.0)
