"""The tables of docs/guard.md, from the rows of core/reasons.py."""

from collections.abc import Callable, Iterable, Sequence

from probe.core import reasons
from probe.core.reasons import Reason, ReasonKind

HEAD = ("reason", "meaning", "what to do")


def rows(of: Iterable[Reason]) -> list[Sequence[str]]:
    """Return the rows of a table of reasons."""
    return [(f"`{row.word}`", _meaning(row), row.advice) for row in of]


def conditions(of: Iterable[Reason]) -> str:
    """Return a list of when exactly each reason applies, of those whose meaning does not say it."""
    lines = "\n".join(f"- `{row.word}`: {row.condition}" for row in of if row.condition)
    return f"When exactly:\n\n{lines}\n"


def overloads() -> str:
    """Return the reasons that a search survives, as a list of words."""
    return _words(lambda row: row.is_overload)


def seen_by_stream() -> str:
    """Return the reasons that a run guarded by its own answers alone finds, as a list of words."""
    return _words(lambda row: not row.unseen)


def _words(holds: Callable[[Reason], bool]) -> str:
    words = [f"`{row.word}`" for row in reasons.TRIPS if holds(row)]
    return f"{', '.join(words[:-1])} and {words[-1]}"


def _meaning(row: Reason) -> str:
    return f"{row.why}; no capacity is published" if row.kind is ReasonKind.VOID else row.why
