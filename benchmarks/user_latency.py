"""Users' latency objectives by what Kneewatch exports, against the true values: simulated hours.

In virtual time, a server counts users' requests and canaries in vLLM's histograms of TTFT, and ServerState takes the
canaries off again. The client is some milliseconds away: TCP, TLS and the request take a round trip each, with jitter.

    .venv/bin/python -m benchmarks.user_latency --hours 100 > table.md
"""

import argparse
import math
import random
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate, product

from probe.core.request import Api, Outcome, RequestRecord, RequestSpec, ServerTimes, TokenEvents, Traffic, WireTimes
from probe.core.snapshot import Histogram, ServerSnapshot
from probe.observe.probe_traffic import Tokens
from probe.observe.server_state import ServerState
from probe.observe.user_objectives import judged

NS = 10**9
# vLLM 0.32, vllm/v1/metrics/loggers.py
TTFT_BOUNDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0, math.inf,
)  # fmt: skip
HOUR_S = 3600.0
_SCRAPE_S = 15.0
_ACCEPT_S = 0.002  # from a request's arrival to the response's head
_DECODE_S = 0.4
_SPEC = RequestSpec("short", Api.COMPLETIONS, (), 64, 8)
_MOST = Tokens(64, 8)

Draw = Callable[[random.Random, float], float]  # TTFT at the server (s) of a request that comes at a time


@dataclass(frozen=True, slots=True)
class Mix:
    """What a server's users and canaries see. `draws` returns both for an hour that is harder by a factor of 0 to 2."""

    name: str
    rps: float
    draws: Callable[[float], tuple[Draw, Draw]]


def _slow_share(share: float, fast_s: float, slow_s: float) -> Draw:
    def draw(rng: random.Random, _: float) -> float:
        return (slow_s if rng.random() < share else fast_s) * rng.uniform(0.95, 1.05)

    return draw


def _lognormal(median_s: float, sigma: float) -> Draw:
    return lambda rng, _: rng.lognormvariate(math.log(median_s), sigma)


def _busy(idle: Draw, seconds: float) -> Draw:
    """Return times on a server that has a queue for so long of every twenty minutes."""
    return lambda rng, at_s: idle(rng, at_s) + (rng.expovariate(1 / 0.4) if at_s % 1200 < seconds else 0.0)


def _as_users(draw: Draw) -> tuple[Draw, Draw]:
    return draw, draw


MIXES = (
    Mix("some slow, canaries fast", 0.3, lambda k: (_slow_share(0.05 * k, 0.045, 0.2), _slow_share(0, 0.045, 0.2))),
    Mix("as slow as canaries", 0.3, lambda k: _as_users(_slow_share(0.05 * k, 0.045, 0.2))),
    Mix("canaries just below 100 ms", 0.3, lambda k: (_slow_share(0.05 * k, 0.045, 0.2), _slow_share(0, 0.094, 0.2))),
    Mix("canaries slower than users", 0.3, lambda k: (_slow_share(0.05 * k, 0.045, 0.4), _slow_share(0, 0.12, 0.2))),
    Mix("wide, as canaries", 1.0, lambda k: _as_users(_lognormal(0.02 + 0.04 * k, 0.5))),
    Mix("a queue at times, as canaries", 1.0, lambda k: _as_users(_busy(_lognormal(0.045, 0.2), 70 * k))),
    Mix("5 requests/s, as canaries", 5.0, lambda k: _as_users(_slow_share(0.05 * k, 0.045, 0.2))),
    Mix("70 an hour", 0.02, lambda k: (_slow_share(0.1 * k, 0.045, 0.2), _slow_share(0.05, 0.045, 0.2))),
)
DISTANCES_S = (0.0, 0.004, 0.03, 0.1)
CANARIES_S = (5.0, 15.0, 60.0)
OBJECTIVES = ((0.1, 0.95), (0.25, 0.99), (0.15, 0.95), (0.5, 0.95))
# What is known of the way: nothing but the two clocks, when the connection was there and the head came, also the
# server's own times.
KNOWN = ("nothing", "stamps", "server times")


@dataclass(frozen=True, slots=True)
class Case:
    """One hour's circumstances."""

    mix: Mix
    distance_s: float
    canary_every_s: float
    known: str = "stamps"


@dataclass(slots=True)
class Page:
    """The server's histogram."""

    counts: list[float]
    sum_s: float = 0.0

    def count(self, ttft_s: float) -> None:
        self.counts[bisect_left(TTFT_BOUNDS, ttft_s)] += 1
        self.sum_s += ttft_s

    def read(self, at_s: float) -> ServerSnapshot:
        ttft = Histogram(tuple(zip(TTFT_BOUNDS, accumulate(self.counts), strict=True)), self.sum_s)
        at_ns = int(at_s * NS)
        idle = {"running": 0.0, "waiting": 0.0}
        return ServerSnapshot(
            at_ns, at_s, engine="vllm", started_s=1.0, asked_ns=at_ns, histograms={"ttft": ttft}, **idle
        )


@dataclass(frozen=True, slots=True)
class Canary:
    """A canary as it went."""

    begun_s: float
    counted_s: float
    ended_s: float
    ttft_s: float
    record: RequestRecord


