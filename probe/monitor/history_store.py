"""The history of canaries in the store's file, so that a restart does not lose it. Without a file there is none."""

import asyncio
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import structlog

from probe.core.canary_history import COUNTS, SLOTS, CanaryHistory, Row, slot_of
from probe.core.clock import Clock
from probe.core.objectives import Objectives
from probe.core.request import RequestRecord

_log = structlog.get_logger()
_EVERY_S = 60.0
_MOST = 2**31  # more than half hours since 1970, or canaries in one
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS canaries (
    target TEXT NOT NULL,
    slot INTEGER NOT NULL,
    {", ".join(f"{name} INTEGER NOT NULL" for name in COUNTS)},
    PRIMARY KEY (target, slot)
) STRICT, WITHOUT ROWID;
"""
_NAMES = ("target", "slot", *COUNTS)
_INSERT = f"INSERT OR REPLACE INTO canaries ({', '.join(_NAMES)}) VALUES ({', '.join('?' * len(_NAMES))})"  # noqa: S608
# A row goes when so many later half hours have been stored, not by the wall clock, which may leap. Two days of a clock
# that was ahead take nothing from the 30.
_KEPT = SLOTS + 96
_DELETE = f"""
DELETE FROM canaries WHERE slot < (
    SELECT min(slot) FROM (SELECT DISTINCT slot FROM canaries ORDER BY slot DESC LIMIT {_KEPT})
)"""  # noqa: S608


class CanaryHistories:
    """The histories of all targets. A target that has gone is kept until it is stored."""

    def __init__(self, path: Path | None, now_s: float) -> None:
        """Take `path`: the store's file; None: histories end with the process. `now_s`: the wall time."""
        self._store = HistoryStore(path)
        self._until = slot_of(now_s)  # the half hour that was under way when all before it was stored
        self._open: dict[str, tuple[CanaryHistory, Objectives]] = {}
        self._gone: dict[str, CanaryHistory] = {}

    def open(self, target: str, objectives: Objectives) -> None:
        """Begin or continue the history of a target."""
        history = self._gone.pop(target) if target in self._gone else self._store.load(target, self._until)
        self._open[target] = (history, objectives)

    def add(self, record: RequestRecord) -> None:
        """Count a canary of an open target."""
        if record.target in self._open:
            history, objectives = self._open[record.target]
            history.add(record, objectives)

    def get(self, target: str) -> CanaryHistory | None:
        return self._open[target][0] if target in self._open else None

    def forget(self, target: str) -> None:
        """Close the history of a target that has gone."""
        if target in self._open:
            self._gone[target] = self._open.pop(target)[0]

    async def keep_storing(self, clock: Clock) -> None:
        """Store what is new once a minute, in a thread: a disk may be slow."""
        while True:
            await asyncio.sleep(_EVERY_S)
            begun, gone = slot_of(clock.wall_s()), dict(self._gone)
            if await asyncio.to_thread(self._store.save, self._unstored(begun)):
                self._stored(begun, gone)

    def store_now(self, now_s: float) -> None:
        """Store what is new by the wall time `now_s`, at the end of the process."""
        self._store.save(self._unstored(slot_of(now_s)))

    def _unstored(self, now: int) -> Mapping[str, Sequence[Row]]:
        """Return the rows to store. A clock that was ahead has left `_until` in the future."""
        since = min(now, self._until)
        shown = {**self._gone, **{target: history for target, (history, _) in self._open.items()}}
        return {target: list(history.rows_from(since)) for target, history in shown.items()}

    def _stored(self, until: int, gone: Mapping[str, CanaryHistory]) -> None:
        self._until = until  # this half hour is still under way, and is stored again
        for target, history in gone.items():
            if self._gone.get(target) is history:
                del self._gone[target]


class HistoryStore:
    """Reads and writes the history of canaries. Each call has a connection of its own, so it may run in a thread."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._is_failing = False
        self._cleared: int | None = None  # the newest half hour when old ones were deleted

    def load(self, target: str, now: int) -> CanaryHistory:
        """Return the target's history until the half hour `now`; an empty one if there is none or it cannot be read.

        A later half hour is of a clock that was ahead; if all are later, the clock is behind now.
        """
        select = f"SELECT slot, {', '.join(COUNTS)} FROM canaries WHERE target = ? ORDER BY slot"  # noqa: S608
        if self._path is None:
            return CanaryHistory()
        try:
            with closing(_opened(self._path)) as db:
                rows = [*filter(_is_possible, db.execute(select, (target,)).fetchall())]
                return CanaryHistory([row for row in rows if row[0] <= now + 1] or rows)
        except (sqlite3.Error, ValueError) as error:
            self._failed(error)
            return CanaryHistory()

    def save(self, rows: Mapping[str, Sequence[Row]]) -> bool:
        """Store half hours by target, and delete old ones. Return whether nothing is left to store."""
        values = [(target, *row) for target, each in rows.items() for row in each]
        if self._path is None or not values:
            return True
        newest = max(row[0] for each in rows.values() for row in each)
        try:
            with closing(_opened(self._path)) as db, db:
                db.executemany(_INSERT, values)
                if newest != self._cleared:
                    db.execute(_DELETE)
        except sqlite3.Error as error:
            self._failed(error)
            return False
        self._is_failing, self._cleared = False, newest
        return True

    def _failed(self, error: Exception) -> None:
        """Log an error of the file once, until it works again."""
        if not self._is_failing:
            _log.error("the history of canaries cannot be stored or read", detail=str(error))
        self._is_failing = True


def _is_possible(row: Row) -> bool:
    """Return whether a half hour can have these values. SQLite checks types as it writes, not as it reads."""
    return all(isinstance(value, int) and 0 <= value < _MOST for value in row)


def _opened(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path)
    db.executescript(_SCHEMA)
    known = {name for _, name, *_ in db.execute("PRAGMA table_info(canaries)")}
    for name in COUNTS:
        if name not in known and "sent" in known:  # a file from before there was this objective
            db.execute(f"ALTER TABLE canaries ADD COLUMN {name} INTEGER NOT NULL DEFAULT 0")
    return db
