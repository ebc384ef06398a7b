"""The mock server's driver: runs engine steps in real time, and sends tokens.

Input: requests and aborts from the HTTP side. Output: each request's tokens, on a queue of its own, and the metrics.
Requests reach the engine, and tokens the clients, through the front end (simulator/cost.py). One task steps the
engine; the first request starts it and it ends with the last, so an idle server does nothing.

Each step is due one step cost after the previous step was due, not after its tokens went out. So oversleeping does not
add up, and a thousand steps take exactly as long as their costs.
"""

import asyncio
from dataclasses import dataclass, field
from random import Random

from probe.mock_server.metrics import Metrics, RequestTimes
from probe.simulator.clocks import FrontEndThread, StepClock
from probe.simulator.cost import Profile
from probe.simulator.engine import SimulatedEngine
from probe.simulator.engine_step import ScheduledStep, StepOutcome

# How late the schedule may be and still catch up. After a longer delay (a suspended process, the end of a stall) it
# starts afresh, since catching up would give out tokens faster than any server.
MAX_LAG_S = 0.1


@dataclass(frozen=True, slots=True)
class Faults:
    """Faults to inject in tests. /health does not show a stalled engine."""

    extra_step_s: float = 0.0
    is_stalled: bool = False
    error_ratio: float = 0.0  # share of requests answered with 500


HEALTHY = Faults()


@dataclass(slots=True, eq=False)
class Generation:
    """One request in progress. Times are seconds on the event loop's clock, and tokens' times are the engine's."""

    prompt_tokens: int
    output_tokens: int
    shared_tokens: int = 0
    is_text: bool = True  # False: it ends with the prefill; its one token stands for the result and is not counted
    number: int = -1  # of the engine; -1 until the engine has the request
    entered_s: float = 0.0  # the front end has passed it on
    scheduled_s: float = 0.0
    first_token_s: float = 0.0
    last_token_s: float = 0.0
    generated: int = 0  # tokens of the engine
    sent: int = 0  # tokens that the client got
    found_tokens: int = 0  # in the prefix cache
    preemptions: int = 0
    _ready: asyncio.Queue[int | None] = field(default_factory=asyncio.Queue)

    async def next_token(self) -> int | None:
        """Wait for the next token and return its number, from 1; None if the request was cut short."""
        return await self._ready.get()

    def give_token(self) -> None:
        self.sent += 1
        self._ready.put_nowait(self.sent)

    def cut(self) -> None:
        self._ready.put_nowait(None)


