"""A replay of the rules: every expression at each interval of its group, in Prometheus or over arrays.

In: rules, and a Prometheus or an Engine (benchmarks/promql) with the samples. Out: when each alert fired. Stores the
results of a recording rule, with stale markers, as Prometheus would, before evaluating the rules that use them. Applies
`for` and `keep_firing_for` as Prometheus' rules/alerting.go does.

Most of the cost would be windows of hours and days at times when the alert cannot fire. So the replay evaluates the
necessary conditions of an alert (conditions.py, such as the short window of a burn rate), the cheapest at every step,
each other one where those before hold, and the whole expression where all do. At all other steps the expression has no
result, so the outcome is the same.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import TypeVar

import numpy as np

from alerts.alert_labels import GROUP
from benchmarks.alerts.conditions import necessary
from benchmarks.alerts.rules import Rule, filled_in, in_groups, is_recursive
from benchmarks.backfill import STALE, Bools, Floats, Line, Prometheus
from benchmarks.promql.evaluate import Engine

# Prometheus spreads the evaluation of groups by a hash, so a group is not evaluated at the time of a scrape.
_OFFSET_S = 7.0
_AT_ONCE = 2
_LOOKBACK_S = 300.0
# A gap between steps for which a query of its own costs less than the steps in it.
_GAP_S = 600.0
_In = TypeVar("_In")
_Out = TypeVar("_Out")


@dataclass(frozen=True, slots=True)
class Firing:
    """An alert with one label set, and the time during which it fires."""

    labels: Mapping[str, str]
    start_s: float
    end_s: float


@dataclass(slots=True)
class Replay:
    """Rules over `start_s` to `end_s`, of a Prometheus whose samples begin at `begun_s`. `spent`: seconds by rule."""

    prometheus: Prometheus | Engine
    begun_s: float
    start_s: float
    end_s: float
    spent: dict[str, float] = field(default_factory=dict)
    _held: dict[tuple[str, float, int, float], Bools] = field(default_factory=dict)

    def run(self, rules: Sequence[Rule]) -> list[Firing]:
        """Return the alerts that fired, by time. `rules` are in the order of benchmarks.alerts.rules.needed."""
        names = [rule.record for rule in rules]
        recordings = {rule.record: rule for rule in rules if rule.record and names.count(rule.record) == 1}
        alerts = [rule for rule in rules if rule.alert]
        later = _only_now(rules, recordings)
        for group in in_groups(rule for rule in rules if rule.record and rule.record not in later):
            if is_recursive(group):
                self._record_together(group)
            else:
                for rule in group:
                    self._record(rule, self._steps(rule, self.begun_s))
        steps = self._each(lambda rule: self._may_fire(rule, later), alerts)
        self._each(lambda rule: self._record(rule, _union(rule, alerts, steps)), later.values())
        fired = self._each(lambda pair: self._fire(*pair), list(zip(alerts, steps, strict=True)))
        return sorted((one for each in fired for one in each), key=lambda one: one.start_s)

    def _each(self, work: Callable[[_In], _Out], items: Iterable[_In]) -> list[_Out]:
        # Prometheus has a core for each; arrays would only share the interpreter.
        with ThreadPoolExecutor(_AT_ONCE if isinstance(self.prometheus, Prometheus) else 1) as pool:
            return list(pool.map(work, items))

    def _steps(self, rule: Rule, start_s: float) -> Floats:
        return np.arange(start_s + _OFFSET_S, self.end_s, rule.interval_s)

    def _may_fire(self, rule: Rule, later: Mapping[str, Rule]) -> Floats:
        expr = filled_in(rule.expr, later)
        return self._where(f"{rule.alert}, condition", expr, self._steps(rule, self.start_s), rule.interval_s)

    def _where(self, name: str, expr: str, steps: Floats, interval_s: float) -> Floats:
        """Return the steps at which the expression's necessary conditions hold."""
        found = np.zeros(len(steps), bool)
        for conditions in necessary(expr):
            at = np.ones(len(steps), bool)
            for condition in conditions:
                at &= self._holds(name, condition, steps, at, interval_s)
            found |= at
        return steps[found]

    def _holds(self, name: str, expr: str, steps: Floats, at: Bools, interval_s: float) -> Bools:
        """Return where among `steps[at]` the expression has a result. Several rules may share a first condition."""
        key = expr, interval_s, len(steps), float(steps[0]) if len(steps) else 0.0
        if key in self._held:
            return self._held[key]
        found = np.zeros(len(steps), bool)
        for line in self._ask(name, expr, steps[at], interval_s):
            nearest = np.minimum(np.searchsorted(steps, line.times - interval_s / 2), len(steps) - 1)
            found[nearest[np.abs(steps[nearest] - line.times) < interval_s / 2]] = True
        if at.all():
            self._held[key] = found
        return found

    def _record(self, rule: Rule, steps: Floats) -> None:
        at = self._where(f"{rule.record}, condition", rule.expr, steps, rule.interval_s)
        lines = self._ask(rule.record, rule.expr, at, rule.interval_s)
        self.prometheus.write(_recorded(rule, line, steps) for line in lines)

    def _record_together(self, rules: Sequence[Rule]) -> None:
        """Record rules that read what they, or each other, have recorded: step after step, as Prometheus does.

        Only at the steps at which one has a result without that, and where it reads a sample of that.
        """
        due: list[tuple[float, int]] = []
        for number, rule in enumerate(rules):
            at = self._where(f"{rule.record}, condition", rule.expr, self._steps(rule, self.begun_s), rule.interval_s)
            lines = self._ask(rule.record, rule.expr, at, rule.interval_s)
            due += [(float(at_s), number) for line in lines for at_s in line.times]
        heapify(due)
        done: set[tuple[float, int]] = set()
        present: dict[int, dict[tuple[tuple[str, str], ...], np.float64]] = {}
        while due:
            at_s, number = moment = heappop(due)
            if moment in done:
                continue
            done.add(moment)
            rule = rules[number]
            lines = self._ask(rule.record, rule.expr, np.array([at_s]), rule.interval_s)
            new = {_key(rule, line): line.values[0] for line in lines}
            ended = dict.fromkeys(present.get(number, {}).keys() - new.keys(), STALE)
            present[number] = new
            written = {**ended, **new}
            self.prometheus.write(
                Line(dict(key), np.array([at_s]), np.array([value])) for key, value in written.items()
            )
            if new:
                for moment in self._readers(rules, rule, at_s):
                    if moment not in done:
                        heappush(due, moment)

    def _readers(self, rules: Sequence[Rule], written: Rule, at_s: float) -> Iterator[tuple[float, int]]:
        """Yield when rules read a sample of one that is written now, until it is too old, and its own next step."""
        for number, rule in enumerate(rules):
            back_s = [each.back_s + _LOOKBACK_S for each in rule.selectors if each.name == written.record]
            until_s = at_s + max([*back_s, rule.interval_s if rule is written else 0.0])
            first = np.ceil((at_s - self.begun_s - _OFFSET_S) / rule.interval_s) * rule.interval_s
            for step_s in np.arange(self.begun_s + _OFFSET_S + first, min(until_s, self.end_s), rule.interval_s):
                if step_s > at_s or number > rules.index(written):
                    yield float(step_s), number

    def _fire(self, rule: Rule, steps: Floats) -> list[Firing]:
        every = self._steps(rule, self.start_s)
        present: dict[tuple[tuple[str, str], ...], Bools] = {}
        for line in self._ask(rule.alert, rule.expr, steps, rule.interval_s):
            labels = {**line.labels, **rule.labels, "alertname": rule.alert}
            if labels.get("group") == GROUP:
                labels["group"] = (labels.get("target") or labels.get("discovery", "")).partition("/")[0]
            at = present.setdefault(tuple(sorted(labels.items())), np.zeros(len(every), bool))
            at[_indices(line, every[0], rule.interval_s)] = True
        return [
            Firing(dict(labels), start_s, end_s)
            for labels, at in present.items()
            for start_s, end_s in firing_times(at, every, rule.for_s, rule.keep_s)
        ]

    def _ask(self, name: str, expr: str, steps: Floats, interval_s: float) -> list[Line]:
        """Query the expression at `steps`, with one range query for each segment without a gap of ten minutes.

        A rule's result has another name: parts of the expression that differ in their names alone are one line.
        """
        began = time.monotonic()
        found: dict[tuple[tuple[str, str], ...], list[Line]] = {}
        gaps = np.flatnonzero(np.diff(steps) > max(_GAP_S, 2 * interval_s)) + 1
        for segment in np.split(steps, gaps) if len(steps) else ():
            for line in self.prometheus.series(expr, float(segment[0]), float(segment[-1]), interval_s):
                labels = {label: value for label, value in line.labels.items() if label != "__name__"}
                found.setdefault(tuple(sorted(labels.items())), []).append(line)
        self.spent[name] = self.spent.get(name, 0.0) + time.monotonic() - began
        return [_joined(dict(key), lines) for key, lines in found.items()]


