"""The simulated server: vLLM in virtual time, thousands of requests in a tenth of a second. Pure.

Input: a Profile, live users, and requests with their arrival times. Output: when each request got its first and its
last token, and what the server's metrics would show at any moment. Scheduler, costs and front end (engine.py, cost.py)
are the ones that the mock server runs in real time.

    requests --> front end (in turn) --> engine, step by step --> front end (sends tokens) --> times, metrics

Speculation only shortens answers: they take fewer steps, and a step costs the same as without it.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from probe.core.snapshot import ServerSnapshot
from probe.simulator.arrivals import Arrivals, Draws, draws_of
from probe.simulator.clocks import FrontEndThread
from probe.simulator.cost import Profile
from probe.simulator.metrics_model import SimulatedMetrics
from probe.simulator.replica import Departures, Replica
from probe.simulator.simulated_request import SimulatedRequest
from probe.simulator.traffic import BackgroundTraffic

__all__ = ("BackgroundTraffic", "VirtualServer")


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
        has_page: bool = True,
    ) -> None:
        """Take `others`: more live users, with other lengths; `shares`: each engine's share of the requests;
        `accepted_tokens`: mean tokens that speculation adds to the one of a step; `has_page`: `snapshot` is called.
        """
        self.profile = profile
        self.now_s = 0.0
        self.measured = SimulatedMetrics(profile, has_page=has_page)
        self.ended_requests: list[SimulatedRequest] = []  # since the caller last cleared it
        self._version = version
        self._random = Random(f"{seed}/server")
        self._shares, self._accepted = shares, accepted_tokens
        self._take_turns = len(shares) > 1 and profile.front_end.per_output_token_s > 0
        self._front = FrontEndThread(profile.front_end)
        self._departures = Departures()
        self._replicas = [
            Replica(profile, Random(f"{seed}/{i}"), self._front, self.measured, self._departures)
            for i in range(len(shares))
        ]
        self._submitted: list[tuple[float, int, SimulatedRequest]] = []  # not yet arrived
        self._count = 0
        self._users = users
        self._arrivals: list[Arrivals] = []
        if users is not None:
            first = seed - 1 if users.is_mirrored else seed
            drawn = draws_of(users.workload, seed, f"{first}/users", is_mirrored=users.is_mirrored)
            self._expect(Arrivals(drawn, users.rate_rps, is_probe=users.is_probe))
        if others is not None:
            drawn = draws_of(others.workload, seed + 1, f"{seed}/others")
            self._expect(Arrivals(drawn, others.rate_rps, is_probe=others.is_probe))

    def submit(self, at_s: float, prompt_tokens: int, output_tokens: int, shared_tokens: int = 0) -> SimulatedRequest:
        """Submit a probe request that arrives at `at_s`. ValueError if that is in the past, or for too many tokens."""
        if at_s < self.now_s:
            raise ValueError(f"it is {self.now_s:g} s already")
        self.profile.check_lengths(prompt_tokens, output_tokens)
        request = SimulatedRequest(at_s, prompt_tokens, output_tokens, True, shared_tokens)  # noqa: FBT003
        self._count += 1
        heapq.heappush(self._submitted, (at_s, self._count, request))
        return request

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
        self._arrivals = []
        draws = Draws(self._users.workload, self._count, self._random)
        self._expect(Arrivals(draws, rate_rps, is_probe=self._users.is_probe, start_s=self.now_s, ahead=1))

    def advance(self, until_s: float) -> None:
        """Advance the time. ValueError if it would go back."""
        if until_s < self.now_s:
            raise ValueError(f"it is {self.now_s:g} s already")
        while (request := self._next(until_s)) is not None:
            if not request.ended:
                self._run(request.arrival_s)  # earlier tokens may still occupy the front end
                self._pass_on(request)
        self._run(until_s)
        self._departures.deliver(until_s, self.ended_requests)
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

    def _expect(self, arrivals: Arrivals) -> None:
        self._arrivals.append(arrivals)
        self._draw(arrivals)

    def _draw(self, arrivals: Arrivals) -> None:
        arrivals.advance()
        if arrivals.next is not None:
            self.profile.check_lengths(arrivals.next.prompt_tokens, arrivals.next.output_tokens)
            self._count += 1

    def _next(self, until_s: float) -> SimulatedRequest | None:
        """Take the request that arrives next, by then."""
        first, first_s = None, self._submitted[0][0] if self._submitted else math.inf
        for arrivals in self._arrivals:
            if arrivals.next is not None and arrivals.next.arrival_s < first_s:
                first, first_s = arrivals, arrivals.next.arrival_s
        if first_s > until_s:
            return None
        if first is None:
            return heapq.heappop(self._submitted)[2]
        request = first.next
        self._draw(first)
        return request

    def _run(self, until_s: float) -> None:
        # If sending takes time, all engines send through the same front end, in the order in which their steps end.
        while self._take_turns:
            at_s = [replica.next_s() for replica in self._replicas]
            first_s = min(at_s)
            if first_s > until_s:
                break
            self._replicas[at_s.index(first_s)].run(first_s)
        for replica in self._replicas:
            replica.run(until_s)

    def _pass_on(self, request: SimulatedRequest) -> None:
        request.entered_s = self._front.pass_on(request.arrival_s, request.prompt_tokens)
        request.steps = self._steps_of(request.output_tokens)
        replica = self._choose()
        request.out_s = replica.times_s
        replica.entering.append(request)

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
