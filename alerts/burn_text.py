"""The texts of burn alerts: who burns the budget, how fast, how many requests were bad, since when and why. Pure."""

from collections.abc import Sequence

from alerts import sli
from alerts.alert_labels import KEPT
from alerts.budget import bad, total
from alerts.burn_conditions import Watched
from alerts.sli import Sli
from alerts.templates import COUNT, asked, if_any, listed, multiple, runs_out
from alerts.windows import duration
from exporters import names
from probe.core import objectives as slo
from probe.core.durations import format_duration
from probe.core.objectives import Objectives
from probe.core.request import UP, Outcome

_TOP = 3  # reasons that are listed
# What identifies the alert. The canaries' workload does not: their requests are summed.
_LABELS = (*KEPT, "target")
# Matchers for these labels, by position, so that they may occur several times.
_SAME = ",".join(f"{label}=%[{position}]q" for position, label in enumerate(_LABELS, start=1))


def summary(judged: Sequence[Watched]) -> str:
    """Return one line: the target, who sends the requests that are bad, what is wrong, and the measured pace."""
    return (
        f"{{{{ $labels.target }}}}: {_who(judged)} requests {_what(judged[0])}, {multiple()} times as often as the"
        " error budget allows"
    )


def description(judged: Sequence[Watched], scale: float) -> str:
    """Return the counts in the shortest and longest window, reasons, the last success, and the end of the budget."""
    objectives, windows = judged[0].objectives, [window for each in judged for window in each.windows]
    counts = "; ".join(f"{_kind(each.one)}: {_counts(each, scale)}" for each in judged)
    allowed = f"{100 * judged[0].allowed:.6g}% over {duration(objectives.window_s)}"
    parts = [
        f"Requests that {_what(judged[0])}: {counts}. ",
        *_canaries(judged, max(window.short_s for window in windows)),
        *(_judged(objectives, each.one) for each in judged),
        f"The objective {objectives.name!r} allows {allowed};",
        f" at this pace the whole budget is gone in {runs_out(objectives.window_s)}.",
    ]
    return "".join(parts)


def _kind(one: Sli) -> str:
    return "users" if one in sli.USERS else "canaries"


def _who(judged: Sequence[Watched]) -> str:
    """Return a template: canary, user, or both."""
    if len(judged) == 1:
        return "user" if judged[0].one in sli.USERS else "canary"
    canaries, users = (
        f"{{{{ with printf `{each.one.burn_record(each.windows[0].severity)}{{{_SAME}}}`"
        f" {' '.join(f'$labels.{label}' for label in _LABELS)} | query }}}}"
        for each in judged
    )
    return f"{canaries}canary{users} and user{{{{ end }}}}{{{{ else }}}}user{{{{ end }}}}"


def _what(watched: Watched) -> str:
    objective = watched.one.objective
    if objective == slo.AVAILABILITY:
        return "fail"
    within = format_duration(watched.objectives.latencies()[objective].within_s)
    return f"take over {within} {'to the first token' if objective == 'ttft' else 'per output token'}"


def _counts(watched: Watched, scale: float) -> str:
    """Return a template such as "3 of 20 in 5m, 7 of 1440 in 6h", "no requests in 6h", or "unknown"."""
    shortest_s = min(window.short_s for window in watched.windows)
    longest_s = max(window.long_s for window in watched.windows)
    missed, judged = _requests(watched.one, shortest_s, scale)
    lately = if_any(judged, _LABELS, _share(missed), "no requests", "unknown")
    missed, judged = _requests(watched.one, longest_s, scale)
    over = duration(longest_s)
    whole = f"{lately} in {duration(shortest_s)}, {_share(missed)} in {over}"
    return if_any(judged, _LABELS, whole, f"no requests in {over}", "unknown")


def _requests(one: Sli, window_s: float, scale: float) -> tuple[str, str]:
    """Return queries of the number of bad requests and of all."""
    missed, judged = (f"sum({count(one, window_s, scale, f'{{{_SAME}}}')})" for count in (bad, total))
    return missed, judged


def _share(missed: str) -> str:
    return f"{asked(missed, _LABELS, shown=COUNT, none='0')} of {{{{ . | first | value | {COUNT} }}}}"


def _canaries(judged: Sequence[Watched], window_s: float) -> list[str]:
    """Return the most frequent reasons of failed canaries, and when the last one succeeded."""
    if not any(each.one is sli.AVAILABILITY for each in judged):
        return []
    fine = "|".join((*UP, Outcome.ABORTED))
    failed = f'{names.REQUESTS.name}{{{_SAME},traffic="canary",outcome!~"{fine}"}}'
    by_reason = f"sum by (outcome) ({sli.grown(failed, duration(window_s))})"
    why = listed(
        f"sort_desc(topk({_TOP}, {by_reason} > 0))",
        "outcome",
        _LABELS,
        before=f"Failed canaries in {duration(window_s)}: ",
        after=". ",
    )
    last = f'{names.LAST_SUCCESS.name}{{{_SAME},traffic="canary"}}'
    since = asked(
        f"round(time() - max({last}))",
        _LABELS,
        shown="humanizeDuration",
        before="The last canary succeeded ",
        after=" ago. ",
        none="No canary has succeeded since Kneewatch started. ",
    )
    return [why, since]


def _judged(objectives: Objectives, one: Sli) -> str:
    """Return how users' latencies are judged: by the server's histogram buckets and its clock. Empty for others."""
    if one not in sli.USERS or one.objective == slo.AVAILABILITY:
        return ""
    bound = f'max({names.USERS_OBJECTIVE_SECONDS.name}{{{_SAME},objective="{one.objective}"}})'
    within = format_duration(objectives.latencies()[one.objective].within_s)
    return asked(
        bound,
        _LABELS,
        shown="humanizeDuration",
        before="The server measures users' requests, without the network, and they are judged at ",
        after=f", its lowest histogram bound at or above {within}. ",
        none="",
    )
