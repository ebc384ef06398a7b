"""Series of snapshots, joined: no hour and no token of the gaps between them is left."""

from dataclasses import replace
from itertools import pairwise

from example_records import whole_snapshot
from hypothesis import given
from hypothesis import strategies as st

from probe.capacity.model.windows import windows
from probe.core.server_values import ValueKind, plain
from probe.core.snapshot import Histogram, ServerSnapshot, StepSums, as_fields
from probe.observe.snapshot_history import spliced

S = 10**9
TOKENS, REQUESTS = 100.0, 5.0  # a second


def _read(at_s: float, running: float = 4.0) -> ServerSnapshot:
    """Return a snapshot of a server with steady traffic since second 0."""
    whole = whole_snapshot()
    histograms = {
        name: Histogram(((float("inf"), count * at_s),), mean * count * at_s)
        for name, count, mean in (
            ("itl", TOKENS, 0.03),
            ("ttft", REQUESTS, 0.2),
            ("iteration_tokens", 30.0, 20.0),
            ("prefill", REQUESTS, 0.1),
            ("prompt_length", REQUESTS, 300.0),
        )
    }
    return replace(
        whole,
        at_ns=round(at_s * S),
        wall_s=at_s,
        running=running,
        kv_cache_usage=running / 100,
        prompt_tokens=300 * REQUESTS * at_s,
        generation_tokens=TOKENS * at_s,
        histograms=histograms,
        by_engine={name: replace(one, generation_tokens=TOKENS * at_s / 2) for name, one in whole.by_engine.items()},
    )


def _series(*spans: tuple[int, int]) -> list[list[ServerSnapshot]]:
    return [[_read(at, running=4.0 + i) for at in range(begin, end, 5)] for i, (begin, end) in enumerate(spans)]


@given(st.lists(st.tuples(st.integers(2, 30), st.integers(0, 20_000)), min_size=1, max_size=5))
def test_rates_are_those_of_the_series_whatever_lay_between(lengths: list[tuple[int, int]]) -> None:
    spans, at = [], 10
    for count, gap in lengths:
        spans.append((at, at + 5 * count))
        at += 5 * count + gap
    series = _series(*spans)
    joined = spliced(series)
    assert [each.running for each in joined] == [each.running for one in series for each in one]
    for before, after in pairwise(joined):
        seconds = (after.at_ns - before.at_ns) / S
        assert seconds in (5.0, 0.001)
    for window in windows(joined):
        assert abs(window.generation_tokens - TOKENS * window.seconds) < 0.2 + 1e-6 * at
        assert abs(window.prompts - REQUESTS * window.seconds) < 0.02 + 1e-6 * at
        assert abs(window.itl_s - 0.03) < 1e-4


def test_a_window_lies_within_one_series_but_for_a_millisecond() -> None:
    """A mean over a quiet and a busy hour would be the cost of a step that there never was."""
    joined = spliced(_series((0, 60), (90_000, 90_060)))
    assert {round(window.running or 0.0, 2) for window in windows(joined)} <= {4.0, 5.0}


def test_one_series_is_left_unchanged_and_none_is_none() -> None:
    (one,) = _series((5, 60))
    assert spliced([one]) == one
    assert spliced([]) == spliced([[]]) == []


def test_of_engines_too_only_what_they_did_meanwhile_is_counted() -> None:
    joined = spliced(_series((0, 60), (90_000, 90_060)))
    for name, one in joined[0].by_engine.items():
        grown = (joined[-1].by_engine[name].generation_tokens or 0.0) - (one.generation_tokens or 0.0)
        assert grown == TOKENS * 110 / 2
    assert joined[0].by_engine


def test_sums_over_engine_steps_are_those_of_the_series() -> None:
    early, late = _series((0, 60), (90_000, 90_060))
    stepped = [
        [replace(each, step_sums={"512": StepSums(*[rate * each.wall_s for rate in range(1, 7)])}) for each in one]
        for one in (early, late)
    ]
    joined = spliced(stepped)
    before, after = joined[0].step_sums["512"], joined[-1].step_sums["512"]
    assert after.steps - before.steps == 110
    assert after.kv_tokens - before.kv_tokens == 6 * 110
    assert spliced([early, stepped[1]])[-1].step_sums["512"].steps == 90_055


def test_every_counter_of_a_snapshot_is_spliced() -> None:
    """A new one that is not would leap over hours, and look like work that was never done."""
    whole = _read(100.0)
    counted = {value.key: whole.value(value.key) or 0.0 for value in plain() if value.kind is ValueKind.COUNTER}
    grown = as_fields({key: count + 1000.0 for key, count in counted.items()} | dict(whole.histograms))
    joined = spliced([[whole], [replace(whole, at_ns=200 * S, wall_s=whole.wall_s + 100, **grown)]])
    assert {key: joined[1].value(key) for key in counted} == counted


def test_a_counter_that_is_missing_in_a_snapshot_stays_missing() -> None:
    early, late = _series((0, 60), (90_000, 90_060))
    joined = spliced([early, [replace(late[0], prompt_tokens=None), *late[1:]]])
    assert joined[len(early)].prompt_tokens is None
