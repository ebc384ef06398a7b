"""The history of capacity results, in SQLite: it survives restarts where the configuration gives it a path."""

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
    """Results of one process. Writes are a few a day, so they are made on the spot."""

    def __init__(self, path: Path | None) -> None:
        """Opens or creates the store; in memory without a path. Raises ConfigError."""
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
        """Keeps a result, and drops the oldest of its target beyond what is kept."""
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
        """One result, or None."""
        row = self._db.execute("SELECT result FROM results WHERE id = ?", (result_id,)).fetchone()
        return _readable(row[0]) if row else None

    def latest(self, target: str | None = None, limit: int = 20) -> Sequence[CapacityResult]:
        """The newest results, of one target or of all, newest first."""
        rows = self._db.execute(
            "SELECT result FROM results WHERE :target IS NULL OR target = :target ORDER BY started DESC LIMIT :limit",
            {"target": target, "limit": limit},
        )
        return [result for row in rows if (result := _readable(row[0])) is not None]

    def figures(self, target: str) -> list[CapacitySample]:
        """The capacities of a target that are kept, oldest first."""
        rows = self._db.execute(
            "SELECT json_set(result, '$.steps', json('[]')) FROM results WHERE target = ? AND json_valid(result)"
            " ORDER BY started",
            (target,),
        )
        results = [result for row in rows if (result := _readable(row[0])) is not None]
        return [found for result in results if (found := capacity_sample(result)) is not None]

    def latest_knees(self, target: str) -> Sequence[CapacityResult]:
        """The newest results of a target that found a knee: of those that load has measured and of the forecasts one
        each, where there is one, the older one first. It is what the target's series show after a restart.
        """
        found: dict[bool, CapacityResult] = {}
        for result in self.latest(target, 100):
            if result.capacity.requests_per_second is not None:
                found.setdefault(result.capacity.mode == "forecast", result)
        return list(found.values())[::-1]

    def tokens_since(self, target: str, started_s: float) -> int:
        """What the target's runs cost that began at this wall time or later."""
        (tokens,) = self._db.execute(
            "SELECT COALESCE(SUM(json_extract(result, '$.cost.tokens')), 0) FROM results"
            " WHERE target = ? AND started >= ? AND json_valid(result)",
            (target, started_s),
        ).fetchone()
        return int(tokens)


# Pages ask for the newest again and again: reading twenty takes 16 ms, in which tokens come in.
@lru_cache(maxsize=64)
def _readable(text: str) -> CapacityResult | None:
    """The result of a row; None where another version wrote it, so that it hides no row but itself."""
    try:
        return loads(text)
    except ValueError:
        return None
