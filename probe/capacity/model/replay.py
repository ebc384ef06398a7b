"""Replays of a step on the twin: the same requests at the same times, among as many live users. Pure.

A replay is closer to the step than the steady state at the same rate: both have the same arrivals and begin with the
same empty batch. Of the live users only the number between two snapshots is known, so in each replay they arrive at
other moments with other lengths. How much the replays differ shows what chance does to a step.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from statistics import fmean, stdev

from probe.capacity.model.twin import LATENCY_FIELDS, Prediction, Twin, summarise
from probe.core.objectives import Objectives
from probe.core.reasons import is_precaution
from probe.core.snapshot import ServerSnapshot
from probe.core.workload import lengths
from probe.observe.guard import GuardLimits, decide
from probe.simulator.simulated_request import SimulatedRequest
from probe.simulator.virtual_server import BackgroundTraffic, VirtualServer

_TIMES = 6
_DRAIN_S = 120.0
_POLL_S = 0.5  # the guard's interval (capacity/run/server_watch.py)


@dataclass(frozen=True, slots=True)
class SentRequest:
    """A request that was sent to the real server; `at_s` counts from when the first one was due."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    judged: bool = True
    shared_tokens: int = 0


@dataclass(frozen=True, slots=True)
class UserArrivals:
    """How many requests live users sent between two moments, in seconds of the same clock as SentRequest."""

    from_s: float
    to_s: float
    count: int


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The judged requests on the twin in the order they were sent, and how many ran when the last one arrived."""

    judged: tuple[SimulatedRequest, ...]
    running: float
    preemptions: float


@dataclass(frozen=True, slots=True)
class ReplayPrediction(Prediction):
    """The mean latencies of several replays.

    `scatter`: standard deviation of the logarithm of each latency by chance, by field name.
    """

    scatter: Mapping[str, float] = field(kw_only=True)


def replay(
    twin: Twin,
    sent: Sequence[SentRequest],
    live: BackgroundTraffic,
    objectives: Objectives,
    *,
    settle_s: float,
    user_arrivals: Sequence[UserArrivals] = (),
) -> ReplayPrediction:
    """Return the twin's latencies for these requests, as the mean of several replays.

    `settle_s`: how long live users send before the first request; `user_arrivals`: how many arrive when, else they
    arrive at random. ValueError if nothing was sent.
    """
    each: list[Prediction] = []
    for seed in range(_TIMES):
        played = replay_once(twin, sent, live, settle_s=settle_s, user_arrivals=user_arrivals, seed=seed)
        ended = [request for request in played.judged if request.ended]
        each.append(summarise(ended, twin, objectives, played.running, played.preemptions))
    values = {name: [float(getattr(one, name)) for one in each] for name in LATENCY_FIELDS}
    means = {name: fmean(found) for name, found in values.items()}
    scatter = {
        name: stdev(map(math.log, found)) if min(found) > 0 and max(found) < math.inf else math.inf
        for name, found in values.items()
    }
    running, preemptions = fmean(one.running for one in each), fmean(one.preemptions for one in each)
    return ReplayPrediction(**means, running=running, preemptions=preemptions, scatter=scatter)


def would_guard_stop(
    twin: Twin,
    sent: Sequence[SentRequest],
    live: BackgroundTraffic,
    limits: GuardLimits,
    *,
    settle_s: float,
    user_arrivals: Sequence[UserArrivals] = (),
) -> bool:
    """Return whether the guard would stop the step as a precaution in any replay; then the real stop may be chance."""
    last_s = max(s.at_s for s in sent)
    polls = [i * _POLL_S for i in range(math.ceil(last_s / _POLL_S) + 1)]
    for seed in range(_TIMES):
        server, begin_s, _ = _loaded_server(
            twin, sent, live, settle_s=settle_s, user_arrivals=user_arrivals, seed=seed, has_page=True
        )
        snapshots: list[ServerSnapshot] = []
        for at_s in polls:
            server.advance(begin_s + at_s)
            snapshots.append(server.snapshot())
            if is_precaution(decide(snapshots, (), limits).reason):
                return True
    return False


def replay_once(
    twin: Twin,
    sent: Sequence[SentRequest],
    live: BackgroundTraffic,
    *,
    settle_s: float,
    user_arrivals: Sequence[UserArrivals] = (),
    seed: int = 0,
) -> ReplayResult:
    """Replay the requests once; `seed` is for the live users and the noise. ValueError if nothing was sent."""
    server, begin_s, requests = _loaded_server(
        twin, sent, live, settle_s=settle_s, user_arrivals=user_arrivals, seed=seed, has_page=False
    )
    last = begin_s + max(s.at_s for s in sent)
    server.advance(last)
    running = server.in_flight()[0]
    while not all(request.ended for request in requests) and server.now_s < last + max(_DRAIN_S, settle_s):
        server.advance(server.now_s + 1.0)
    judged = tuple(request for request, s in zip(requests, sent, strict=True) if s.judged)
    return ReplayResult(judged, running, server.measured.preemptions)


def _loaded_server(
    twin: Twin,
    sent: Sequence[SentRequest],
    live: BackgroundTraffic,
    *,
    settle_s: float,
    user_arrivals: Sequence[UserArrivals],
    seed: int,
    has_page: bool,
) -> tuple[VirtualServer, float, list[SimulatedRequest]]:
    """Return the twin with all arrivals submitted, the time its step begins at, and the step's requests."""
    if not sent:
        raise ValueError("nothing was sent")
    # The server may count more prompt tokens than were asked for: a chat template adds some.
    longest = max(s.prompt_tokens + s.output_tokens for s in sent)
    begin_s = max(settle_s, -min((c.from_s for c in user_arrivals), default=0.0))
    mine = replace(twin, live=replace(live, rate_rps=0.0) if user_arrivals else live)
    server = mine.server(0.0, seed, longest, has_page=has_page)
    mix = lengths(live.workload, seed)
    if user_arrivals:
        for at_s in _arrival_times(user_arrivals, begin_s, live.rate_rps, settle_s, Random(f"{seed}/live")):
            server.submit(at_s, *next(mix))
    requests = [server.submit(begin_s + s.at_s, s.prompt_tokens, s.output_tokens, s.shared_tokens) for s in sent]
    return server, begin_s, requests


def _arrival_times(
    user_arrivals: Sequence[UserArrivals], begin_s: float, rate_rps: float, after_s: float, chance: Random
) -> Iterator[float]:
    """Yield the arrival times of live users: at random before and after, and in between as many as there were."""
    yield from poisson(rate_rps, 0.0, begin_s + user_arrivals[0].from_s, chance)
    for each in user_arrivals:
        yield from (begin_s + chance.uniform(each.from_s, each.to_s) for _ in range(each.count))
    last_s = begin_s + user_arrivals[-1].to_s
    yield from poisson(rate_rps, last_s, last_s + after_s, chance)


def poisson(rate_rps: float, from_s: float, to_s: float, chance: Random) -> Iterator[float]:
    """Yield the times of a Poisson process between two moments."""
    at_s = from_s
    while rate_rps > 0 and (at_s := at_s + chance.expovariate(rate_rps)) < to_s:
        yield at_s
