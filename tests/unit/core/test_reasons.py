"""Every reason says what happened and what to do now, in words that fit it."""

import re
from dataclasses import fields

import pytest

from probe.core import reasons
from probe.core.reasons import Reason, ReasonKind
from probe.core.result import Stopped

TUPLES = (reasons.TRIPS, reasons.REFUSALS, reasons.BUDGETS, reasons.ERRORS, reasons.UNJUDGED, reasons.ENDS)
ROWS = tuple(dict.fromkeys(row for rows in TUPLES for row in rows))
# Words of advice, and whom they fit.
_FITS = {
    r"less load|plan for less|is idle": lambda row: (
        row.is_overload or row in (reasons.OVER_OBJECTIVE_SECONDS, reasons.BUSY, reasons.ENDED_BY_GUARD)
    ),
    "first failure": lambda row: row.kind is ReasonKind.FAILURE,
    "server's log": lambda row: row.kind is ReasonKind.FAILURE or row is reasons.SERVER_RESTARTED,
    "this machine's log": lambda row: row.kind is ReasonKind.ERROR,
    "add a replica": lambda row: row.is_overload,
    "metrics": lambda row: row.kind in (ReasonKind.BLIND, ReasonKind.VOID, ReasonKind.REFUSAL),
}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.kind}-{row.word}")
def test_every_reason_has_a_cause_and_advice_that_fits_its_kind(row: Reason) -> None:
    for words in (row.why, row.advice):
        assert words
        assert not words.endswith((".", ";", " "))
        assert "](" not in words, "a terminal shows it"
        assert "`" not in words, "a terminal shows it"
    assert ". " not in row.advice, "it is part of one sentence"
    for words, fits in _FITS.items():
        assert not re.search(words, row.advice) or fits(row), f"{row.word}: {row.advice}"
    assert not row.is_overload or "add a replica" in row.advice, "more capacity is what users need"
    assert bool(row.verdict) == (row in reasons.UNJUDGED)


def test_every_row_is_listed_once_and_no_word_means_two_things_in_one_list() -> None:
    assert {row for row in vars(reasons).values() if isinstance(row, Reason)} == set(ROWS)
    for rows in TUPLES:
        assert len({row.word for row in rows}) == len(rows)
    assert len(fields(Reason)) <= 8


def test_a_reason_of_another_version_is_known_by_what_ended_the_run() -> None:
    assert reasons.find_end(Stopped("guard", "queue")) is reasons.QUEUE
    assert reasons.find_end(Stopped("guard", "of a later version")) is reasons.ENDED_BY_GUARD
    assert reasons.find_end(Stopped("budget", "queue")) is reasons.ENDED_BY_BUDGET
    assert reasons.find_end(Stopped("interrupt", "lost the Lease")) is reasons.ENDED_BY_INTERRUPT
    assert reasons.find_end(Stopped("something new")) is reasons.ENDED_BY_PLAN
