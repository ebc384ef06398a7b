"""The last 24 hours of each target's latencies in the store's file. Without a file a restart loses them."""

import asyncio
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path

import structlog

from probe.core.clock import Clock
from probe.core.latency_day import COLUMNS, SLOTS, LatencyDay, Row, slot_of
from probe.core.request import RequestRecord
from probe.core.snapshot import UserTotals

_log = structlog.get_logger()
_EVERY_S = 60.0
_FIGURES = [f"{who}_{name}_p{q * 100:.0f}" for who, name, q in COLUMNS]
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS latencies (
    target TEXT NOT NULL,
    slot INTEGER NOT NULL,
    {", ".join(f"{name} REAL" for name in _FIGURES)},
    PRIMARY KEY (target, slot)
) STRICT, WITHOUT ROWID;
"""
_NAMES = ", ".join(("slot", *_FIGURES))
_SELECT = f"SELECT {_NAMES} FROM latencies WHERE target = ? AND slot BETWEEN ? AND ? ORDER BY slot"  # noqa: S608
_INSERT = f"INSERT OR REPLACE INTO latencies (target, {_NAMES}) VALUES (?, ?{', ?' * len(_FIGURES)})"  # noqa: S608
# As many slots as there were, not by the wall clock, which may leap.
_DELETE = f"""
DELETE FROM latencies WHERE slot < (
    SELECT min(slot) FROM (SELECT DISTINCT slot FROM latencies ORDER BY slot DESC LIMIT {2 * SLOTS})
)"""  # noqa: S608


class LatencyDays:
    """The latencies of all targets."""

    def __init__(self, path: Path | None, now_s: float) -> None:
        """Take `path`: the store's file; None: they end with the process. `now_s`: the wall time."""
        self._path = path
        self._until = slot_of(now_s)  # the slot that was under way when all before it was stored
        self._days: dict[str, LatencyDay] = {}
        self._is_failing = False

    def open(self, target: str) -> None:
        """Begin or continue the day of a target."""
        self._days[target] = LatencyDay(self._load(target))

    def add(self, record: RequestRecord) -> None:
        """Count a canary of an open target."""
        if (day := self._days.get(record.target)) is not None:
            day.add(record)

    def users(self, target: str, wall_s: float, totals: UserTotals) -> None:
        """Take the users' totals of an open target."""
        if (day := self._days.get(target)) is not None:
            day.add_users(wall_s, totals.histograms)

    def get(self, target: str) -> LatencyDay | None:
        return self._days.get(target)

    def forget(self, target: str) -> None:
        """Close the day of a target that has gone; what is not stored yet is lost."""
        self._days.pop(target, None)

    async def keep_storing(self, clock: Clock) -> None:
        """Store what is new once a minute, in a thread: a disk may be slow."""
        while True:
            await asyncio.sleep(_EVERY_S)
            begun = slot_of(clock.wall_s())
            if await asyncio.to_thread(self._save, self._unstored(begun)):
                self._until = begun

    def store_now(self, now_s: float) -> None:
        """Store what is new by the wall time `now_s`, at the end of the process."""
        self._save(self._unstored(slot_of(now_s)))

    def _unstored(self, now: int) -> Mapping[str, Iterable[Row]]:
        since = min(now, self._until)
        return {target: list(day.rows_from(since)) for target, day in self._days.items()}

    def _load(self, target: str) -> list[Row]:
        if self._path is None:
            return []
        try:
            with closing(self._opened(self._path)) as db:
                return db.execute(_SELECT, (target, self._until - SLOTS + 1, self._until)).fetchall()
        except sqlite3.Error as error:
            self._failed(error)
            return []

    def _save(self, rows: Mapping[str, Iterable[Row]]) -> bool:
        values = [(target, *row) for target, each in rows.items() for row in each]
        if self._path is None or not values:
            return True
        try:
            with closing(self._opened(self._path)) as db, db:
                db.executemany(_INSERT, values)
                db.execute(_DELETE)
        except sqlite3.Error as error:
            self._failed(error)
            return False
        self._is_failing = False
        return True

    @staticmethod
    def _opened(path: Path) -> sqlite3.Connection:
        db = sqlite3.connect(path)
        db.executescript(_SCHEMA)
        return db

    def _failed(self, error: Exception) -> None:
        """Log an error of the file once, until it works again."""
        if not self._is_failing:
            _log.error("the latencies of the last day cannot be stored or read", detail=str(error))
        self._is_failing = True
