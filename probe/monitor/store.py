"""The history of capacity results in SQLite. It survives restarts if the configuration has a path for it."""

import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from probe.capacity.trend.fingerprint import capacity_sample
from probe.core.errors import ConfigError
from probe.core.result import CapacityResult
from probe.core.shift import CapacitySample
from probe.report.result_json import dumps, loads

_SCHEMA = """
CREATE TABLE IF NOT EXISTS results (
    id TEXT PRIMARY KEY,
    target TEXT NOT NULL,
    started REAL NOT NULL,
    result TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS results_by_target ON results (target, started);
"""
# A result every four hours for a year.
_KEEP = 2200


class Store:
    """The results of one process. There are a few writes a day, so they are synchronous."""

    def __init__(self, path: Path | None) -> None:
        """Open or create the store, in memory without a path. Raise ConfigError if that fails."""
        try:
            self._db = sqlite3.connect(path or ":memory:", isolation_level=None)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.executescript(_SCHEMA)
        except sqlite3.Error as error:
            raise ConfigError(
                f"store.path: {path} cannot be used as a store ({error}); give a file in a directory that exists and "
                "can be written"
            ) from None

    def close(self) -> None:
        self._db.close()

    def add(self, result: CapacityResult) -> None:
        """Store a result, and delete the oldest ones of its target beyond 2200."""
        self._db.execute(
            "INSERT INTO results VALUES (?, ?, ?, ?)",
            (result.id, result.target, result.started.timestamp(), dumps(result)),
        )
        self._db.execute(
            "DELETE FROM results WHERE target = :target AND id NOT IN"
            " (SELECT id FROM results WHERE target = :target ORDER BY started DESC LIMIT :keep)",
            {"target": result.target, "keep": _KEEP},
        )

    def get(self, result_id: str) -> CapacityResult | None:
        """Return one result, or None."""
        row = self._db.execute("SELECT result FROM results WHERE id = ?", (result_id,)).fetchone()
        return _readable(row[0]) if row else None

    def latest(self, target: str | None = None, limit: int = 20) -> Sequence[CapacityResult]:
        """Return the newest results of one target or of all, newest first."""
        rows = self._db.execute(
            "SELECT result FROM results WHERE :target IS NULL OR target = :target ORDER BY started DESC LIMIT :limit",
            {"target": target, "limit": limit},
        )
        return [result for row in rows if (result := _readable(row[0])) is not None]

    def capacity_samples(self, target: str) -> list[CapacitySample]:
        """Return the capacity samples of a target, oldest first."""
        rows = self._db.execute(
            "SELECT json_set(result, '$.steps', json('[]')) FROM results WHERE target = ? AND json_valid(result)"
            " ORDER BY started",
            (target,),
        )
        results = [result for row in rows if (result := _readable(row[0])) is not None]
        return [found for result in results if (found := capacity_sample(result)) is not None]

    def latest_knees(self, target: str) -> Sequence[CapacityResult]:
        """Return the newest measured result and the newest forecast with a capacity, the older one first.

        The target's series show these after a restart.
        """
        found: dict[bool, CapacityResult] = {}
        for result in self.latest(target, 100):
            if result.capacity.requests_per_second is not None:
                found.setdefault(result.capacity.mode == "forecast", result)
        return list(found.values())[::-1]

    def tokens_since(self, target: str, started_s: float) -> int:
        """Return the tokens of the target's runs that began at this wall time (s) or later."""
        (tokens,) = self._db.execute(
            "SELECT COALESCE(SUM(json_extract(result, '$.cost.tokens')), 0) FROM results"
            " WHERE target = ? AND started >= ? AND json_valid(result)",
            (target, started_s),
        ).fetchone()
        return int(tokens)


# Pages request the newest results repeatedly, and parsing twenty takes 16 ms, in which the event loop times no token.
@lru_cache(maxsize=64)
def _readable(text: str) -> CapacityResult | None:
    """Return the result of a row, or None if another version wrote it; other rows stay readable."""
    try:
        return loads(text)
    except ValueError:
        return None
