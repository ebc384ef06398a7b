"""The rules of the objectives: error ratios over each window, and the alerts on how fast the budget burns.

In: the configuration. Out: a group of pages, a group of tickets, and what had to be left out. The
recorded ratios are the same for every target; only the alerts name targets, once for each set of
objectives and window, so a hundred targets make no more rules than one.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from alerts import sli
from alerts.rules import Alert, Group, Recording, one_of
from alerts.windows import MIN_BAD_EVENTS, Choice, Window, choose, duration
from exporters.names import PREFIX
from probe.config import Config
from probe.records import Objectives
from probe.units import format_duration

# increase() extrapolates: between two and three events lies the threshold, not on three.
_BAD_EVENTS = MIN_BAD_EVENTS - 0.5
# Just after a start, increase() may double what little it saw; a minute later it is within a tenth.
_FOR_S = 60.0
# The long windows change slowly and cost most. Under 5 minutes, where a sample would count as stale.
_INTERVAL_S = {"page": 30.0, "ticket": 120.0}

_NAMES = {"availability": "Availability", "ttft": "TTFT", "tpot": "TPOT"}


@dataclass(frozen=True, slots=True)
class _Watched:
    """One objective of one set, and the window that watches it."""

    objectives: Objectives
    sli: sli.Sli
    window: Window

    @property
    def ratio(self) -> float:
        return _ratio(self.objectives, self.sli)


@dataclass(frozen=True, slots=True)
class ObjectiveRules:
    """Groups of rules, and a line for each window that was left out."""

    groups: tuple[Group, ...]
    left_out: tuple[str, ...]


def objective_rules(config: Config, scale: float = 1.0) -> ObjectiveRules:
    """Recording rules and burn alerts for all targets; `scale` shortens every window."""
    targets: dict[_Watched, list[str]] = {}
    left_out: dict[tuple[str, str], list[str]] = {}
    for name, objectives, one, choice in _choices(config, scale):
        for window in choice.windows:
            targets.setdefault(_Watched(objectives, one, window), []).append(name)
        known = left_out.setdefault((objectives.name, one.objective), [])
        known.extend(text for text in choice.left_out if text not in known)
    # The config's order must not decide which alert comes first: longer windows after shorter ones.
    watched = sorted(
        targets, key=lambda w: (w.objectives.name, sli.ALL.index(w.sli), w.window.long_s, w.window.short_s)
    )
    groups = []
    recorded: set[str] = set()
    for severity, interval_s in _INTERVAL_S.items():
        mine = [w for w in watched if w.window.severity == severity]
        records = [r for r in _recordings(mine) if r.record not in recorded]
        recorded.update(r.record for r in records)
        alerts = [_alert(w, targets[w], left_out[w.objectives.name, w.sli.objective], scale) for w in mine]
        groups.append(Group(f"kneewatch-slo-{severity}", max(1.0, interval_s * scale), [*records, *alerts]))
    said = [f"{name}/{objective}: {text}" for (name, objective), texts in left_out.items() for text in texts]
    return ObjectiveRules(tuple(groups), tuple(sorted(said)))


def _choices(config: Config, scale: float) -> Iterator[tuple[str, Objectives, sli.Sli, Choice]]:
    for target in config.targets:
        if target.passive:
            continue  # no canaries to judge
        objectives = config.objectives_of(target)
        promised = [one for one in sli.ALL if getattr(objectives, one.objective) is not None]
        for one in promised:
            ratio = _ratio(objectives, one)
            every_s = target.canary.every
            choice = choose(ratio=ratio, slo_window_s=objectives.window_s, every_s=every_s, scale=scale)
            yield target.name, objectives, one, choice


def _ratio(objectives: Objectives, one: sli.Sli) -> float:
    if one is sli.AVAILABILITY:
        return objectives.availability or 0.0
    return objectives.latencies()[one.objective].ratio


def _ratio_record(one: sli.Sli, window_s: float) -> str:
    return f"target_workload:{PREFIX}canary_{one.objective}_errors:ratio_rate{duration(window_s)}"


def _bad_record(one: sli.Sli, window_s: float) -> str:
    return f"target_workload:{PREFIX}canary_{one.objective}_errors:increase{duration(window_s)}"


def _recordings(watched: Iterable[_Watched]) -> list[Recording]:
    ratios = {(w.sli, s) for w in watched for s in (w.window.short_s, w.window.long_s)}
    counts = {(w.sli, w.window.long_s) for w in watched}

    def order(pair: tuple[sli.Sli, float]) -> tuple[int, float]:
        return sli.ALL.index(pair[0]), pair[1]

    return [
        *(Recording(_ratio_record(one, s), one.error_ratio(duration(s))) for one, s in sorted(ratios, key=order)),
        *(Recording(_bad_record(one, s), one.bad(duration(s))) for one, s in sorted(counts, key=order)),
    ]


def _alert(watched: _Watched, targets: list[str], left_out: list[str], scale: float) -> Alert:
    one, window, objectives = watched.sli, watched.window, watched.objectives
    limit = f"{window.burn * (1 - watched.ratio):.10g}"
    long, short, slo = duration(window.long_s), duration(window.short_s), duration(objectives.window_s)
    expr = (
        f"{_ratio_record(one, window.long_s)}{{{one_of(targets)}}} > {limit}\n"
        f"and {_ratio_record(one, window.short_s)} > {limit}\n"
        f"and {_bad_record(one, window.long_s)} >= {_BAD_EVENTS:g}"
    )
    allowed = f"{100 * (1 - watched.ratio):.6g}%"
    gone = duration(round(objectives.window_s / window.burn / 60) * 60)
    what = _what(objectives, one)
    return Alert(
        name=f"Kneewatch{_NAMES[one.objective]}Burn",
        expr=expr,
        for_s=_FOR_S * scale,
        severity=window.severity,
        summary=f"{{{{ $labels.target }}}}: {{{{ $value | humanizePercentage }}}} of canary requests {what} in {long}",
        description=(
            f"Over the last {long}, {{{{ $value | humanizePercentage }}}} of the canary requests to"
            f" {{{{ $labels.target }}}} (workload {{{{ $labels.workload }}}}) {what}, and more than"
            f" {100 * float(limit):.4g}% did over the last {short}. The objective {objectives.name!r} allows {allowed}"
            f" over {slo}; at this pace that budget is spent within {gone}."
        ),
        labels={"slo": objectives.name, "objective": one.objective, "long": long, "short": short},
        annotations={"left_out": "; ".join(left_out)} if left_out else {},
    )


def _what(objectives: Objectives, one: sli.Sli) -> str:
    if one is sli.AVAILABILITY:
        return "failed"
    within = format_duration(objectives.latencies()[one.objective].within_s)
    return f"took over {within} to the first token" if one is sli.TTFT else f"took over {within} per output token"