def _key(rule: Rule, line: Line) -> tuple[tuple[str, str], ...]:
    return tuple(sorted({**line.labels, **rule.labels, "__name__": rule.record}.items()))


def _joined(labels: Mapping[str, str], lines: Sequence[Line]) -> Line:
    times = np.concatenate([line.times for line in lines])
    order = np.argsort(times, kind="stable")
    return Line(labels, times[order], np.concatenate([line.values for line in lines])[order])


def evaluator(block: str, *, arrays: bool) -> AbstractContextManager[Prometheus | Engine]:
    """Return what evaluates rules: arrays, or a real Prometheus with blocks of that length."""
    return nullcontext(Engine()) if arrays else Prometheus(block=block)


def _only_now(rules: Sequence[Rule], recordings: Mapping[str, Rule]) -> dict[str, Rule]:
    """Return the recordings that only alerts query, and only for the moment of evaluation."""
    alerts = [rule for rule in rules if rule.alert]
    kept = {each.name for rule in rules for each in rule.selectors if each.past or rule.record}
    asked = {name for rule in alerts for name in rule.needs}
    intervals: dict[str, set[float]] = {}
    for rule in alerts:
        for name in rule.needs & set(recordings):
            intervals.setdefault(name, set()).add(rule.interval_s)
    return {
        name: rule
        for name, rule in recordings.items()
        # Where an alert is evaluated between two recordings, it has the one before.
        if name in asked - kept and all(interval % rule.interval_s == 0 for interval in intervals[name])
    }


