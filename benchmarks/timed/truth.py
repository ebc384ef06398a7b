"""The true capacity of each case: the highest Poisson rate at which 95 % of its requests meet both objectives.

In vLLM's Python, from the repository: `.vllm/bin/python -m benchmarks.timed.truth [CASE ...]`. Prints a line for each
case and writes benchmarks/timed/truth.json.
"""

import argparse
import json
import time
from pathlib import Path
from random import Random

from benchmarks.timed.cases import CASES, Case
from benchmarks.timed.virtual_vllm import Arrival, Timed, serve

# The rates around the knee are tried with a part of the requests first.
_ROUGHLY = 0.25
_ROUGH_STEPS, _FINE_STEPS = 5, 4
_WARM_UP = 0.15  # of the requests, which are not judged: the server begins empty
_FILE = Path(__file__).with_name("truth.json")


def poisson(case: Case, rate_rps: float, count: int, seed: int) -> list[Arrival]:
    """Return requests of the case's lengths that arrive at a Poisson rate."""
    random, at_s, arrivals = Random(seed), 0.0, []
    for _ in range(count):
        at_s += random.expovariate(rate_rps)
        arrivals.append(Arrival(at_s, *case.lengths(random)))
    return arrivals


def p95s(served: list[Timed]) -> tuple[float, float]:
    """Return the 95th percentiles of TTFT and TPOT (s) of the requests after the warm-up."""
    judged = served[int(_WARM_UP * len(served)) :]

    def p95(values: list[float]) -> float:
        return sorted(values)[int(0.95 * len(values))]

    return p95([one.ttft_s for one in judged]), p95([one.tpot_s for one in judged])


def holds(model: Path, case: Case, rate_rps: float, count: int, *, depth: int, seed: int = 1) -> bool:
    """Return whether both objectives hold at that rate."""
    served = serve(model, case, poisson(case, rate_rps, count, seed), depth=depth, seed=seed)
    ttft_s, tpot_s = p95s(served)
    return ttft_s * 1e3 <= case.ttft_ms and tpot_s * 1e3 <= case.tpot_ms


def knee_rps(model: Path, case: Case, count: int, *, depth: int, seed: int = 1) -> float:
    """Return the highest rate at which both objectives hold, by bisection, within 1 % or so of `count` requests."""

    def halved(low: float, high: float, steps: int, requests: int) -> tuple[float, float]:
        for _ in range(steps):
            middle = (low + high) / 2
            if holds(model, case, middle, requests, depth=depth, seed=seed):
                low = middle
            else:
                high = middle
        return low, high

    roughly = max(200, round(_ROUGHLY * count))
    low, high = 0.0, 0.25
    while holds(model, case, high, roughly, depth=depth, seed=seed):
        low, high = high, high * 1.6
    low, high = halved(low, high, _ROUGH_STEPS, roughly)
    # More requests see rarer bursts, so the knee may be a little outside.
    low, high = halved(0.94 * low, 1.06 * high, _FINE_STEPS, count)
    return (low + high) / 2


def main() -> None:
    """Write the truth of the named cases, or of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--model", type=Path, required=True, help="folder of tests/integration/tiny_model.py")
    parser.add_argument("--requests", type=int, default=6000)
    options = parser.parse_args()
    known = json.loads(_FILE.read_text()) if _FILE.exists() else {}
    for name in options.cases:
        began_s = time.monotonic()
        rates = {
            kind: round(knee_rps(options.model, CASES[name], options.requests, depth=depth), 4)
            for kind, depth in (("synchronous", 1), ("asynchronous", 2))
        }
        known[name] = {**rates, "requests": options.requests}
        print(f"{name:14} {rates}  {time.monotonic() - began_s:.0f} s", flush=True)
        _FILE.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
