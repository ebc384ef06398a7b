"""Load as other tools send it: a closed or an open loop for a minute on a VirtualServer, and what that costs.

Input: a case, its live users. Output: a Level for each minute, and the cost of all. No guard and no asyncio: the peers
have no guard, and the server's time is advanced by calls.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from statistics import fmean

from benchmarks.capacity.cases import Case
from probe.capacity.run.runner import covered_seconds
from probe.core.objectives import Objective, Objectives
from probe.core.percentiles import percentile
from probe.core.workload import lengths
from probe.simulator.simulated_request import SimulatedRequest

# Live users send for this long before a run, and are followed for this long after it; the same as in play.py, where the
# loop's time begins at 100 s.
BEGIN_S, AFTER_S = 220.0, 60.0
LEVEL_S = 60.0
# Between two levels a tool starts another process or phase: some seconds without its load, to its advantage.
_PAUSE_S = 5.0
_CHUNK_S = 1.0


@dataclass(frozen=True, slots=True)
class Level:
    """The result of one step: its latencies against the objectives."""

    load: float  # the number in flight, or requests/s
    rps: float  # of probe requests: those that ended, in a closed loop; those that arrived, in an open one
    score: float  # the worse of TTFT and TPOT at the objective's percentile, over its limit; infinite without a request

    @property
    def held(self) -> bool:
        return self.score <= 1


@dataclass(frozen=True, slots=True)
class Spent:
    """The cost of a whole run. `users`: live requests that ended during it; `spoilt`: those that were late or slow."""

    requests: int
    tokens: int
    seconds: float
    over_objective_s: float
    users: int
    spoilt: int


class PeerLoad:
    """The load generator of a peer."""

    def __init__(self, case: Case, seed: int, live_rps: float) -> None:
        self.live_rps = live_rps
        self._case = case
        self._server = case.server(seed, live_rps)
        self._server.advance(BEGIN_S)
        self._server.ended_requests.clear()
        self._lengths = lengths(case.workload, seed * 1000 + 1)
        # A closed loop notices an end when it looks; a fraction of a step is soon enough.
        tpot = case.objectives.tpot
        self._look_s = min(max((tpot.within_s if tpot else 0.05) / 4, 0.002), 0.05)
        self._open: dict[int, SimulatedRequest] = {}
        self._requests = self._tokens = self._users = self._spoilt = 0
        self._over: list[tuple[int, int]] = []

    def closed(self, in_flight: int, seconds: float = LEVEL_S, *, drain_s: float = 0.0) -> Level:
        """Keep `in_flight` requests running. Those that have not ended `drain_s` after the level are cancelled.

        Throughput and latencies leave out everything until the first wave has ended. Only an option
        of the tools does that (a warm-up), but without it closed loops of long answers are far off: to their advantage.
        """
        server, begin, ended = self._server, self._server.now_s, list[SimulatedRequest]()
        for _ in range(in_flight):
            self._submit(begin)
        while server.now_s < begin + seconds:
            done = self._advance(min(server.now_s + self._look_s, begin + seconds))
            ended += done
            for _ in done:
                self._submit(server.now_s)
        ended += self._finish(drain_s)
        wave_s = min(fmean(v.last_s - v.arrival_s for v in ended), seconds / 2) if ended else 0.0
        inside = sum(begin + wave_s < request.last_s <= begin + seconds for request in ended)
        judged = [request for request in ended if request.arrival_s > begin + wave_s]
        return Level(in_flight, inside / (seconds - wave_s), score(judged, self._case.objectives))

    def open(self, rate_rps: float, due_s: Iterator[float], seconds: float = LEVEL_S, *, drain_s: float = 0.0) -> Level:
        """Send requests at the times `due_s` from now, whether others end or not. Ends as `closed`."""
        server, begin, ended = self._server, self._server.now_s, list[SimulatedRequest]()
        due = takewhile(lambda at_s: at_s < seconds, due_s)
        coming = next(due, None)
        while server.now_s < begin + seconds:
            until = min(server.now_s + _CHUNK_S, begin + seconds)
            while coming is not None and begin + coming < until:
                self._submit(begin + coming)
                coming = next(due, None)
            ended += self._advance(until)
        ended += self._finish(drain_s)
        return Level(rate_rps, rate_rps, score(ended, self._case.objectives))

    def spent(self) -> Spent:
        """Return the cost. Call it once, at the end: it follows the live users for another minute."""
        ends = self._server.now_s
        self._advance(ends + AFTER_S)
        over_s = covered_seconds(self._over)
        return Spent(self._requests, self._tokens, ends - BEGIN_S, over_s, self._users, self._spoilt)

    def _finish(self, drain_s: float) -> list[SimulatedRequest]:
        """End a level. Return the requests that ended in its grace period."""
        server, ended = self._server, list[SimulatedRequest]()
        stops = server.now_s + drain_s
        while self._open and server.now_s < stops:
            ended += self._advance(min(server.now_s + _CHUNK_S, stops))
        for request in self._open.values():
            server.abort(request)
            self._count(request)
        self._open.clear()
        self._advance(server.now_s + _PAUSE_S)
        return ended

    def _submit(self, at_s: float) -> None:
        request = self._server.submit(at_s, *next(self._lengths))
        self._open[id(request)] = request
        self._requests += 1

    def _advance(self, until_s: float) -> list[SimulatedRequest]:
        """Advance the time. Return the probe requests that ended."""
        self._server.advance(until_s)
        ended = []
        for request in self._server.ended_requests:
            if not request.is_probe:
                self._users += 1
                self._spoilt += spoilt(request, self._case.objectives)
            elif self._open.pop(id(request), None):
                self._count(request)
                ended.append(request)
        self._server.ended_requests.clear()
        return ended

    def _count(self, request: SimulatedRequest) -> None:
        """Count the tokens that the server worked on; none for a request cancelled before it was scheduled."""
        if not math.isnan(request.scheduled_s):
            done = request.output_tokens if not math.isnan(request.last_s) else len(request.token_times_s())
            self._tokens += request.prompt_tokens + done
        self._over += over_objective(request, self._case.objectives, self._server.now_s)


def score(requests: Iterable[SimulatedRequest], objectives: Objectives) -> float:
    """Return the largest ratio of an objective's percentile to its limit; infinite if nothing has ended."""
    requests = list(requests)
    if not requests:
        return math.inf
    ttft = [request.ttft_s for request in requests]
    tpot = [request.tpot_s for request in requests if request.output_tokens > 1]
    return max(_ratio(ttft, objectives.ttft), _ratio(tpot, objectives.tpot))


