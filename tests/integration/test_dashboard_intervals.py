"""Panels at each scrape interval that the docs name, in a Grafana that does not know the interval."""

import json
from collections.abc import Iterator

import numpy as np
import pytest

from benchmarks.alerts.month import config
from benchmarks.backfill import Line, Prometheus
from benchmarks.dashboards.ask import Query, queries
from benchmarks.dashboards.pages import labels_of, rows, values
from dashboards.build import render

pytestmark = pytest.mark.prometheus

TARGET = "llama"
HOUR_S = 3600.0
SCRAPES_S = (pytest.param(15, marks=pytest.mark.long), 30, 60)
START_S = 1_795_500_000.0
# Events that need not have happened in an hour, label sets that did not exist before, and weeks before the first hour.
_RARE = ("> 0", "== 0", "== 1", "unless", "offset 1w")


@pytest.fixture(scope="module", params=SCRAPES_S)
def prometheus(request: pytest.FixtureRequest, prometheus_binary: str) -> Iterator[Prometheus]:
    """Start a Prometheus with three hours of everything that Kneewatch exports, scraped every 15, 30 or 60 s.

    Each twentieth scrape has failed.
    """
    every = rows()
    scrapes = np.arange(3 * HOUR_S // request.param)
    times = START_S + request.param * scrapes[scrapes % 20 != 7]
    found = values(every, times, np.random.default_rng(3), np.zeros(len(every)))
    with Prometheus(block="54h", binary=prometheus_binary) as running:
        running.write(Line(labels_of(row, TARGET), times, found[i]) for i, row in enumerate(every))
        yield running


def _gaps(prometheus: Prometheus, query: Query) -> int:
    """Return the number of points that no series of the answer has, in the last of the three hours.

    NaN is an answer: a percentile of no requests.
    """
    end_s = START_S + 3 * HOUR_S - 61
    start_s = end_s - HOUR_S
    found = prometheus.series(query.expr, start_s, end_s, query.step_s)
    drawn = {round(at) for line in found for at in line.times}
    return round((end_s - start_s) // query.step_s) + 1 - len(drawn)


def test_no_line_has_a_gap(prometheus: Prometheus) -> None:
    asked = [
        one
        for name, text in render(config()).items()
        for one in queries(name, json.loads(text), TARGET, HOUR_S)
        if one.step_s and not any(sign in one.expr for sign in _RARE)
    ]
    assert len(asked) > 60
    gaps = {(one.title, one.expr): count for one in asked if (count := _gaps(prometheus, one))}
    assert not gaps
