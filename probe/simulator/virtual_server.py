"""The simulated server: vLLM in virtual time, thousands of requests in a tenth of a second. Pure.

Input: a Profile, live users, and requests with their arrival times. Output: when each request got its first and its
last token, and what the server's metrics would show at any moment. Scheduler, costs and front end (engine.py, cost.py)
are the ones that the mock server runs in real time.

    requests --> front end (in turn) --> engine, step by step --> front end (sends tokens) --> times, metrics

Speculation only shortens answers: they take fewer steps, and a step costs the same as without it.
"""

import heapq
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from probe.core.snapshot import ServerSnapshot
from probe.core.workload import Workload, lengths
from probe.simulator.cost import FrontEndThread, Profile
from probe.simulator.metrics_model import SimulatedMetrics
from probe.simulator.replica import Departure, Replica
from probe.simulator.simulated_request import SimulatedRequest

__all__ = ("BackgroundTraffic", "SimulatedRequest", "VirtualServer")


@dataclass(frozen=True, slots=True)
class BackgroundTraffic:
    """Requests that arrive as a Poisson process, with a workload's lengths. `is_probe`: marks them as the probe's.

    `is_mirrored`: where requests of an even seed come one soon after the other, the next seed's come late, and
    the other way round. The mean of both varies less (antithetic variates: Hammersley and Morton, 1956).
    """

    rate_rps: float
    workload: Workload
    is_probe: bool = False
    is_mirrored: bool = False


