"""The report: a summary of each client, a plain table, and the goals. Pure.

Input: Trials. Output: one summary a client, and text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.client.trial import Trial

LATE_MS = 1.0  # of the server's p99, above which a level is marked


@dataclass(frozen=True, slots=True)
class Trials:
    """Of one client: `levels` at the usual ITL, `few` and `many` requests at one of them (CPU by their difference),
    and `fast`, where the server sends faster than any client reads.
    """

    client: str
    version: str
    levels: Sequence[Trial]
    few: Trial | None
    many: Trial | None
    fast: Trial | None


def summary(trials: Trials) -> dict[str, Any]:
    """Return the results of one client; None for trials without any."""
    every = [t for t in (*trials.levels, trials.few, trials.fast) if t is not None]
    good = [t for t in every if t.reading]
    return {
        "client": trials.client,
        "version": trials.version,
        "cpu_s_per_million_tokens": _cpu_slope(trials.few, trials.many),
        "tokens_per_second": _rate(trials.fast),
        "startup_s": round(min(t.startup_s for t in good), 2) if good else None,
        "peak_rss_mib": round(max(t.peak_rss_mib for t in good)) if good else None,
        "levels": [level(t) for t in trials.levels],
        "trials": [asdict(t) for t in every],
    }


def level(trial: Trial) -> dict[str, Any]:
    """Return the errors of a level: the client's value less the truth that the server wrote, in milliseconds.

    A client that gives means over a request as its ITL is held against the same means.
    """
    found: dict[str, Any] = {"concurrency": trial.concurrency, "late_p99_ms": trial.truth["late_p99_ms"]}
    found["server_late"] = trial.truth["late_p99_ms"] > LATE_MS
    if trial.reading is None:
        return {**found, "error": trial.error}
    itl = "itl_mean" if trial.reading.itl_is_mean else "itl"
    for key in ("p50", "p99"):
        for name, true in (("ttft", "ttft"), ("itl", itl)):
            reported: float = getattr(trial.reading, f"{name}_{key}_ms")
            found[f"{name}_{key}_error_ms"] = round(reported - trial.truth[f"{true}_{key}_ms"], 3)
    return {**found, "failed": trial.reading.failed, "doubts": trial.reading.doubts, "bound_ms": trial.reading.bound_ms}


def _cpu_slope(few: Trial | None, many: Trial | None) -> float | None:
    if few is None or many is None or not (few.reading and many.reading):
        return None
    tokens = many.truth["tokens"] - few.truth["tokens"]
    return round((many.cpu_s - few.cpu_s) / tokens * 1e6, 1) if tokens > 0 else None


def _rate(fast: Trial | None) -> int | None:
    """Return the lower of the client's rate and the server's while any stream was open."""
    if fast is None or fast.reading is None or not fast.reading.seconds or not fast.truth["busy_s"]:
        return None
    return round(min(fast.reading.tokens / fast.reading.seconds, fast.truth["tokens"] / fast.truth["busy_s"]))


def table(summaries: Sequence[Mapping[str, Any]]) -> str:
    """Return costs, then the errors level by level: p50/p99, milliseconds."""
    levels = sorted({found["concurrency"] for one in summaries for found in one["levels"]})
    rows = [["client", "CPU s/M tok", "max tok/s", "start s", "RSS MiB"]]
    for one in summaries:
        keys = ("cpu_s_per_million_tokens", "tokens_per_second", "startup_s", "peak_rss_mib")
        rows.append(
            [f"{one['client']} {one['version']}", *("-" if one[key] is None else f"{one[key]:,}" for key in keys)]
        )
    text = _aligned(rows)
    for name in ("ttft", "itl"):
        rows = [[f"{name.upper()} error ms, p50/p99", *map(str, levels)]]
        for one in summaries:
            cells = {found["concurrency"]: _cell(found, name) for found in one["levels"]}
            rows.append([one["client"], *(cells.get(count, "") for count in levels)])
        text += "\n" + _aligned(rows)
    return text + "\n! the server's own p99 was late by more than 1 ms; ? the client doubts its own numbers\n"


def _cell(found: Mapping[str, Any], name: str) -> str:
    if "error" in found:
        return "failed"
    marks = ("!" if found["server_late"] else "") + ("?" if found["doubts"] else "")
    marks += f" ({found['failed']} lost)" if found["failed"] else ""
    return f"{found[f'{name}_p50_error_ms']:+.1f}/{found[f'{name}_p99_error_ms']:+.1f}{marks}"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines) + "\n"


@dataclass(frozen=True, slots=True)
class Goal:
    """A result of Kneewatch, and its goal: at most `limit`, or at least."""

    figure: str
    limit: float
    at_least: bool = False
    streams: int | None = None

    def judged(self, value: float | None) -> dict[str, Any]:
        met = None if value is None else (value >= self.limit if self.at_least else abs(value) <= self.limit)
        name = self.figure if self.streams is None else f"{self.figure} at {self.streams} streams"
        relation = "at least" if self.at_least else "at most"
        return {"figure": name, "goal": f"{relation} {self.limit:g}", "measured": value, "met": met}


GOALS = (
    Goal("cpu_s_per_million_tokens", 25),
    Goal("tokens_per_second", 180_000, at_least=True),
    *(Goal("ttft_p99_error_ms", limit, streams=streams) for streams, limit in ((64, 1), (256, 2), (512, 4))),
    *(Goal("itl_p99_error_ms", limit, streams=streams) for streams, limit in ((64, 2), (256, 5), (512, 15))),
    Goal("startup_s", 1.5),
    Goal("two_workers_over_one", 1.7, at_least=True),
)


def goals(summaries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return Kneewatch's results beside their goals; `met` is None if one was not measured."""
    named = {one["client"]: one for one in summaries}
    if "kneewatch" not in named:
        return []
    one, two = (named.get(name, {}).get("tokens_per_second") for name in ("kneewatch", "kneewatch-2"))
    figures = {**named["kneewatch"], "two_workers_over_one": round(two / one, 2) if one and two else None}
    levels = {found["concurrency"]: found for found in named["kneewatch"]["levels"]}
    return [
        goal.judged((figures if goal.streams is None else levels.get(goal.streams, {})).get(goal.figure))
        for goal in GOALS
    ]
