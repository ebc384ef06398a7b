"""Other tools' load patterns, re-implemented from their programs, and the capacity that a reader takes from them.

Input: a PeerLoad. Output: the levels that were tried. What was read, in November 2026:

- guidellm `--profile sweep` (src/guidellm/benchmark/profiles/sweep.py): one request at a time, then as many as
  `GUIDELLM__MAX_CONCURRENCY` (512) allows, then eight evenly spaced constant rates from the one throughput to the
  other, the last being the throughput itself. What runs when a level's time is over is cancelled and not counted.
  `vllm bench sweep serve_workload` does the same with integer rates, Poisson arrivals and 1000 prompts a level.
- `vllm bench serve --max-concurrency` in a loop, genai-perf and aiperf `--concurrency 1,2,4,...`: closed loops that
  double. The tool waits for what it has sent; aiperf for 30 s, its grace period, which is taken here.
- Poisson rates, doubled until the objectives break, then halved between: what scripts around `vllm bench serve
  --request-rate` do. (`vllm bench sweep serve_sla`, now gone, went from an infinite rate to 1 and interpolated;
  its `auto_tune.sh` goes down from the throughput by one request/s at a time.)
- guidellm `--profile goodput` (4 streams, doubled until 95 % no longer meet every objective, then halved between, to
  10 %), aiperf's recipe `max-concurrency-under-sla` and SageMaker's find-max-concurrency, which search concurrency.

None of them watches the server or its users while it loads. inference-perf sweeps too, but to saturation: no
objective ends it, so it has no answer here.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count

from benchmarks.capacity.peer_load import LEVEL_S, Level, PeerLoad

_GRACE_S = 30.0  # aiperf --benchmark-grace-period
_MANY = 512
_SWEEP = 10
_RATE_TOLERANCE, _STREAM_TOLERANCE = 0.05, 0.1
_FIRST_RATE_RPS, _FIRST_STREAMS = 1.0, 4
_LOWEST_RPS, _HIGHEST_RPS = 1 / 64, 2048.0

Pattern = Callable[[PeerLoad, float, int], Sequence[Level]]


def answer(levels: Sequence[Level], live_rps: float) -> float | None:
    """Return requests/s of all traffic at the highest load that held; None if none did.

    Interpolating between it and the next load is no better: over 16 cases and 3 seeds the sweep's median error grew
    from 8.5 % to 10.3 %, since a minute is too short to show the queue of a load that is just too high.
    """
    held = [level for level in levels if level.held]
    return max(held, key=lambda level: level.load).rps + live_rps if held else None


def guidellm_sweep(load: PeerLoad, level_s: float = LEVEL_S, seed: int = 0) -> Sequence[Level]:  # noqa: ARG001 - even
    """Try one stream, the most streams, and eight constant rates between the two."""
    one, many = load.closed(1, level_s), load.closed(_MANY, level_s)
    step = (many.rps - one.rps) / (_SWEEP - 2)
    rates = [one.rps + step * i for i in range(1, _SWEEP - 1)]
    tried = [load.open(rate, (i / rate for i in count()), level_s) for rate in rates if rate > 0]
    return [replace(one, load=one.rps), *tried]


def concurrency_doubling(load: PeerLoad, level_s: float = LEVEL_S, seed: int = 0) -> Sequence[Level]:  # noqa: ARG001
    """Try 1, 2, 4, ... 512 requests in flight."""
    return [load.closed(2**i, level_s, drain_s=_GRACE_S) for i in range(_MANY.bit_length())]


def rate_bisection(load: PeerLoad, level_s: float = LEVEL_S, seed: int = 0) -> Sequence[Level]:
    """Try Poisson rates: double (or halve) from 1 request/s until one breaks (or holds), then bisect to 5 %."""
    tried: list[Level] = []

    def attempt(rate: float) -> bool:
        due = _poisson(rate, random.Random(f"{seed}/{len(tried)}"))
        tried.append(load.open(rate, due, level_s, drain_s=_GRACE_S))
        return tried[-1].held

    low, high = _bracket(attempt, _FIRST_RATE_RPS, _LOWEST_RPS, _HIGHEST_RPS)
    while low and high / low > 1 + _RATE_TOLERANCE:
        middle = (low + high) / 2
        low, high = (middle, high) if attempt(middle) else (low, middle)
    return tried


def concurrency_bisection(load: PeerLoad, level_s: float = LEVEL_S, seed: int = 0) -> Sequence[Level]:  # noqa: ARG001
    """Try closed loops: double from 4 streams until one breaks, then bisect to 10 %."""
    tried: list[Level] = []

    def attempt(streams: float) -> bool:
        tried.append(load.closed(round(streams), level_s))
        return tried[-1].held

    low, high = _bracket(attempt, _FIRST_STREAMS, 1, _MANY)
    while low and high - low > max(1, _STREAM_TOLERANCE * low):
        middle = (low + high) // 2
        low, high = (middle, high) if attempt(middle) else (low, middle)
    return tried


PEERS: Mapping[str, Pattern] = {
    "guidellm sweep": guidellm_sweep,
    "concurrency doubling": concurrency_doubling,
    "rate bisection": rate_bisection,
    "concurrency bisection": concurrency_bisection,
}


def _bracket(attempt: Callable[[float], bool], first: float, lowest: float, highest: float) -> tuple[float, float]:
    """Return the highest load that held and the lowest that did not; equal if all held, 0 if none did."""
    load = first
    if attempt(load):
        while load < highest:
            if not attempt(load * 2):
                return load, load * 2
            load *= 2
        return load, load
    while load > lowest:
        if attempt(load / 2):
            return load / 2, load
        load /= 2
    return 0.0, load


def _poisson(rate_rps: float, source: random.Random) -> Iterator[float]:
    at_s = 0.0
    while True:
        at_s += source.expovariate(rate_rps)
        yield at_s
