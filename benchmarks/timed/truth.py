"""The true capacity of each case: the highest Poisson rate at which 95 % of its requests meet both objectives.

In vLLM's Python, from the repository: `.vllm/bin/python -m benchmarks.timed.truth --model FOLDER [CASE ...]`. Prints a
line for each case and writes benchmarks/timed/truth.json. All ten take about ten minutes of one core,
and half an hour with 3,000 requests.

The server is vLLM's asynchronous scheduler. Thousands of requests take it minutes, and a knee needs many thousands:

1. The knee of the synchronous scheduler is found by bisection on Kneewatch's simulated one, which plans every step as
   vLLM's does (twin_steps.py) a hundred times as fast: the mean of the knees of `SEEDS`, each of `LONG` requests.
2. At `SHARES` of that rate both schedulers serve the same requests, `--requests` for each of `PAIRED_SEEDS`: here
   vLLM's own, asynchronously. Since the requests are the same, chance moves both alike. How much higher the
   latency that breaks is in vLLM, over how steeply it rises with the rate at the knee, is how much lower the knee is.

Too few requests make a truth too high, since the longest queues do not show: l4-8b has 4.9 requests/s by 10,000
requests and 5.6 by 1,500. The shift needs fewer, but is rough where their latency stays far below its objective
(`scores`).

In a case with groups of layers each simulated request holds its full windows, and vLLM's what its groups hold.

`error` is the standard error of the truth (requests/s): the spread of the synchronous knees over the seeds, and that of
the shift, from leaving out one seed at a time (jackknife). The time of HTTP, tokenizing and detokenizing is not in the
truth; served_cost.py measures it.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from benchmarks.timed import virtual_twin
from benchmarks.timed.arrivals import Timed, judged, poisson, scores
from benchmarks.timed.cases import ALL, CASES, Case

SEEDS, LONG = range(1, 4), 10_000
PAIRED_SEEDS, SHARES = (1, 2), (0.97, 1.0)
_BEYOND = 1.02  # of the knee: a rate that shows which objective breaks
_CLOSE = 0.004  # where a bisection ends
_NEAR = 0.93, 1.05  # where a bisection begins
_FILE = Path(__file__).with_name("truth.json")

Score = Callable[[float], float]  # the worse p95 over its objective, by rate; above 1 an objective is broken
Pair = tuple[Sequence[Timed], Sequence[Timed]]


def main() -> None:
    """Write the truth of the named cases, or of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--model", type=Path, required=True, help="folder of tests/integration/tiny_model.py")
    parser.add_argument("--requests", type=int, default=1000)
    options = parser.parse_args()
    known = json.loads(_FILE.read_text()) if _FILE.exists() else {}
    for name in options.cases:
        began_s = time.process_time()
        known[name] = truth(ALL[name], options.model, options.requests)
        said = known[name]
        print(
            f"{name:14} {said['requests_per_second']} +- {said['error']}, {said['limiting']}; synchronous"
            f" {said['synchronous']['knee']}; {time.process_time() - began_s:.0f} s of CPU",
            flush=True,
        )
        _FILE.write_text(json.dumps({name: known[name] for name in ALL if name in known}, indent=1) + "\n")


def truth(case: Case, model: Path, count: int) -> dict[str, Any]:
    """Return the record of a case."""
    roughly = knee_rps(partial(_long, case, SEEDS[0], count), _too_high_rps(case, count))
    knees = [knee_rps(partial(_long, case, seed, LONG), roughly) for seed in SEEDS]
    knee, knee_error = fmean(knees), stdev(knees) / len(knees) ** 0.5
    low, high = (share * knee for share in SHARES)
    limiting = _limiting(case, _BEYOND * knee)
    slope = fmean(_slope(case, limiting, seed, (low, high)) for seed in SEEDS)
    pairs = {rps: [_pair(case, model, rps, count, seed) for seed in PAIRED_SEEDS] for rps in (low, high)}
    ratio, ratio_error = _ratio(case, limiting, list(pairs.values()), slope)
    return {
        "requests_per_second": _rounded(knee * ratio),
        "error": _rounded(knee * ratio * math.hypot(knee_error / knee, ratio_error / ratio)),
        "limiting": limiting,
        "synchronous": {"knee": _rounded(knee), "error": _rounded(knee_error), "requests": LONG, "seeds": list(SEEDS)},
        "asynchronous": {
            "ratio": _rounded(ratio),
            "error": _rounded(ratio_error),
            "requests": count,
            "seeds": list(PAIRED_SEEDS),
            "slope": round(slope, 1),
            "scores": [_scores(case, limiting, rps, paired) for rps, paired in pairs.items()],
        },
    }


