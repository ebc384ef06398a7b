"""PromQL over arrays (benchmarks/promql) answers as a real Prometheus does."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from alerts.build import FILE, render
from alerts.rules import FaultKind
from alerts.windows import HOUR_S
from benchmarks.alerts.month import Month, config
from benchmarks.alerts.replay import Replay
from benchmarks.alerts.rules import Rule, asked, needed, rules_of
from benchmarks.backfill import STALE, Line, Prometheus
from benchmarks.promql.evaluate import Engine

pytestmark = pytest.mark.prometheus

START_S = 1_790_640_000.0
END_S = START_S + 6 * HOUR_S

QUERIES = [
    "g",
    'g{a=~"x|y",b!="1"}',
    "g offset 7m",
    "c - (g offset 1m)",
    "g * on (a, b) c",
    "g > 5",
    "3 < g",
    "g > bool 5",
    "5 >= bool g",
    "g > on (a, b) c",
    "g and on (a) (c > 100)",
    "g unless (c > 300)",
    "(g > 5) or (c < 300) or sparse",
    "(g > 5) or on (a) sparse",
    "max by (a) (g) / on (a) sum by (a) (c)",
    "sum without (b) (g)",
    "min (g) - 1",
    "avg by (b) (g)",
    "count by (a) (g > 5)",
    "group by (a) (g)",
    "topk by (a) (1, g)",
    'count_values by (a) ("v", round(g))',
    "c * on (a) group_left (slo) (info > bool 0)",
    "c / on (a) group_left () max by (a) (g)",
    "max by (a) (g) * on (a) group_right () c",
    *(f"{name}(g[{window}])" for window in ("1m", "5m", "1h") for name in ("avg_over_time", "min_over_time")),
    *(f"{name}(sparse[10m])" for name in ("sum_over_time", "count_over_time", "last_over_time", "max_over_time")),
    *(f"{name}(c[{window}])" for window in ("1m", "5m", "40m") for name in ("increase", "rate")),
    "increase(sparse[40m])",
    "changes(round(g)[30m:1m])",
    "changes(sparse[1h])",
    "deriv(g[20m])",
    "predict_linear(g[1h], 7200)",
    "quantile_over_time(0.5, g[30m])",
    "quantile_over_time(0.9, sparse[2h])",
    "quantile_over_time(0.5, (count by (a) (g > 5))[1h:10m])",
    "max_over_time((g > 5)[10m:30s] offset 3m)",
    'label_replace(g, "c", "$1-n", "a", "(.).*")',
    "clamp(g, 2, 6)",
    "clamp_min(g, 4)",
    "clamp_max(g, 4) + 1",
    "abs(g - 5) % 3",
    "floor(g / 4) % 2",
    "round(g)",
    "absent(g{a='none'})",
    "absent(sparse)",
    "time() - c",
    "histogram_quantile(0.9, sum by (le) (rate(h_bucket[5m])))",
]


def _lines() -> Iterator[Line]:
    rng = np.random.default_rng(3)
    every = np.arange(START_S - 3 * HOUR_S, END_S, 30.0)
    for a in ("x", "y"):
        for b in ("1", "2"):
            there = rng.random(len(every)) < 0.97
            times = every[there] + (0.013 if b == "2" else 0.0)
            values = rng.normal(5, 2, len(times))
            values[rng.random(len(times)) < 0.02] = STALE
            yield Line({"__name__": "g", "a": a, "b": b}, times, values)
            grown = np.cumsum(rng.poisson(3, len(times))).astype(float)
            for reset in rng.integers(1, len(times), 3):
                grown[reset:] -= grown[reset]
            yield Line({"__name__": "c", "a": a, "b": b}, times, grown)
        yield Line({"__name__": "info", "a": a, "slo": f"of {a}"}, every, np.ones(len(every)))
    few = every[np.sort(rng.choice(len(every), 60, replace=False))]
    yield Line({"__name__": "sparse", "a": "x", "b": "1"}, few, rng.integers(0, 4, 60).astype(float))
    below = np.zeros(len(every))
    for bound in ("0.1", "0.5", "1.0", "+Inf"):
        below = below + rng.poisson(2, len(every))
        yield Line({"__name__": "h_bucket", "le": bound}, every, np.cumsum(below))


def _same(query: str, real: Sequence[Line], found: Sequence[Line]) -> None:
    mine, its = ({tuple(sorted(line.labels.items())): line for line in lines} for lines in (found, real))
    assert mine.keys() == its.keys(), query
    for key, line in its.items():
        np.testing.assert_array_equal(mine[key].times, line.times, err_msg=query)
        np.testing.assert_allclose(mine[key].values, line.values, rtol=1e-9, atol=1e-9, err_msg=query)


def test_each_function_and_operator_answers_as_prometheus_does(prometheus_binary: str) -> None:
    lines, engine = list(_lines()), Engine()
    engine.write(lines)
    with Prometheus(block="10d", binary=prometheus_binary) as prometheus:
        prometheus.write(lines)
        for query in QUERIES:
            asked_s = START_S + 7, END_S, 45.0
            real = prometheus.series(query, *asked_s)
            assert real, query
            _same(query, real, engine.series(query, *asked_s))


@pytest.mark.long
def test_every_rule_has_the_values_that_prometheus_has(prometheus_binary: str) -> None:
    month = Month(0, config(), scrape_s=60.0)
    rules = needed(rules_of(render()[FILE]))
    fault = next(fault for fault in month.faults if fault.kind is FaultKind.DEAD and fault.counts)
    at_s = float(np.floor(fault.start_s))  # rules are evaluated at whole milliseconds
    begun_s, start_s, end_s = at_s - 8 * HOUR_S, at_s - HOUR_S, at_s + 3 * HOUR_S
    lines = []
    for line in month.lines({each.name for each in asked(rules)}):
        inside = (line.times >= begun_s) & (line.times <= end_s)
        if inside.any():
            lines.append(Line(line.labels, line.times[inside], line.values[inside]))
    engine = Engine()
    engine.write(lines)
    with Prometheus(block="100d", binary=prometheus_binary) as prometheus:
        prometheus.write(lines)
        fired = [
            sorted((tuple(sorted(one.labels.items())), one.start_s, one.end_s) for one in replay.run(rules))
            for replay in (Replay(each, begun_s, start_s, end_s) for each in (prometheus, engine))
        ]
        assert fired[0] == fired[1]
        assert any(("alertname", "KneewatchAvailabilityBurn") in labels for labels, _, _ in fired[0])
        answered = [_compare(rule, prometheus, engine, start_s, end_s) for rule in rules]
    assert sum(answered) > 40  # others are alerts, or of objectives that no target has


def _compare(rule: Rule, prometheus: Prometheus, engine: Engine, start_s: float, end_s: float) -> bool:
    real = prometheus.series(rule.expr, start_s + 7, end_s, 60.0)
    _same(rule.expr, real, engine.series(rule.expr, start_s + 7, end_s, 60.0))
    return bool(real)


def test_what_rules_do_not_use_is_refused() -> None:
    engine = Engine()
    engine.write(_lines())
    with pytest.raises(ValueError, match="not supported"):
        engine.series("-g", START_S, END_S, 60.0)
    with pytest.raises(ValueError, match="stored already"):
        engine.write(list(_lines())[:1])