def _union(rule: Rule, alerts: Sequence[Rule], steps: Sequence[Floats]) -> Floats:
    """Return the steps at which any alert needs this recording."""
    return np.unique(
        np.concatenate([at for alert, at in zip(alerts, steps, strict=True) if rule.record in alert.needs])
    )


def _indices(line: Line, first_s: float, interval_s: float) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    return np.rint((line.times - first_s) / interval_s).astype(np.intp)


def _recorded(rule: Rule, line: Line, steps: Floats) -> Line:
    """Return the line as the rule manager stores it: a value per evaluation, and a stale marker where it disappears."""
    times = np.union1d(steps, line.times)
    there = np.isin(times, line.times)
    values = np.full(len(times), np.nan)
    values[there] = line.values
    ended = ~there & np.concatenate(([False], there[:-1]))
    values[ended] = STALE
    kept = there | ended
    return Line({**line.labels, **rule.labels, "__name__": rule.record}, times[kept], values[kept])


def firing_times(present: Bools, times: Floats, for_s: float, keep_s: float) -> Iterator[tuple[float, float]]:
    """Yield when an alert fires, from and to. `present` masks the `times` at which its expression had a result."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], present, [False])).astype(np.int8)))
    fires: float | None = None
    over = len(times)
    for first, after in zip(edges[::2], edges[1::2], strict=True):
        if fires is None:
            mature = first + int(np.searchsorted(times[first:after] - times[first], for_s))
            if mature == after:
                continue
            fires = float(times[mature])
        # Absent from `after` on; it goes on until that has lasted for `keep_s`, or the next run takes it on.
        gone = after + int(np.searchsorted(times[after:] - times[min(after, over - 1)], keep_s))
        again = edges[edges > after]
        if gone < over and (not len(again) or again[0] > gone):
            yield fires, float(times[gone])
            fires = None
    if fires is not None:
        yield fires, float(times[-1])
