"""Named days: each has one cause of alerts, or one that should cause none, and the series that Kneewatch would export.

In: a seed and the seconds between two scrapes. Out: batches of days that one Prometheus replays together, each with a
configuration and its series. expected.py has the notifications that each day should cause. A day's target has the day's
name. A batch begins with four ordinary days, so that no target is young; the days begin on a Monday at midnight UTC.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from alerts.rules import FaultKind
from alerts.windows import DAY_S, HOUR_S
from benchmarks.alerts import of_client
from benchmarks.alerts.day_changes import CHANGES, FAULTS, ordinary, outage, restart
from benchmarks.alerts.day_series import Telemetry
from benchmarks.alerts.faults import Fault
from benchmarks.alerts.month import START_S
from benchmarks.alerts.nights import runs, starts
from benchmarks.alerts.page import Page, Watch
from benchmarks.alerts.world import TICK_S
from benchmarks.backfill import Floats, Line
from probe.config.config import Config
from probe.config.config_file import config_from

_BEFORE_S = 4 * DAY_S
_END_H = 60.0
_PODS = 8
_NIGHTS_BEFORE = 40
# Hours after the batch's start at which a day's cause begins; 0 where it has none.
BEGINS_H: Mapping[str, float] = {
    "echo": 10, "twice": 11.25, "burning": 20.5, "service": 10, "masked": 20.5, "pair": 10, "removed": 10,
    "overload": 14, "knee": 5 * 24 + 10,
    "knee-below": 2, "stall": 10, "xid": 10, "users-fail": 10,
}  # fmt: skip


_LEAST = {"to-zero": 0}  # discover.min_targets, where it is not 1


@dataclass(frozen=True, slots=True)
class Batch:
    """Days that are replayed together, from `start_s` to `end_s`; their series begin at `begun_s`."""

    names: tuple[str, ...]
    config: Config
    begun_s: float
    start_s: float
    end_s: float
    build: Callable[[Telemetry, "Batch"], Iterator[Line]]

    def lines(self, seed: int, scrape_s: float, wanted: Collection[str]) -> list[Line]:
        """Return the series with these names."""
        times: Floats = np.arange(self.begun_s, self.end_s, TICK_S)
        never = np.zeros(len(times), bool)
        watch = Watch(times, never, never, [], int(scrape_s / TICK_S))
        telemetry = Telemetry(self.config, self.start_s, np.random.default_rng([seed, 1]), watch, wanted)
        return list(self.build(telemetry, self))

    def begins_s(self, name: str) -> float:
        """Return when a day's cause begins."""
        return self.start_s + BEGINS_H.get(name, 0) * HOUR_S


def batches(wanted: Collection[str] = ()) -> list[Batch]:
    """Return all days, or those `wanted` and what shares a Prometheus with them.

    A dead Kneewatch concerns the others of its Prometheus, so those days have one of their own.
    """
    short = START_S - _BEFORE_S, START_S, START_S + _END_H * HOUR_S
    long = START_S - 8 * DAY_S, START_S, START_S + 15 * DAY_S
    static, found = ([name for name in names if not wanted or name in wanted] for names in (CHANGES, _DISCOVERED))
    servers = [Batch((*static, *found), _config(static, found), *short, _servers)] if static or found else []
    others = [
        Batch(("pair",), _config(["pair"]), *short, _pair),
        Batch(("removed",), _config(["stays", "removed"]), *short, _removed),
        Batch(("knee", "knee-below"), _config(["knee", "knee-below"], measured=True), *long, _knees),
    ]
    return servers + [batch for batch in others if not wanted or set(wanted) & set(batch.names)]


def _config(static: Sequence[str], found: Collection[str] = (), *, measured: bool = False) -> Config:
    """Return a configuration of targets with an address and of discoveries. `measured`: with nightly capacity runs."""
    late = {"ttft": {"ratio": 0.95, "within": "500ms"}, "tpot": {"ratio": 0.95, "within": "50ms"}}
    nightly = {"mode": "verify", "schedule": {"cron": "0 4 * * *", "timezone": "UTC"}}
    common = {
        "canary": {"every": "15s", "workload": "short-chat"},
        "capacity": {**(nightly if measured else {"mode": "forecast"}), "workload": "short-chat"},
    }
    targets = [
        {
            **common,
            "name": name,
            "base_url": f"http://{name}:8000",
            "objectives": "batch" if name == "batch" else "chat",
        }
        for name in static
    ]
    targets += [
        {
            **common,
            "name": name,
            "discover": {
                "dns": {"name": f"{name}.serving.svc", "port": 8000},
                "min_targets": _LEAST.get(name, 1),
            },
            "objectives": "chat",
        }
        for name in found
    ]
    return config_from(
        {
            "objectives": {
                "chat": {"window": "30d", "availability": 0.999, **late},
                "batch": {"window": "30d", "availability": 0.999, "ttft": None, "tpot": None},
            },
            "workloads": {"short-chat": {"prompt_tokens": 256, "output_tokens": 128, "prefix": "unique"}},
            "targets": targets,
        },
        "benchmarks/alerts/days.py",
    )


