"""The texts of burn alerts: who burns the budget, how fast, how many requests were bad, since when and why. Pure."""

from collections.abc import Sequence

from alerts import sli
from alerts.budget import bad, total
from alerts.burn_conditions import burning
from alerts.promises import WINDOW, allowed
from alerts.sli import Sli
from alerts.templates import COUNT, OF_TARGET, TARGET, asked, if_any, listed, multiple, runs_out, same, with_label
from alerts.windows import DAY_S, PAIRS, duration
from exporters import names
from probe.core import objectives as slo
from probe.core.request import UP, Outcome

_TAKES = {
    "ttft": "to the first token",
    "tpot": "per output token",
    "e2e": "to the last token",
    "itl": "between two tokens",
}
_TOP = 3  # reasons that are listed
_MATCHER = f"{{{OF_TARGET}}}"
_WORKLOAD = "$workload"  # a variable of the template


def summary(judged: Sequence[Sli], severity: str, scale: float) -> str:
    """Return one line: the target, who sends the requests that are bad, what is wrong, and the measured pace."""
    return (
        f"{{{{ $labels.target }}}}: {_who(judged, severity, scale)} requests {_what(judged[0].objective)},"
        f" {multiple()} times as often as the error budget allows"
    )


def description(judged: Sequence[Sli], severity: str, scale: float) -> str:
    """Return the counts in the shortest and longest window, reasons, the last success, and the end of the budget."""
    pairs = [pair for pair in PAIRS if pair.severity == severity and pair.every_s is None]
    windows = pairs[0].short_s * scale, pairs[-1].long_s * scale
    canaries, *users = (f"{_kind(one)}: {_counts(one, windows, scale)}" for one in judged)
    counts = "; ".join((canaries + _fastest(judged, severity, windows, scale), *users))
    objective = judged[0].objective
    window = f"{WINDOW}{{{OF_TARGET}}}"
    share = asked(f"{allowed(objective)}{{{OF_TARGET}}}", shown="humanizePercentage")
    days = asked(f"{window} / {DAY_S:g}", shown='printf "%.3gd"')
    parts = [
        f"Requests that {_what(objective)}: {counts}. ",
        *_canaries(judged, max(pair.short_s for pair in pairs)),
        *(_judged(one) for one in judged),
        f"The objective '{{{{ $labels.slo }}}}' allows {share} over {days};",
        f" at this pace the whole budget is gone in {runs_out(window, TARGET)}.",
    ]
    return "".join(parts)


def _kind(one: Sli) -> str:
    return "users" if one in sli.USERS else "canaries"


def _who(judged: Sequence[Sli], severity: str, scale: float) -> str:
    """Return a template: canary, user, or both; users are judged by no objective alone."""
    burns = [
        f"{{{{ with printf `{burning(one, severity, scale, _MATCHER)}`"
        f" {' '.join(f'$labels.{label}' for label in TARGET)} | query }}}}"
        for one in judged
    ]
    if len(burns) == 1:
        return "canary"
    canaries, users = burns
    return f"{canaries}canary{users} and user{{{{ end }}}}{{{{ else }}}}user{{{{ end }}}}"


def _what(objective: str) -> str:
    if objective == slo.AVAILABILITY:
        return "fail"
    return f"take over {_within(objective)} {_TAKES[objective]}"


def _within(objective: str) -> str:
    series = f'{names.OBJECTIVE_SECONDS.name}{{{OF_TARGET},objective="{objective}"}}'
    return asked(f"max({series})", shown="humanizeDuration")


def _fastest(judged: Sequence[Sli], severity: str, windows: tuple[float, float], scale: float) -> str:
    """Return a template of the counts of the workload whose pace the alert has, of a target with several.

    Empty if it is the users' pace.
    """
    canaries = judged[0]
    burns = " or ".join(burning(one, severity, scale, _MATCHER) for one in judged)
    several = f"count({total(canaries, windows[1], scale, matcher=f'{{{OF_TARGET}}}')} > 0) > 1"
    of_it = _counts(canaries, windows, scale, (*TARGET, _WORKLOAD))
    text = f" (of workload '{{{{ {_WORKLOAD} }}}}', whose pace it is: {of_it})"
    return with_label(f"topk(1, {burns}) and on () {several}", _WORKLOAD.removeprefix("$"), text)


def _counts(one: Sli, windows: tuple[float, float], scale: float, labels: Sequence[str] = TARGET) -> str:
    """Return a template such as "3 of 20 in 5m, 7 of 1440 in 6h", "no requests in 6h", or "unknown"."""
    short, long = (duration(window_s) for window_s in windows)
    (missed, judged), (all_missed, all_judged) = (_requests(one, window_s, scale, labels) for window_s in windows)
    lately = if_any(judged, labels, _share(missed, labels), "no requests", "unknown")
    whole = f"{lately} in {short}, {_share(all_missed, labels)} in {long}"
    return if_any(all_judged, labels, whole, f"no requests in {long}", "unknown")


def _requests(one: Sli, window_s: float, scale: float, labels: Sequence[str]) -> tuple[str, str]:
    """Return queries of the number of bad requests and of all."""
    matcher = f"{{{same([label.removeprefix('$') for label in labels])}}}"
    missed, judged = (f"sum({count(one, window_s, scale, matcher=matcher)})" for count in (bad, total))
    return missed, judged


def _share(missed: str, labels: Sequence[str]) -> str:
    return f"{asked(missed, labels, shown=COUNT, none='0')} of {{{{ . | first | value | {COUNT} }}}}"


def _canaries(judged: Sequence[Sli], window_s: float) -> list[str]:
    """Return the most frequent reasons of failed canaries, and when the last one succeeded."""
    if sli.AVAILABILITY not in judged:
        return []
    fine = "|".join((*UP, Outcome.ABORTED))
    failed = f'{names.REQUESTS.name}{{{OF_TARGET},traffic="canary",outcome!~"{fine}"}}'
    by_reason = f"sum by (outcome) ({sli.grown(failed, duration(window_s))})"
    why = listed(
        f"sort_desc(topk({_TOP}, {by_reason} > 0))",
        "outcome",
        before=f"Failed canaries in {duration(window_s)}: ",
        after=". ",
    )
    last = f'{names.LAST_SUCCESS.name}{{{OF_TARGET},traffic="canary"}}'
    since = asked(
        f"round(time() - max({last}))",
        shown="humanizeDuration",
        before="The last canary succeeded ",
        after=" ago. ",
        none="No canary has succeeded since Kneewatch started. ",
    )
    return [why, since]


def _judged(one: Sli) -> str:
    """Return how users' latencies are judged: by the server's histogram buckets and its clock. Empty for others."""
    if one not in sli.USERS or one.objective == slo.AVAILABILITY:
        return ""
    bound = f'max({names.USERS_OBJECTIVE_SECONDS.name}{{{OF_TARGET},objective="{one.objective}"}})'
    return asked(
        bound,
        shown="humanizeDuration",
        before="The server measures users' requests, without the network, and they are judged at ",
        after=f", its lowest histogram bound at or above {_within(one.objective)}. ",
        none="",
    )