class Driver:
    """Runs one engine in real time. Used from one event loop; not thread-safe."""

    def __init__(self, profile: Profile, metrics: Metrics, *, seed: int = 0, faults: Faults = HEALTHY) -> None:
        self.engine = SimulatedEngine(profile)
        self.worst_lag_s = 0.0  # behind the schedule, at most: shows whether this process was the bottleneck
        self._profile = profile
        self._metrics = metrics
        self._clock = StepClock(profile.cost, profile.jitter, Random(seed))
        self._front = FrontEndThread(profile.front_end)
        self._entering: dict[Generation, asyncio.TimerHandle] = {}
        self._open: dict[int, Generation] = {}  # until their last token has left
        self._loop_task: asyncio.Task[None] | None = None
        self._is_closed = False
        self.is_asleep = False
        self._flowing = asyncio.Event()
        self._faults = faults
        self.faults = faults

    @property
    def faults(self) -> Faults:
        return self._faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        """Change the injected faults, from the next step on."""
        self._faults = faults
        if faults.is_stalled or self.is_asleep:
            self._flowing.clear()
        else:
            self._flowing.set()

    def submit(
        self, *, prompt_tokens: int, output_tokens: int, shared_tokens: int = 0, is_text: bool = True
    ) -> Generation:
        """Accept a request; `is_text`: see Generation.

        ValueError as SimulatedEngine.submit; after close() it is cut short at once.
        """
        self._profile.check_lengths(prompt_tokens, output_tokens)
        generation = Generation(prompt_tokens, output_tokens, shared_tokens, is_text)
        if self._is_closed:
            generation.cut()
            return generation
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        passed_on_s = self._front.pass_on(now_s, prompt_tokens)
        if passed_on_s <= now_s:
            self._enter(generation)
        else:
            self._entering[generation] = loop.call_at(passed_on_s, self._enter, generation)
        return generation

    def refuse(self) -> str | None:
        """Return the limit of vLLM's queue that is reached, after counting the refusal; None: the request may come in.

        vLLM counts requests until their answer has ended, and prompts' tokens until their first token.
        """
        inside = (*self._entering, *self._open.values())
        reqs, tokens = self._profile.max_num_queued_reqs, self._profile.max_num_queued_tokens
        limit = None
        if reqs is not None and len(inside) >= reqs:
            limit = "max_num_queued_reqs"
        elif tokens is not None and sum(one.prompt_tokens for one in inside if not one.generated) >= tokens:
            limit = "max_num_queued_tokens"
        if limit is not None:
            self._metrics.refused(limit)
        return limit

    def abort(self, generation: Generation) -> None:
        """Drop the request of a client that is gone and free its blocks at once; do nothing if it has ended.

        No counter shows it: vLLM 0.32 drops such a request before its statistics see it (measured).
        """
        entry = self._entering.pop(generation, None)
        if entry is not None:
            entry.cancel()
            generation.cut()
        elif self._open.pop(generation.number, None) is not None:
            self.engine.abort(generation.number)  # which may have finished it before the front end has
            generation.cut()

    def sleep(self, level: int) -> None:
        """Abort every request, as vLLM's /sleep does, and run none until `wake_up`; level 0 is a pause."""
        self.is_asleep = True
        self._flowing.clear()
        for generation in (*self._entering, *self._open.values()):
            self.abort(generation)
        self._metrics.sleep(("paused", "weights_offloaded", "discard_all")[level])

    def wake_up(self) -> None:
        """Run requests again, those that came meanwhile first."""
        self.is_asleep = False
        self._metrics.sleep("awake")
        self.faults = self._faults

    def close(self) -> None:
        """Stop stepping and cut every request short."""
        self._is_closed = True
        if self._loop_task is not None:
            self._loop_task.cancel()
        for generation in (*self._entering, *self._open.values()):
            self.abort(generation)

    def _enter(self, generation: Generation) -> None:
        """Pass a request from the front end to the engine."""
        self._entering.pop(generation, None)
        loop = asyncio.get_running_loop()
        generation.entered_s = loop.time()
        generation.number = self.engine.submit(
            prompt_tokens=generation.prompt_tokens,
            output_tokens=generation.output_tokens,
            shared_tokens=generation.shared_tokens,
        )
        self._open[generation.number] = generation
        if self._loop_task is None or self._loop_task.done():
            self._loop_task = loop.create_task(self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while (plan := self.engine.plan_step()) is not None:
            now_s = loop.time()
            self._note_start(plan, now_s)
            due_s = max(due_s, now_s - MAX_LAG_S) + self._step_seconds(plan, now_s)
            await asyncio.sleep(max(0.0, due_s - now_s))
            await self._flowing.wait()
            now_s = loop.time()
            self.worst_lag_s = max(self.worst_lag_s, now_s - due_s)
            self._hand_out(self.engine.complete_step(), len(plan.preempted), now_s)

    def _step_seconds(self, plan: ScheduledStep, now_s: float) -> float:
        return self._clock.taken_s(self._clock.cost_s(*plan.batch), now_s) + self._faults.extra_step_s

    def _note_start(self, plan: ScheduledStep, now_s: float) -> None:
        for number in plan.admitted:
            generation = self._open[number]
            generation.scheduled_s = now_s
            if self._profile.prefix_caching:
                found = self.engine.cached_tokens(generation.prompt_tokens, generation.shared_tokens)
                generation.found_tokens = found
                self._metrics.looked_up(generation.prompt_tokens, found)
        for number in plan.preempted:
            self._open[number].preemptions += 1

    def _hand_out(self, outcome: StepOutcome, preempted: int, now_s: float) -> None:
        out_s = self._front.hand_out(now_s, len(outcome.emitted))
        turned_s = self._front.begun_s
        waits_s: list[float] = []
        gaps_s: list[float] = []
        prompt_tokens = found_tokens = 0
        emitted = [self._open[number] for number in outcome.emitted]
        for generation in emitted:
            if generation.generated == 0:
                generation.first_token_s = now_s
                waits_s.append(turned_s - generation.entered_s)
                prompt_tokens += generation.prompt_tokens
                found_tokens += generation.found_tokens
            else:
                gaps_s.append(now_s - generation.last_token_s)
            generation.generated += 1
            generation.last_token_s = now_s
        self._metrics.step(
            prompt_tokens=prompt_tokens,
            found_tokens=found_tokens,
            emitted=sum(generation.is_text for generation in emitted),
            preempted=preempted,
            has_results=bool(emitted),
        )
        self._metrics.first_tokens(waits_s)
        self._metrics.later_tokens(gaps_s)
        for number in outcome.finished:
            self._metrics.completed(_times(self._open[number], turned_s))
        if out_s > now_s:
            asyncio.get_running_loop().call_at(out_s, self._give, emitted)
        else:
            self._give(emitted)

    def _give(self, emitted: list[Generation]) -> None:
        """Give each request the token that the front end has sent."""
        for generation in emitted:
            if generation.number in self._open:  # its client may be gone by now
                generation.give_token()
                if generation.sent == generation.output_tokens:
                    del self._open[generation.number]


def _times(generation: Generation, answered_s: float) -> RequestTimes:
    return RequestTimes(
        prompt_tokens=generation.prompt_tokens,
        output_tokens=generation.output_tokens if generation.is_text else 0,
        preemptions=generation.preemptions,
        arrival_s=generation.entered_s,
        scheduled_s=generation.scheduled_s,
        first_token_s=generation.first_token_s,
        last_token_s=generation.last_token_s,
        answered_s=answered_s,
    )
