"""Limits of a server that neither its metrics nor the configuration give, inferred from the probe's requests. Pure.

In: steps, and a function that replays one on a twin. Out: max_num_batched_tokens, from the longest gaps between
tokens: while a step computes a prompt, no other request gets a token. The cost of attention, from how TTFT grows with
the prompt: work per token grows in proportion, work per pair of tokens with the square. And the front end.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean

from probe.capacity.model.front_end_delay import FrontEndEstimate, most_likely
from probe.capacity.model.server_model import CHUNKS, ModelFit, ServerModel
from probe.capacity.model.twin import Twin
from probe.capacity.search.search_step import SearchStep
from probe.core.percentiles import percentile
from probe.core.token_length import mean_length
from probe.simulator.simulated_request import SimulatedRequest

_STALLS_DIFFER = 0.12  # as a logarithm: another chunk size, half or twice it, must fit the longest gaps so much better
_LONG_PROMPTS = 8000.0  # tokens; with shorter ones attention over the prompt is a small part of a step
_PROMPTS_A_STEP = 4.0  # of mean length; more in one step are rare
# Shares of a mean prompt's prefill time that attention pairs may have; between two of them a line is good enough.
_PAIR_SHARES = (0.0, 0.15, 0.3, 0.45, 0.6, 0.75)
_FEW = 20  # requests: a slope of fewer says nothing
_CERTAIN = 3.0  # standard errors: by chance in one comparison of 400

_FRONTS = 8  # candidates: each takes replays of every step, and neighbours differ little

# Replays a step behind a front end; returns the TTFTs of the judged requests, in the order of their times.
ReplayBehind = Callable[[FrontEndEstimate, SearchStep], Sequence[float]]
# Replays a step on a twin; returns the judged requests, in the order of their times.
Replay = Callable[[Twin, SearchStep], Sequence[SimulatedRequest]]


def infer_chunk_tokens(model: ServerModel, fit: ModelFit | None, step: SearchStep, replay: Replay) -> int:
    """Return the max_num_batched_tokens that explains the longest gaps best; the present one unless clearly worse."""
    off = {}
    most = _PROMPTS_A_STEP * mean_length(model.workload.prompt_tokens)
    candidates = [chunk for chunk in CHUNKS if chunk <= max(most, model.chunk_tokens)]
    for chunk in candidates:
        twin, stall = model.twin(fit, chunk_tokens=chunk), step.summary.stall_s
        would = _stalls(replay(twin, step)) if twin is not None else (0.0, 0.0)
        off[chunk] = fmean(
            abs(math.log(was / one)) if was and one else math.inf
            for was, one in zip((stall.p50, stall.p95), would, strict=True)
        )
    best = min(candidates, key=lambda chunk: off[chunk])
    now = model.chunk_tokens
    return best if off[best] < off.get(now, math.inf) - _STALLS_DIFFER else now


def infer_pair_s(model: ServerModel, fit: ModelFit | None, steps: Sequence[SearchStep], replay: Replay) -> float:
    """Return the seconds per pair of a prompt's tokens that explain how late first tokens of long prompts are."""
    mean = mean_length(model.workload.prompt_tokens)
    if mean < _LONG_PROMPTS:
        return 0.0
    bare = model.twin(fit, pair_s=0.0)
    if bare is None:
        return 0.0
    found: list[tuple[float, float]] = []
    for share in _PAIR_SHARES:
        per_pair_s = 2 * share * bare.cost.per_token_s / mean
        twin = model.twin(fit, pair_s=per_pair_s)
        slope = _slope([point for step in steps for point in _lateness(step, replay(twin, step))]) if twin else None
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


def infer_front_end(
    fronts: Sequence[tuple[float, FrontEndEstimate]], steps: Sequence[SearchStep], replay: ReplayBehind
) -> FrontEndEstimate:
    """Return the front end that best explains the TTFT of every single request.

    The mean delay hardly distinguishes a constant from a queue that serves one request after another; but behind a
    queue, requests that arrive close together wait for each other. `fronts`: candidates, each with its misfit of the
    mean delays; `replay`: replays a step behind one of them.
    """
    least = min(squares for squares, _ in fronts)
    likely = [(squares, one) for squares, one in fronts if squares < least + _CERTAIN**2]
    tried = likely[:: max((len(likely) - 1) // (_FRONTS - 1), 1)]
    offs = [[off for step in steps for off in _apart(step, replay(one, step))] for _, one in tried]
    usual = min((fmean(each) for each in offs if each), default=0.0)
    if not usual:
        return most_likely(fronts)
    # Negative log-likelihood: normal for the means, Laplace for the differences of single requests.
    cost = [squares / 2 + sum(each) / usual for (squares, _), each in zip(tried, offs, strict=True)]
    return tried[min(range(len(tried)), key=lambda i: cost[i])][1]


def _apart(step: SearchStep, ttfts: Sequence[float]) -> list[float]:
    """Return for each request by how much its TTFT differs from the twin's: a logarithm, at least 0."""
    measured = step.first_tokens()
    if len(measured) != len(ttfts):
        return []
    return [
        abs(math.log(waited_s / twin_s))
        for (_, waited_s), twin_s in zip(measured, ttfts, strict=True)
        if waited_s > 0 < twin_s
    ]


def _stalls(requests: Sequence[SimulatedRequest]) -> tuple[float, float]:
    """Return the median and the 95th percentile of the requests' longest gaps between tokens."""
    times = (request.token_times_s() for request in requests)
    longest = sorted(max(after - before for before, after in pairwise(each)) for each in times if len(each) > 1)
    return (percentile(longest, 0.5), percentile(longest, 0.95)) if longest else (0.0, 0.0)


def _lateness(step: SearchStep, requests: Sequence[SimulatedRequest]) -> list[tuple[float, float]]:
    """Return for each request the logarithms of its prompt length and of its TTFT over the twin's."""
    measured = step.first_tokens()
    if len(measured) != len(requests):
        return []
    return [
        (math.log(tokens), math.log(waited_s / request.ttft_s))
        for (tokens, waited_s), request in zip(measured, requests, strict=True)
        if waited_s > 0 and request.ttft_s > 0
    ]


def _slope(points: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """Return the slope of the least-squares line and its standard error; None for too few points or equal lengths."""
    if len(points) < _FEW:
        return None
    x, y = fmean(p[0] for p in points), fmean(p[1] for p in points)
    spread = sum((a - x) ** 2 for a, _ in points)
    if spread < 1e-3 * len(points):
        return None
    slope = sum((a - x) * (b - y) for a, b in points) / spread
    left = sum((b - y - slope * (a - x)) ** 2 for a, b in points)
    return slope, math.sqrt(left / (len(points) - 2) / spread)
