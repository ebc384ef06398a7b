"""Alerts on the burn rate of the error budgets, and the rules that they need.

In: the configuration. Out: a group that records requests, groups of pages and tickets, a group of remaining error
budgets, and a list of windows that were left out. The recorded requests cover every target; only the conditions name
targets, once for each set of objectives, so a hundred targets make no more rules than one.

A target has one alert for each objective and severity. Whether canaries or users burn the budget, and in which pair of
windows, is recorded for each SLI (burn_conditions.py), so the next one is no second notification.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from alerts import sli
from alerts.alert_labels import by
from alerts.budget import budget_groups, requests_group, shares_group
from alerts.burn_conditions import Watched, condition
from alerts.burn_text import description, summary
from alerts.refusals import never_fires
from alerts.rules import Alert, Recording, RuleGroup, one_of
from alerts.sli import Sli
from alerts.windows import WindowChoice, choose
from probe.config.config import Config
from probe.config.targets import WatchConfig
from probe.core import objectives as slo
from probe.core.errors import ConfigError
from probe.core.objectives import Objectives

# User traffic is counted at each scrape of the server. In a rehearsal, windows still need two of them.
_USERS_EVERY_S = 10.0
# A slow burn is a failure now and then, with gaps. In the simulation of benchmarks/alerts/rings.py, two days of 2 %
# failing page once if the alert lasts two hours longer, and 1.6 times with one hour.
KEEP_S = 7200.0
# The long windows of tickets change slowly. Less than 5 minutes, when a sample becomes stale.
_INTERVAL_S = {"page": 30.0, "ticket": 120.0}
# Mimir refuses groups of more rules by default.
_MAX_RULES = 20

_EVERY = (*sli.CANARIES, *sli.USERS)
_NAMES = {"availability": "Availability", "ttft": "TTFT", "tpot": "TPOT"}
_LeftOut = Mapping[tuple[str, Sli], Sequence[str]]  # by the objectives' name


@dataclass(frozen=True, slots=True)
class ObjectiveRules:
    """Groups of rules, and a line for each window that is left out."""

    groups: tuple[RuleGroup, ...]
    left_out: tuple[str, ...]


def objective_rules(config: Config, scale: float = 1.0) -> ObjectiveRules:
    """Return recording rules and burn alerts for all targets; `scale` shortens every window.

    Raises ConfigError, one line each, for objectives that no alert could ever find broken.
    """
    refused = [line for i, target in enumerate(config.targets) for line in _refused(config, i, target)]
    if refused:
        raise ConfigError("\n".join(dict.fromkeys(refused)))
    watched: dict[str, list[Watched]] = {}  # by target
    kept: dict[tuple[Sli, float], list[str]] = {}
    left_out: dict[tuple[str, Sli], list[str]] = {}
    for name, objectives, one, choice in _choices(config, scale):
        kept.setdefault((one, objectives.window_s), []).append(name)
        watched.setdefault(name, []).append(Watched(objectives, one, choice.windows))
        known = left_out.setdefault((objectives.name, one), [])
        known.extend(text for text in choice.left_out if text not in known)
    kept = {key: kept[key] for key in sorted(kept, key=_order)}  # independent of the configuration's order
    sustained = {
        (each.one, window.short_s, window.long_s)
        for mine in watched.values()
        for each in mine
        for window in each.windows
        if window.is_sustained
    }
    groups = [requests_group(dict.fromkeys(one for one, _ in kept), scale)]
    groups += [shares_group(sorted(sustained, key=_order), scale)] if sustained else []
    for severity, interval_s in _INTERVAL_S.items():
        rules: list[Recording | Alert] = [*_conditions(watched, severity, scale)]
        rules += _alerts(watched, severity, left_out, scale)
        groups.append(RuleGroup(f"kneewatch-slo-{severity}", max(1.0, interval_s * scale), rules))
    groups += budget_groups(kept, scale)
    lines = {f"{name}/{one.objective}: {text}" for (name, one), texts in left_out.items() for text in texts}
    return ObjectiveRules(tuple(part for group in groups for part in _parts(group)), tuple(sorted(lines)))


def _parts(group: RuleGroup) -> Iterator[RuleGroup]:
    """Yield a group's rules in groups that Mimir accepts."""
    yield replace(group, rules=group.rules[:_MAX_RULES])
    for start in range(_MAX_RULES, len(group.rules), _MAX_RULES):
        number = start // _MAX_RULES + 1
        yield replace(group, name=f"{group.name}-{number}", rules=group.rules[start : start + _MAX_RULES])


