"""The stand-in in virtual time: no sleeping, no sockets, thousands of requests in a tenth of a second. Pure.

Input: a Profile, live users, requests with the times at which they arrive. Output: when each got its first and its
last token, and what the server's metrics would show at any moment. The scheduler and the costs are those of the
stand-in that listens on a port (engine.py, cost.py).

    requests --> front end (in turn) --> engine, step by step --> front end (hands out tokens) --> times, metrics
"""

import heapq
import math
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from probe.records import Histogram, ServerSnapshot
from probe.sim.buckets import REQUEST_S, STEP_TOKENS, TOKEN_S, TTFT_S, one_two_five
from probe.sim.cost import Profile
from probe.sim.engine import Engine, StepOutcome, StepPlan
from probe.workload import Workload, lengths

_WORTH_SKIPPING = 3  # steps


@dataclass(frozen=True, slots=True)
class Users:
    """Live users: a Poisson process of requests with their own lengths."""

    rate_rps: float
    workload: Workload


@dataclass(slots=True, eq=False)
class Visit:
    """One request and what became of it. Times are seconds of virtual time, NaN before they come."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    ours: bool
    shared_tokens: int = 0
    entered_s: float = math.nan  # the front end has passed it on
    scheduled_s: float = math.nan
    first_s: float = math.nan
    last_s: float = math.nan
    ended: bool = False  # with its last token, or aborted
    preemptions: int = 0
    stretches: list[list[int]] = field(default_factory=list)  # steps in which it got tokens: from, to (exclusive)
    replica: "_Replica | None" = None
    number: int = -1

    @property
    def ttft_s(self) -> float:
        """Arrival to first token."""
        return self.first_s - self.arrival_s

    @property
    def tpot_s(self) -> float:
        """Mean time of the tokens after the first; 0 for one token."""
        return (self.last_s - self.first_s) / (self.output_tokens - 1) if self.output_tokens > 1 else 0.0

    def token_times_s(self) -> list[float]:
        """When each event with tokens left the server."""
        times: list[float] = []
        if self.replica is not None:
            for begin, end in self.stretches:
                times += self.replica.times_s[begin:end]
        return times


class _Counts:
    """A histogram that grows."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0.0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def histogram(self) -> Histogram:
        total, buckets = 0.0, []
        for bound, count in zip((*self._bounds, math.inf), self._counts, strict=True):
            total += count
            buckets.append((bound, total))
        return Histogram(tuple(buckets), self._sum)


class _Measured:
    """What vLLM's metrics count. See metrics.py for when the real one counts what."""

    def __init__(self, profile: Profile) -> None:
        lengths_of = one_two_five(profile.max_model_len)
        self.ttft, self.itl, self.tpot = _Counts(TTFT_S), _Counts(TOKEN_S), _Counts(TOKEN_S)
        self.e2e, self.queue, self.prefill = _Counts(REQUEST_S), _Counts(REQUEST_S), _Counts(REQUEST_S)
        self.iteration_tokens = _Counts(STEP_TOKENS)
        self.prompt_length, self.output_length = _Counts(lengths_of), _Counts(lengths_of)
        self.prompt_tokens = self.generation_tokens = self.finished = self.preemptions = 0.0
        self.prefix_queries = self.prefix_hits = 0.0

    def ended(self, visit: Visit) -> None:
        self.finished += 1
        self.tpot.add(visit.tpot_s)
        self.e2e.add(visit.last_s - visit.entered_s)
        self.queue.add(visit.scheduled_s - visit.entered_s)
        self.prefill.add(visit.first_s - visit.scheduled_s)
        self.prompt_length.add(visit.prompt_tokens)
        self.output_length.add(visit.output_tokens)


