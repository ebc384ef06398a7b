"""The bias of the step cost fit, by parametric bootstrap. Pure.

The fit has errors of its own: windows are short, and its estimate of which requests share a step is approximate. It
makes the same errors on a simulated copy of the server, where the true costs are known (bootstrap estimate of bias:
Efron, 1979). So the twin gets the same number of requests in the same seconds, is scraped at the same moments, and the
fit runs on those snapshots, several times with other random numbers.
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
_MOST_REQUESTS = 6000.0  # in one repetition; with more, only the first part of each segment is simulated
_RESIDENCES = 3.0  # mean request durations that the twin runs before it is measured

Segments = Sequence[Sequence[MetricsWindow]]


def estimate_bias(
    twin: Twin,
    watched: Sequence[Sequence[ServerSnapshot]],
    slowdown: Sequence[float],
    lengths_of: Callable[[int], Workload],
    again: Callable[[Segments], StepCost | None],
) -> tuple[float, ...]:
    """Estimate by how much the fit overestimates each term of the step cost.

    `watched`: the snapshots of each segment of time; `slowdown`: by what factor its steps took longer; `lengths_of`:
    the lengths of its requests; `again`: the fit.
    """
    begun = sum(_begun(*pair) for snapshots in watched for pair in pairwise(snapshots))
    share = min(_MOST_REQUESTS / max(begun, 1), 1.0)
    found: list[tuple[float, ...]] = []
    for seed in range(_TIMES):
        segments = [
            _simulated_segment(
                replace(twin, cost=scaled(twin.cost, speed), live=BackgroundTraffic(0.0, lengths_of(i))),
                snapshots[: max(round(share * len(snapshots)), 2)],
                Random(f"{seed}/{i}"),
            )
            for i, (snapshots, speed) in enumerate(zip(watched, slowdown, strict=True))
        ]
        cost = again(segments)
        if cost is not None:
            found.append(astuple(cost))
    if not found:
        return tuple(0.0 for _ in astuple(twin.cost))
    return tuple(median(terms) - term for *terms, term in zip(*found, astuple(twin.cost), strict=True))


def without_bias(cost: StepCost, bias: Sequence[float]) -> StepCost:
    """Return the cost less the bias of its terms.

    The data hardly separate the time for the weights from the time of the host, so the bias moves time between the two.
    Where it is larger than one of them, it is taken from their sum.
    """
    host, sequence, token, weights, kv_token, pair = (term - by for term, by in zip(astuple(cost), bias, strict=True))
    step_s = max(host + weights, 0.0)
    host = min(max(host, 0.0), step_s)
    return StepCost(host, max(sequence, 0.0), max(token, 0.0), step_s - host, max(kv_token, 0.0), max(pair, 0.0))


def _simulated_segment(twin: Twin, snapshots: Sequence[ServerSnapshot], chance: Random) -> list[MetricsWindow]:
    """Simulate one segment on the twin, with requests of its live users' lengths, and return the windows measured."""
    if len(snapshots) < 2 or twin.live is None:  # noqa: PLR2004 - a difference needs two
        return []
    first_s, seconds = snapshots[0].at_ns * 1e-9, (snapshots[-1].at_ns - snapshots[0].at_ns) * 1e-9
    begun = sum(_begun(*pair) for pair in pairwise(snapshots))
    running = fmean(snapshot.running or 0.0 for snapshot in snapshots)
    if not begun or seconds <= 0 or not 0 < running < math.inf:
        return []
    settle_s = _RESIDENCES * running * seconds / begun  # Little's law
    # Begin with as many requests in flight as there were.
    due = list(poisson(begun / seconds * (snapshots[0].running or 0.0) / running, 0.0, settle_s, chance))
    for before, after in pairwise(snapshots):
        from_s, to_s = (settle_s + snapshot.at_ns * 1e-9 - first_s for snapshot in (before, after))
        due += sorted(chance.uniform(from_s, to_s) for _ in range(_begun(before, after)))
    server = twin.server(0.0, chance.getrandbits(32))
    mix = lengths(twin.live.workload, chance.getrandbits(32))
    for at_s, tokens in zip(due, mix, strict=False):
        server.submit(at_s, *tokens)
    return windows([_snapshot_at(server, settle_s + snapshot.at_ns * 1e-9 - first_s) for snapshot in snapshots])


def _snapshot_at(server: VirtualServer, at_s: float) -> ServerSnapshot:
    server.advance(max(at_s, server.now_s))
    return server.snapshot()


def _begun(before: ServerSnapshot, after: ServerSnapshot) -> int:
    """Return how many requests got their first token between; 0 after a restart or where that is not counted."""
    old, new = before.histograms.get("ttft"), after.histograms.get("ttft")
    grown = new.count - old.count if old is not None and new is not None else 0.0
    return round(grown) if 0 < grown < math.inf else 0
