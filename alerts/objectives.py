"""The rules of the objectives: error ratios over each window, and the alerts on how fast the budget burns.

In: the configuration. Out: a group of pages, a group of tickets, a group of what is left of the budgets, and what had
to be left out. The recorded ratios are the same for every target; only the alerts name targets, once for each set of
objectives and window, so a hundred targets make no more rules than one.

Canaries are few and even; users come in bursts and hardly at night. So users' alerts ask for more bad requests, and
for a number that counts beside the requests of the objective's whole window.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from alerts import sli
from alerts.budget import budget_group, total_record
from alerts.refusals import never_fires
from alerts.rules import Alert, Recording, RuleGroup, one_of
from alerts.sli import Sli
from alerts.templates import asked
from alerts.windows import MIN_BAD_EVENTS, BurnWindow, WindowChoice, choose, duration
from exporters import names
from probe.config.models import Config, WatchConfig
from probe.core import objectives as slo
from probe.core.durations import format_duration
from probe.core.errors import ConfigError
from probe.core.objectives import Objectives

# increase() extrapolates: between two and three events lies the threshold, not on three.
_BAD_EVENTS = MIN_BAD_EVENTS - 0.5
# The long window remembers a fault for hours, and in the short one a single failure is above most limits by itself: of
# 120 canaries, one is 0.8 %. Without a second one, an outage that is over would page again.
_BAD_LATELY = 1.5
# More than one burst of one user (a batch, an agent's calls side by side), and twice what could be ours in the short
# window: with a canary under way at every reading, one request a minute may be (docs/cross-checks.md).
MIN_BAD_USERS = 10
_BAD_USERS = MIN_BAD_USERS - 0.5
# At night three users may be half of all. A ratio that pages by day spends the window's share of the budget; by night,
# with a tenth of the usual traffic, a tenth of that. With less than this it is somebody's evening, and canaries
# still tell a server that is slow for everybody.
QUIET = 0.1
# Accounts are made up within seconds wherever canaries leave a gap, and after a minute where they do not.
_ACCOUNT_S = 60.0
_ACCOUNT_AT_LEAST_S = 10.0
# Just after a start, increase() may double what little it saw; a minute later it is within a tenth.
_FOR_S = 60.0
# The long windows change slowly and cost most. Under 5 minutes, where a sample would count as stale.
_INTERVAL_S = {"page": 30.0, "ticket": 120.0}

_EVERY = (*sli.CANARIES, *sli.USERS)
_WHOSE = {"canary": "canary", "users": "users'"}
_NAMES = {"availability": "Availability", "ttft": "TTFT", "tpot": "TPOT"}


@dataclass(frozen=True, slots=True)
class _Watched:
    """One objective of one set, and the window that watches it."""

    objectives: Objectives
    sli: Sli
    window: BurnWindow


@dataclass(frozen=True, slots=True)
class ObjectiveRules:
    """Groups of rules, and a line for each window that was left out."""

    groups: tuple[RuleGroup, ...]
    left_out: tuple[str, ...]


def objective_rules(config: Config, scale: float = 1.0) -> ObjectiveRules:
    """Recording rules and burn alerts for all targets; `scale` shortens every window.

    Raises ConfigError, one line each, for objectives that no alert could ever tell to be broken.
    """
    refused = [line for i, target in enumerate(config.targets) for line in _refused(config, i, target)]
    if refused:
        raise ConfigError("\n".join(dict.fromkeys(refused)))
    targets: dict[_Watched, list[str]] = {}
    kept: dict[tuple[Sli, float], list[str]] = {}
    left_out: dict[tuple[str, Sli], list[str]] = {}
    for name, objectives, one, choice in _choices(config, scale):
        kept.setdefault((one, objectives.window_s), []).append(name)
        for window in choice.windows:
            targets.setdefault(_Watched(objectives, one, window), []).append(name)
        known = left_out.setdefault((objectives.name, one), [])
        known.extend(text for text in choice.left_out if text not in known)
    # The config's order must not decide which alert comes first: longer windows after shorter ones.
    watched = sorted(targets, key=lambda w: (w.objectives.name, *_order((w.sli, w.window.long_s)), w.window.short_s))
    groups = []
    recorded: set[str] = set()
    for severity, interval_s in _INTERVAL_S.items():
        mine = [w for w in watched if w.window.severity == severity]
        records = [r for r in _recordings(mine) if r.record not in recorded]
        recorded.update(r.record for r in records)
        alerts = [_alert(w, targets[w], left_out[w.objectives.name, w.sli], scale) for w in mine]
        groups.append(RuleGroup(f"kneewatch-slo-{severity}", max(1.0, interval_s * scale), [*records, *alerts]))
    groups.append(budget_group({key: kept[key] for key in sorted(kept, key=_order)}, scale))
    said = {f"{name}/{one.objective}: {text}" for (name, one), texts in left_out.items() for text in texts}
    return ObjectiveRules(tuple(groups), tuple(sorted(said)))


def _promised(target: WatchConfig, objectives: Objectives) -> Iterator[tuple[Sli, float, str]]:
    """What the target is judged by, and how often (s) there is something new: that is what."""
    for one in _EVERY:
        if getattr(objectives, one.objective) is None:
            continue
        if one in sli.USERS:
            yield one, _ACCOUNT_S, "an account of users' requests"
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
            # A rehearsal is to leave canaries gaps: then accounts are quick.
            new_s = max(_ACCOUNT_AT_LEAST_S, every_s * scale) if one in sli.USERS and scale < 1 else every_s
            choice = choose(
                ratio=slo.promised(objectives)[one.objective],
                slo_window_s=objectives.window_s,
                every_s=new_s,
                scale=scale,
                judged=judged,
            )
            yield target.known_as, objectives, one, choice


def _order(pair: tuple[Sli, float]) -> tuple[int, float]:
    return _EVERY.index(pair[0]), pair[1]


def _recordings(watched: Iterable[_Watched]) -> list[Recording]:
    ratios = {(w.sli, s) for w in watched for s in (w.window.short_s, w.window.long_s)}
    counts = {
        (w.sli, s) for w in watched for s in (*([] if w.sli in sli.USERS else [w.window.short_s]), w.window.long_s)
    }
    windows = [(one, duration(s)) for one, s in sorted(ratios, key=_order)]
    counted = [(one, duration(s)) for one, s in sorted(counts, key=_order)]
    return [
        *(Recording(one.error_record(window), one.error_ratio(window)) for one, window in windows),
        *(Recording(one.bad_record(window), one.bad(window)) for one, window in counted),
    ]


def _alert(watched: _Watched, targets: list[str], left_out: list[str], scale: float) -> Alert:
    one, window, objectives = watched.sli, watched.window, watched.objectives
    of_users = one in sli.USERS
    allowed = 1 - slo.promised(objectives)[one.objective]
    limit = f"{window.burn * allowed:.10g}"
    long, short = duration(window.long_s), duration(window.short_s)
    expr = (
        f"{one.error_record(long)}{{{one_of(targets)}}} > {limit}\n"
        f"and {one.error_record(short)} > {limit}\n"
        f"and {one.bad_record(long)} >= {_BAD_USERS if of_users else _BAD_EVENTS:g}"
    )
    if not of_users:
        expr += f"\nand {one.bad_record(short)} >= {_BAD_LATELY:g}"
    else:
        least = f"{QUIET * window.share * allowed:.6g}"
        expr += f"\nunless {one.bad_record(long)} < {least} * {total_record(one, objectives.window_s, scale)}"
    return Alert(
        name=f"Kneewatch{'Users' if of_users else ''}{_NAMES[one.objective]}Burn",
        expr=expr,
        for_s=_FOR_S * scale,
        severity=window.severity,
        summary=(
            f"{{{{ $labels.target }}}}: {{{{ $value | humanizePercentage }}}} of {_WHOSE[one.who]} requests"
            f" {_what(objectives, one)} in {long}"
        ),
        description=(
            f"Over the last {long}, {{{{ $value | humanizePercentage }}}} of {_whose(one, long)}"
            f" {_what(objectives, one)}, and more than {100 * float(limit):.4g}% did over the last {short}."
            f" {_judged(objectives, one)}The objective {objectives.name!r} allows {100 * allowed:.6g}% over"
            f" {duration(objectives.window_s)}; at this pace that budget is spent within {_gone(watched)}."
        ),
        labels={"slo": objectives.name, "objective": one.objective, "long": long, "short": short},
        annotations={"left_out": "; ".join(left_out)} if left_out else {},
    )


def _whose(one: Sli, long: str) -> str:
    if one not in sli.USERS:
        return "the canary requests to {{ $labels.target }} (workload {{ $labels.workload }})"
    bad = asked(f"max({one.bad_record(long)}{{target=%q}})")
    return f"users' own requests to {{{{ $labels.target }}}} ({bad} of them)"


def _what(objectives: Objectives, one: Sli) -> str:
    if one is sli.AVAILABILITY:
        return "failed"
    within = format_duration(objectives.latencies()[one.objective].within_s)
    return f"took over {within} {'to the first token' if one.objective == 'ttft' else 'per output token'}"


def _judged(objectives: Objectives, one: Sli) -> str:
    """What users' requests are really compared with: the server's buckets, by its clock."""
    if one not in sli.USERS:
        return ""
    bound = f'max({names.USERS_OBJECTIVE_SECONDS.name}{{target=%q,objective="{one.objective}"}})'
    within = format_duration(objectives.latencies()[one.objective].within_s)
    at = asked(bound, shown="humanizeDuration")
    return (
        f"That is by the server's own clock, without the network, and judged at {at}, the lowest bound"
        f" of the server's buckets that is not below {within}. "
    )


def _gone(watched: _Watched) -> str:
    return duration(round(watched.objectives.window_s / watched.window.burn / 60) * 60)
