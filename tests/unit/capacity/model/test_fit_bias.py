"""What a fit adds to a step cost model by itself."""

import math
from collections.abc import Sequence
from dataclasses import astuple, replace

import pytest
from simulated_servers import CHAT, FAST, polled, profile, restarted, twin_of, watched

from probe.capacity.model.fit_bias import Segments, estimate_bias, without_bias
from probe.capacity.model.step_cost_fit import fit
from probe.capacity.model.windows import MetricsWindow, join_windows, windows
from probe.core.snapshot import Histogram, ServerSnapshot
from probe.core.workload import Workload
from probe.simulator.cost import StepCost
from probe.simulator.virtual_server import BackgroundTraffic, VirtualServer

pytestmark = pytest.mark.slow

KNOWN = profile(FAST)
TWIN = twin_of(KNOWN, CHAT)
WATCHED = [watched(KNOWN, CHAT, rate, 40.0, seed=round(rate)) for rate in (6.0, 12.0, 18.0)]


def _chat(_: int) -> Workload:
    return CHAT


def _as_it_is(_: Segments) -> StepCost:
    return FAST


def _seen(snapshots: Sequence[Sequence[ServerSnapshot]]) -> list[list[MetricsWindow]]:
    """Return the windows of one bootstrap sample."""
    kept: list[Segments] = []

    def keep(segments: Segments) -> None:
        kept.append(segments)

    estimate_bias(TWIN, snapshots, [1.0] * len(snapshots), _chat, keep)
    return [list(segment) for segment in kept[0]]


def test_a_fit_that_is_right_adds_nothing() -> None:
    assert estimate_bias(TWIN, WATCHED, [1.0, 1.0, 1.0], _chat, _as_it_is) == (0.0,) * 6


def test_the_bias_of_a_fit_is_estimated() -> None:
    heavier = replace(FAST, per_token_s=FAST.per_token_s * 1.25)
    found = estimate_bias(TWIN, WATCHED, [1.0, 1.0, 1.0], _chat, lambda _: heavier)
    assert found == pytest.approx((0.0, 0.0, 0.25 * FAST.per_token_s, 0.0, 0.0, 0.0))


def test_a_rehearsal_has_as_many_requests_and_about_as_full_a_batch() -> None:
    for mine, theirs in zip(_seen(WATCHED), map(windows, WATCHED), strict=True):
        assert join_windows(mine).prompts == pytest.approx(join_windows(theirs).prompts, rel=0.05)
        assert join_windows(mine).batch == pytest.approx(join_windows(theirs).batch, rel=0.25)
        assert join_windows(mine).seconds == pytest.approx(join_windows(theirs).seconds, rel=0.1)


@pytest.mark.long
def test_a_fit_is_nearer_without_its_bias() -> None:
    """Of one that takes prompts for much shorter and much longer ones than there are, at two lucks."""
    off = []
    for seed in range(2):
        snapshots = [watched(KNOWN, CHAT, rate, 40.0, seed=10 * seed + round(rate)) for rate in (6.0, 12.0, 18.0)]

        def cost_model(segments: Segments) -> StepCost | None:
            found = fit(segments, 2048, [10.0, 2000.0])
            return found.cost if found is not None else None

        found = cost_model(list(map(windows, snapshots)))
        assert found is not None
        by = estimate_bias(replace(TWIN, cost=found), snapshots, [1.0, 1.0, 1.0], _chat, cost_model)
        fair = StepCost(*(max(term - less, 0.0) for term, less in zip(astuple(found), by, strict=True)))
        off.append([abs(cost.per_token_s / FAST.per_token_s - 1) for cost in (found, fair)])
    assert sum(after for _, after in off) < 0.8 * sum(before for before, _ in off)


def test_stretches_that_say_nothing_are_left_empty() -> None:
    idle = polled(VirtualServer(KNOWN, users=BackgroundTraffic(0.0, CHAT)), 20.0)
    again = restarted(WATCHED[0], 20)
    assert [bool(segment) for segment in _seen([[], WATCHED[0][:1], idle, WATCHED[1]])] == [False, False, False, True]
    assert _seen([again, WATCHED[1]])[1]


@pytest.mark.parametrize("count", [math.nan, *(pytest.param(n, marks=pytest.mark.long) for n in (math.inf, -1.0))])
def test_counts_that_are_no_numbers_begin_no_requests(count: float) -> None:
    broken = list(WATCHED[0])
    ttft = Histogram(((math.inf, count),), count)
    broken[20] = replace(broken[20], histograms={**broken[20].histograms, "ttft": ttft})
    assert _seen([broken, WATCHED[1]])[1]


def test_without_a_fit_nothing_is_taken_off() -> None:
    assert estimate_bias(TWIN, WATCHED, [1.0, 1.0, 1.0], _chat, lambda _: None) == (0.0,) * 6


def test_more_bias_than_the_host_has_is_taken_from_the_weights() -> None:
    """The data hardly tell one from the other. Steps took a tenth longer where the rest was forgotten."""
    fitted = replace(FAST, host_s=0.009, weights_s=0.050)
    corrected = without_bias(fitted, (0.015, 0.0, 0.0, -0.014, 0.0, 0.0))
    assert (corrected.host_s, corrected.weights_s) == (0.0, pytest.approx(0.058))
    mirrored = without_bias(replace(FAST, host_s=0.050, weights_s=0.009), (-0.014, 0.0, 0.0, 0.015, 0.0, 0.0))
    assert (mirrored.host_s, mirrored.weights_s) == (pytest.approx(0.058), 0.0)
    assert without_bias(FAST, (1.0,) * 6) == StepCost(*(0.0,) * 6)
