"""Alerts on the burn rate of the error budgets, and the rules that they need. Pure.

A group of what is promised, one that records requests, groups of pages and tickets, and a group of remaining error
budgets. None names a target: objectives come from series (promises.py), so one text serves every configuration.

A target has one alert for each objective and severity. Whether canaries or users burn the budget, and in which pair of
windows, is recorded for each SLI (burn_conditions.py), so the next one is no second notification.
"""

from alerts import sli
from alerts.alert_labels import by, on
from alerts.budget import budget_group, requests_group, shares_group, sums_group, windows_group
from alerts.burn_conditions import condition
from alerts.burn_text import description, summary
from alerts.promises import OBJECTIVES, WINDOW, promise_rules
from alerts.rules import Alert, Recording, RuleGroup
from probe.core import objectives as slo

# A slow burn is a failure now and then, with gaps, and five failures of an hour may page hours before six hours exceed
# their limit. In the simulation of benchmarks/alerts/rings.py, two days of 1 % failing page 1.005 times if the alert
# lasts three hours longer. KneewatchTargetDown pages for an outage meanwhile. Nothing does for
# latency, which is seldom near its limit by chance.
AVAILABILITY_KEEP_S = 10800.0
_LATENCY_KEEP_S = 7200.0
# The long windows of tickets change slowly. Less than 5 minutes, when a sample becomes stale.
_INTERVAL_S = {"page": 30.0, "ticket": 240.0}
_PROMISES_S = 60.0

_EVERY = (*sli.CANARIES, *sli.USERS)
_NAMES = {slo.AVAILABILITY: "Availability", **{name: name.upper() for name in slo.LATENCIES}}


def objective_groups(scale: float = 1.0) -> list[RuleGroup]:
    """Return recording rules and burn alerts for all targets; `scale` shortens every window."""
    groups = [
        RuleGroup("kneewatch-slo-objectives", max(1.0, _PROMISES_S * scale), promise_rules()),
        requests_group(_EVERY, scale),
        shares_group(_EVERY, scale),
    ]
    for severity, interval_s in _INTERVAL_S.items():
        rules: list[Recording | Alert] = [condition(one, severity, scale) for one in _EVERY]
        rules += [_alert(objective, severity, scale) for objective in OBJECTIVES]
        groups.append(RuleGroup(f"kneewatch-slo-{severity}", max(1.0, interval_s * scale), rules))
    return [*groups, *(group(_EVERY, scale) for group in (sums_group, windows_group, budget_group))]


def _alert(objective: str, severity: str, scale: float) -> Alert:
    """Return the alert of an objective and severity."""
    judged = [one for one in _EVERY if one.objective == objective]
    burns = "\n  or ".join(one.burn_record(severity) for one in judged)
    return Alert(
        name=f"Kneewatch{_NAMES[objective]}Burn",
        # Without the label of the canaries' workload: the alert is the same whichever burns.
        expr=f"max {by('target')} (\n  {burns}\n)\n* {on('target')} group_left (slo) ({WINDOW} > bool 0)",
        for_s=0.0,
        severity=severity,
        summary=summary(judged, severity),
        description=description(judged, severity, scale),
        labels={"objective": objective},
        keep_s=(AVAILABILITY_KEEP_S if objective == slo.AVAILABILITY else _LATENCY_KEEP_S) * scale,
    )
