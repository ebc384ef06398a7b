"""The twin, watched as the real server was. Pure.

A fit has errors of its own: windows are short, and its arithmetic of what meets in a step is about right only. What it
gets wrong of a twin, whose law is known, it gets wrong of the real server as well (the bootstrap's estimate of bias:
Efron, 1979). So: the same number of requests in the same seconds, read at the same moments, with other chances.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import astuple, replace
from itertools import pairwise
from random import Random
from statistics import fmean, median

from probe.capacity.model.replay import poisson
from probe.capacity.model.twin import Twin
from probe.capacity.model.windows import MetricsWindow, windows
from probe.core.snapshot import ServerSnapshot
from probe.core.workload import Workload, lengths
from probe.simulator.cost import StepCost, scaled
from probe.simulator.virtual_server import BackgroundTraffic, VirtualServer

_TIMES = 12
_MOST_REQUESTS = 6000.0  # in one rehearsal; of longer watching, the first part of each stretch
_RESIDENCES = 3.0  # that it is left alone before

Segments = Sequence[Sequence[MetricsWindow]]


def bias(
    twin: Twin,
    watched: Sequence[Sequence[ServerSnapshot]],
    slower: Sequence[float],
    lengths_of: Callable[[int], Workload],
    again: Callable[[Segments], StepCost | None],
) -> tuple[float, ...]:
    """What the fit by itself adds to each term of the cost of a step.

    `watched`: the readings of each stretch of time; `slower`: by what factor its steps took longer; `lengths_of` its
    requests; `again`: the fit.
    """
    begun = sum(_begun(*pair) for readings in watched for pair in pairwise(readings))
    share = min(_MOST_REQUESTS / max(begun, 1), 1.0)
    found: list[tuple[float, ...]] = []
    for seed in range(_TIMES):
        stretches = [
            _stretch(
                replace(twin, cost=scaled(twin.cost, speed), live=BackgroundTraffic(0.0, lengths_of(i))),
                readings[: max(round(share * len(readings)), 2)],
                Random(f"{seed}/{i}"),
            )
            for i, (readings, speed) in enumerate(zip(watched, slower, strict=True))
        ]
        cost = again(stretches)
        if cost is not None:
            found.append(astuple(cost))
    if not found:
        return tuple(0.0 for _ in astuple(twin.cost))
    return tuple(median(terms) - term for *terms, term in zip(*found, astuple(twin.cost), strict=True))


def _stretch(twin: Twin, readings: Sequence[ServerSnapshot], chance: Random) -> list[MetricsWindow]:
    """What would have been seen of the twin, of requests with the lengths of its live users."""
    if len(readings) < 2 or twin.live is None:  # noqa: PLR2004 - a difference needs two
        return []
    first_s, seconds = readings[0].at_ns * 1e-9, (readings[-1].at_ns - readings[0].at_ns) * 1e-9
    begun = sum(_begun(*pair) for pair in pairwise(readings))
    running = fmean(reading.running or 0.0 for reading in readings)
    if not begun or seconds <= 0 or not 0 < running < math.inf:
        return []
    settle_s = _RESIDENCES * running * seconds / begun  # Little's law
    # As many are there at the beginning as there were.
    due = list(poisson(begun / seconds * (readings[0].running or 0.0) / running, 0.0, settle_s, chance))
    for before, after in pairwise(readings):
        from_s, to_s = (settle_s + reading.at_ns * 1e-9 - first_s for reading in (before, after))
        due += sorted(chance.uniform(from_s, to_s) for _ in range(_begun(before, after)))
    server = twin.server(0.0, chance.getrandbits(32))
    mix, shared = lengths(twin.live.workload, chance.getrandbits(32)), twin.live.workload.shared_tokens
    for at_s, (prompt_tokens, output_tokens) in zip(due, mix, strict=False):
        server.submit(at_s, prompt_tokens, output_tokens, shared)
    return windows([_read(server, settle_s + reading.at_ns * 1e-9 - first_s) for reading in readings])


def _read(server: VirtualServer, at_s: float) -> ServerSnapshot:
    server.advance(max(at_s, server.now_s))
    return server.snapshot()


def _begun(before: ServerSnapshot, after: ServerSnapshot) -> int:
    """Requests that got their first token between; 0 where the server was started again, or counts no numbers."""
    old, new = before.histograms.get("ttft"), after.histograms.get("ttft")
    grown = new.count - old.count if old is not None and new is not None else 0.0
    return round(grown) if 0 < grown < math.inf else 0