def _promised(target: WatchConfig, objectives: Objectives) -> Iterator[tuple[Sli, float, str]]:
    """Yield each SLI of the target, how often (s) there is something new to judge, and a name for it."""
    for one in _EVERY:
        if getattr(objectives, one.objective) is None:
            continue
        if one in sli.USERS:
            yield one, _USERS_EVERY_S, "an update of user traffic"
        elif not target.passive:  # else there are no canaries to judge
            yield one, target.canary.every, "a canary"


def _refused(config: Config, position: int, target: WatchConfig) -> Iterator[str]:
    objectives = config.objectives_of(target)
    where = f"targets[{position}].canary.every"
    for one, every_s, _ in _promised(target, objectives):
        line = never_fires(objectives, one.objective, every_s, where)
        if line is not None:
            yield line


def _choices(config: Config, scale: float) -> Iterator[tuple[str, Objectives, Sli, WindowChoice]]:
    for target in config.targets:
        objectives = config.objectives_of(target)
        for one, every_s, judged in _promised(target, objectives):
            choice = choose(
                ratio=slo.promised(objectives)[one.objective],
                slo_window_s=objectives.window_s,
                every_s=every_s,
                scale=scale,
                judged=judged,
            )
            yield target.known_as, objectives, one, choice


def _order(key: tuple[Sli, *tuple[float, ...]]) -> tuple[float, ...]:
    return _EVERY.index(key[0]), *key[1:]


def _conditions(watched: Mapping[str, Sequence[Watched]], severity: str, scale: float) -> Iterator[Recording]:
    """Yield a rule for each SLI that records where its budget burns."""
    for one in _EVERY:
        targets: dict[Watched, list[str]] = {}
        for name, mine in watched.items():
            for each in mine:
                if each.one is one and each.of(severity).windows:
                    targets.setdefault(each.of(severity), []).append(name)
        if targets:
            is_shared = len(targets) > 1
            parts = [
                condition(each, targets[each], scale, is_shared=is_shared) for each in sorted(targets, key=_position)
            ]
            # One rule, because promtool reports two rules of one name as duplicates.
            yield Recording(one.burn_record(severity), "\nor\n".join(parts))


def _alerts(
    watched: Mapping[str, Sequence[Watched]], severity: str, left_out: _LeftOut, scale: float
) -> Iterator[Alert]:
    """Yield an alert for each objective, and for targets that differ in objectives, windows or what is judged."""
    targets: dict[tuple[Watched, ...], list[str]] = {}
    for name, mine in watched.items():
        for objective in _NAMES:
            judged = tuple(each.of(severity) for each in mine if each.one.objective == objective)
            judged = tuple(each for each in judged if each.windows)
            if judged:
                targets.setdefault(judged, []).append(name)
    for judged in sorted(targets, key=lambda judged: _position(judged[0])):
        yield _alert(judged, targets[judged], left_out, scale)


def _position(watched: Watched) -> tuple[object, ...]:
    shorts = [window.short_s for window in watched.windows]
    return watched.objectives.name, _EVERY.index(watched.one), -len(shorts), shorts


def _alert(judged: Sequence[Watched], targets: Sequence[str], left_out: _LeftOut, scale: float) -> Alert:
    """Return the alert of an objective and severity. `judged`: what may burn its budget, canaries, users or both."""
    objectives, objective, severity = judged[0].objectives, judged[0].one.objective, judged[0].windows[0].severity
    burns = (f"{each.one.burn_record(severity)}{{{one_of(targets)}}}" for each in judged)
    texts = dict.fromkeys(text for each in judged for text in left_out[objectives.name, each.one])
    return Alert(
        name=f"Kneewatch{_NAMES[objective]}Burn",
        # Without the label of the canaries' workload: the alert is the same whichever burns.
        expr=f"max {by('target')} (\n  " + "\n  or ".join(burns) + "\n)",
        for_s=0.0,
        severity=severity,
        summary=summary(judged),
        description=description(judged, scale),
        labels={"slo": objectives.name, "objective": objective},
        annotations={"left_out": "; ".join(texts)} if texts else {},
        keep_s=KEEP_S * scale,
    )
