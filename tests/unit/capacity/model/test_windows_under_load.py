"""What a server did between two snapshots of its metrics, odd snapshots included."""

import math
from collections.abc import Callable
from dataclasses import astuple, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from simulated_servers import CHAT, FAST, profile, restarted, watched, without, workload

from probe.capacity.model.windows import MetricsWindow, join_windows, windows
from probe.core.snapshot import Histogram, ServerSnapshot

READINGS = watched(profile(FAST), CHAT, 6.0, 40.0)


def histogram(count: float, total_s: float) -> Histogram:
    return Histogram(((math.inf, count),), total_s)


def snapshot(at_s: float, done: float, **changed: object) -> ServerSnapshot:
    """Return the snapshot after `done` seconds of 10 requests/s of 100 + 50 tokens, 25 at a time, in steps of 20 ms."""
    counts = {
        "itl": histogram(490 * done, 9.8 * done),
        "ttft": histogram(10 * done, done),
        "iteration_tokens": histogram(50 * done, 1490 * done),
        "prefill": histogram(10 * done, 0.5 * done),
        "prompt_length": histogram(10 * done, 1000 * done),
    }
    plain = ServerSnapshot(
        at_ns=round(at_s * 1e9),
        wall_s=at_s,
        running=25.0,
        waiting=0.0,
        kv_cache_usage=0.5,
        kv_cache_tokens=8000.0,
        prompt_tokens=1000 * done,
        generation_tokens=500 * done,
        prefix_cache_hits=0.0,
        histograms=counts,
    )
    return replace(plain, **changed)  # type: ignore[arg-type]


def one(*snapshots: ServerSnapshot) -> MetricsWindow:
    (window,) = windows(snapshots)
    return window


def test_prompt_tokens_that_were_found_here_or_elsewhere_are_not_computed() -> None:
    before = snapshot(5, 2, external_cache_hits=100.0)
    window = one(before, snapshot(6, 3, prefix_cache_hits=200.0, external_cache_hits=400.0))
    assert window.cached_tokens == 500.0


def test_a_window_is_what_was_counted_between_two_readings() -> None:
    window = one(snapshot(5, 2), snapshot(6, 3))
    assert (window.begin_s, window.end_s, window.seconds) == (5.0, 6.0, 1.0)
    assert window.itl_s == pytest.approx(0.02)
    assert window.batch == pytest.approx(9.8)
    assert (window.prompts, window.prompt_tokens, window.generation_tokens) == (10, 1000, 500)
    assert (window.finished, window.prefill_sum_s, window.finished_prompt_tokens) == (10, pytest.approx(0.5), 1000)
    assert (window.running, window.waiting, window.kv_tokens) == (25.0, 0.0, 4000.0)
    assert window.tokens_per_gap == 1.0


def test_a_server_s_windows_hold_all_that_it_did() -> None:
    seen = join_windows(windows(READINGS))
    whole = READINGS[-1].histograms["itl"].count - READINGS[0].histograms["itl"].count
    assert seen.decodes == pytest.approx(whole, rel=0.05)  # the last ones may be too few for a window
    assert seen.prompts / seen.seconds == pytest.approx(6.0, rel=0.3)


@pytest.mark.parametrize("snapshots", [[], [snapshot(1, 1)]])
def test_fewer_than_two_snapshots_say_nothing(snapshots: list[ServerSnapshot]) -> None:
    assert windows(snapshots) == []


def test_a_restart_gives_no_window_across_it() -> None:
    found = windows([snapshot(1, 1), snapshot(2, 2), snapshot(3, 0.5), snapshot(4, 1.5)])
    assert [(window.begin_s, window.end_s) for window in found] == [(1.0, 2.0), (3.0, 4.0)]
    assert len(windows(restarted(READINGS, 20))) <= len(windows(READINGS))


def test_a_restart_that_only_a_sum_shows() -> None:
    later = snapshot(2, 2)
    fell = replace(later, histograms={**later.histograms, "ttft": histogram(20, 0.5)})
    assert windows([snapshot(1, 1), fell]) == []


