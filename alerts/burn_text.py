"""The texts of burn alerts: how fast the budget burns, how many requests were bad, since when and why. Pure."""

from collections.abc import Sequence

from alerts import sli
from alerts.alert_labels import KEPT
from alerts.budget import bad, total
from alerts.sli import Sli
from alerts.templates import COUNT, asked, listed, multiple, runs_out
from alerts.windows import BurnWindow, duration
from exporters import names
from probe.core import objectives as slo
from probe.core.durations import format_duration
from probe.core.objectives import Objectives
from probe.core.request import UP, Outcome

_TOP = 3  # reasons that are listed


def summary(objectives: Objectives, one: Sli) -> str:
    """Return one line: the target, what is wrong, and the measured pace."""
    kind = "user" if one in sli.USERS else "canary"
    return (
        f"{{{{ $labels.target }}}}: {kind} requests {_what(objectives, one)}, {multiple()} times as often as the error"
        " budget allows"
    )


def description(objectives: Objectives, one: Sli, windows: Sequence[BurnWindow], scale: float) -> str:
    """Return the counts in the shortest and longest window, reasons, the last success, and the end of the budget."""
    shortest_s, longest_s = min(window.short_s for window in windows), max(window.long_s for window in windows)
    counts = f"{_counts(one, shortest_s, scale)}, {_counts(one, longest_s, scale)}"
    allowed = f"{100 * (1 - slo.promised(objectives)[one.objective]):.6g}%"
    parts = [
        f"Requests that {_what(objectives, one)}: {counts}{_workload(one)}. ",
        _why(one, max(window.short_s for window in windows)),
        _since(one),
        _judged(objectives, one),
        f"The objective {objectives.name!r} allows {allowed} over {duration(objectives.window_s)};",
        f" at this pace the whole budget is gone in {runs_out(objectives.window_s)}.",
    ]
    return "".join(parts)


def _what(objectives: Objectives, one: Sli) -> str:
    if one.objective == slo.AVAILABILITY:
        return "fail"
    within = format_duration(objectives.latencies()[one.objective].within_s)
    return f"take over {within} {'to the first token' if one.objective == 'ttft' else 'per output token'}"


def _counts(one: Sli, window_s: float, scale: float) -> str:
    missed, judged = (
        asked(count(one, window_s, scale, f"{{{_same(one)}}}"), _labels(one), shown=COUNT, none="0")
        for count in (bad, total)
    )
    return f"{missed} of {judged} in {duration(window_s)}"


def _labels(one: Sli) -> tuple[str, ...]:
    return (*KEPT, *one.by)


def _same(one: Sli) -> str:
    """Return matchers for the alert's own labels. They name values by position, so they may occur several times."""
    return ",".join(f"{label}=%[{position}]q" for position, label in enumerate(_labels(one), start=1))


def _workload(one: Sli) -> str:
    return " (workload {{ $labels.workload }})" if "workload" in one.by else ""


def _why(one: Sli, window_s: float) -> str:
    """Return the most frequent reasons of failed canaries."""
    if one is not sli.AVAILABILITY:
        return ""
    fine = "|".join((*UP, Outcome.ABORTED))
    failed = f'{names.REQUESTS.name}{{{_same(one)},traffic="canary",outcome!~"{fine}"}}'
    by_reason = f"sum by (outcome) ({sli.grown(failed, duration(window_s))})"
    return listed(
        f"sort_desc(topk({_TOP}, {by_reason} > 0))",
        "outcome",
        _labels(one),
        before=f"Reasons in {duration(window_s)}: ",
        after=". ",
    )


def _since(one: Sli) -> str:
    if one is not sli.AVAILABILITY:
        return ""
    last = f'{names.LAST_SUCCESS.name}{{{_same(one)},traffic="canary"}}'
    return asked(
        f"round(time() - max({last}))",
        _labels(one),
        shown="humanizeDuration",
        before="The last success was ",
        after=" ago. ",
        none="No canary has succeeded since Kneewatch started. ",
    )


def _judged(objectives: Objectives, one: Sli) -> str:
    """Return how users' latencies are judged: by the server's histogram buckets and its clock. Empty for others."""
    if one not in sli.USERS or one.objective == slo.AVAILABILITY:
        return ""
    bound = f'max({names.USERS_OBJECTIVE_SECONDS.name}{{{_same(one)},objective="{one.objective}"}})'
    within = format_duration(objectives.latencies()[one.objective].within_s)
    at = asked(bound, _labels(one), shown="humanizeDuration")
    return (
        f"Measured by the server, without the network, and judged at {at}, the server's lowest histogram bound at or"
        f" above {within}. "
    )
