"""The errors of forecasts that a run has judged, in the store's file: what forecasts learn from.

They have a table of their own: a forecast learns from all targets with its fingerprint, also from those that have gone.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import structlog

from probe.capacity.trend.fingerprint import fingerprint
from probe.capacity.trend.track_record import KEEP, ForecastError, forecast_error
from probe.core.result import CapacityResult

_log = structlog.get_logger()
SCHEMA = """
CREATE TABLE IF NOT EXISTS forecast_errors (
    result TEXT PRIMARY KEY,
    fingerprint TEXT NOT NULL,
    at REAL NOT NULL,
    log_ratio REAL NOT NULL,
    half_width REAL NOT NULL,
    measured_half_width REAL NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS forecast_errors_by_fingerprint ON forecast_errors (fingerprint, at);
"""
SELECT_ERRORS = (
    "SELECT result, at, log_ratio, half_width, measured_half_width FROM forecast_errors WHERE fingerprint = ?"
)


def write_errors(db: sqlite3.Connection, results: Sequence[CapacityResult]) -> None:
    """Write the errors that these results show; delete the oldest of each fingerprint. Raises sqlite3.Error."""
    judged = [
        (each.id, fingerprint(each.model, each.context), error)
        for each in results
        if (error := forecast_error(each)) is not None
    ]
    db.executemany(
        "INSERT OR REPLACE INTO forecast_errors"
        " (result, fingerprint, at, log_ratio, half_width, measured_half_width) VALUES (?, ?, ?, ?, ?, ?)",
        [
            (result, of, error.at_s, error.log_ratio, error.half_width, error.measured_half_width)
            for result, of, error in judged
        ],
    )
    for of in {of for _, of, _ in judged}:
        db.execute(
            "DELETE FROM forecast_errors WHERE fingerprint = :of AND result NOT IN"
            " (SELECT result FROM forecast_errors WHERE fingerprint = :of ORDER BY at DESC LIMIT :keep)",
            {"of": of, "keep": KEEP},
        )


def plausible_errors(
    of: str, rows: Iterable[tuple[Any, ...]], unsaved: Iterable[CapacityResult] = ()
) -> list[ForecastError]:
    """Return the last errors with this fingerprint, oldest first: those in the rows, and of results not yet stored.

    Rows that no run can have written are left out and logged.
    """
    stored = {result: ForecastError(*values) for result, *values in rows}
    damaged = [result for result, error in stored.items() if not error.is_plausible]
    if damaged:
        _log.warning("stored errors of forecasts are left out, no run can have written them", results=damaged)
    errors = {result: error for result, error in stored.items() if error.is_plausible}
    for each in unsaved:
        error = forecast_error(each)
        if error is not None and fingerprint(each.model, each.context) == of:
            errors[each.id] = error
    return sorted(errors.values(), key=lambda error: error.at_s)[-KEEP:]


def errors_in_file(path: Path | None, of: str) -> list[ForecastError]:
    """Return the errors in a store's file, which another process may write; none if it cannot be read."""
    if path is None or not path.exists():
        return []
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            return plausible_errors(of, db.execute(SELECT_ERRORS, (of,)))
    except sqlite3.Error as error:
        _log.warning("the forecast takes nothing from earlier ones", path=str(path), detail=str(error))
        return []