def _servers(series: Telemetry, batch: Batch) -> Iterator[Line]:
    page, behind = series.page(), series.page(instance="behind:9876", clock_s=-240.0)
    changes = {name: change for name, change in CHANGES.items() if name in batch.names}
    for name, change in changes.items():
        begins_s = batch.begins_s(name)
        kind, lasts_h, how = FAULTS.get(name, (None, 0.0, ""))
        faults = [Fault(kind, name, begins_s, begins_s + lasts_h * HOUR_S, 1.0, counts=True, how=how)] if kind else []
        yield from series.lines(behind if name == "clock" else page, series.world(name, change, faults=faults))
    for each in (page, behind):
        yield from of_client.monitor(each, series.rng, series.watch)
    for name, build in _DISCOVERED.items():
        if name not in batch.names:
            continue
        servers = np.zeros(len(series.watch.times))
        yield from build(series, page, servers)
        yield from of_client.discovery(page, name, servers, _LEAST.get(name, 1.0))


def _service(series: Telemetry, page: Page, servers: Floats) -> Iterator[Line]:
    """Yield eight pods that die within half a minute; when a canary notices each is chance, too."""
    servers[:] = _PODS
    for pod in range(_PODS):
        dies_h = 10 + int(series.rng.integers(3)) * TICK_S / HOUR_S
        yield from series.lines(page, series.world(f"service/p{pod}", outage(dies_h, 10.7)))


def _to_zero(series: Telemetry, page: Page, servers: Floats) -> Iterator[Line]:
    """Yield two new pods each day, and none from 20:00 to 06:00."""
    days = [(-_BEFORE_S / HOUR_S, -4.0), *((24.0 * day + 6, 24.0 * day + 20) for day in range(3))]
    for number, (from_h, to_h) in enumerate(days):
        servers[series.ticks(from_h, to_h)] = 2
        for pod in "ab":
            yield from series.while_there(page, series.world(f"to-zero/{number}{pod}"), from_h, to_h)


def _young(series: Telemetry, page: Page, servers: Floats) -> Iterator[Line]:
    servers[series.ticks(9, _END_H)] = 1
    yield from series.while_there(page, series.world("young/p", restart), 9, _END_H)


# Discovered services.
_DISCOVERED: Mapping[str, Callable[[Telemetry, Page, Floats], Iterator[Line]]] = {
    "service": _service,
    "to-zero": _to_zero,
    "young": _young,
}


def _pair(series: Telemetry, _: Batch) -> Iterator[Line]:
    """Yield a target of two Kneewatches, of which one is dead for two hours."""
    down = np.zeros(len(series.watch.times), bool)
    ticks = series.ticks(10, 12)
    down[ticks] = True
    dead = replace(series.watch, kneewatch_down=down, restarts=[ticks.stop])
    server = series.world("pair")
    for instance, watch in (("one:9876", series.watch), ("two:9876", dead)):
        page = series.page(instance=instance, watch=watch)
        yield from series.lines(page, server)
        yield from of_client.monitor(page, series.rng, watch)


def _removed(series: Telemetry, _: Batch) -> Iterator[Line]:
    page = series.page()
    yield from series.lines(page, series.world("stays"))
    yield from series.while_there(page, series.world("removed"), -_BEFORE_S / HOUR_S, BEGINS_H["removed"])
    yield from of_client.monitor(page, series.rng, series.watch)


def _knees(series: Telemetry, batch: Batch) -> Iterator[Line]:
    """Yield two targets with a knee that is 25 % lower for 13 nights, and then as before."""
    page = series.page()
    from_s, to_s = batch.start_s + 2 * HOUR_S, batch.start_s + 13 * DAY_S + 2 * HOUR_S

    dead = outage(BEGINS_H["knee"], BEGINS_H["knee"] + 0.5)
    for name, busy, change in (("knee", 0.3, dead), ("knee-below", 0.6, ordinary)):
        due = starts(series.target(name).capacity, batch.start_s - _NIGHTS_BEFORE * DAY_S, batch.end_s)
        done = runs(series.rng, due, lambda at_s: 14.0 * (0.75 if from_s <= at_s < to_s else 1.0))
        fault = Fault(FaultKind.KNEE, name, from_s, to_s, 0.25, counts=True)
        yield from series.lines(page, series.world(name, change, done, [fault], busy), done)
    yield from of_client.monitor(page, series.rng, series.watch)
