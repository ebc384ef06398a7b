"""Capacity for users' own mixes of lengths: `python -m benchmarks.capacity.mixes [MIX ...] [--out FILE]`.

In virtual time. Users of equal mean lengths (600 in, 200 out) send another mix each, at 55 % of what the server can
take, and its page is scraped every 5 s for half an hour. Prints, and writes as JSON, the true capacity for that mix,
and three forecasts with the CPU time that each took: with the lengths learnt from the page (`users`), with fixed
lengths of the same means (`fixed`), and for the workload that a target has by default (`default`).
`--truth` gives the capacity of a mix where an earlier run has found it. With `--search` a search on the idle server
sends the learnt lengths instead, which costs a minute or more of a core.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.capacity.cases import CASES
from benchmarks.capacity.play import play
from probe.capacity.model.forecast import forecast
from probe.capacity.model.hints import Hints
from probe.capacity.run.request import Budget
from probe.capacity.search.search import Search
from probe.capacity.search.unverified import Spending
from probe.config.capacity import BudgetConfig
from probe.core.objectives import Objective, Objectives
from probe.core.percentiles import percentile
from probe.core.request import Api
from probe.core.result import Capacity
from probe.core.snapshot import ServerSnapshot
from probe.core.workload import Workload
from probe.observe.user_mix import users_workload
from probe.simulator.cost import Profile
from probe.simulator.simulated_request import SimulatedRequest
from probe.simulator.virtual_server import VirtualServer

Pairs = Callable[[Random], tuple[int, int]]
_CASE = "8b-a100"
_OBJECTIVES = Objectives("mixes", ttft=Objective(0.95, 1.0), tpot=Objective(0.95, 0.05))
_REQUESTS, _WARM_UP, _PRECISION = 6_000, 1_000, 0.01
_BUDGET = Budget(BudgetConfig().tokens_per_run, 300.0, 20.0)  # the default
_LOAD, _WATCH_S, _SCRAPE_S, _WARM_UP_S = 0.55, 1800.0, 5.0, 120.0
_LONGEST = 8000


def _lognormal(sigma: float) -> Pairs:
    def draw(chance: Random) -> tuple[int, int]:
        prompt, output = (chance.lognormvariate(0.0, sigma) * mean for mean in _MEANS)
        scale = math.exp(-(sigma**2) / 2)
        return max(min(round(prompt * scale), _LONGEST), 1), max(min(round(output * scale), 2000), 1)

    return draw


def _chats_and_documents(chance: Random) -> tuple[int, int]:
    """Nine chats to one document, whose answer is short: 600 in and 200 out in the mean."""
    if chance.random() < 0.9:
        return _around(200, 0.4, chance), _around(216, 0.4, chance)
    return _around(4200, 0.2, chance), _around(56, 0.3, chance)


def _agents(chance: Random) -> tuple[int, int]:
    """Two short calls to one with a long history and a long answer."""
    if chance.random() < 2 / 3:
        return _around(150, 0.3, chance), _around(60, 0.3, chance)
    return _around(1500, 0.3, chance), _around(480, 0.3, chance)


def _around(mean: float, sigma: float, chance: Random) -> int:
    return max(min(round(mean * chance.lognormvariate(-(sigma**2) / 2, sigma)), _LONGEST), 1)


_MEANS = (600, 200)
_NAMED = {"fixed": _MEANS, "default": (256, 128)}
MIXES: Mapping[str, Pairs] = {
    "lognormal-0.5": _lognormal(0.5),
    "lognormal-1.0": _lognormal(1.0),
    "chats-and-documents": _chats_and_documents,
    "agents": _agents,
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.capacity.mixes", description=__doc__)
    parser.add_argument("mixes", nargs="*", metavar="MIX", help=", ".join(MIXES))
    parser.add_argument("--search", action="store_true", help="search for the capacity instead of forecasting it")
    parser.add_argument("--truth", type=float, metavar="RPS", help="the true capacity of one MIX, as known")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    rows = []
    for name in options.mixes or MIXES:
        rows.append(compare(name, options.truth, is_search=options.search))
        print(json.dumps(rows[-1]), flush=True)
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


def compare(name: str, known_rps: float | None = None, *, is_search: bool) -> dict[str, Any]:
    """Return the true capacity for a mix, and the forecasts of it or what a search finds.

    `known_rps`: the true capacity, where it need not be found again.
    """
    case, pairs = CASES[_CASE], MIXES[name]
    true_rps = known_rps or truth(case.profile, pairs, _OBJECTIVES)
    watched = list(_watched(case.profile, pairs, _LOAD * true_rps))
    page = watched[-1].histograms
    users = users_workload(
        page["prompt_length"], page["output_length"], api=Api.COMPLETIONS, context_tokens=case.profile.max_model_len
    )
    if users is None:
        raise ValueError(f"{name}: too few requests")
    row: dict[str, Any] = {"mix": name, "case": case.name, "truth_rps": true_rps}
    hints = Hints(max_num_seqs=case.profile.max_num_seqs)
    if is_search:
        most = Spending(_BUDGET.seconds, _BUDGET.tokens)
        search = Search(users, _OBJECTIVES, hints, budget=most, observe_s=30.0, explain=False)
        sent = replace(case, workload=users, objectives=_OBJECTIVES)
        run = play(sent, true_rps, 0, search, live_share=0.0, budget=_BUDGET).result
        return row | {"mode": run.capacity.mode, "cost": asdict(run.cost), "search": _found(run.capacity, true_rps)}
    fixed, default = (Workload(name, Api.COMPLETIONS, *means) for name, means in _NAMED.items())
    for label, workload in (("users", users), ("fixed", fixed), ("default", default)):
        began_s = time.process_time()
        found = forecast(watched, workload, _OBJECTIVES, hints)
        row[label] = _found(found, true_rps) | {"cpu_s": time.process_time() - began_s}
    return row


def _found(found: Capacity, true_rps: float) -> dict[str, Any]:
    rps = found.requests_per_second
    error = rps / true_rps - 1 if rps else None
    return {"rps": rps, "error": error, "lower": found.lower, "upper": found.upper, "reason": found.reason}


def truth(profile: Profile, pairs: Pairs, objectives: Objectives) -> float:
    """Return the highest rate, to 1 %, at which requests of these lengths meet the objectives."""
    low, high = 1.0, 2.0
    while _holds(profile, pairs, high, objectives):
        low, high = high, 2 * high
    while high / low > 1 + _PRECISION:
        middle = (low * high) ** 0.5
        if _holds(profile, pairs, middle, objectives):
            low = middle
        else:
            high = middle
    return (low * high) ** 0.5


def _holds(profile: Profile, pairs: Pairs, rate_rps: float, objectives: Objectives) -> bool:
    server, sent = _loaded(profile, pairs, rate_rps, _REQUESTS)
    server.advance(sent[-1].arrival_s)
    if server.in_flight()[1] > _REQUESTS / 10:
        return False
    server.advance(sent[-1].arrival_s + 600.0)
    judged = [request for request in sent[_WARM_UP:] if request.ended]
    latencies = {
        "ttft": sorted(request.ttft_s for request in judged),
        "tpot": sorted(request.tpot_s for request in judged if request.output_tokens > 1),
    }
    return len(judged) == _REQUESTS - _WARM_UP and all(
        percentile(latencies[key], limit.ratio) <= limit.within_s for key, limit in objectives.latencies().items()
    )


def _loaded(
    profile: Profile, pairs: Pairs, rate_rps: float, count: int
) -> tuple[VirtualServer, list[SimulatedRequest]]:
    """Return a server with this many requests submitted, and the requests."""
    chance, server, at_s = Random(f"{rate_rps}/{count}"), VirtualServer(profile, seed=3), 0.0
    sent = []
    for _ in range(count):
        at_s += chance.expovariate(rate_rps)
        sent.append(server.submit(at_s, *pairs(chance)))
    return server, sent


def _watched(profile: Profile, pairs: Pairs, rate_rps: float) -> Iterator[ServerSnapshot]:
    server, _ = _loaded(profile, pairs, rate_rps, round(rate_rps * (_WARM_UP_S + 1.2 * _WATCH_S)))
    at_s = _WARM_UP_S
    while at_s <= _WARM_UP_S + _WATCH_S:
        server.advance(at_s)
        yield server.snapshot()
        at_s += _SCRAPE_S


if __name__ == "__main__":
    sys.exit(main())
