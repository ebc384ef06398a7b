"""The stand-in's clock: runs engine steps for as long as their cost says, and hands out tokens.

Input: requests and aborts from the HTTP side. Output: each request's tokens, on a queue of its
own, and the metrics. One task steps the engine; it is started by the first request and ends with
the last, so an idle server does nothing at all.

A step is due a cost after the step before was due, not after it was handed out: the overshoot
of a sleep does not add up, and a thousand steps take what their costs say.
"""

import asyncio
from dataclasses import dataclass, field
from random import Random

from probe.sim.cost import Profile
from probe.sim.engine import Engine, StepOutcome, StepPlan
from probe.sim.metrics import Metrics, RequestTimes

# How late the schedule may be and still catch up. After a longer hold-up (a suspended process, a
# lifted stall) it starts afresh, rather than pour out tokens faster than any server would.
MAX_LAG_S = 0.1


@dataclass(frozen=True, slots=True)
class Faults:
    """Ways to be broken, for tests. `stalled` is the one that /health cannot see."""

    extra_step_s: float = 0.0
    stalled: bool = False
    error_ratio: float = 0.0  # share of requests answered with 500


HEALTHY = Faults()


@dataclass(slots=True, eq=False)
class Generation:
    """One request on its way. Times are seconds on the event loop's clock."""

    number: int
    prompt_tokens: int
    output_tokens: int
    arrival_s: float
    scheduled_s: float = 0.0
    first_token_s: float = 0.0
    last_token_s: float = 0.0
    tokens: int = 0
    preemptions: int = 0
    _ready: asyncio.Queue[int | None] = field(default_factory=asyncio.Queue)

    async def next_token(self) -> int | None:
        """The number of the next token, from 1; None when the request was cut short."""
        return await self._ready.get()

    def give_token(self, now_s: float) -> None:
        self.tokens += 1
        self.last_token_s = now_s
        self._ready.put_nowait(self.tokens)

    def cut(self) -> None:
        self._ready.put_nowait(None)


class Driver:
    """Runs one engine in real time. Used from one event loop; not thread-safe."""

    def __init__(self, profile: Profile, metrics: Metrics, *, seed: int = 0, faults: Faults = HEALTHY) -> None:
        self.engine = Engine(profile)
        self.worst_lag_s = 0.0  # how far behind its schedule it has been: was the stand-in the bottleneck?
        self._profile = profile
        self._metrics = metrics
        self._random = Random(seed)
        self._open: dict[int, Generation] = {}
        self._loop_task: asyncio.Task[None] | None = None
        self._closed = False
        self._flowing = asyncio.Event()
        self._faults = faults
        self.faults = faults

    @property
    def faults(self) -> Faults:
        return self._faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        """Change what is broken, from the next step on."""
        self._faults = faults
        if faults.stalled:
            self._flowing.clear()
        else:
            self._flowing.set()

    def submit(self, *, prompt_tokens: int, output_tokens: int) -> Generation:
        """Queue a request. ValueError as Engine.submit; after close() it is cut short at once."""
        number = self.engine.submit(prompt_tokens=prompt_tokens, output_tokens=output_tokens)
        now_s = asyncio.get_running_loop().time()
        generation = Generation(number, prompt_tokens, output_tokens, arrival_s=now_s)
        self._open[number] = generation
        if self._closed:
            self._drop(generation)
        elif self._loop_task is None or self._loop_task.done():
            self._loop_task = asyncio.get_running_loop().create_task(self._run())
        return generation

    def abort(self, generation: Generation) -> None:
        """Drop a request whose client has gone, freeing its blocks at once; nothing if it has ended.

        It appears in no counter: vLLM 0.32 drops such a request before its statistics see it (measured).
        """
        if generation.number in self._open:
            self._drop(generation)

    def close(self) -> None:
        """Stop stepping and cut every request short."""
        self._closed = True
        if self._loop_task is not None:
            self._loop_task.cancel()
        for generation in list(self._open.values()):
            self._drop(generation)

    def _drop(self, generation: Generation) -> None:
        del self._open[generation.number]
        self.engine.abort(generation.number)
        generation.cut()

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

    def _step_seconds(self, plan: StepPlan, now_s: float) -> float:
        seconds = self._profile.cost.step_seconds(plan.batch)
        return self._profile.unrest.seconds(seconds, now_s, self._random) + self._faults.extra_step_s

    def _note_start(self, plan: StepPlan, now_s: float) -> None:
        for number in plan.admitted:
            generation = self._open[number]
            generation.scheduled_s = now_s
            self._metrics.admitted(generation.prompt_tokens)
        for number in plan.preempted:
            self._open[number].preemptions += 1

    def _hand_out(self, outcome: StepOutcome, preempted: int, now_s: float) -> None:
        waits_s: list[float] = []
        gaps_s: list[float] = []
        prompt_tokens = 0
        for number in outcome.emitted:
            generation = self._open[number]
            if generation.tokens == 0:
                generation.first_token_s = now_s
                waits_s.append(now_s - generation.arrival_s)
                prompt_tokens += generation.prompt_tokens
            else:
                gaps_s.append(now_s - generation.last_token_s)
            generation.give_token(now_s)
        self._metrics.step(prompt_tokens=prompt_tokens, emitted=len(outcome.emitted), preempted=preempted)
        self._metrics.first_tokens(waits_s)
        self._metrics.later_tokens(gaps_s)
        for number in outcome.finished:
            self._metrics.completed(_times(self._open.pop(number)))


def _times(generation: Generation) -> RequestTimes:
    return RequestTimes(
        prompt_tokens=generation.prompt_tokens,
        output_tokens=generation.output_tokens,
        preemptions=generation.preemptions,
        arrival_s=generation.arrival_s,
        scheduled_s=generation.scheduled_s,
        first_token_s=generation.first_token_s,
        last_token_s=generation.last_token_s,
    )
