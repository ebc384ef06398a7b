"""Whether the replicas, or the data-parallel engines, of one server share its load evenly. Pure.

In: its snapshots. Out: by reason, how far one engine is above the mean of the others over the last five minutes.
Engines that differ by intention are not compared: one that was started lately, has no traffic (drained, or out of the
router's list), or has another part of each request (prefill or decode).
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from probe.core.objectives import Objectives
from probe.core.snapshot import EngineSnapshot, Histogram, Imbalance, ServerSnapshot
from probe.observe.counted_totals import by_engine

# Ratios from which an imbalance is a problem. An engine with twice the others' load could give half of the difference
# away. ITL grows slowly with the load: half as much again is another GPU clock, or a far larger batch.
IMBALANCES: Mapping[str, float] = {"load": 2.0, "kv_cache": 2.0, "ttft": 2.0, "itl": 1.5}
_WINDOW_NS = 300 * 10**9
_PACE_NS = 5 * 10**9
_LEAST_NS = 10 * 10**9
# A new replica has a cold prefix cache, and routers that look for a prefix fill it slowly.
_YOUNG_S = 1800.0
# Of the mean tokens/s: below it an engine is drained, or computes prompts only, with a token for each.
_ACTIVE_SHARE = 0.1
# Below these, nothing is at stake: a few requests, room for as many again, too few samples for a mean.
_LEAST_LOAD = 8.0
_LEAST_KV_USAGE = 0.8
_LEAST_REQUESTS, _LEAST_GAPS = 30.0, 1000.0
_NOTHING = ServerSnapshot(0, 0.0)


@dataclass(frozen=True, slots=True)
class _Reading:
    """What a snapshot says of one engine. `ttft`, `itl`: count and sum (s) of its histograms."""

    load: float
    kv_usage: float | None
    tokens: float
    ttft: tuple[float, float]
    itl: tuple[float, float]
    fetches: bool
    since_s: float  # its process began, or else the engine was seen first (wall time)


class EngineBalance:
    """The engines of one server over the last five minutes."""

    def __init__(self) -> None:
        self._window: deque[tuple[int, float, dict[str, _Reading]]] = deque()  # ns, wall time, readings by engine
        self._seen_s: dict[str, float] = {}

    def add(self, snapshot: ServerSnapshot) -> None:
        """Take the next snapshot."""
        if self._window and snapshot.at_ns - self._window[-1][0] < _PACE_NS:
            return
        engines = snapshot.by_engine
        self._seen_s = {name: self._seen_s.get(name, snapshot.wall_s) for name in engines}
        counted = dict(by_engine(snapshot)) if engines else {}
        readings = {
            name: _reading(engine, counted.get(name, _NOTHING), _page(name, snapshot), self._seen_s[name])
            for name, engine in engines.items()
            if engine.generation_tokens is not None and engine.running is not None
        }
        self._window.append((snapshot.at_ns, snapshot.wall_s, readings))
        while self._window[0][0] < snapshot.at_ns - _WINDOW_NS:
            self._window.popleft()

    def view(self, objectives: Objectives) -> Mapping[str, Imbalance]:
        """Return the largest imbalance by reason: load, kv_cache, ttft, itl. Absent: fewer than two can be compared.

        Latencies are at stake where the mean of the slowest is beyond its objective.
        """
        if len(self._window) < 2 or self._window[-1][0] - self._window[0][0] < _LEAST_NS:  # noqa: PLR2004
            return {}
        groups = self._groups()
        limits = objectives.latencies()
        itl = min((limits[name].within_s for name in ("itl", "tpot") if name in limits), default=None)
        ttft = limits["ttft"].within_s if "ttft" in limits else None
        stakes = {"load": _LEAST_LOAD, "kv_cache": _LEAST_KV_USAGE, "ttft": ttft, "itl": itl}
        found = {
            reason: [one for group in groups if (one := _largest(reason, group, least)) is not None]
            for reason, least in stakes.items()
        }
        return {reason: max(each, key=float) for reason, each in found.items() if each}

    def _groups(self) -> Sequence[Mapping[str, Sequence[_Reading]]]:
        """Return the readings of engines that should be alike, in groups: servers that fetch KV caches, and others."""
        _, now_s, last = self._window[-1]
        each = {name: [found[name] for _, _, found in self._window if name in found] for name in last}
        whole = {
            name: its
            for name, its in each.items()
            if len(its) == len(self._window) and its[0].tokens <= its[-1].tokens and now_s - its[-1].since_s >= _YOUNG_S
        }
        grown = {name: its[-1].tokens - its[0].tokens for name, its in whole.items()}
        mean = fmean(grown.values()) if grown else 0.0
        active = {name: its for name, its in whole.items() if grown[name] > _ACTIVE_SHARE * mean}
        return [{name: its for name, its in active.items() if its[-1].fetches == fetches} for fetches in (False, True)]


def _page(name: str, snapshot: ServerSnapshot) -> ServerSnapshot:
    """Return the page that an engine is on."""
    return snapshot.replicas.get(name) or snapshot.replicas.get(name.rpartition("/")[0]) or snapshot


def _reading(engine: EngineSnapshot, counted: ServerSnapshot, page: ServerSnapshot, seen_s: float) -> _Reading:
    return _Reading(
        load=(engine.running or 0.0) + (engine.waiting or 0.0),
        kv_usage=engine.kv_cache_usage,
        tokens=engine.generation_tokens or 0.0,
        ttft=_totals(counted.histograms.get("ttft")),
        itl=_totals(counted.histograms.get("itl")),
        fetches=bool(page.value("kv_transfers")),
        since_s=seen_s if page.started_s is None else page.started_s,
    )


def _totals(histogram: Histogram | None) -> tuple[float, float]:
    return (histogram.count, histogram.sum) if histogram is not None else (0.0, 0.0)


def _largest(reason: str, group: Mapping[str, Sequence[_Reading]], least: float | None) -> Imbalance | None:
    """Return the engine that is farthest above the others. The ratio is 1 if its value is below `least`: little is at
    stake.
    """
    values = {name: value for name, its in group.items() if (value := _value(reason, its)) is not None}
    if len(values) < 2:  # noqa: PLR2004
        return None
    engine = max(values, key=values.__getitem__)
    others = fmean(value for name, value in values.items() if name != engine)
    at_stake = least is not None and values[engine] >= least
    ratio = values[engine] / max(others, values[engine] * 1e-3) if at_stake else 1.0
    return Imbalance(engine, values[engine], others, ratio)


def _value(reason: str, its: Sequence[_Reading]) -> float | None:
    match reason:
        case "load":
            return fmean(one.load for one in its)
        case "kv_cache":
            known = [one.kv_usage for one in its if one.kv_usage is not None]
            return fmean(known) if known else None
        case "ttft":
            return _mean(its[0].ttft, its[-1].ttft, _LEAST_REQUESTS)
        case _:
            return _mean(its[0].itl, its[-1].itl, _LEAST_GAPS)


def _mean(before: tuple[float, float], after: tuple[float, float], least: float) -> float | None:
    count = after[0] - before[0]
    return (after[1] - before[1]) / count if count >= least else None
