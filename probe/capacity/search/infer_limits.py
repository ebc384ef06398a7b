"""What our own requests tell of a server, that neither its metrics nor anybody else says. Pure.

In: rungs, and a way to replay one on a twin. Out: max_num_batched_tokens, from the longest gaps: while a step reads a
prompt, no other request gets a token. And what attention costs, from how first tokens come later the longer a prompt
is: work for each token grows in proportion, work for each pair of tokens by the square.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean

from probe.capacity.model.front_end_delay import FrontEndEstimate, likeliest
from probe.capacity.model.server_model import CHUNKS, ServerModel, mean_length
from probe.capacity.model.twin import Twin
from probe.capacity.search.trial import Trial
from probe.core.percentiles import percentile
from probe.simulator.simulated_request import SimulatedRequest

_STALLS_DIFFER = 0.12  # in logarithms: by so much the longest gaps must fit better, for another chunk size
_LONG_PROMPTS = 8000.0  # tokens; with shorter ones attention over the prompt is a small part of a step
_PROMPTS_A_STEP = 4.0  # of mean length; seldom are there more
# Of what a prompt of mean length takes, the share that pairs of tokens may have.
_PAIR_SHARES = (0.0, 0.15, 0.3, 0.45, 0.6, 0.75)
_FEW = 20  # requests of different lengths
_CERTAIN = 3.0  # standard errors

_FRONTS = 8  # that are tried

# TTFTs of the judged requests of a rung on the twin behind a front end, in the order of their times.
ReplayBehind = Callable[[FrontEndEstimate, Trial], Sequence[float]]
# Visits of the judged requests of a rung on a twin, in the order of their times; None where it has no twin.
Replay = Callable[[Twin, Trial], Sequence[SimulatedRequest]]


def chunk_tokens(model: ServerModel, rung: Trial, replay: Replay) -> int:
    """The max_num_batched_tokens that explains the longest gaps best; as before where none is clearly better."""
    off = {}
    most = _PROMPTS_A_STEP * mean_length(model.workload.prompt_tokens)
    candidates = [chunk for chunk in CHUNKS if chunk <= max(most, model.chunk_tokens)]
    for chunk in candidates:
        twin, seen = model.twin(chunk_tokens=chunk), rung.step.stall_s
        would = _stalls(replay(twin, rung)) if twin is not None else (0.0, 0.0)
        off[chunk] = fmean(
            abs(math.log(was / one)) if was and one else math.inf
            for was, one in zip((seen.p50, seen.p95), would, strict=True)
        )
    best = min(candidates, key=lambda chunk: off[chunk])
    now = model.chunk_tokens
    return best if off[best] < off.get(now, math.inf) - _STALLS_DIFFER else now


def pair_s(model: ServerModel, rungs: Sequence[Trial], replay: Replay) -> float:
    """Seconds for each pair of a prompt's tokens, with which first tokens of long prompts are as late as they were."""
    mean = mean_length(model.workload.prompt_tokens)
    if mean < _LONG_PROMPTS:
        return 0.0
    bare = model.twin(pair_s=0.0)
    if bare is None:
        return 0.0
    found: list[tuple[float, float]] = []
    for share in _PAIR_SHARES:
        per_pair_s = 2 * share * bare.cost.per_token_s / mean
        twin = model.twin(pair_s=per_pair_s)
        slope = _slope([point for rung in rungs for point in _lateness(rung, replay(twin, rung))]) if twin else None
        if slope is None:
            return model.pair_s
        value, error = slope
        if share == 0 and value < _CERTAIN * error:
            return 0.0
        found.append((per_pair_s, value))
        if value <= 0:
            break
    (below, over), (above, under) = (found[-2], found[-1]) if found[-1][1] <= 0 else (found[-1], found[-1])
    return below + (above - below) * over / (over - under) if over > under else above


def front_end(
    fronts: Sequence[tuple[float, FrontEndEstimate]], rungs: Sequence[Trial], replay: ReplayBehind
) -> FrontEndEstimate:
    """That of the fronts with which each first token is as late as it was. By the mean delay alone, a constant and a
    server of one request after the other differ little; but behind the second one, requests that come close together
    wait for each other.

    `fronts`: with how badly each explains the mean delays; `replay`: a rung behind one of them, with the TTFT of each
    request in seconds.
    """
    least = min(squares for squares, _ in fronts)
    likely = [(squares, one) for squares, one in fronts if squares < least + _CERTAIN**2]
    tried = likely[:: max((len(likely) - 1) // (_FRONTS - 1), 1)]
    offs = [[off for rung in rungs for off in _apart(rung, replay(one, rung))] for _, one in tried]
    usual = min((fmean(each) for each in offs if each), default=0.0)
    if not usual:
        return likeliest(fronts)
    # Minus the logarithm of the likelihood: normal for the means, Laplace's for what single requests differ by.
    cost = [squares / 2 + sum(each) / usual for (squares, _), each in zip(tried, offs, strict=True)]
    return tried[min(range(len(tried)), key=lambda i: cost[i])][1]


def _apart(rung: Trial, ttfts: Sequence[float]) -> list[float]:
    """For each request by how much its TTFT differs from that on the twin, as a logarithm, at least 0."""
    seen = rung.first_tokens()
    if len(seen) != len(ttfts):
        return []
    return [
        abs(math.log(waited_s / twin_s))
        for (_, waited_s), twin_s in zip(seen, ttfts, strict=True)
        if waited_s > 0 < twin_s
    ]


def _stalls(visits: Sequence[SimulatedRequest]) -> tuple[float, float]:
    """Median and 95th percentile of the longest gap of those that have one."""
    times = (visit.token_times_s() for visit in visits)
    longest = sorted(max(after - before for before, after in pairwise(each)) for each in times if len(each) > 1)
    return (percentile(longest, 0.5), percentile(longest, 0.95)) if longest else (0.0, 0.0)


def _lateness(rung: Trial, visits: Sequence[SimulatedRequest]) -> list[tuple[float, float]]:
    """For each request the logarithms of its prompt's length, and of its TTFT over that on the twin."""
    seen = rung.first_tokens()
    if len(seen) != len(visits):
        return []
    return [
        (math.log(tokens), math.log(waited_s / visit.ttft_s))
        for (tokens, waited_s), visit in zip(seen, visits, strict=True)
        if waited_s > 0 and visit.ttft_s > 0
    ]


def _slope(points: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """Of the least-squares line, and its standard error; None for too few points, or all of one length."""
    if len(points) < _FEW:
        return None
    x, y = fmean(p[0] for p in points), fmean(p[1] for p in points)
    spread = sum((a - x) ** 2 for a, _ in points)
    if spread < 1e-3 * len(points):
        return None
    slope = sum((a - x) * (b - y) for a, b in points) / spread
    left = sum((b - y - slope * (a - x)) ** 2 for a, b in points)
    return slope, math.sqrt(left / (len(points) - 2) / spread)