def knee_rps(score: Score, around_rps: float) -> float:
    """Return the highest rate at which both objectives hold, by bisection that begins around a rate."""
    low, high = _NEAR[0] * around_rps, _NEAR[1] * around_rps
    while score(high) <= 1:
        low, high = high, high * high / low
    while score(low) > 1:
        low, high = low * low / high, low
    while high / low > 1 + _CLOSE:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if score(middle) > 1 else (middle, high)
    return math.sqrt(low * high)


def _long(case: Case, seed: int, count: int, rps: float) -> float:
    """Return the score of the simulated synchronous scheduler."""
    return _worse(case, virtual_twin.serve(case, poisson(case, rps, count, seed), seed=seed))


def _worse(case: Case, served: Sequence[Timed]) -> float:
    return max(scores(case, judged(served)).values())


def _too_high_rps(case: Case, count: int) -> float:
    rps = 0.25
    while _long(case, SEEDS[0], count, rps) <= 1:
        rps *= 1.5
    return rps


def _pair(case: Case, model: Path, rps: float, count: int, seed: int) -> Pair:
    """Return the judged requests of the simulated synchronous scheduler, and of vLLM's asynchronous one."""
    from benchmarks.timed import virtual_vllm  # noqa: PLC0415 - only in vLLM's Python

    arrivals = poisson(case, rps, count, seed)
    simulated = virtual_twin.serve(case, arrivals, seed=seed)
    asynchronous = virtual_vllm.serve(model, case, arrivals, depth=2, seed=seed)
    return judged(simulated), judged(asynchronous)


def _ratio(case: Case, limiting: str, pairs: Sequence[Sequence[Pair]], slope: float) -> tuple[float, float]:
    """Return the asynchronous knee over the synchronous one, and its standard error (jackknife over the seeds)."""

    def of(kept: Sequence[int]) -> float:
        higher = [math.log(_pooled(case, limiting, at, kept, 1) / _pooled(case, limiting, at, kept, 0)) for at in pairs]
        return math.exp(-fmean(higher) / slope)

    seeds = range(len(PAIRED_SEEDS))
    without = [of([seed for seed in seeds if seed != left]) for left in seeds]
    spread = sum((one - fmean(without)) ** 2 for one in without)
    return of(seeds), math.sqrt(spread * (len(seeds) - 1) / len(seeds))


def _pooled(case: Case, limiting: str, pairs: Sequence[Pair], seeds: Sequence[int], which: int) -> float:
    """Return the score of these seeds' requests together."""
    return scores(case, [one for seed in seeds for one in pairs[seed][which]])[limiting]


def _scores(case: Case, limiting: str, rps: float, pairs: Sequence[Pair]) -> dict[str, float]:
    seeds = range(len(pairs))
    synchronous, asynchronous = (round(_pooled(case, limiting, pairs, seeds, which), 3) for which in (0, 1))
    return {"requests_per_second": _rounded(rps), "synchronous": synchronous, "asynchronous": asynchronous}


def _slope(case: Case, limiting: str, seed: int, rates: tuple[float, float]) -> float:
    """Return how steeply the limiting latency rises between two rates, as a power of the rate."""
    low, high = (
        scores(case, judged(virtual_twin.serve(case, poisson(case, rps, LONG, seed), seed=seed)))[limiting]
        for rps in rates
    )
    return math.log(high / low) / math.log(rates[1] / rates[0])


def _limiting(case: Case, rps: float) -> str:
    over = scores(case, judged(virtual_twin.serve(case, poisson(case, rps, LONG, SEEDS[0]), seed=SEEDS[0])))
    return max(over, key=lambda name: over[name])


def _rounded(value: float) -> float:
    return round(value, 4)


if __name__ == "__main__":
    main()