def canary(case: Case, draw: Draw, rng: random.Random, at_s: float) -> Canary:
    """Return a canary that is sent at a time."""

    def trip_s() -> float:
        return case.distance_s * rng.uniform(1.0, 1.05) + rng.expovariate(1 / 0.0003)

    written_s = at_s + trip_s() + trip_s() if case.distance_s else at_s + 0.0002
    out_s, back_s = trip_s() / 2, trip_s() / 2
    arrived_s = written_s + out_s
    ttft_s = draw(rng, arrived_s)
    counted_s = arrived_s + ttft_s
    head_s, first_s = arrived_s + _ACCEPT_S + back_s, counted_s + back_s + rng.expovariate(1 / 0.0003)
    ended_s = first_s + _DECODE_S
    began_ns, first_ns, end_ns = (int(each * NS) for each in (at_s, first_s, ended_s))
    has_stamps = case.known != "nothing"
    wire = WireTimes(int((written_s - at_s) * NS), int((head_s - at_s) * NS), first_ns - began_ns)
    record = RequestRecord(
        target="llama",
        model="llama",
        traffic=Traffic.CANARY,
        spec=_SPEC,
        scheduled_ns=began_ns,
        sent_ns=began_ns,
        done_ns=end_ns,
        done_wall_s=ended_s,
        outcome=Outcome.OK,
        events=TokenEvents(array("q", (first_ns, end_ns)), array("q", (0, 0)), array("i", (1, 7)), 0, 0),
        prompt_tokens=64,
        output_tokens=8,
        wire=wire if has_stamps and head_s < first_s else None,
        server_times=ServerTimes(ttft_s * 0.1, ttft_s * 0.85) if case.known == "server times" else None,
    )
    return Canary(at_s, counted_s, ended_s, ttft_s, record)


def hour(case: Case, seed: int) -> tuple[ServerState, list[float]]:
    """Simulate an hour. Return what Kneewatch knows at its end, and the true TTFTs (s) of the users."""
    rng = random.Random(seed)  # noqa: S311
    state, page, users = ServerState(), Page([0.0] * len(TTFT_BOUNDS)), []
    events: list[tuple[float, int, str, float, Canary | None]] = []
    of_users, of_canaries = case.mix.draws(rng.uniform(0, 2))
    at_s = 1.5
    while (at_s := at_s + rng.expovariate(case.mix.rps)) < HOUR_S:
        ttft_s = of_users(rng, at_s)
        events.append((at_s + ttft_s, len(events), "user", ttft_s, None))
    at_s = 3.0
    while at_s < HOUR_S:
        one = canary(case, of_canaries, rng, at_s)
        events.append((one.begun_s, len(events), "begin", 0.0, one))
        events.append((one.counted_s, len(events), "counted", one.ttft_s, one))
        events.append((one.ended_s, len(events), "end", 0.0, one))
        at_s += case.canary_every_s * rng.uniform(0.98, 1.02)
    events += [(1.0 + _SCRAPE_S * i, len(events) + i, "scrape", 0.0, None) for i in range(int(HOUR_S / _SCRAPE_S) + 3)]
    for now_s, _, kind, ttft_s, one in sorted(events):
        if kind == "scrape":
            state.add(page.read(now_s))
        elif kind in ("user", "counted"):
            page.count(ttft_s)
            if kind == "user":
                users.append(ttft_s)
        elif one is not None and kind == "begin":
            state.begin(one.record.scheduled_ns, most=_MOST)
        elif one is not None:
            state.add_record(one.record)
            state.end(one.record.scheduled_ns, one.record.done_ns)
    return state, users


def outcomes(state: ServerState, users: list[float], within_s: float, ratio: float) -> tuple[str, str]:
    """Return how the verdict turned out, and how what the alerts count did: slow above the next bound of a bucket."""
    known = judged(state.user_totals, "ttft", within_s)
    if known is None:
        return "unknown", "unknown"
    allowed = (1 - ratio) * len(users)
    is_met, is_counted_as_met = known.is_met(ratio), known.slow <= allowed
    is_true, is_true_at_bound = (
        sum(ttft_s > limit for ttft_s in users) <= allowed for limit in (within_s, known.bound_s)
    )
    return _outcome(is_met, is_true), _outcome(is_counted_as_met, is_true_at_bound)


def _outcome(known: bool | None, true: bool) -> str:  # noqa: FBT001
    if known is None:
        return "unknown"
    return "right" if known == true else "kept" if known else "broken"


Found = dict[tuple[str, str], dict[float, Counter[str]]]  # by mix and objective, by distance


def simulate(hours: int, known: str) -> Found:
    """Simulate so many hours of each case, and count how they turned out."""
    found: Found = {}
    for mix, distance_s, every_s, seed in product(MIXES, DISTANCES_S, CANARIES_S, range(hours)):
        state, users = hour(Case(mix, distance_s, every_s, known), seed)
        for within_s, ratio in OBJECTIVES:
            row = found.setdefault((mix.name, f"{ratio:.0%} in {within_s * 1000:g} ms"), {})
            of_verdict, of_alerts = outcomes(state, users, within_s, ratio)
            row.setdefault(distance_s, Counter()).update((of_verdict, f"alerts {of_alerts}"))
    return found


def table(found: Found) -> Iterator[str]:
    """Yield the lines of the table: how many of 100 hours are right, and how many wrong whatever the distance."""
    distances = [f"right of 100 at {distance_s * 1000:g} ms" for distance_s in DISTANCES_S]
    head = ("users", "objective", *distances, "wrongly missed", "wrongly met", "counted wrongly for alerts")
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for (mix, objective), row in found.items():
        right = (f"{100 * counts['right'] / _verdicts(counts):.0f}" for counts in row.values())
        every = sum(row.values(), Counter())
        wrong = every["broken"], every["kept"], every["alerts broken"] + every["alerts kept"]
        yield f"| {' | '.join(map(str, (mix, objective, *right, *wrong)))} |"


def _verdicts(counts: Counter[str]) -> int:
    return sum(counts[each] for each in ("right", "unknown", "broken", "kept"))


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=int, default=20, help="of each case")
    parser.add_argument("--known", choices=KNOWN, default="stamps")
    options = parser.parse_args()
    print("\n".join(table(simulate(options.hours, options.known))))


if __name__ == "__main__":
    main()
