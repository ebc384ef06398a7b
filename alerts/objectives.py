"""Alerts on the burn rate of the error budgets, and the rules that they need. Pure.

A group of what is promised, groups that record requests and where they burn a budget, groups of pages and tickets, and
groups of remaining error budgets. None names a target: objectives come from series (budget.py), so one text serves
every configuration.

A target has one alert for each objective and severity. Whether canaries or users burn the budget, and in which pair of
windows, is recorded for each SLI (burn_conditions.py), so the next one is no second notification. Its text says who
burns the budget, how fast, how many requests were bad, since when and why.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from alerts import links, sli
from alerts.alert_labels import by, on
from alerts.budget import (
    OBJECTIVES,
    WINDOW,
    allowed,
    bad,
    budget_group,
    promise_rules,
    request_rules,
    share_rules,
    step_s,
    sum_s,
    sums_group,
    total,
    windows_group,
)
from alerts.burn_conditions import burning, condition, sustained
from alerts.inhibitions import ENGINE_STALLED, TTFT_COLLAPSE, Inhibition
from alerts.rules import Alert, FaultKind, RuleGroup
from alerts.sli import Sli
from alerts.templates import COUNT, OF_TARGET, TARGET, if_any, listed, multiple, runs_out, same, value_of, with_label
from alerts.windows import DAY_S, PAIRS, duration
from exporters import names
from probe.core import objectives as slo
from probe.core.request import UP, Outcome

# A slow burn is a failure now and then, with gaps, and five failures of an hour may page hours before six hours exceed
# their limit. In the simulation of benchmarks/alerts/rings.py, two days of 1 % failing page 1.005 times if the alert
# lasts three hours longer. KneewatchTargetDown pages for an outage meanwhile. Nothing does for
# latency, which is seldom near its limit by chance.
AVAILABILITY_KEEP_S = 10800.0
_LATENCY_KEEP_S = 7200.0
# Twice a minute, so that a page is not a minute behind the records that it reads.
_PAGE_S = 30.0
# The windows of the other pages and of tickets change slowly. Less than 5 minutes, when a sample becomes stale.
_SLOW_S = 240.0
_PROMISES_S = 60.0
# A group for each: Mimir accepts 20 rules in one.
_WHO = {"canaries": sli.CANARIES, "users": sli.USERS}

_SEVERITIES = ("page", "ticket")
_EVERY = (*sli.CANARIES, *sli.USERS)
# Panels of the Target dashboard that several of these alerts have.
_ALL = ("Burn rate, last hour", "Error budget left", "Good requests against the objective")
_GOOD_USERS, _BOUNDS = "Good user requests against the objective", "Histogram bounds for user objectives"

_TOP = 3  # reasons that are listed
_MATCHER = f"{{{OF_TARGET}}}"
_WORKLOAD = "$workload"  # a variable of the template


@dataclass(frozen=True, slots=True)
class _Burn:
    """What the alerts of an objective say of themselves, in pages and tickets: see rules.Alert."""

    name: str
    means: str
    panels: Sequence[str]  # of the Target dashboard
    details: Sequence[str] = ()  # panels of the Server dashboard
    takes: str = ""  # of a latency: a request "takes over 500 ms ..."
    fleet: Sequence[str] = ("Burning",)
    silenced_by: tuple[Inhibition, ...] = (ENGINE_STALLED,)
    finds: tuple[FaultKind, ...] = ()
    follows: tuple[FaultKind, ...] = ()
    unseen: str = ""


_BURNS: Mapping[str, _Burn] = {
    slo.AVAILABILITY: _Burn(
        "Availability",
        "requests of canaries or users fail, and spend the error budget too fast",
        panels=("Last canary", *_ALL, "Canaries by outcome", _GOOD_USERS, "User requests by outcome"),
        fleet=("Down", "Downtime"),
        silenced_by=(),
        finds=(FaultKind.DEAD, FaultKind.STALL),
        follows=(FaultKind.QUEUE, FaultKind.KV),
    ),
    "ttft": _Burn(
        "TTFT",
        "canaries or users wait too long for the first token, and spend the error budget too fast",
        takes="to the first token",
        panels=(*_ALL, "TTFT", _GOOD_USERS),
        details=("TTFT of canaries", "User TTFT", _BOUNDS),
        silenced_by=(ENGINE_STALLED, TTFT_COLLAPSE),
        finds=(FaultKind.QUEUE, FaultKind.KV),
        follows=(FaultKind.STALL, FaultKind.KNEE),
    ),
    "tpot": _Burn(
        "TPOT",
        "tokens of canaries or users come too slowly, and spend the error budget too fast",
        takes="per output token",
        panels=(*_ALL, "TPOT", _GOOD_USERS),
        details=("User TPOT", _BOUNDS),
        finds=(FaultKind.SLOW, FaultKind.KV),
        follows=(FaultKind.STALL,),
    ),
    "e2e": _Burn(
        "E2E",
        "whole answers to canaries or users take too long, and spend the error budget too fast",
        takes="to the last token",
        panels=(*_ALL, _GOOD_USERS),
        details=("E2E, server and client", _BOUNDS),
        silenced_by=(ENGINE_STALLED, TTFT_COLLAPSE),
        unseen="the targets have no objective for E2E",
    ),
    "itl": _Burn(
        "ITL",
        "gaps between tokens of canaries are too long, and spend the error budget too fast; users are not measured",
        takes="between two tokens",
        panels=_ALL,
        details=("ITL of canaries",),
        unseen="the targets have no objective for ITL",
    ),
}


def objective_groups(scale: float = 1.0) -> list[RuleGroup]:
    """Return recording rules and burn alerts for all targets; `scale` shortens every window."""
    pages, tickets = ([_alert(objective, severity, scale) for objective in OBJECTIVES] for severity in _SEVERITIES)
    return [
        RuleGroup("kneewatch-slo-objectives", max(1.0, _PROMISES_S * scale), promise_rules()),
        *(_sustained_group(name, kept, scale) for name, kept in _WHO.items()),
        *(_minutes_group(name, kept, scale) for name, kept in _WHO.items()),
        RuleGroup("kneewatch-slo-page", max(1.0, _PAGE_S * scale), pages),
        RuleGroup("kneewatch-slo-days", sum_s(scale), [condition(one, "ticket", scale) for one in _EVERY]),
        RuleGroup("kneewatch-slo-ticket", max(1.0, _SLOW_S * scale), tickets),
        *(group(_EVERY, scale) for group in (sums_group, windows_group, budget_group)),
    ]


def _minutes_group(name: str, kept: Iterable[Sli], scale: float) -> RuleGroup:
    """Return the rules that record requests, and where these page.

    In this order and in one group, each reads what the one before has just recorded, and none is evaluated more often
    than that changes.
    """
    rules = [rule for one in kept for rule in (*request_rules(one, scale), condition(one, "page", scale))]
    return RuleGroup(f"kneewatch-slo-{name}", step_s(scale), rules)


def _sustained_group(name: str, kept: Iterable[Sli], scale: float) -> RuleGroup:
    """Return the rules that record the shares of bad requests over hours, and where these page."""
    rules = [rule for one in kept for rule in (*share_rules(one, scale), sustained(one, scale))]
    return RuleGroup(f"kneewatch-slo-sustained-{name}", max(1.0, _SLOW_S * scale), rules)


def _alert(objective: str, severity: str, scale: float) -> Alert:
    """Return the alert of an objective and severity."""
    judged, about = [one for one in _EVERY if one.objective == objective], _BURNS[objective]
    burns = "\n  or ".join(burning(one, severity, scale) for one in judged)
    return Alert(
        name=f"Kneewatch{about.name}Burn",
        # Without the canaries' label `workload`: one alert, whichever workload burns.
        expr=f"max {by('target')} (\n  {burns}\n)\n* {on('target')} group_left (slo) ({WINDOW} > bool 0)",
        for_s=0.0,
        severity=severity,
        summary=summary(judged, severity, scale),
        description=description(judged, severity, scale),
        labels={"objective": objective},
        keep_s=(AVAILABILITY_KEEP_S if objective == slo.AVAILABILITY else _LATENCY_KEEP_S) * scale,
        means=about.means,
        panels={
            links.TARGET: about.panels,
            links.FLEET: about.fleet,
            **({links.SERVER: about.details} if about.details else {}),
        },
        silenced_by=about.silenced_by,
        finds=about.finds,
        follows=about.follows,
        unseen=about.unseen,
    )


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
    share = value_of(f"{allowed(objective)}{{{OF_TARGET}}}", shown="humanizePercentage")
    days = value_of(f"{window} / {DAY_S:g}", shown='printf "%.3gd"')
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
    return f"take over {_within(objective)} {_BURNS[objective].takes}"


def _within(objective: str) -> str:
    series = f'{names.OBJECTIVE_SECONDS.name}{{{OF_TARGET},objective="{objective}"}}'
    return value_of(f"max({series})", shown="humanizeDuration")


def _fastest(judged: Sequence[Sli], severity: str, windows: tuple[float, float], scale: float) -> str:
    """Return a template of the counts of the workload that burns fastest, for a target with several.

    Empty if it is the users' pace.
    """
    canaries = judged[0]
    burns = " or ".join(burning(one, severity, scale, _MATCHER) for one in judged)
    several = f"count({total(canaries, windows[1], scale, matcher=f'{{{OF_TARGET}}}')} > 0) > 1"
    of_it = _counts(canaries, windows, scale, (*TARGET, _WORKLOAD))
    text = f" (of workload '{{{{ {_WORKLOAD} }}}}', which burns fastest: {of_it})"
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
    return f"{value_of(missed, labels, shown=COUNT, none='0')} of {{{{ . | first | value | {COUNT} }}}}"


def _canaries(judged: Sequence[Sli], window_s: float) -> list[str]:
    """Return why canaries failed, and when the last one succeeded."""
    if sli.AVAILABILITY not in judged:
        return []
    last = f'{names.LAST_SUCCESS.name}{{{OF_TARGET},traffic="canary"}}'
    since = value_of(
        f"round(time() - max({last}))",
        shown="humanizeDuration",
        before="The last canary succeeded ",
        after=" ago. ",
        none="No canary has succeeded since Kneewatch started. ",
    )
    return [why_failed(window_s), since]


def why_failed(window_s: float) -> str:
    """Return a template of why canaries failed: the most frequent outcomes, and whether the server refused load."""
    fine = "|".join((*UP, Outcome.ABORTED))
    failed = f'{names.REQUESTS.name}{{{OF_TARGET},traffic="canary",outcome!~"{fine}"}}'
    by_reason = f"sum by (outcome) ({sli.grown(failed, duration(window_s))})"
    why = listed(
        f"sort_desc(topk({_TOP}, {by_reason} > 0))",
        "outcome",
        before=f"Failed canaries in {duration(window_s)}: ",
        after=". ",
    )
    rejected = f'{names.REQUESTS.name}{{{OF_TARGET},traffic="canary",outcome="{Outcome.REJECTED.value}"}}'
    turned_away = value_of(
        f"sum({sli.grown(rejected, duration(window_s))}) > 0",
        shown=COUNT,
        before="A server or gateway that is up rejected ",
        after=" of them, for too much load or a rate limit. ",
        none="",
    )
    counted = f"{names.SERVER['rejections_by_reason'].name}{{{OF_TARGET}}}"
    refused = value_of(
        f"sum({sli.grown(counted, duration(window_s))}) > 0",
        shown=COUNT,
        before="The server's queue limit refused ",
        after=f" requests in {duration(window_s)}, users' too. ",
        none="",
    )
    return why + turned_away + refused


def _judged(one: Sli) -> str:
    """Return how users' latencies are judged: by the server's histogram buckets and its clock. Empty for others."""
    if one not in sli.USERS or one.objective == slo.AVAILABILITY:
        return ""
    bound = f'max({names.USERS_OBJECTIVE_SECONDS.name}{{{OF_TARGET},objective="{one.objective}"}})'
    return value_of(
        bound,
        shown="humanizeDuration",
        before="The server measures users' requests, without the network, and they are judged at ",
        after=f", its lowest histogram bound at or above {_within(one.objective)}. ",
        none="",
    )
