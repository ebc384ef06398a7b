"""The past of a target as a Prometheus with the rules has it: what it scraped, and what the rules recorded.

Each series goes back as far as any rule reads it, at most 30 days, since the rest costs a rule nothing.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from alerts.windows import DAY_S, HOUR_S
from benchmarks.alerts import of_client
from benchmarks.alerts.day_changes import At
from benchmarks.alerts.day_series import Telemetry
from benchmarks.alerts.month import config
from benchmarks.alerts.nights import runs, starts
from benchmarks.alerts.page import Watch
from benchmarks.alerts.rules import Rule, ordered
from benchmarks.alerts.world import TICK_S, World
from benchmarks.backfill import Floats, Line
from benchmarks.promql.evaluate import Engine

TARGET = "llama-8b"
KEPT_S = 30 * DAY_S
# More than what is read: a rule is evaluated later, and a sample becomes stale after five minutes.
_MORE_S = HOUR_S
_FAILING = 0.003  # of the canaries: a ticket burns for every target
_RPS = 24.0


def past(rules: Sequence[Rule], now_s: float, ahead_s: float) -> list[Line]:
    """Return a target's series until `ahead_s` after `now_s`.

    What is recorded of series of several names, of all targets together, is left out: no rule reads it.
    """
    rules = [rule for rule in rules if "__name__" not in rule.expr]
    scraped = list(_scraped(rules, now_s, ahead_s))
    engine = Engine()
    engine.write(scraped)
    back = _reads(rules)
    recorded: list[Line] = []
    for rule in ordered(rule for rule in rules if rule.record):
        since_s = now_s - min(KEPT_S, back.get(rule.record, 0.0) + _MORE_S)
        first = np.ceil(since_s / rule.interval_s) * rule.interval_s
        new = [
            Line({**line.labels, **rule.labels, "__name__": rule.record}, line.times, line.values)
            for line in engine.series(rule.expr, float(first), now_s + ahead_s, rule.interval_s)
        ]
        engine.write(new)  # several rules may record series of one name
        recorded += new
    return [_since(line, now_s, back) for line in scraped] + recorded


def _scraped(rules: Sequence[Rule], now_s: float, ahead_s: float) -> Iterator[Line]:
    times = np.arange(now_s - KEPT_S, now_s + ahead_s, TICK_S)
    calm = np.zeros(len(times), bool)
    watch = Watch(times, calm, calm, [], 1)
    wanted = {each.name for rule in rules for each in rule.selectors}
    series = Telemetry(config(), float(times[0]), np.random.default_rng(1), watch, wanted)
    page = series.page()
    due = starts(series.target(TARGET).capacity, float(times[0]), now_s)
    done = runs(series.rng, due, lambda _: _RPS)
    yield from series.lines(page, series.world(TARGET, _failing, done), done)
    yield from of_client.monitor(page, series.rng, watch)
    yield from of_client.discovery(page, "steady", 2.0)


def _failing(_: np.random.Generator, world: World, __: At) -> None:
    world.fails[:] = _FAILING


def _reads(rules: Sequence[Rule]) -> Mapping[str, float]:
    """Return how far back any rule reads each series, in seconds."""
    back: dict[str, float] = {}
    for rule in rules:
        for each in rule.selectors:
            back[each.name] = max(back.get(each.name, 0.0), each.back_s)
    return back


def _since(line: Line, now_s: float, back: Mapping[str, float]) -> Line:
    """Return the line from when a rule reads it on."""
    kept = line.times >= now_s - min(KEPT_S, back.get(line.labels["__name__"], 0.0) + _MORE_S)
    times: Floats = line.times[kept]
    return Line(line.labels, times, line.values[kept])