class VirtualServer:
    """One address, behind which one engine works, or several."""

    def __init__(
        self,
        profile: Profile,
        *,
        seed: int = 0,
        users: Users | None = None,
        shares: Sequence[float] = (1.0,),
        accepted_tokens: float = 0.0,
        version: str = "virtual",
    ) -> None:
        """`shares`: of the requests, that each engine gets. `accepted_tokens`: by which speculation exceeds one token
        in a step, on average.
        """
        self.profile = profile
        self.now_s = 0.0
        self.measured = _Measured(profile)
        self._version = version
        self._random = Random(f"{seed}/server")
        self._shares, self._accepted = shares, accepted_tokens
        self._replicas = [_Replica(self, profile, Random(f"{seed}/{i}")) for i in range(len(shares))]
        self._arriving: list[tuple[float, int, Visit]] = []
        self._submitted = 0
        self._free_at_s = 0.0  # the front end
        self._users = users
        self._arrivals = _arrivals(users, Random(f"{seed}/users"), seed) if users else iter(())
        self.visits: list[Visit] = []  # ended since somebody last emptied it
        self._expect_user()

    def submit(self, at_s: float, prompt_tokens: int, output_tokens: int, shared_tokens: int = 0) -> Visit:
        """A request of ours that arrives at `at_s`. ValueError where that has passed."""
        if at_s < self.now_s:
            raise ValueError(f"it is {self.now_s:g} s already")
        return self._expect(Visit(at_s, prompt_tokens, output_tokens, ours=True, shared_tokens=shared_tokens))

    def abort(self, visit: Visit) -> None:
        """Its client has gone. It appears in no counter, as in vLLM 0.32."""
        visit.ended = True
        if visit.replica is not None:
            visit.replica.abort(visit)

    def set_users(self, rate_rps: float) -> None:
        """From the next arrival on, live users come at another rate."""
        if self._users is not None:
            self._users = Users(rate_rps, self._users.workload)
            self._arrivals = _arrivals(self._users, self._random, self._submitted, self.now_s)

    def advance(self, until_s: float) -> None:
        """Lets time pass."""
        arriving = self._arriving
        while arriving and arriving[0][0] <= until_s:
            _, _, visit = heapq.heappop(arriving)
            if not visit.ours:
                self._expect_user()
            if visit.ended:
                continue
            self._run(visit.arrival_s)  # tokens that went out before it held up the front end
            begun = max(visit.arrival_s, self._free_at_s)
            visit.entered_s = begun + self.profile.front_end.request_seconds(visit.prompt_tokens)
            self._free_at_s = visit.entered_s
            replica = self._choose()
            visit.replica = replica
            replica.entering.append(visit)
        self._run(until_s)
        self.now_s = until_s

    def snapshot(self, wall_s: float = 0.0) -> ServerSnapshot:
        """The metrics as a poll would read them now."""
        engines = [replica.engine for replica in self._replicas]
        m, at_s = self.measured, self.now_s
        return ServerSnapshot(
            at_ns=round(at_s * 1e9),
            wall_s=wall_s + at_s,
            engine="vllm",
            version=self._version,
            running=float(sum(engine.running for engine in engines)),
            waiting=float(sum(engine.waiting for engine in engines)),
            kv_cache_usage=max(engine.kv_usage for engine in engines),
            preemptions=m.preemptions,
            rejections=0.0,
            prompt_tokens=m.prompt_tokens,
            generation_tokens=m.generation_tokens,
            finished={"length": m.finished},
            prefix_cache_queries=m.prefix_queries,
            prefix_cache_hits=m.prefix_hits,
            kv_cache_tokens=float(self.profile.usable_blocks * self.profile.block_size * len(engines)),
            engines=len(engines),
            histograms={
                "ttft": m.ttft.histogram(),
                "itl": m.itl.histogram(),
                "tpot": m.tpot.histogram(),
                "e2e": m.e2e.histogram(),
                "queue": m.queue.histogram(),
                "prefill": m.prefill.histogram(),
                "iteration_tokens": m.iteration_tokens.histogram(),
                "prompt_length": m.prompt_length.histogram(),
                "output_length": m.output_length.histogram(),
            },
        )

    def in_flight(self) -> tuple[int, int]:
        """How many run, and how many wait, the front end included."""
        running = sum(replica.engine.running for replica in self._replicas)
        return running, sum(len(replica.entering) + replica.engine.waiting for replica in self._replicas)

    def hand_out(self, at_s: float, tokens: int) -> float:
        """When the front end has sent so many tokens that it gets at `at_s`."""
        cost_s = self.profile.front_end.per_output_token_s * tokens
        if not cost_s:
            return at_s
        self._free_at_s = max(self._free_at_s, at_s) + cost_s
        return self._free_at_s

    def steps_of(self, output_tokens: int) -> int:
        """Steps in which an answer comes, with speculation where there is some."""
        if not self._accepted:
            return output_tokens
        accepted = self._accepted * self._random.gammavariate(4.0, 0.25)
        return 1 + math.ceil((output_tokens - 1) / (1 + accepted))

    def tokens_in(self, steps: int) -> float:
        """Tokens that so many decodes give."""
        return steps * (1 + self._accepted)

    def _run(self, until_s: float) -> None:
        for replica in self._replicas:
            replica.run(until_s)

    def _choose(self) -> "_Replica":
        if len(self._replicas) == 1:
            return self._replicas[0]
        return self._random.choices(self._replicas, self._shares)[0]

    def _expect_user(self) -> None:
        visit = next(self._arrivals, None)
        if visit is not None:
            self._expect(visit)

    def _expect(self, visit: Visit) -> Visit:
        self._submitted += 1
        heapq.heappush(self._arriving, (visit.arrival_s, self._submitted, visit))
        return visit


