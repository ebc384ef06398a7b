"""The history of capacity results in SQLite. It survives restarts if the configuration has a path for it.
A result can be read as soon as it is added. It is written to the file in a thread: a disk may be slow or full, and
another process may lock the file. What cannot be written stays in memory and is tried again.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import structlog

from probe.capacity.trend.fingerprint import bounding_steps, capacity_sample
from probe.capacity.trend.track_record import ForecastError
from probe.core.errors import ConfigError
from probe.core.result import CapacityResult
from probe.core.shift import CapacitySample
from probe.monitor.forecast_errors import SCHEMA as FORECAST_ERRORS
from probe.monitor.forecast_errors import SELECT_ERRORS, plausible_errors, write_errors
from probe.report.result_json import dumps, loads

_log = structlog.get_logger()
# A result every four hours for a year.
_KEEP = 2200
_AGAIN_S = 60.0
_WAIT_S = 5.0  # for another process that writes to the file
# Of results that cannot be written, these many keep their steps in memory.
_KEEP_STEPS = 50


class Store:
    """The results of one process."""

    def __init__(self, path: Path | None, on_failure: Callable[[str], None] = lambda _: None) -> None:
        """Open or create the store, in memory without a path. Raise ConfigError if that fails.

        `on_failure` is called with the target of each result that cannot be written.
        """
        self._path = path
        self._on_failure = on_failure
        self._db = open_store(path)
        self._db.execute("PRAGMA busy_timeout = 0")  # readers wait for no other process
        self._unsaved: dict[str, CapacityResult] = {}  # by id, oldest first
        self._has_unsaved = asyncio.Event()
        self._failed: set[str] = set()  # ids of unsaved results that could not be written
        self._is_unreadable = False

    def close(self) -> None:
        self.save()
        self._db.close()

    def add(self, result: CapacityResult) -> None:
        """Take a result. The oldest ones of its target beyond 2200 are deleted when it is written."""
        if self._path is None:
            _write(self._db, [result])
            return
        self._unsaved[result.id] = result
        for old in [*self._unsaved][:-_KEEP_STEPS]:
            self._unsaved[old] = replace(self._unsaved[old], steps=bounding_steps(self._unsaved[old]))
        self._has_unsaved.set()

    async def keep_saving(self) -> None:
        """Write results to the file as they come, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._has_unsaved.wait()
            self._has_unsaved.clear()
            unsaved = dict(self._unsaved)
            error = await asyncio.to_thread(_save, self._path, [*unsaved.values()])
            self._note(unsaved, error)
            if error is not None:
                loop.call_later(_AGAIN_S, self._has_unsaved.set)

    def save(self) -> None:
        """Write the results that are not in the file yet. It may take seconds."""
        if self._unsaved:
            self._note(dict(self._unsaved), _save(self._path, [*self._unsaved.values()]))

    def _note(self, tried: Mapping[str, CapacityResult], error: sqlite3.Error | None) -> None:
        if error is None:
            for each in tried:
                self._unsaved.pop(each, None)
            if self._failed:
                _log.info("results can be stored again")
            self._failed.clear()
            return
        if not self._failed:
            _log.error("results cannot be stored, a restart forgets them and what they cost", detail=str(error))
        for each, result in tried.items():
            if each not in self._failed:
                self._on_failure(result.target)
        self._failed |= tried.keys()

    def get(self, result_id: str) -> CapacityResult | None:
        """Return one result, or None."""
        if result_id in self._unsaved:
            return self._unsaved[result_id]
        rows = self._rows("SELECT result FROM results WHERE id = ?", (result_id,))
        return _readable(rows[0][0]) if rows else None

    def latest(self, target: str | None = None, limit: int = 20) -> Sequence[CapacityResult]:
        """Return the newest results of one target or of all, newest first."""
        rows = self._rows(
            "SELECT result FROM results WHERE :target IS NULL OR target = :target ORDER BY started DESC LIMIT :limit",
            {"target": target, "limit": limit},
        )
        found = [*_read(rows), *(each for each in self._unsaved.values() if target in (None, each.target))]
        by_id = {each.id: each for each in found}  # one may be in the file since it was written
        return sorted(by_id.values(), key=lambda each: each.started, reverse=True)[:limit]

    def capacity_samples(self, target: str) -> list[CapacitySample]:
        """Return the capacity samples of a target, oldest first."""
        rows = self._rows(_SAMPLES, (target,))
        results = {each.id: each for each in (*_read(rows), *self._unsaved.values()) if each.target == target}
        return [found for result in results.values() if (found := capacity_sample(result)) is not None]

    def latest_knees(self, target: str) -> Sequence[CapacityResult]:
        """Return the newest measured result, the newest one of a model, and the newest bounds, the oldest first.

        The target's series and the next runs go by these after a restart (capacity/trend/known_capacity.py).
        """
        found: dict[tuple[str, bool], CapacityResult] = {}
        for result in self.latest(target, 100):
            capacity = result.capacity
            if capacity.requests_per_second is not None:
                is_bound = capacity.mode == "forecast" and capacity.upper is None
                found.setdefault(("forecast" if capacity.mode == "forecast" else "measured", is_bound), result)
            elif capacity_sample(result) is not None:
                found.setdefault(("no load held", False), result)
        return list(found.values())[::-1]

    def forecast_errors(self, of: str) -> list[ForecastError]:
        """Return the last errors of forecasts with this fingerprint, of any target, oldest first."""
        return plausible_errors(of, self._rows(SELECT_ERRORS, (of,)), [*self._unsaved.values()])

    def tokens_since(self, target: str, started_s: float) -> int | None:
        """Return the tokens of the target's runs that began at this wall time (s) or later; None: unknown."""
        rows = self._rows(
            "SELECT id, json_extract(result, '$.cost.tokens') FROM results"
            " WHERE target = ? AND started >= ? AND json_valid(result)",
            (target, started_s),
        )
        if self._is_unreadable:
            return None
        spent = {
            each.id: each.cost.tokens
            for each in self._unsaved.values()
            if each.target == target and each.started.timestamp() >= started_s
        }
        stored = {each: tokens for each, tokens in rows if isinstance(tokens, int) and tokens > 0}
        return sum((stored | spent).values())

    def _rows(self, statement: str, values: Sequence[object] | Mapping[str, object]) -> list[tuple[Any, ...]]:
        """Return the rows, or none if the file cannot be read: pages must show what else there is."""
        try:
            rows = self._db.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            if not self._is_unreadable:
                _log.error("stored results cannot be read", path=str(self._path), detail=str(error))
            self._is_unreadable = True
            return []
        self._is_unreadable = False
        return rows


