"""The history of canaries survives a restart, and a store that fails costs no more than that."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from example_records import CHAT, record

from probe.core.canary_history import COUNTS, SLOT_S, SLOTS, Row, slot_of
from probe.core.request import Outcome
from probe.monitor import history_store
from probe.monitor.history_store import CanaryHistories, HistoryStore

NOW_S = 1_000_000 * SLOT_S + 900.0
KEPT = history_store._KEPT


class At:
    def monotonic_ns(self) -> int:
        return 0

    def wall_s(self) -> float:
        return NOW_S


def _sent(of: CanaryHistories, target: str) -> int:
    history = of.get(target)
    assert history is not None
    return sum(history.last("sent", SLOTS, NOW_S))


def _histories(path: Path | None, *targets: str) -> CanaryHistories:
    made = CanaryHistories(path, NOW_S)
    for target in targets:
        made.open(target, CHAT)
    return made


def test_a_restart_keeps_the_history_of_each_target(tmp_path: Path) -> None:
    before = _histories(tmp_path / "k.db", "a", "b")
    for target, outcome in (("a", Outcome.OK), ("a", Outcome.TIMEOUT), ("b", Outcome.OK), ("other", Outcome.OK)):
        before.add(record(target=target, outcome=outcome, done_wall_s=NOW_S))
    before.store_now(NOW_S)
    after = _histories(tmp_path / "k.db", "a", "b")
    assert (_sent(after, "a"), _sent(after, "b")) == (2, 1)
    assert after.get("other") is None


def test_a_file_from_before_e2e_had_a_budget_is_continued(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "k.db")) as db, db:
        counts = ", ".join(f"{name} INTEGER NOT NULL" for name in ("sent", "failed", "judged", "slow", "ttft", "tpot"))
        db.execute(
            f"CREATE TABLE canaries (target TEXT NOT NULL, slot INTEGER NOT NULL, {counts},"
            " PRIMARY KEY (target, slot)) STRICT, WITHOUT ROWID"
        )
        db.execute("INSERT INTO canaries VALUES ('a', ?, 3, 1, 2, 0, 0, 0)", (int(NOW_S // SLOT_S) - 1,))
    of = _histories(tmp_path / "k.db", "a")
    assert _sent(of, "a") == 3
    of.add(record(target="a", done_wall_s=NOW_S))
    of.store_now(NOW_S)
    assert _sent(_histories(tmp_path / "k.db", "a"), "a") == 4


def test_a_target_that_goes_and_comes_back_goes_on(tmp_path: Path) -> None:
    of = _histories(tmp_path / "k.db", "a")
    of.add(record(done_wall_s=NOW_S))
    of.forget("a")
    assert of.get("a") is None
    of.open("a", CHAT)
    assert _sent(of, "a") == 1


def test_new_canaries_are_stored_every_minute_also_of_targets_that_have_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_store, "_EVERY_S", 0.0)
    of = _histories(tmp_path / "k.db", "a", "gone")
    of.add(record(done_wall_s=NOW_S))
    of.add(record(target="gone", done_wall_s=NOW_S))
    of.forget("gone")

    async def main() -> None:
        task = asyncio.create_task(of.keep_storing(At()))
        while of._gone:  # noqa: ASYNC110 - another thread stores
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(asyncio.wait_for(main(), 10))
    after = _histories(tmp_path / "k.db", "a", "gone")
    assert (_sent(after, "a"), _sent(after, "gone")) == (1, 1)


def _rows(first: int, last: int) -> list[Row]:
    """Return a row for each of these half hours, counted from now."""
    now = slot_of(NOW_S)
    return [(slot, *[5] * len(COUNTS)) for slot in range(now + first, now + last + 1)]


def test_rows_of_more_than_thirty_days_are_deleted_of_targets_that_have_gone_too(tmp_path: Path) -> None:
    store = HistoryStore(tmp_path / "k.db")
    store.save({"gone": _rows(-KEPT - 9, -KEPT - 5)})
    store.save({"a": _rows(-KEPT - 3, -1)})
    store.save({"a": _rows(0, 0)})
    with closing(sqlite3.connect(tmp_path / "k.db")) as db:
        found = db.execute("SELECT target, MIN(slot), COUNT(*) FROM canaries").fetchall()
    assert found == [("a", slot_of(NOW_S) - KEPT + 1, KEPT)]


@pytest.mark.parametrize("leap_s", [31 * 86400, 365 * 86400, 3650 * 86400, -86400, -365 * 86400])
@pytest.mark.fault(
    "TI24",
    "The wall clock leaps by a month, a year or ten, ahead or back, and is put right later",
    area="Time",
    users_see="the canaries of that time are shown at the wrong one, and later not at all",
    stays="the history of every target, in memory and in the store",
)
def test_a_clock_that_leaps_deletes_no_history(tmp_path: Path, leap_s: int) -> None:
    HistoryStore(tmp_path / "k.db").save({target: _rows(-SLOTS + 1, -1) for target in ("a", "other")})
    of = _histories(tmp_path / "k.db", "a")
    before = _sent(of, "a")
    for now_s in (NOW_S, NOW_S + leap_s, NOW_S + leap_s + 5 * SLOT_S, NOW_S + 60):
        of.add(record(target="a", done_wall_s=now_s))
        of.store_now(now_s)
        of._stored(slot_of(now_s), {})
    assert before == 5 * (SLOTS - 1)
    assert 0 <= _sent(of, "a") - (before + 2) <= 2, "a clock a day back counts where a day ago is"
    again = _histories(tmp_path / "k.db", "a", "other")
    assert _sent(again, "a") == _sent(of, "a")
    assert _sent(again, "other") == before


def test_a_clock_that_is_behind_at_the_start_hides_nothing(tmp_path: Path) -> None:
    HistoryStore(tmp_path / "k.db").save({"a": _rows(-9, 0)})
    behind = CanaryHistories(tmp_path / "k.db", 0.0)  # 1970: it has not been set yet
    behind.open("a", CHAT)
    behind.add(record(target="a", done_wall_s=100.0))
    behind.add(record(target="a", done_wall_s=NOW_S))
    assert _sent(behind, "a") == 51


def test_a_store_of_a_later_version_is_written_by_name(tmp_path: Path) -> None:
    HistoryStore(tmp_path / "k.db").save({"a": _rows(-1, -1)})
    with closing(sqlite3.connect(tmp_path / "k.db")) as db, db:
        db.execute("ALTER TABLE canaries ADD COLUMN later INTEGER NOT NULL DEFAULT 0")
    assert HistoryStore(tmp_path / "k.db").save({"a": _rows(0, 0)})
    assert _sent(_histories(tmp_path / "k.db", "a"), "a") == 10


@pytest.mark.parametrize("value", ["NULL", "'text'", "x'ff'", "9e999", "1.5", "-1", "9000000000"])
@pytest.mark.parametrize("column", ["slot", "sent", "ttft"])
@pytest.mark.fault(
    "DI7b",
    "A half hour of canaries, or the tokens of a run, in the store have values that cannot be: text, nothing, negative",
    area="Disk",
    users_see="they are left out",
    stays="the monitor starts; the other half hours and runs",
)
def test_a_half_hour_that_no_history_can_have_is_left_out(tmp_path: Path, column: str, value: str) -> None:
    """A damaged page may have values of any type: SQLite checks types as it writes, not as it reads."""
    before = _histories(tmp_path / "k.db", "a")
    before.add(record(done_wall_s=NOW_S))
    before.store_now(NOW_S)
    with closing(sqlite3.connect(tmp_path / "k.db")) as db, db:
        db.execute("CREATE TABLE of_any_type AS SELECT * FROM canaries UNION ALL SELECT * FROM canaries")
        db.execute("DROP TABLE canaries")
        db.execute("ALTER TABLE of_any_type RENAME TO canaries")
        db.execute(f"UPDATE canaries SET {column} = {value} WHERE rowid = 1")  # noqa: S608 - the test's own
    assert _sent(_histories(tmp_path / "k.db", "a"), "a") == 1


@pytest.mark.fault(
    "DI7",
    "The file of canary histories is damaged",
    area="Disk",
    users_see="the history begins now",
    stays="the file is left alone, canaries are counted",
)
def test_a_file_that_is_no_store_costs_the_history_only(tmp_path: Path) -> None:
    (tmp_path / "k.db").write_text("no database" * 100)
    of = _histories(tmp_path / "k.db", "a")
    of.add(record(done_wall_s=NOW_S))
    of.store_now(NOW_S)
    assert _sent(of, "a") == 1
    assert (tmp_path / "k.db").read_text() == "no database" * 100