def test_an_engine_that_goes_or_comes_gives_no_window() -> None:
    assert windows([snapshot(1, 1, engines=2), snapshot(2, 3, engines=1)]) == []
    assert windows([snapshot(1, 1, engines=1), snapshot(2, 3, engines=2)]) == []


def test_one_of_several_engines_gone_makes_the_counts_fall() -> None:
    assert windows([snapshot(1, 10), snapshot(2, 6), snapshot(2.5, 6.1)]) == []


@pytest.mark.parametrize("missing", ["itl", "ttft"])
def test_without_a_needed_histogram_there_is_no_window(missing: str) -> None:
    assert windows([without(r, missing) for r in READINGS]) == []


@pytest.mark.parametrize("missing", ["prompt_tokens", "generation_tokens"])
def test_without_a_needed_counter_there_is_no_window(missing: str) -> None:
    assert windows([snapshot(1, 1), snapshot(2, 2, **{missing: None})]) == []


def test_an_old_server_counts_no_steps_and_no_prefills() -> None:
    """vLLM before 0.6: as many steps as the gaps of those that run fit in the time."""
    old = [without(r, "iteration_tokens", "prefill", "prompt_length") for r in (snapshot(1, 1), snapshot(2, 2))]
    window = one(*old)
    assert window.batch == pytest.approx(9.8)  # seconds of waiting for tokens, in a second
    assert (window.finished, window.prefill_sum_s, window.finished_prompt_tokens) == (0, 0, 0)


def test_uncounted_steps_are_those_of_all_engines() -> None:
    """Two engines share the load, so half of it is in a step of each."""
    old = [without(r, "iteration_tokens") for r in (snapshot(1, 1, engines=2), snapshot(2, 2, engines=2))]
    assert one(*old).batch == pytest.approx(9.8 / 2)


def test_a_gauge_that_is_missing_once_does_not_halve_the_mean() -> None:
    gone = snapshot(2, 2, running=None, waiting=None, kv_cache_usage=None)
    window = one(snapshot(1, 1), gone)
    assert (window.running, window.kv_tokens) == (25.0, 4000.0)


def test_gauges_that_are_never_there_are_unknown_and_not_zero() -> None:
    bare = [snapshot(s, s, running=None, waiting=None, kv_cache_usage=None, kv_cache_tokens=None) for s in (1, 2)]
    window = one(*bare)
    assert (window.running, window.waiting, window.kv_tokens) == (None, None, 0.0)


def test_a_sample_that_is_no_number_gives_no_window() -> None:
    nan, later = float("nan"), snapshot(2, 2)
    bad_sum = replace(later, histograms={**later.histograms, "itl": histogram(980, nan)})
    assert windows([snapshot(1, 1), bad_sum]) == []
    assert windows([snapshot(1, 1), replace(later, running=nan)]) == []
    assert windows([snapshot(1, 1), replace(later, kv_cache_tokens=math.inf)]) == []


def test_snapshots_of_the_same_moment_or_out_of_order_are_left_out() -> None:
    twice = [r for r in (snapshot(1, 1), snapshot(2, 2), snapshot(3, 3)) for _ in range(2)]
    assert [(w.begin_s, w.end_s) for w in windows(twice)] == [(1.0, 2.0), (2.0, 3.0)]
    assert len(windows([snapshot(1, 1), snapshot(0.5, 2), snapshot(2, 2)])) == 1


def test_a_long_time_without_snapshots_gives_no_window() -> None:
    assert windows([snapshot(0, 1), snapshot(400, 300)]) == []
    assert len(windows([snapshot(0, 1), snapshot(60, 61)])) == 1


def test_short_moments_are_joined() -> None:
    found = windows([snapshot(1 + i / 10, 1 + i / 10) for i in range(11)])
    assert [round(window.seconds, 1) for window in found] == [0.9]


def test_an_idle_server_gives_no_window() -> None:
    assert windows([snapshot(s, 1) for s in range(100)]) == []


def test_hours_without_load_do_not_dilute_the_load_after_them() -> None:
    quiet = [snapshot(s, 1) for s in range(0, 7200, 60)]
    busy = windows([*quiet, *(snapshot(7200 + s, 1 + s) for s in range(1, 4))])
    assert max(window.seconds for window in busy) <= 300


