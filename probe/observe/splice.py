"""Joins separate series of one server's snapshots to one without gaps, for forecasts. Pure.

What the server counted between two series is subtracted from all later snapshots, as is the time. A forecast then needs
to know of no gap: a rate is never taken over hours of which nothing is known.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from probe.core.server_values import ENGINE_VALUES, plain_counters
from probe.core.snapshot import Histogram, ServerSnapshot, StepSums, as_fields

_SEAM_NS = 10**6
_COUNTERS = plain_counters()
_ENGINE_COUNTERS = plain_counters(ENGINE_VALUES)
_STEP_SUMS = tuple(field.name for field in fields(StepSums))


def spliced(series: Sequence[Sequence[ServerSnapshot]]) -> list[ServerSnapshot]:
    """Return all snapshots as one series. Each series after the first continues, 1 ms later, where the last ended."""
    found: list[ServerSnapshot] = []
    for each in series:
        if not each:
            continue
        skipped_ns, growth = 0, dict[str, float]()
        if found:
            skipped_ns = each[0].at_ns - found[-1].at_ns - _SEAM_NS
            before = dict(_counters(found[-1]))
            growth = {name: value - before.get(name, value) for name, value in _counters(each[0])}
        found += [_without(snapshot, skipped_ns, growth) for snapshot in each]
    return found


def _counters(snapshot: ServerSnapshot) -> Iterator[tuple[str, float]]:
    for name in _COUNTERS:
        if (value := snapshot.value(name)) is not None:
            yield name, value
    for engine, one in snapshot.by_engine.items():
        for name in _ENGINE_COUNTERS:
            if (value := getattr(one, name)) is not None:
                yield f"{name}/{engine}", value
    for size, sums in snapshot.step_sums.items():
        for name in _STEP_SUMS:
            yield f"{name}/steps of {size}", getattr(sums, name)
    for name, histogram in snapshot.histograms.items():
        yield f"{name}/sum", histogram.sum
        yield f"{name}/count", histogram.count


def _without(snapshot: ServerSnapshot, skipped_ns: int, growth: Mapping[str, float]) -> ServerSnapshot:
    """Return the snapshot as if neither this time had passed nor the counters had grown by this."""
    if not growth:
        return snapshot
    own = dict(_counters(snapshot))
    left: dict[str, Any] = {name: value - growth.get(name, 0.0) for name, value in own.items()}
    engines = {
        engine: replace(one, **{name: left[key] for name in _ENGINE_COUNTERS if (key := f"{name}/{engine}") in left})
        for engine, one in snapshot.by_engine.items()
    }
    return replace(
        snapshot,
        at_ns=snapshot.at_ns - skipped_ns,
        wall_s=snapshot.wall_s - skipped_ns * 1e-9,
        by_engine=engines,
        step_sums={
            size: StepSums(**{name: left[f"{name}/steps of {size}"] for name in _STEP_SUMS})
            for size in snapshot.step_sums
        },
        **as_fields(
            {**snapshot.others}
            | {name: left[name] for name in _COUNTERS if name in left}
            | {
                name: Histogram(((float("inf"), left[f"{name}/count"]),), left[f"{name}/sum"])
                for name in snapshot.histograms
            }
        ),
    )
