"""The last day of latencies survives a restart, and a store that fails costs no more than that."""

from pathlib import Path

import pytest
from example_records import record

from probe.core.latency_day import CANARIES, SLOT_S, SLOTS
from probe.monitor.latency_store import LatencyDays

NOW_S = 1_000_000 * SLOT_S + 60.0


def _days(path: Path | None, now_s: float = NOW_S) -> LatencyDays:
    made = LatencyDays(path, now_s)
    made.open("a")
    return made


def _shown(days: LatencyDays, now_s: float = NOW_S) -> list[float | None]:
    day = days.get("a")
    assert day is not None
    return list(day.last(CANARIES, "ttft", 0.5, now_s))


def test_a_restart_keeps_the_day_of_each_target(tmp_path: Path) -> None:
    before = _days(tmp_path / "k.db")
    for target in ("a", "other"):
        before.add(record(target=target, ttft_s=0.2, done_wall_s=NOW_S))
    before.store_now(NOW_S)
    after = _days(tmp_path / "k.db", NOW_S + SLOT_S)
    assert _shown(after, NOW_S + SLOT_S)[-2:] == [pytest.approx(0.2), None]
    assert after.get("other") is None
    later_s = NOW_S + (SLOTS + 5) * SLOT_S
    assert set(_shown(_days(tmp_path / "k.db", later_s), later_s)) == {None}


def test_without_a_file_or_with_a_broken_one_the_day_begins_with_the_process(tmp_path: Path) -> None:
    (tmp_path / "broken.db").write_text("no database" * 100)
    for path in (None, tmp_path / "broken.db"):
        days = _days(path)
        days.add(record(target="a", ttft_s=0.2, done_wall_s=NOW_S))
        days.store_now(NOW_S)
        assert _shown(days)[-1] == pytest.approx(0.2)
