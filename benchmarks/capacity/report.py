"""The report: a summary for each method and kind of case, a plain table, and the goals. Pure.

Input: Rows. Output: summaries, text. Median and p90 of the error are of the runs that gave an answer; the shares within
5 and 10 % are of all runs, so that a withheld capacity is no success.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from benchmarks.capacity.bench import FORECAST, KNEEWATCH, METHODS, OURS, Row
from probe.core.percentiles import percentile

BASELINE = "guidellm sweep"  # the ten-step sweep; its tokens are 100 %
VERIFIED = "verified"
ALL = "all"
_KINDS = ("named", "blind", "random", "random blind", "timed")
_WRONG = 0.1


def summaries(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return a summary for each method and kind of case, and one for each method over all kinds."""
    base = _baseline(rows)
    found = []
    for method in METHODS:
        mine = [row for row in rows if row.method == method]
        kinds = [kind for kind in _KINDS if any(row.kind == kind for row in mine)]
        for kind in [*kinds, ALL] if len(kinds) > 1 else kinds:
            of_kind = [row for row in mine if kind in (row.kind, ALL)]
            found.append({"method": method, "kind": kind, **_figures(of_kind, base)})
    return found


def _baseline(rows: Iterable[Row]) -> dict[str, float]:
    """Return the mean tokens of the ten-step sweep, by case."""
    tokens: dict[str, list[int]] = {}
    for row in rows:
        if row.method == BASELINE:
            tokens.setdefault(row.case, []).append(row.tokens)
    return {case: fmean(spent) for case, spent in tokens.items()}


def _figures(rows: Sequence[Row], base: Mapping[str, float]) -> dict[str, Any]:
    errors = sorted(abs(row.error) for row in rows if row.error is not None)
    shares = [row.tokens / base[row.case] for row in rows if base.get(row.case)]
    intervals = [row for row in rows if row.lower_rps is not None and row.upper_rps is not None]
    users = sum(row.users for row in rows)
    return {
        "cases": len({row.case for row in rows}),
        "runs": len(rows),
        "error_median": percentile(errors, 0.5) if errors else None,
        "error_p90": percentile(errors, 0.9) if errors else None,
        "within_5": sum(error <= 0.05 for error in errors) / len(rows),
        "within_10": sum(error <= _WRONG for error in errors) / len(rows),
        "tokens_of_sweep": fmean(shares) if shares else None,
        "seconds": fmean(row.seconds for row in rows),
        "over_objective_s_mean": fmean(row.over_objective_s for row in rows),
        "over_objective_s_max": max(row.over_objective_s for row in rows),
        "spoilt": sum(row.spoilt for row in rows) / users if users else None,
        "covered": fmean(_covered(row) for row in intervals) if intervals else None,
        "intervals": len(intervals),
        "withheld": len(rows) - len(errors),
        "wrong_as_verified": sum(row.mode == VERIFIED and abs(row.error or 0.0) > _WRONG for row in rows),
        "modes": {mode: sum(row.mode == mode for row in rows) for mode in sorted({row.mode for row in rows}) if mode},
        "cpu_s": fmean(row.cpu_s for row in rows),
    }


def _covered(row: Row) -> bool:
    return (row.lower_rps or 0.0) <= row.truth_rps <= (row.upper_rps or 0.0)


@dataclass(frozen=True, slots=True)
class Goal:
    """A result of Kneewatch over all cases, and the goal for it."""

    figure: str
    least: float | None = None
    most: float | None = None
    method: str = KNEEWATCH

    def judged(self, summary: Mapping[str, Any]) -> dict[str, Any]:
        value = summary[self.figure]
        met = None if value is None else (self.least or 0.0) <= value and (self.most is None or value <= self.most)
        bounds = ((word, bound) for word, bound in (("at least", self.least), ("at most", self.most)))
        goal = ", ".join(f"{word} {bound:g}" for word, bound in bounds if bound is not None)
        return {"method": self.method, "figure": self.figure, "goal": goal, "measured": value, "met": met}


GOALS = (
    Goal("within_5", least=0.92),
    Goal("within_10", least=0.99),
    Goal("tokens_of_sweep", most=0.15),
    Goal("over_objective_s_mean", most=2.0),
    Goal("over_objective_s_max", most=20.0),
    Goal("spoilt", most=0.002),
    Goal("covered", least=0.88, most=0.97),
    Goal("wrong_as_verified", most=0),
    Goal("within_10", least=0.9, method=FORECAST),
    Goal("covered", least=0.88, most=0.97, method=FORECAST),
)


def goals(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return Kneewatch's goals over all cases, or over the only kind; empty if it did not run."""
    last = {each["method"]: each for each in found if each["method"] in OURS}
    return [goal.judged(last[goal.method]) for goal in GOALS if goal.method in last]


_COLUMNS = (
    ("runs", "runs", "{:d}"),
    ("error p50", "error_median", "{:.1%}"),
    ("p90", "error_p90", "{:.1%}"),
    ("<=5 %", "within_5", "{:.0%}"),
    ("<=10 %", "within_10", "{:.0%}"),
    ("tokens", "tokens_of_sweep", "{:.0%}"),
    ("seconds", "seconds", "{:.0f}"),
    ("over s", "over_objective_s_mean", "{:.1f}"),
    ("max", "over_objective_s_max", "{:.1f}"),
    ("spoilt", "spoilt", "{:.2%}"),
    ("covered", "covered", "{:.0%}"),
    ("withheld", "withheld", "{:d}"),
    ("wrong", "wrong_as_verified", "{:d}"),
)


def table(found: Sequence[Mapping[str, Any]]) -> str:
    """Return a line for each summary."""
    rows = [["method", "cases", *(title for title, _, _ in _COLUMNS)]]
    for each in found:
        cells = ["-" if each[key] is None else form.format(each[key]) for _, key, form in _COLUMNS]
        rows.append([each["method"], f"{each['kind']} ({each['cases']})", *cells])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(
            cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    notes = (
        "tokens: of the ten-step sweep's on the same case; over s: time in which a probe request was late or slow;",
        "spoilt: live requests late or slow because of it; wrong: said to be verified and off by more than 10 %",
    )
    return "\n".join([*(line.rstrip() for line in lines), *notes, ""])


def verdicts(judged: Sequence[Mapping[str, Any]]) -> str:
    """Return a line for each goal."""
    said = {True: "met", False: "NOT MET", None: "not measured"}
    return "".join(
        f"{said[goal['met']]:13}{goal['method']}, {goal['figure']}: {_short(goal['measured'])} ({goal['goal']})\n"
        for goal in judged
    )


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def line(row: Row) -> str:
    """Return one run as a line of progress."""
    said = "withheld" if row.error is None else f"{row.error:+.1%}"
    why = f" {row.reason}" if row.reason else ""
    return (
        f"{row.case:24} {row.seed} {row.method:21} {said:>8} {row.mode:9} {row.tokens:>10,} tokens, "
        f"{row.seconds:.0f} s, over {row.over_objective_s:.1f} s, spoilt {row.spoilt} of {row.users}; "
        f"{row.cpu_s:.1f} s{why}"
    )
