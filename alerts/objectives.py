"""Alerts on the burn rate of the error budgets, and the rules that they need.

In: the configuration. Out: a group that records requests, groups of pages and tickets, a group of remaining error
budgets, and a list of windows that were left out. The recorded requests cover every target; only the alerts name
targets, once for each set of objectives, so a hundred targets make no more rules than one.

A target has one alert for each objective and severity: any of its pairs of windows makes it fire, and the next pair is
no second notification.

Canaries are few and evenly spaced; users come in bursts and hardly at night. So the alerts on users require more bad
requests, and a number that matters among the requests of the objective's whole window.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from alerts import sli
from alerts.budget import (
    bad,
    budget_groups,
    minutes,
    padded_total,
    requests_group,
    shares_group,
    total,
    total_of_window,
)
from alerts.burn_text import description, summary
from alerts.refusals import never_fires
from alerts.rules import Alert, RuleGroup, one_of
from alerts.sli import Sli
from alerts.windows import MIN_BAD_EVENTS, BurnWindow, WindowChoice, choose, duration
from probe.config.config import Config
from probe.config.targets import WatchConfig
from probe.core import objectives as slo
from probe.core.errors import ConfigError
from probe.core.objectives import Objectives

# The long window remembers a fault for hours, and in the short one a single failure exceeds most limits by itself: one
# of 120 canaries is 0.8 %. Without requiring a second one, an outage that is over would page again.
# A ticket's windows are longer, so that in most of them two single failures of a day meet.
_MIN_BAD_LATELY = {"page": 2, "ticket": MIN_BAD_EVENTS}
# More than one burst of one user (a batch, an agent's parallel calls), and twice the probe requests that may be counted
# as users' in the short window: with a canary in flight at every scrape, one a minute (docs/cross-checks.md).
MIN_BAD_USERS = 10
# At night three users may be half of the traffic. A ratio that pages by day spends the window's share of the budget; by
# night, with a tenth of the usual traffic, a tenth of that. Below this it affects a few users, and canaries still catch
# a server that is slow for everyone.
QUIET = 0.1
# A median needs most of the window: of a target watched for an hour, an outage of 20 minutes is the median.
_KNOWN_SHARE = 0.75
# In the simulation, two days of 1 % failing page 1.2 times with a memory of 12 hours, and 1.9 times without.
_REMEMBERED = 2
# User traffic is counted at each scrape of the server. In a rehearsal, windows still need two of them.
_USERS_EVERY_S = 10.0
# A slow burn is a failure now and then, with gaps. In the simulation of benchmarks/alerts/rings.py, two days of 2 %
# failing page once if the alert lasts two hours longer, and 1.6 times with one hour.
_KEEP_S = 7200.0
# The long windows of tickets change slowly. Less than 5 minutes, when a sample becomes stale.
_INTERVAL_S = {"page": 30.0, "ticket": 120.0}
# Mimir refuses groups of more rules by default.
_MAX_RULES = 20

_EVERY = (*sli.CANARIES, *sli.USERS)
_NAMES = {"availability": "Availability", "ttft": "TTFT", "tpot": "TPOT"}
_Watched = tuple[Objectives, Sli, tuple[BurnWindow, ...]]  # an objective of a set, and the windows that watch it


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
    targets: dict[_Watched, list[str]] = {}
    kept: dict[tuple[Sli, float], list[str]] = {}
    left_out: dict[tuple[str, Sli], list[str]] = {}
    for name, objectives, one, choice in _choices(config, scale):
        kept.setdefault((one, objectives.window_s), []).append(name)
        targets.setdefault((objectives, one, choice.windows), []).append(name)
        known = left_out.setdefault((objectives.name, one), [])
        known.extend(text for text in choice.left_out if text not in known)
    # Independent of the configuration's order.
    watched = sorted(targets, key=lambda w: (w[0].name, _EVERY.index(w[1]), -len(w[2]), [b.short_s for b in w[2]]))
    kept = {key: kept[key] for key in sorted(kept, key=_order)}
    sustained = {(one, w.short_s, w.long_s) for _, one, windows in watched for w in windows if w.is_sustained}
    groups = [requests_group(dict.fromkeys(one for one, _ in kept), scale)]
    groups += [shares_group(sorted(sustained, key=_order), scale)] if sustained else []
    for severity, interval_s in _INTERVAL_S.items():
        alerts = []
        for each in watched:
            objectives, one, chosen = each
            windows = tuple(window for window in chosen if window.severity == severity)
            if windows:
                is_shared = sum(other is one for _, other, _ in watched) > 1
                alert = _alert(
                    (objectives, one, windows),
                    targets[each],
                    left_out[objectives.name, one],
                    scale,
                    is_shared=is_shared,
                )
                alerts.append(alert)
        groups.append(RuleGroup(f"kneewatch-slo-{severity}", max(1.0, interval_s * scale), alerts))
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


def _alert(
    watched: _Watched, targets: Sequence[str], left_out: Sequence[str], scale: float, *, is_shared: bool
) -> Alert:
    """Return the alert of an objective and severity. `is_shared`: other targets have other objectives of this SLI."""
    objectives, one, windows = watched
    mine = f"{{{one_of(targets)}}}"
    pairs = [_fires(objectives, one, window, (mine, mine if is_shared else ""), scale) for window in windows]
    severity = windows[0].severity
    return Alert(
        name=f"Kneewatch{'Users' if one in sli.USERS else ''}{_NAMES[one.objective]}Burn",
        expr=pairs[0] if len(pairs) == 1 else "\nor\n".join(f"(\n{pair}\n)" for pair in pairs),
        for_s=0.0,
        severity=severity,
        summary=summary(objectives, one),
        description=description(objectives, one, windows, scale),
        labels={"slo": objectives.name, "objective": one.objective},
        annotations={"left_out": "; ".join(left_out)} if left_out else {},
        keep_s=_KEEP_S * scale,
    )


def _fires(objectives: Objectives, one: Sli, window: BurnWindow, matchers: tuple[str, str], scale: float) -> str:
    """Return the condition of a pair of windows. Its value is the short window's multiple of the allowed ratio.

    `matchers`: of the first operand and of the others, which need none where all targets have these windows.
    """
    allowed = 1 - slo.promised(objectives)[one.objective]
    of_users = one in sli.USERS
    first, other = matchers
    lately, judged = bad(one, window.short_s, scale, first), total(one, window.short_s, scale, other)
    missed = bad(one, window.long_s, scale, other)
    least = MIN_BAD_USERS if of_users else MIN_BAD_EVENTS
    if window.is_sustained:
        condition = _sustained(one, window, allowed, (first, other), scale) + f"\nand {missed} >= {least}"
    else:
        if not of_users:
            lately = f"({lately} >= {_MIN_BAD_LATELY[window.severity]})"
        # Without padding, three failures in a target's first ten minutes would be 7 % of six hours.
        whole = f"({missed} >= {least}) / ({padded_total(one, window.long_s, scale, other)} * {allowed:.6g})"
        condition = (
            f"{lately} / ({judged} * {allowed:.6g})\n  > {window.short_burn:g}\nand {whole}\n  > {window.burn:g}"
        )
    if of_users:
        quiet = f"{QUIET * window.share * allowed:.6g} * {total_of_window(one, objectives.window_s, scale)}"
        condition += f"\nunless {missed} < {quiet}"
    return condition


def _sustained(one: Sli, window: BurnWindow, allowed: float, matchers: tuple[str, str], scale: float) -> str:
    """Return the condition of a pair that must be sustained. Its value is the long window's multiple.

    A steady burn near the threshold crosses it several times a day. So that it did counts for some hours, and the
    alert lasts while most hours burn, the last ones too.
    """
    first, other = matchers
    long = duration(window.long_s)
    multiple = f"{one.error_record(long)}{first} / {allowed:.6g}"
    crossed = f"max_over_time({one.error_record(long)}{other}[{duration(_REMEMBERED * window.long_s)}])"
    median = f"quantile_over_time(0.5, {one.error_record(duration(window.short_s))}{other}[{long}])"
    known = total(one, window.long_s, scale, other, "count_over_time")
    return (
        f"{multiple} > {window.short_burn:g}\nand {crossed} > {window.burn * allowed:.6g}\n"
        f"and {median} > {window.short_burn * allowed:.6g}\n"
        f"and {known} >= {_KNOWN_SHARE * minutes(window.long_s, scale):.6g}\n"
        f"and {bad(one, 2 * window.short_s, scale, other)} > 0"
    )