def _save(path: Path | None, results: Sequence[CapacityResult]) -> sqlite3.Error | None:
    """Write the results to the file, all or none. Return the error, if any."""
    try:
        with closing(sqlite3.connect(path or ":memory:", timeout=_WAIT_S)) as db, db:
            _write(db, results)
    except sqlite3.Error as error:
        return error
    return None


def _write(db: sqlite3.Connection, results: Sequence[CapacityResult]) -> None:
    db.executemany(
        "INSERT OR REPLACE INTO results (id, target, started, result) VALUES (?, ?, ?, ?)",
        [(each.id, each.target, each.started.timestamp(), dumps(each)) for each in results],
    )
    for target in {each.target for each in results}:
        db.execute(
            "DELETE FROM results WHERE target = :target AND id NOT IN"
            " (SELECT id FROM results WHERE target = :target ORDER BY started DESC LIMIT :keep)",
            {"target": target, "keep": _KEEP},
        )
    write_errors(db, results)


def _read(rows: Iterable[tuple[str, ...]]) -> list[CapacityResult]:
    return [result for row in rows if (result := _readable(row[0])) is not None]


# Pages request the newest results repeatedly, and parsing twenty takes 16 ms, in which the event loop times no token.
@lru_cache(maxsize=64)
def _readable(text: str) -> CapacityResult | None:
    """Return the result of a row, or None if another version wrote it; other rows stay readable."""
    try:
        return loads(text)
    except ValueError:
        return None


_SCHEMA = """
CREATE TABLE IF NOT EXISTS results (
    id TEXT PRIMARY KEY,
    target TEXT NOT NULL,
    started REAL NOT NULL,
    result TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS results_by_target ON results (target, started);
"""
# Steps are most of a result, and take as long to parse. Only the sample of a result without an upper bound needs them.
_SAMPLES = """
SELECT CASE WHEN json_extract(result, '$.capacity.upper') IS NULL THEN result
    ELSE json_set(result, '$.steps', json('[]')) END
FROM results WHERE target = ? AND json_valid(result) ORDER BY started
"""
# What the first page of a store has.
_MAGIC, _TABLE, _PAGE = b"SQLite format 3\0", b"CREATE TABLE results", 4096


def open_store(path: Path | None) -> sqlite3.Connection:
    """Open or create the store, in memory without a path. A damaged one is renamed, and a new one created.

    Raises ConfigError if there can be no store at the path, or if the file is not one.
    """
    try:
        try:
            return _opened(path)
        except sqlite3.DatabaseError as error:
            if path is None or not _is_damaged_store(path, error.sqlite_errorcode & 0xFF):
                raise
            _set_aside(path, str(error))
        return _opened(path)
    except (sqlite3.Error, OSError) as error:
        raise ConfigError(
            f"store.path: {path} cannot be used as a store ({error}); give a file in a directory that exists and "
            "can be written"
        ) from None


def stored_texts(path: Path, target: str, limit: int) -> list[str]:
    """Return the JSON of a target's newest results, newest first, from a file that a monitor may be writing.

    Raises ConfigError if the file cannot be read.
    """
    query = "SELECT result FROM results WHERE target = ? ORDER BY started DESC LIMIT ?"
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            return [text for (text,) in db.execute(query, (target, limit))]
    except sqlite3.Error as error:
        raise ConfigError(f"store.path: {path} cannot be read ({error}); run this where the monitor runs") from None


def _opened(path: Path | None) -> sqlite3.Connection:
    """Open the file and check all its pages. Raises sqlite3.Error."""
    db = sqlite3.connect(path or ":memory:", isolation_level=None)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(_SCHEMA + FORECAST_ERRORS)
        ((problem,),) = db.execute("PRAGMA quick_check(1)").fetchall()
        if problem != "ok":
            error = sqlite3.DatabaseError(problem)
            error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise error
    except sqlite3.Error:
        db.close()
        raise
    return db


def _is_damaged_store(path: Path, error: int) -> bool:
    """Return whether a file that SQLite refused was a store: some other file stays where it is. Raises OSError."""
    if error != sqlite3.SQLITE_NOTADB:
        return error == sqlite3.SQLITE_CORRUPT
    with path.open("rb") as file:
        page = file.read(_PAGE)
    is_cut = len(page) < len(_MAGIC) and _MAGIC.startswith(page)
    return is_cut or page.startswith(_MAGIC) or _TABLE in page or not any(page) or Path(f"{path}-wal").exists()


def _set_aside(path: Path, problem: str) -> None:
    """Rename the file and its write-ahead log. Raises OSError."""
    suffix = f".damaged-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    for each in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        if each.exists():
            each.rename(f"{each}{suffix}")
    kept = f"{path}{suffix}"
    _log.error("the store is damaged and was set aside, a new one is used", path=str(path), kept=kept, detail=problem)
