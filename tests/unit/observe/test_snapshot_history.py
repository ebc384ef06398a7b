"""The history of a server: two hours of snapshots, in little memory."""

from dataclasses import replace
from random import Random

from example_records import snapshot, whole_snapshot

from probe.core.snapshot import ServerSnapshot
from probe.observe.snapshot_history import SnapshotHistory, unpack

S = 10**9


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


def test_two_hours_are_kept_at_any_pace_of_scrapes() -> None:
    history = SnapshotHistory()
    for second in range(0, 10_000, 50):
        history.add(_read(float(second)))
    assert history.seconds == 7200
    often = SnapshotHistory()
    for second in range(2000):
        often.add(_read(float(second)))
    assert len(often.packed) == 1440


def test_two_hours_of_a_target_take_some_hundred_bytes_a_snapshot() -> None:
    """The sizes in docs/operations.md follow from it; two hundred targets have a hundred thousand snapshots."""
    history, random = SnapshotHistory(), Random(0)
    for second in range(0, 7200, 15):
        busy = {"running": random.uniform(0, 30), "kv_cache_usage": random.random()}
        history.add(_read(second + random.random(), generation_tokens=1e6 + 77.7 * second, **busy))

    assert sum(map(len, history.packed.each)) < 200 * len(history.packed)
    assert unpack(history.packed)[-1].generation_tokens == 1e6 + 77.7 * 7185


def test_after_a_restart_snapshots_are_compressed_with_one_of_the_new_server() -> None:
    history = SnapshotHistory()
    history.add(_read(5.0))
    history.clear()
    history.add(_read(10.0, running=9.0))

    assert [kept.running for kept in unpack(history.packed)] == [9.0]
