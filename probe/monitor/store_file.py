"""Opens the store's file. A damaged one is set aside, so that a monitor starts whatever happened to its disk."""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import structlog

from probe.core.errors import ConfigError
from probe.monitor.forecast_errors import SCHEMA as FORECAST_ERRORS

_log = structlog.get_logger()
_SCHEMA = """
CREATE TABLE IF NOT EXISTS results (
    id TEXT PRIMARY KEY,
    target TEXT NOT NULL,
    started REAL NOT NULL,
    result TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS results_by_target ON results (target, started);
"""


def open_store(path: Path | None) -> sqlite3.Connection:
    """Open or create the store, in memory without a path. A damaged one is renamed, and a new one created.

    Raises ConfigError if there can be no store at the path, or if the file is not one.
    """
    try:
        try:
            return _opened(path)
        except sqlite3.DatabaseError as error:
            if path is None or error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_CORRUPT:
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
    """Open the file and check every page of it. Raises sqlite3.Error."""
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


def _set_aside(path: Path, problem: str) -> None:
    """Rename the file and its write-ahead log. Raises OSError."""
    suffix = f".damaged-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    for each in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        if each.exists():
            each.rename(f"{each}{suffix}")
    kept = f"{path}{suffix}"
    _log.error("the store is damaged and was set aside, a new one is used", path=str(path), kept=kept, detail=problem)
