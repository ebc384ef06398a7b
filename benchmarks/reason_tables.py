"""The tables of docs/guard.md, from the rows of core/reasons.py."""

from collections.abc import Sequence

from probe.core import reasons
from probe.core.reasons import Kind, Reason

Rows = tuple[Sequence[str], list[Sequence[str]]]


def refusals() -> Rows:
    """Return the head and the rows of the table of what keeps a run from beginning."""
    return ("reason", "condition", "what to do"), [_advised(row) for row in reasons.REFUSALS]


def trips() -> Rows:
    """Return the head and the rows of the table of what stops a run."""
    return ("reason", "kind", "condition", "meaning", "what to do"), [
        (f"`{row.word}`", row.kind, _condition(row), _meaning(row), row.advice) for row in reasons.TRIPS
    ]


def budgets() -> Rows:
    """Return the head and the rows of the table of budgets."""
    return ("reason", "condition", "what to do"), [_advised(row) for row in reasons.BUDGETS]


def errors() -> Rows:
    """Return the head and the rows of the table of what ends a run as an error."""
    return ("reason", "condition", "what to do"), [_advised(row) for row in reasons.ERRORS]


def seen_by_stream() -> str:
    """Return the reasons that a run guarded by its own answers alone finds, as a list of words."""
    words = [f"`{row.word}`" for row in reasons.TRIPS if not row.unseen]
    return f"{', '.join(words[:-1])} and {words[-1]}"


def _advised(row: Reason) -> Sequence[str]:
    return f"`{row.word}`", _condition(row), row.advice


def _condition(row: Reason) -> str:
    return row.condition or row.why


def _meaning(row: Reason) -> str:
    return f"{row.why}; no capacity is published" if row.kind is Kind.VOID else row.why
