"""The history of a server: an hour of snapshots and episodes from before it, in little memory."""

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from example_records import snapshot, whole_snapshot

from probe.core.snapshot import ServerSnapshot
from probe.observe.snapshot_history import SnapshotHistory, unpack

S = 10**9
HOUR_S = 3600


def _read(at_s: float, **values: float) -> ServerSnapshot:
    return replace(whole_snapshot(), at_ns=round(at_s * S), wall_s=at_s, **values)


def test_a_snapshot_comes_back_as_it_was_but_for_what_no_forecast_needs() -> None:
    history = SnapshotHistory()
    history.add(_read(5.0))
    (kept,) = unpack(history.packed)
    whole = _read(5.0)
    assert (kept.at_ns, kept.running, kept.by_engine, kept.adapters) == (
        whole.at_ns,
        whole.running,
        whole.by_engine,
        whole.adapters,
    )
    assert kept.histograms["ttft"].count == whole.histograms["ttft"].count
    assert kept.histograms["ttft"].sum == whole.histograms["ttft"].sum
    assert "e2e" not in kept.histograms


def test_values_the_server_does_not_export_stay_missing() -> None:
    history = SnapshotHistory()
    history.add(snapshot(preemptions=None))
    assert unpack(history.packed)[0].preemptions is None


def _diurnal(history: SnapshotHistory, every_s: int, hours: int, peak_s: tuple[int, int]) -> None:
    """Scrape a server on which 80 requests run in `peak_s`, else 5 to 8."""
    for second in range(0, hours * HOUR_S, every_s):
        running = 80.0 if peak_s[0] <= second < peak_s[1] else 5.0 + second // 1800 % 4
        tokens = 1e6 + 77.7 * second
        busy = {"running": running, "kv_cache_usage": running / 100, "waiting": 0.0}
        history.add(_read(float(second), generation_tokens=tokens, prompt_tokens=2 * tokens, **busy))


@pytest.mark.slow
@pytest.mark.parametrize(("every_s", "before"), [(5, 1440), (15, 481), (60, 121)])
@pytest.mark.fault("A68")
def test_the_last_hour_and_the_episodes_take_less_than_two_hours_would(every_s: int, before: int) -> None:
    history = SnapshotHistory()
    for at_s in range(0, 2 * HOUR_S, every_s):  # through all levels, so that every episode that may be kept is
        busy = {"running": 2.0 ** (at_s // 240 / 2), "prompt_tokens": float(at_s), "generation_tokens": float(at_s)}
        history.add(_read(at_s, **busy))
    assert len(history.packed) < before
    assert len(history.packed.series) > 1


@pytest.mark.slow
def test_last_night_s_peak_is_there_when_it_is_seven_hours_ago_and_the_quiet_hours_do_not_displace_it() -> None:
    history = SnapshotHistory()
    _diurnal(history, every_s=30, hours=9, peak_s=(HOUR_S, 2 * HOUR_S))
    kept = unpack(history.packed)
    assert sum(each.running == 80.0 for each in kept) == 4 * 4
    assert kept[-1].running < 10
    assert history.seconds == pytest.approx(HOUR_S + 24 * 120, rel=0.35)


@pytest.mark.slow
def test_episodes_of_the_night_before_last_friday_are_gone() -> None:
    history = SnapshotHistory()
    _diurnal(history, every_s=240, hours=80, peak_s=(0, 2 * HOUR_S))
    assert max(each.running or 0.0 for each in unpack(history.packed)) < 80


def test_an_idle_server_leaves_no_episodes() -> None:
    history = SnapshotHistory()
    for second in range(0, 3 * HOUR_S, 60):
        history.add(_read(float(second), running=0.0, generation_tokens=1.0, prompt_tokens=1.0))
    assert history.seconds <= HOUR_S + 120


@pytest.mark.slow
def test_a_spliced_history_has_neither_the_time_nor_the_tokens_between_its_episodes() -> None:
    """A rate over the hours that were dropped would be no rate of any load."""
    history = SnapshotHistory()
    _diurnal(history, every_s=30, hours=9, peak_s=(HOUR_S, 2 * HOUR_S))
    kept = unpack(history.packed)
    assert len(history.packed.series) > 1
    for before, after in pairwise(kept):
        seconds = (after.at_ns - before.at_ns) * 1e-9
        assert 0 < seconds <= 31
        assert before.generation_tokens is not None
        assert after.generation_tokens is not None
        rate = 0.0 if seconds < 0.1 else 77.7
        assert (after.generation_tokens - before.generation_tokens) / seconds == pytest.approx(rate, abs=1e-3)
    assert (kept[-1].at_ns - kept[0].at_ns) * 1e-9 < 2 * HOUR_S


@pytest.mark.slow
@pytest.mark.fault(
    "A68",
    "Kneewatch runs for weeks",
    area="Memory",
    users_see="memory levels off when the snapshots kept for forecasts are complete: an hour, and at most 24 "
    "episodes of two minutes; 33 MiB more with 200 targets ([measured](evidence/operations.md#memory-over-hours))",
    stays="nothing grows after that",
)
def test_a_snapshot_takes_some_hundred_bytes() -> None:
    """The sizes in docs/operations.md follow from it; two hundred targets have nearly a hundred thousand snapshots."""
    history, random = SnapshotHistory(), Random(0)
    for second in range(0, 7200, 15):
        busy = {"running": random.uniform(0, 30), "kv_cache_usage": random.random()}
        history.add(_read(second + random.random(), generation_tokens=1e6 + 77.7 * second, **busy))

    assert sum(len(each) for series in history.packed.series for each in series) < 200 * len(history.packed)
    first, last = unpack(history.packed)[0], unpack(history.packed)[-1]
    assert first.generation_tokens is not None
    assert last.generation_tokens == pytest.approx(
        first.generation_tokens + 77.7 * (last.wall_s - first.wall_s), rel=1e-3
    )


def test_after_a_restart_snapshots_are_compressed_with_one_of_the_new_server() -> None:
    history = SnapshotHistory()
    history.add(_read(5.0))
    history.clear()
    history.add(_read(10.0, running=9.0))

    assert [kept.running for kept in unpack(history.packed)] == [9.0]
