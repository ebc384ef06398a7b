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
    budget_group,
    counter_rules,
    hours_rules,
    promise_rules,
    request_rules,
    step_s,
    sum_s,
    sums_group,
    windows_group,
)
from alerts.burn_conditions import burning, condition, sustained, worse
from alerts.burn_texts import description, summary
from alerts.down import DOWN, down_rules
from alerts.inhibitions import ENGINE_STALLED, TTFT_COLLAPSE, Inhibition
from alerts.rules import Alert, FaultKind, RuleGroup
from alerts.sli import Sli
from alerts.windows import DAY_S
from probe.core import objectives as slo

# A burn near the limit of a ticket's windows crosses it now and then: one that lasts for days is one ticket.
_TICKET_KEEP_S = 1.5 * DAY_S
# An outage rings again, as worse, no sooner than this.
_AGAIN_KEEP_S = 1800.0
# A page is not behind what it reads, which is recorded as often (alerts/down.py) or each minute.
_PAGE_S = 15.0
_AGAIN_S = 60.0
# The windows of the other pages and of tickets change slowly. Less than 5 minutes, when a sample becomes stale.
_SLOW_S = 240.0
_PROMISES_S = 60.0
# A group for each: Mimir accepts 20 rules in one.
_WHO = {"canaries": sli.CANARIES[:3], "canaries-more": sli.CANARIES[3:], "users": sli.USERS}

_SEVERITIES = ("page", "ticket")
_EVERY = (*sli.CANARIES, *sli.USERS)
# Panels of the Target dashboard that several of these alerts have.
_ALL = ("Burn rate, last hour", "Error budget left", "Good requests against the objective")
_GOOD_USERS, _BOUNDS = "Good user requests against the objective", "Histogram bounds for user objectives"


@dataclass(frozen=True, slots=True)
class _Burn:
    """What the alerts of an objective say of themselves, in pages and tickets: see rules.Alert."""

    name: str
    means: str
    panels: Sequence[str]  # of the Target dashboard
    details: Sequence[str] = ()  # panels of the Server dashboard
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
        panels=(*_ALL, "TTFT", _GOOD_USERS),
        details=("TTFT of canaries", "User TTFT", _BOUNDS),
        silenced_by=(ENGINE_STALLED, TTFT_COLLAPSE),
        finds=(FaultKind.QUEUE, FaultKind.KV),
        follows=(FaultKind.STALL, FaultKind.KNEE),
    ),
    "tpot": _Burn(
        "TPOT",
        "tokens of canaries or users come too slowly, and spend the error budget too fast",
        panels=(*_ALL, "TPOT", _GOOD_USERS),
        details=("User TPOT", _BOUNDS),
        finds=(FaultKind.SLOW, FaultKind.KV),
        follows=(FaultKind.STALL,),
    ),
    "e2e": _Burn(
        "E2E",
        "whole answers to canaries or users take too long, and spend the error budget too fast",
        panels=(*_ALL, _GOOD_USERS),
        details=("E2E, server and client", _BOUNDS),
        silenced_by=(ENGINE_STALLED, TTFT_COLLAPSE),
        unseen="the targets have no objective for E2E",
    ),
    "itl": _Burn(
        "ITL",
        "gaps between tokens of canaries are too long, and spend the error budget too fast; users are not measured",
        panels=_ALL,
        details=("ITL of canaries",),
        unseen="the targets have no objective for ITL",
    ),
}


def objective_groups(scale: float = 1.0) -> list[RuleGroup]:
    """Return recording rules and burn alerts for all targets; `scale` shortens every window."""
    pages, tickets = ([_alert(objective, severity, scale) for objective in OBJECTIVES] for severity in _SEVERITIES)
    again = [_again(objective, scale) for objective in OBJECTIVES if objective != slo.AVAILABILITY]
    return [
        RuleGroup("kneewatch-slo-objectives", max(1.0, _PROMISES_S * scale), promise_rules()),
        *(_sustained_group(name, kept, scale) for name, kept in _WHO.items()),
        *(_minutes_group(name, kept, scale) for name, kept in _WHO.items()),
        RuleGroup("kneewatch-slo-page", max(1.0, _PAGE_S * scale), [*down_rules(scale), *pages]),
        RuleGroup("kneewatch-slo-again", max(1.0, _AGAIN_S * scale), again),
        RuleGroup("kneewatch-slo-days", sum_s(scale), [condition(one, "ticket", scale) for one in _EVERY]),
        RuleGroup("kneewatch-slo-ticket", max(1.0, _SLOW_S * scale), tickets),
        *(group(_EVERY, scale) for group in (sums_group, windows_group, budget_group)),
    ]


def _minutes_group(name: str, kept: Sequence[Sli], scale: float) -> RuleGroup:
    """Return the rules that record requests, and where these page.

    In this order and in one group, each reads what the one before has just recorded, and none is evaluated more often
    than that changes.
    """
    before = _WHO["canaries"] if kept is not _WHO["canaries"] else ()
    counters = [rule for rule in counter_rules(kept) if rule not in counter_rules(before)]
    rules = [rule for one in kept for rule in (*request_rules(one, scale), condition(one, "page", scale))]
    return RuleGroup(f"kneewatch-slo-{name}", step_s(scale), [*counters, *rules])


def _sustained_group(name: str, kept: Iterable[Sli], scale: float) -> RuleGroup:
    """Return the rules that record the shares of bad requests over hours, and where these page."""
    rules = [rule for one in kept for rule in (*hours_rules(one, scale), *sustained(one, scale))]
    return RuleGroup(f"kneewatch-slo-sustained-{name}", max(1.0, _SLOW_S * scale), rules)


def _alert(objective: str, severity: str, scale: float) -> Alert:
    """Return the alert of an objective and severity."""
    judged = [one for one in _EVERY if one.objective == objective]
    burns = "\n  or ".join(burning(one, severity, scale) for one in judged)
    burns = f"max {by('target')} (\n  {burns}\n)"
    if objective == slo.AVAILABILITY and severity == "page":
        # All requests fail: the multiple of the allowed ratio is its inverse.
        burns = f"({burns}\nor ({DOWN} > bool 0) / {on('target')} {allowed(objective)})"
    return _of_objective(objective, severity, burns, scale, _TICKET_KEEP_S if severity == "ticket" else 0.0)


def _again(objective: str, scale: float) -> Alert:
    """Return the page for requests that are clearly worse than ten minutes before, while an older page fires.

    Its label makes it another alert, which notifies. KneewatchTargetDown does that for requests that fail.
    """
    judged = [one for one in _EVERY if one.objective == objective]
    burns = "\n  or ".join(f"{burning(one, 'page', scale)} and (\n{worse(one, scale)}\n)" for one in judged)
    burns = f"max {by('target')} (\n  {burns}\n)"
    return _of_objective(objective, "page", burns, scale, _AGAIN_KEEP_S, again="true")


def _of_objective(objective: str, severity: str, burns: str, scale: float, keep_s: float, **labels: str) -> Alert:
    judged, about = [one for one in _EVERY if one.objective == objective], _BURNS[objective]
    return Alert(
        name=f"Kneewatch{about.name}Burn",
        # Without the canaries' label `workload`: one alert, whichever workload burns.
        expr=f"{burns}\n* {on('target')} group_left (slo) ({WINDOW} > bool 0)",
        for_s=0.0,
        severity=severity,
        summary=summary(judged, severity, scale),
        description=description(judged, severity, scale),
        labels={"objective": objective, **labels},
        keep_s=keep_s * scale,
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
