"""A rung once more, on the twin: the same requests at the same times, among live users as they came. Pure.

Nearer to what was seen than the steady state of the same rate: the chance of the arrivals and the filling of an empty
batch are in both. Of the live users nobody knows more than how many came between two readings of the metrics, so they
come at other moments and with other lengths in each replay; by how much these differ is what chance does to a rung.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import fmean, stdev

from probe.capacity.model.twin import Prediction, Twin, summary
from probe.core.objectives import Objectives
from probe.core.snapshot import ServerSnapshot
from probe.core.workload import lengths
from probe.observe.guard import PRECAUTIONS, GuardLimits, decide
from probe.simulator.virtual_server import BackgroundTraffic, SimulatedRequest, VirtualServer

_TIMES = 6
_DRAIN_S = 120.0
_POLL_S = 0.5  # as often as the guard looks (load/ramp.py)
_LATENCIES = ("ttft_s", "tpot_s", "ttft_p50_s", "tpot_p50_s")


@dataclass(frozen=True, slots=True)
class SentRequest:
    """A request that was sent to the real server, and when, in seconds since the first one could have been."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    judged: bool = True


@dataclass(frozen=True, slots=True)
class UserArrivals:
    """So many requests of live users between two moments, in seconds of the same clock."""

    from_s: float
    to_s: float
    count: int


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Requests on the twin: those that are judged, in the order they were sent; how many ran when the last one came."""

    judged: tuple[SimulatedRequest, ...]
    running: float
    preemptions: float


def replay(
    twin: Twin,
    sent: Sequence[SentRequest],
    live: BackgroundTraffic,
    objectives: Objectives,
    *,
    settle_s: float,
    came: Sequence[UserArrivals] = (),
) -> Prediction:
    """What the twin does with the requests, on average of several replays. `settle_s`: how long live users are there
    before; `came`: those who came meanwhile, else some do by chance. ValueError where nothing was sent.
    """
    each: list[Prediction] = []
    for seed in range(_TIMES):
        played = replayed(twin, sent, live, settle_s=settle_s, came=came, seed=seed)
        ended = [visit for visit in played.judged if visit.ended]
        each.append(summary(ended, twin, objectives, played.running, played.preemptions))
    values = {name: [float(getattr(one, name)) for one in each] for name in _LATENCIES}
    means = {name: fmean(found) for name, found in values.items()}
    scatter = {
        name: stdev(map(math.log, found)) if min(found) > 0 and max(found) < math.inf else math.inf
        for name, found in values.items()
    }
    running, preemptions = fmean(one.running for one in each), fmean(one.preemptions for one in each)
    return Prediction(**means, running=running, preemptions=preemptions, scatter=scatter)


def ends_it(
    twin: Twin,
    sent: Sequence[SentRequest],
    live: BackgroundTraffic,
    limits: GuardLimits,
    *,
    settle_s: float,
    came: Sequence[UserArrivals] = (),
) -> bool:
    """Whether the guard, in any of the replays, ends the rung as a precaution: then it may have done so by chance."""
    last_s = max(s.at_s for s in sent)
    polls = [i * _POLL_S for i in range(math.ceil(last_s / _POLL_S) + 1)]
    for seed in range(_TIMES):
        server, begin_s, _ = _loaded(twin, sent, live, settle_s=settle_s, came=came, seed=seed)
        seen: list[ServerSnapshot] = []
        for at_s in polls:
            server.advance(begin_s + at_s)
            seen.append(server.snapshot())
            if decide(seen, (), limits).reason in PRECAUTIONS:
                return True
    return False


def replayed(
    twin: Twin,
    sent: Sequence[SentRequest],
    live: BackgroundTraffic,
    *,
    settle_s: float,
    came: Sequence[UserArrivals] = (),
    seed: int = 0,
) -> ReplayResult:
    """One replay; `seed`: of the live users and of the noise. ValueError where nothing was sent."""
    server, begin_s, ours = _loaded(twin, sent, live, settle_s=settle_s, came=came, seed=seed)
    last = begin_s + max(s.at_s for s in sent)
    server.advance(last)
    running = server.in_flight()[0]
    while not all(visit.ended for visit in ours) and server.now_s < last + max(_DRAIN_S, settle_s):
        server.advance(server.now_s + 1.0)
    judged = tuple(visit for visit, s in zip(ours, sent, strict=True) if s.judged)
    return ReplayResult(judged, running, server.measured.preemptions)


def _loaded(
    twin: Twin,
    sent: Sequence[SentRequest],
    live: BackgroundTraffic,
    *,
    settle_s: float,
    came: Sequence[UserArrivals],
    seed: int,
) -> tuple[VirtualServer, float, list[SimulatedRequest]]:
    """The twin with all that is to come, the time at which ours begins there, and ours."""
    if not sent:
        raise ValueError("nothing was sent")
    # The server's own count of a prompt may be above what was asked for: a chat template adds to it.
    longest = max(s.prompt_tokens + s.output_tokens for s in sent)
    begin_s = max(settle_s, -min((c.from_s for c in came), default=0.0))
    server = replace(twin, live=replace(live, rate_rps=0.0) if came else live).server(0.0, seed, longest)
    mix = lengths(live.workload, seed)
    for at_s in _moments(came, begin_s, live.rate_rps, settle_s, Random(f"{seed}/live")) if came else ():
        server.submit(at_s, *next(mix), live.workload.shared_tokens)
    shared = twin.workload.shared_tokens
    ours = [server.submit(begin_s + s.at_s, s.prompt_tokens, s.output_tokens, shared) for s in sent]
    return server, begin_s, ours


def _moments(
    came: Sequence[UserArrivals], begin_s: float, rate_rps: float, after_s: float, chance: Random
) -> Iterator[float]:
    """When live users come: by chance before and after, and in between as many as did."""
    yield from poisson(rate_rps, 0.0, begin_s + came[0].from_s, chance)
    for each in came:
        yield from (begin_s + chance.uniform(each.from_s, each.to_s) for _ in range(each.count))
    last_s = begin_s + came[-1].to_s
    yield from poisson(rate_rps, last_s, last_s + after_s, chance)


def poisson(rate_rps: float, from_s: float, to_s: float, chance: Random) -> Iterator[float]:
    """The times of a Poisson process between two moments."""
    at_s = from_s
    while rate_rps > 0 and (at_s := at_s + chance.expovariate(rate_rps)) < to_s:
        yield at_s