class _Replica:
    """One engine and its clock."""

    def __init__(self, server: VirtualServer, profile: Profile, random: Random) -> None:
        self.engine = Engine(profile)
        self.entering: deque[Visit] = deque()  # in the order of entered_s
        self.times_s = array("d")  # when the tokens of each step were out
        self._server, self._profile, self._random = server, profile, random
        self._open: dict[int, Visit] = {}
        self._plan: StepPlan | None = None
        self._step_ends_s = 0.0
        self._now_s = 0.0

    def run(self, until_s: float) -> None:
        engine, entering = self.engine, self.entering
        while True:
            if self._plan is not None:
                if self._step_ends_s > until_s:
                    return
                self._now_s = self._step_ends_s
                self._complete(engine.complete_step())
                self._plan = None
            while entering and entering[0].entered_s <= self._now_s:
                self._enter(entering.popleft())
            self._skip(until_s)
            plan = engine.plan_step()
            if plan is not None:
                self._begin(plan)
            elif entering and entering[0].entered_s <= until_s:
                self._now_s = max(self._now_s, entering[0].entered_s)
            else:
                self._now_s = max(self._now_s, until_s)
                return

    def _skip(self, until_s: float) -> None:
        """Takes the steps at once in which nothing but decoding happens: most of a server's that has little to do."""
        calm = self.engine.calm_steps()
        unrest = self._profile.unrest
        if calm < _WORTH_SKIPPING or unrest.hiccup_every_s:
            return
        one_s = self._profile.cost.step_seconds(self.engine.calm_batch(calm))
        steps = min(calm, int((until_s - self._now_s) / (one_s * (1 + unrest.drift_ratio))))
        if steps < _WORTH_SKIPPING or self._server.profile.front_end.per_output_token_s:
            return
        one_s = self._profile.cost.step_seconds(self.engine.calm_batch(steps))
        # The noise of so many steps together: independent, so it grows with the root of their number.
        noise = max(1 + self._random.gauss(0.0, unrest.noise_ratio) / math.sqrt(steps), 0.5)
        one_s = unrest.drifted(one_s * noise, self._now_s)
        decoding = len(self.engine.skip(steps))
        begin_s, measured = self._now_s, self._server.measured
        measured.itl.add(begin_s + one_s - self.times_s[-1], decoding)
        measured.itl.add(one_s, decoding * (steps - 1))
        measured.iteration_tokens.add(decoding, steps)
        measured.generation_tokens += self._server.tokens_in(decoding * steps)
        self.times_s.extend([begin_s + one_s * i for i in range(1, steps + 1)])
        self._now_s = begin_s + one_s * steps

    def abort(self, visit: Visit) -> None:
        if self._open.pop(visit.number, None) is not None:
            self.engine.abort(visit.number)

    def _enter(self, visit: Visit) -> None:
        if visit.ended:
            return
        visit.number = self.engine.submit(
            prompt_tokens=visit.prompt_tokens,
            output_tokens=self._server.steps_of(visit.output_tokens),
            shared_tokens=visit.shared_tokens,
        )
        self._open[visit.number] = visit

    def _begin(self, plan: StepPlan) -> None:
        self._plan = plan
        profile, measured = self._profile, self._server.measured
        self._step_ends_s = self._now_s + profile.unrest.seconds(
            profile.cost.step_seconds(plan.batch), self._now_s, self._random
        )
        for number in plan.admitted:
            visit = self._open[number]
            visit.scheduled_s = self._now_s
            if profile.prefix_caching:
                measured.prefix_queries += visit.prompt_tokens
                measured.prefix_hits += self.engine.cached_tokens(visit.prompt_tokens, visit.shared_tokens)
        for number in plan.preempted:
            visit = self._open[number]
            visit.preemptions += 1
            measured.preemptions += 1
            if visit.stretches:
                visit.stretches[-1][1] = len(self.times_s)

    def _complete(self, outcome: StepOutcome) -> None:
        measured, step = self._server.measured, len(self.times_s)
        decoded = len(outcome.decoded)
        out_s = self._server.hand_out(self._now_s, decoded + len(outcome.prefilled))
        self.times_s.append(out_s)
        prompt_tokens = 0
        for number in outcome.prefilled:
            visit = self._open[number]
            if math.isnan(visit.first_s):
                visit.first_s = out_s
                prompt_tokens += visit.prompt_tokens
                measured.ttft.add(self._now_s - visit.entered_s)
            visit.stretches.append([step, step + 1])
        if decoded:
            measured.itl.add(out_s - self.times_s[step - 1], decoded)
        if decoded or outcome.prefilled:
            measured.prompt_tokens += prompt_tokens
            measured.generation_tokens += self._server.tokens_in(decoded) + len(outcome.prefilled)
            measured.iteration_tokens.add(prompt_tokens + decoded + len(outcome.prefilled))
        for number in outcome.finished:
            visit = self._open.pop(number)
            visit.stretches[-1][1] = step + 1
            visit.last_s, visit.ended = out_s, True
            measured.ended(visit)
            self._server.visits.append(visit)


def _arrivals(users: Users, random: Random, seed: int, start_s: float = 0.0) -> Iterator[Visit]:
    at_s = start_s
    for prompt_tokens, output_tokens in lengths(users.workload, seed):
        if users.rate_rps <= 0:
            return
        at_s += random.expovariate(users.rate_rps)
        yield Visit(at_s, prompt_tokens, output_tokens, ours=False, shared_tokens=users.workload.shared_tokens)
