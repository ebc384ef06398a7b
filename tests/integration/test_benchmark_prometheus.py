"""What the benchmarks of alerts and dashboards stand on.

A real Prometheus has what was written, and a replay that asks it for less finds the same.
"""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from alerts.build import FILE, render
from alerts.rules import FaultKind
from alerts.windows import HOUR_S
from benchmarks import backfill, blocks
from benchmarks.alerts import replay
from benchmarks.alerts.month import Month, config
from benchmarks.alerts.replay import Replay
from benchmarks.alerts.rules import asked, needed, rules_of
from benchmarks.backfill import STALE, Floats, Line
from benchmarks.dashboards.ask import interval_s, queries
from benchmarks.dashboards.fill import END_S, fill
from dashboards.build import render as dashboards

pytestmark = pytest.mark.prometheus

START_S = 1_790_640_000.0
SPAN_MS = 54 * 3600 * 1000
START_MS = 1_790_640_000_000 // SPAN_MS * SPAN_MS


def wild(count: int) -> Floats:
    """Return values that need every branch of the encoding: equal, near, far, of both signs, infinite, missing."""
    rng = np.random.default_rng(1)
    steps = np.arange(count)
    return np.array(
        [
            np.zeros(count),
            np.cumsum(rng.poisson(3, count)),
            rng.normal(0, 1, count),
            np.round(rng.normal(20, 5, count)),
            np.where(steps % 7 == 0, np.nan, 5.0),
            np.where(steps % 11 == 0, np.inf, -0.1 * steps),
            rng.integers(0, 2**64, count, np.uint64).view(np.float64),
        ],
        np.float64,
    )


@pytest.mark.parametrize("jitter_ms", [0, 3, 9_000])
def test_blocks_that_we_write_are_read_back_by_promtool(promtool: str, tmp_path: Path, jitter_ms: int) -> None:
    rng = np.random.default_rng(2)
    times = START_MS + 15_000 * np.arange(1000, dtype=np.int64) + rng.integers(0, jitter_ms + 1, 1000)
    times[500:] += 2_000_000  # a gap
    values = wild(1000)
    made = blocks.encode(times, values)
    group = [({"__name__": "m", "row": str(i), "job": "\u00e4 b"}, chunks) for i, chunks in enumerate(made)]
    size = blocks.write_block(tmp_path, 1, (START_MS, START_MS + SPAN_MS), [group[:3], group[3:]])
    assert size == sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())
    dump = subprocess.run([promtool, "tsdb", "dump", str(tmp_path)], check=True, capture_output=True, text=True)
    found: dict[str, list[tuple[int, float]]] = {}
    for line in dump.stdout.splitlines():
        labels, value, at = line.rsplit(" ", 2)
        found.setdefault(labels, []).append((int(at), float(value)))
    assert len(found) == len(values)
    for i, row in enumerate(values):
        (samples,) = (each for labels, each in found.items() if f'row="{i}"' in labels and 'job="\u00e4 b"' in labels)
        assert [at for at, _ in samples] == times.tolist()
        np.testing.assert_array_equal([value for _, value in samples], row)


def test_a_checksum_is_castagnolis() -> None:
    assert blocks.checksum(b"123456789") == 0xE3069283


def test_written_samples_are_returned_and_end_where_they_are_stale(prometheus_binary: str) -> None:
    times = START_S + 60.0 * np.arange(20_000)
    values = np.arange(20_000.0)
    values[-1] = STALE
    lines = [Line({"__name__": "m", "target": name}, times, values) for name in ("a", "b")]
    with backfill.Prometheus(block="100d", binary=prometheus_binary) as prometheus:
        assert prometheus.write(lines) == 40_000
        found = prometheus.series('m{target="a"}', START_S, float(times[-1]) + 300, 60)
        assert prometheus.cpu_s() > 0
        with pytest.raises(RuntimeError, match="400"):
            prometheus.ask("query", query="m{")
    (line,) = found
    assert line.labels == {"__name__": "m", "target": "a"}
    np.testing.assert_array_equal(line.times, times[:-1])
    np.testing.assert_array_equal(line.values, values[:-1])


@pytest.mark.long
def test_a_replay_that_asks_only_where_an_alert_may_come_finds_what_a_whole_one_finds(
    prometheus_binary: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    month = Month(0, config(), scrape_s=60.0)
    rules = needed(rules_of(render()[FILE]))
    fault = next(fault for fault in month.faults if fault.kind is FaultKind.DEAD and fault.counts)
    begun_s, start_s, end_s = fault.start_s - 8 * HOUR_S, fault.start_s - HOUR_S, fault.end_s + HOUR_S
    lines = []
    for line in month.lines({each.name for each in asked(rules)}):
        inside = (line.times >= begun_s) & (line.times <= end_s)
        lines.append(Line(line.labels, line.times[inside], line.values[inside]))

    def fired() -> list[tuple[tuple[tuple[str, str], ...], float, float]]:
        with backfill.Prometheus(block="100d", binary=prometheus_binary) as prometheus:
            prometheus.write(lines)
            found = Replay(prometheus, begun_s, start_s, end_s).run(rules)
        return sorted((tuple(sorted(one.labels.items())), one.start_s, one.end_s) for one in found)

    few = fired()
    monkeypatch.setattr(replay, "necessary", lambda _: [[]])
    monkeypatch.setattr(replay, "_only_now", lambda *_: {})
    assert few == fired()
    assert any(("alertname", "KneewatchAvailabilityBurn") in labels for labels, _, _ in few)


def test_every_query_of_the_dashboards_is_answered_by_what_the_benchmark_stores(
    prometheus_binary: str, tmp_path: Path
) -> None:
    targets = ["a", "b"]
    stored = fill(tmp_path / "tsdb", targets, days=2, step_s=300, originals=1)
    assert stored.blocks == 1
    assert stored.samples == stored.series * 648
    with backfill.Prometheus(block="54h", storage=tmp_path / "tsdb", binary=prometheus_binary) as prometheus:
        count = prometheus.ask("query", query='count({__name__=~".+"})', time=END_S - 1)["result"][0]["value"][1]
        assert int(count) == stored.series
        for name, text in dashboards(config()).items():
            for one in queries(name, json.loads(text), "a", 172_800.0):
                prometheus.ask("query", query=one.expr, time=END_S - 1)


def test_the_time_between_points_is_grafanas() -> None:
    month, day = 30 * 86_400.0, 86_400.0
    assert interval_s(month, 1000, None) == 1800
    assert interval_s(month, 120, None) == 21_600
    assert interval_s(day, 1000, None) == 60
    assert interval_s(3600, 1000, None) == 15
    assert interval_s(3600, 1000, "60s") == 60
