"""Rules for the objectives: error ratios over each window, and alerts on the error budget's burn rate.

In: the configuration. Out: a group of pages, a group of tickets, a group of remaining error budgets, and a list of
windows that were left out. The recorded ratios cover every target; only the alerts name targets, once for each set of
objectives and window, so a hundred targets make no more rules than one.

Canaries are few and evenly spaced; users come in bursts and hardly at night. So the alerts on users require more bad
requests, and a number that matters among the requests of the objective's whole window.
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
from probe.config.config import Config
from probe.config.targets import WatchConfig
from probe.core import objectives as slo
from probe.core.durations import format_duration
from probe.core.errors import ConfigError
from probe.core.objectives import Objectives

# increase() extrapolates, so the threshold lies between two and three events, not on three.
_BAD_EVENTS = MIN_BAD_EVENTS - 0.5
# The long window remembers a fault for hours, and in the short one a single failure exceeds most limits by itself: one
# of 120 canaries is 0.8 %. Without requiring a second one, an outage that is over would page again.
_BAD_LATELY = 1.5
# More than one burst of one user (a batch, an agent's parallel calls), and twice the probe requests that may be counted
# as users' in the short window: with a canary in flight at every scrape, one a minute (docs/cross-checks.md).
MIN_BAD_USERS = 10
_BAD_USERS = MIN_BAD_USERS - 0.5
# At night three users may be half of the traffic. A ratio that pages by day spends the window's share of the budget; by
# night, with a tenth of the usual traffic, a tenth of that. Below this it affects a few users, and canaries still catch
# a server that is slow for everyone.
QUIET = 0.1
# User traffic is settled within seconds if canaries leave a gap, and after a minute if they do not.
_SETTLEMENT_S = 60.0
_SETTLEMENT_AT_LEAST_S = 10.0
# Just after a start, increase() may double the few samples there are; a minute later it is within a tenth.
_FOR_S = 60.0
# The long windows change slowly and cost most. Less than 5 minutes, when a sample becomes stale.
_INTERVAL_S = {"page": 30.0, "ticket": 120.0}

_EVERY = (*sli.CANARIES, *sli.USERS)
_ADJECTIVES = {"canary": "canary", "users": "user"}
_NAMES = {"availability": "Availability", "ttft": "TTFT", "tpot": "TPOT"}


@dataclass(frozen=True, slots=True)
class _Watched:
    """One objective of one set, and the window that watches it."""

    objectives: Objectives
    sli: Sli
    window: BurnWindow


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
        for window in choice.windows:
            targets.setdefault(_Watched(objectives, one, window), []).append(name)
        known = left_out.setdefault((objectives.name, one), [])
        known.extend(text for text in choice.left_out if text not in known)
    # Independent of the configuration's order: longer windows after shorter ones.
    watched = sorted(targets, key=lambda w: (w.objectives.name, *_order((w.sli, w.window.long_s)), w.window.short_s))
    groups = []
    recorded: set[str] = set()
    for severity, interval_s in _INTERVAL_S.items():
        of_severity = [w for w in watched if w.window.severity == severity]
        records = [r for r in _recordings(of_severity) if r.record not in recorded]
        recorded.update(r.record for r in records)
        alerts = [_alert(w, targets[w], left_out[w.objectives.name, w.sli], scale) for w in of_severity]
        groups.append(RuleGroup(f"kneewatch-slo-{severity}", max(1.0, interval_s * scale), [*records, *alerts]))
    groups.append(budget_group({key: kept[key] for key in sorted(kept, key=_order)}, scale))
    lines = {f"{name}/{one.objective}: {text}" for (name, one), texts in left_out.items() for text in texts}
    return ObjectiveRules(tuple(groups), tuple(sorted(lines)))


def _promised(target: WatchConfig, objectives: Objectives) -> Iterator[tuple[Sli, float, str]]:
    """Yield each SLI of the target, how often (s) there is something new to judge, and a name for it."""
    for one in _EVERY:
        if getattr(objectives, one.objective) is None:
            continue
        if one in sli.USERS:
            yield one, _SETTLEMENT_S, "an update of user traffic"
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
            # A rehearsal should leave gaps between canaries: then settlements are quick.
            new_s = max(_SETTLEMENT_AT_LEAST_S, every_s * scale) if one in sli.USERS and scale < 1 else every_s
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
            f"{{{{ $labels.target }}}}: {{{{ $value | humanizePercentage }}}} of {_ADJECTIVES[one.who]} requests"
            f" {_what(objectives, one)} in {long}"
        ),
        description=(
            f"Over the last {long}, {{{{ $value | humanizePercentage }}}} of {_requests(one, long)}"
            f" {_what(objectives, one)}, and more than {100 * float(limit):.4g}% did over the last {short}."
            f" {_judged(objectives, one)}The objective {objectives.name!r} allows {100 * allowed:.6g}% over"
            f" {duration(objectives.window_s)}; errors at this alert's threshold spend that budget in {_gone(watched)}."
        ),
        labels={"slo": objectives.name, "objective": one.objective, "long": long, "short": short},
        annotations={"left_out": "; ".join(left_out)} if left_out else {},
    )


def _requests(one: Sli, long: str) -> str:
    if one not in sli.USERS:
        return "the canary requests to {{ $labels.target }} (workload {{ $labels.workload }})"
    bad = asked(f"max({one.bad_record(long)}{{target=%q}})")
    return f"user requests to {{{{ $labels.target }}}} ({bad} of them)"


def _what(objectives: Objectives, one: Sli) -> str:
    if one is sli.AVAILABILITY:
        return "failed"
    within = format_duration(objectives.latencies()[one.objective].within_s)
    return f"took over {within} {'to the first token' if one.objective == 'ttft' else 'per output token'}"


def _judged(objectives: Objectives, one: Sli) -> str:
    """Return how user requests are judged: by the server's histogram buckets and its clock. Empty for canaries."""
    if one not in sli.USERS:
        return ""
    bound = f'max({names.USERS_OBJECTIVE_SECONDS.name}{{target=%q,objective="{one.objective}"}})'
    within = format_duration(objectives.latencies()[one.objective].within_s)
    at = asked(bound, shown="humanizeDuration")
    return (
        f"Measured by the server, without the network, and judged at {at}, the server's lowest histogram bound at or"
        f" above {within}. "
    )


def _gone(watched: _Watched) -> str:
    return duration(round(watched.objectives.window_s / watched.window.burn / 60) * 60)