def _ratio(seconds: list[float], objective: Objective | None) -> float:
    return percentile(sorted(seconds), objective.ratio) / objective.within_s if objective and seconds else 0.0


def spoilt(request: SimulatedRequest, objectives: Objectives) -> bool:
    """Return whether the request missed an objective."""
    return score([request], objectives) > 1


def over_objective(request: SimulatedRequest, objectives: Objectives, now_s: float) -> list[tuple[int, int]]:
    """Return the spans (ns) in which it was over an objective, as probe.capacity.run.runner does for a record."""
    ttft, tpot = objectives.ttft, objectives.tpot
    if math.isnan(request.last_s):  # cancelled
        if ttft is None or tpot is None:
            return []
        allowed_s = ttft.within_s + tpot.within_s * (request.output_tokens - 1)
        over = [(request.arrival_s + allowed_s, now_s)]
    else:
        over = [(request.arrival_s + ttft.within_s, request.first_s)] if ttft else []
        over += [(request.first_s, request.last_s)] if tpot and request.tpot_s > tpot.within_s else []
    return [(round(begin * 1e9), round(end * 1e9)) for begin, end in over if begin < end]


def spoilt_without_run(case: Case, seed: int, live_rps: float, seconds: float) -> int:
    """Return how many live requests are late or slow in the same time without a run."""
    server = case.server(seed, live_rps)
    server.advance(BEGIN_S)
    server.ended_requests.clear()
    server.advance(BEGIN_S + seconds + AFTER_S)
    return sum(spoilt(request, case.objectives) for request in server.ended_requests)