def test_a_request_meets_itself_and_those_that_are_there_at_any_time() -> None:
    """Known of an M/M/infinity queue; in a moment it meets those of the moment."""
    moment, minute = one(snapshot(5, 2), snapshot(6, 3)), one(snapshot(5, 2), snapshot(65, 62))
    assert moment.batch == minute.batch == pytest.approx(9.8)
    assert minute.experienced_batch == pytest.approx(1 + 9.8, abs=0.05)
    assert moment.batch < moment.experienced_batch < moment.batch + 0.4


@pytest.mark.slow
def test_a_long_window_gives_the_same_batch_size_as_short_ones() -> None:
    """Of a server whose steps take longer with each request: 4 at a time, and 0 to 10 within a minute."""
    snapshots = watched(profile(FAST), workload(100, 60), 6.0, 300.0)
    short, long = windows(snapshots), windows(snapshots[::60])

    def met(seen: list[MetricsWindow], figure: Callable[[MetricsWindow], float]) -> float:
        return sum(figure(w) * w.decodes for w in seen) / sum(w.decodes for w in seen)

    truth = met(short, lambda w: w.experienced_batch)
    assert met(long, lambda w: w.experienced_batch) == pytest.approx(truth, rel=0.04)
    assert met(long, lambda w: w.batch) < 0.9 * truth, "which the mean of a window does not"


def test_zero_prompts_and_a_speculating_server() -> None:
    later = snapshot(9.5, 1)
    decoded = replace(later, histograms={**later.histograms, "itl": histogram(890, 17.8)}, generation_tokens=1500)
    window = one(snapshot(1, 1), decoded)
    assert (window.prompts, window.prompt_tokens) == (0, 0)
    assert window.tokens_per_gap == pytest.approx(2.5)


def test_nothing_at_all_is_no_division_by_zero() -> None:
    empty = MetricsWindow(0, 1, *([0.0] * 14))
    assert (empty.itl_s, empty.batch, empty.experienced_batch, empty.tokens_per_gap) == (0.0, 0.0, 0.0, 1.0)
    with pytest.raises(ValueError, match="no windows"):
        join_windows([])


NUMBERS = st.one_of(st.none(), st.floats(), st.floats(0, 1e6))
HISTOGRAMS = st.builds(
    Histogram, st.lists(st.tuples(st.just(math.inf), st.floats(0, 1e6)), max_size=1).map(tuple), st.floats(0, 1e9)
)
ODD = st.builds(
    ServerSnapshot,
    at_ns=st.integers(0, 10**11),
    wall_s=st.just(0.0),
    running=NUMBERS,
    waiting=NUMBERS,
    kv_cache_usage=NUMBERS,
    prompt_tokens=NUMBERS,
    generation_tokens=NUMBERS,
    prefix_cache_hits=NUMBERS,
    kv_cache_tokens=NUMBERS,
    engines=st.integers(1, 3),
    histograms=st.dictionaries(
        st.sampled_from(["itl", "ttft", "iteration_tokens", "prefill", "prompt_length"]), HISTOGRAMS
    ),
)


@pytest.mark.slow
@examples(80)
@given(st.lists(ODD, max_size=12))
def test_whatever_is_read_windows_are_sound(snapshots: list[ServerSnapshot]) -> None:
    for window in windows(snapshots):
        assert all(map(math.isfinite, astuple(window)))
        assert window.seconds >= 0.9
        assert window.decodes >= 20
        assert min(window.steps, window.prompts, window.itl_sum_s, window.prefill_sum_s) >= 0
        assert window.batch <= window.experienced_batch < math.inf


@examples(40)
@given(st.lists(st.integers(1, len(READINGS) - 2), max_size=10, unique=True))
def test_leaving_snapshots_out_loses_no_counts(left_out: list[int]) -> None:
    """A missed poll makes windows longer, and their sum the same but for the rest at the end."""
    every = join_windows(windows(READINGS))
    fewer = join_windows(windows([r for i, r in enumerate(READINGS) if i not in left_out]))
    assert fewer.decodes == pytest.approx(every.decodes, rel=0.1)
    assert fewer.itl_s == pytest.approx(every.itl_s, rel=0.1)