class VirtualServer:
    """One address with one engine behind it, or several."""

    def __init__(
        self,
        profile: Profile,
        *,
        seed: int = 0,
        users: BackgroundTraffic | None = None,
        others: BackgroundTraffic | None = None,
        shares: Sequence[float] = (1.0,),
        accepted_tokens: float = 0.0,
        version: str = "virtual",
    ) -> None:
        """Take `others`: more live users, with other lengths; `shares`: each engine's share of the requests;
        `accepted_tokens`: mean tokens that speculation adds to the one of a step.
        """
        self.profile = profile
        self.now_s = 0.0
        self.measured = SimulatedMetrics(profile)
        self.ended_requests: list[SimulatedRequest] = []  # since the caller last cleared it
        self._version = version
        self._random = Random(f"{seed}/server")
        self._shares, self._accepted = shares, accepted_tokens
        self._front = FrontEndThread(profile.front_end)
        self._departures: deque[Departure] = deque()
        self._replicas = [
            Replica(profile, Random(f"{seed}/{i}"), self._front, self.measured, self._departures)
            for i in range(len(shares))
        ]
        self._arriving: list[tuple[float, int, SimulatedRequest, Iterator[SimulatedRequest] | None]] = []
        self._submitted = 0
        self._users = users
        chance = _Mirror(f"{seed - 1}/users") if users and users.is_mirrored else Random(f"{seed}/users")
        self._schedule_user(_arrivals(users, chance, seed) if users else iter(()))
        self._schedule_user(_arrivals(others, Random(f"{seed}/others"), seed + 1) if others else iter(()))

    def submit(self, at_s: float, prompt_tokens: int, output_tokens: int, shared_tokens: int = 0) -> SimulatedRequest:
        """Submit a probe request that arrives at `at_s`. ValueError if that is in the past, or for too many tokens."""
        if at_s < self.now_s:
            raise ValueError(f"it is {self.now_s:g} s already")
        return self._schedule(
            SimulatedRequest(at_s, prompt_tokens, output_tokens, is_probe=True, shared_tokens=shared_tokens)
        )

    def abort(self, request: SimulatedRequest) -> None:
        """Drop the request of a client that is gone, unless it has ended. As in vLLM 0.32, no counter shows it."""
        request.ended = True
        for replica in self._replicas:
            replica.abort(request)

    def set_users(self, rate_rps: float) -> None:
        """Change the rate of live users from now on. ValueError for a server without users."""
        if self._users is None:
            raise ValueError("this server has no users, so it has no rate to set")
        self._users = replace(self._users, rate_rps=rate_rps)
        # A Poisson process has no memory, so the next arrival can be drawn again.
        self._arriving = [entry for entry in self._arriving if entry[2].is_probe]
        heapq.heapify(self._arriving)
        self._schedule_user(_arrivals(self._users, self._random, self._submitted, self.now_s))

    def advance(self, until_s: float) -> None:
        """Advance the time. ValueError if it would go back."""
        if until_s < self.now_s:
            raise ValueError(f"it is {self.now_s:g} s already")
        arriving = self._arriving
        while arriving and arriving[0][0] <= until_s:
            _, _, request, source = heapq.heappop(arriving)
            if source is not None:
                self._schedule_user(source)
            if not request.ended:
                self._run(request.arrival_s)  # earlier tokens may still occupy the front end
                self._pass_on(request)
        self._run(until_s)
        self._deliver(until_s)
        self.now_s = until_s

    def snapshot(self, wall_s: float = 0.0) -> ServerSnapshot:
        """Return the metrics as a scrape would return them now."""
        engines = [replica.engine for replica in self._replicas]
        generated = [replica.generated for replica in self._replicas]
        return self.measured.snapshot(engines, generated, self.now_s, wall_s + self.now_s, self._version)

    def in_flight(self) -> tuple[int, int]:
        """Return how many requests run, and how many wait, the front end included."""
        running = sum(replica.engine.running for replica in self._replicas)
        entering = sum(not request.ended for replica in self._replicas for request in replica.entering)
        return running, entering + sum(replica.engine.waiting for replica in self._replicas)

    def _run(self, until_s: float) -> None:
        if len(self._replicas) > 1 and self.profile.front_end.per_output_token_s:
            # All engines send through the same front end, in the order in which their steps end.
            while (replica := min(self._replicas, key=lambda replica: replica.next_s)).next_s <= until_s:
                replica.run(replica.next_s)
        for replica in self._replicas:
            replica.run(until_s)

    def _pass_on(self, request: SimulatedRequest) -> None:
        request.entered_s = self._front.pass_on(request.arrival_s, request.prompt_tokens)
        request.steps = self._steps_of(request.output_tokens)
        replica = self._choose()
        request.out_s = replica.times_s
        replica.entering.append(request)

    def _deliver(self, until_s: float) -> None:
        """Give requests the tokens that were sent by now, except where the client is gone."""
        while self._departures and self._departures[0].at_s <= until_s:
            departure = self._departures.popleft()
            for request in departure.started:
                if not request.ended:
                    request.first_s = departure.at_s
            for request in departure.finished:
                if not request.ended:
                    request.last_s, request.ended = departure.at_s, True
                    self.ended_requests.append(request)

    def _steps_of(self, output_tokens: int) -> int:
        """Return how many steps an answer takes; fewer than tokens with speculation."""
        if not self._accepted:
            return output_tokens
        accepted = self._accepted * self._random.gammavariate(4.0, 0.25)
        return 1 + math.ceil((output_tokens - 1) / (1 + accepted))

    def _choose(self) -> Replica:
        if len(self._replicas) == 1:
            return self._replicas[0]
        return self._random.choices(self._replicas, self._shares)[0]

    def _schedule_user(self, source: Iterator[SimulatedRequest]) -> None:
        request = next(source, None)
        if request is not None:
            self._schedule(request, source)

    def _schedule(
        self, request: SimulatedRequest, source: Iterator[SimulatedRequest] | None = None
    ) -> SimulatedRequest:
        self.profile.check_lengths(request.prompt_tokens, request.output_tokens)
        self._submitted += 1
        heapq.heappush(self._arriving, (request.arrival_s, self._submitted, request, source))
        return request


class _Mirror(Random):
    """The random numbers of a seed, mirrored: 1 - x for each x."""

    def random(self) -> float:
        return max(1.0 - super().random() - 2**-53, 0.0)  # 1 is no random number


def _arrivals(users: BackgroundTraffic, random: Random, seed: int, start_s: float = 0.0) -> Iterator[SimulatedRequest]:
    at_s = start_s
    for prompt_tokens, output_tokens, shared_tokens in lengths(users.workload, seed):
        if users.rate_rps <= 0:
            return
        at_s += random.expovariate(users.rate_rps)
        is_probe = users.is_probe
        yield SimulatedRequest(at_s, prompt_tokens, output_tokens, is_probe=is_probe, shared_tokens=shared_tokens)
