"""The stand-in's scheduler: continuous batching over a paged KV cache. Pure: no clock, no asyncio.

Input: requests as lengths, aborts, and the call that ends each step. Output: what a step held
and who got a token. Whoever drives it turns steps into time with cost.py, be it on a clock
(driver.py) or in virtual time.

The rules are those of vLLM 0.32's default scheduler. First come, first served. Requests that
run are scheduled first, one token each for those that decode, so that a chunk of a long prompt
gets what is left of max_num_batched_tokens. A waiting request is admitted when a seat
(max_num_seqs), tokens and blocks for all it knows so far are free, and not in a step that had
to preempt. When a running request needs a block and none is free, the one admitted last loses
all of its blocks, goes to the front of the queue and computes prompt and output again.

Why it cannot livelock: every request fits in the empty cache (`submit` and Profile see to it),
and the oldest running request may take blocks from all others, so each step advances it.
"""

from collections import deque
from dataclasses import dataclass

from probe.sim.cost import Profile


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A step about to run: tokens to compute for each request, and how the batch changed to get there."""

    scheduled: tuple[tuple[int, int], ...]  # (request, tokens), in order of admission
    admitted: tuple[int, ...]  # started for the first time
    resumed: tuple[int, ...]  # started again after a preemption
    preempted: tuple[int, ...]

    @property
    def sequences(self) -> int:
        return len(self.scheduled)

    @property
    def tokens(self) -> int:
        return sum(tokens for _, tokens in self.scheduled)


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """A step that ran. `emitted` got one token each; `finished`, a part of them, got their last."""

    emitted: tuple[int, ...]
    finished: tuple[int, ...]
    sequences: int
    tokens: int
    admitted: tuple[int, ...]
    preempted: tuple[int, ...]


@dataclass(slots=True, eq=False)
class _Request:
    number: int
    prompt_tokens: int
    output_tokens: int
    generated: int = 0
    computed: int = 0  # tokens whose keys and values are in the cache
    blocks: int = 0
    preemptions: int = 0

    @property
    def known(self) -> int:
        """Tokens there are: a step computes them up to here, and the last one makes the next."""
        return self.prompt_tokens + self.generated


class Engine:
    """Queue, batch and KV blocks of one server. Requests are the integers that `submit` returns."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._requests: dict[int, _Request] = {}
        self._waiting: deque[_Request] = deque()
        self._running: list[_Request] = []  # in order of admission, so the last one is preempted first
        self._free_blocks = profile.usable_blocks
        self._in_flight: StepPlan | None = None
        self._submitted = 0

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def free_blocks(self) -> int:
        return self._free_blocks

    @property
    def kv_usage(self) -> float:
        """Share of the usable KV blocks that is held, 0 to 1."""
        return 1.0 - self._free_blocks / self._profile.usable_blocks

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._waiting)

    def submit(self, *, prompt_tokens: int, output_tokens: int) -> int:
        """Queue a request; its number. ValueError if it is empty or longer than max_model_len."""
        if prompt_tokens < 1 or output_tokens < 1:
            raise ValueError("a request needs at least one prompt token and one output token")
        if prompt_tokens + output_tokens > self._profile.max_model_len:
            raise ValueError(f"a request may have at most {self._profile.max_model_len} tokens, in and out")
        request = _Request(self._submitted, prompt_tokens, output_tokens)
        self._submitted += 1
        self._requests[request.number] = request
        self._waiting.append(request)
        return request.number

    def abort(self, number: int) -> bool:
        """Forget a request and free its blocks, also in the middle of a step; False if it is not here."""
        request = self._requests.pop(number, None)
        if request is None:
            return False
        self._release(request)
        if request in self._running:
            self._running.remove(request)
        else:
            self._waiting.remove(request)
        return True

    def plan_step(self) -> StepPlan | None:
        """Schedule the next step, taking its blocks; None when there is no work.

        RuntimeError if the step before has not been completed.
        """
        if self._in_flight is not None:
            raise RuntimeError("complete_step() must come before the next plan_step()")
        if not self.has_work:
            return None
        scheduled, preempted = self._schedule_running()
        admitted: list[int] = []
        resumed: list[int] = []
        if not preempted:
            budget = self._profile.max_num_batched_tokens - sum(tokens for _, tokens in scheduled)
            for request, tokens in self._admit(budget):
                scheduled.append((request.number, tokens))
                (resumed if request.preemptions else admitted).append(request.number)
        self._in_flight = StepPlan(tuple(scheduled), tuple(admitted), tuple(resumed), tuple(preempted))
        return self._in_flight

    def complete_step(self) -> StepOutcome:
        """End the planned step: hand out its tokens, free the finished. RuntimeError without a plan."""
        plan = self._in_flight
        if plan is None:
            raise RuntimeError("plan_step() must come before complete_step()")
        self._in_flight = None
        emitted: list[int] = []
        finished: list[int] = []
        for number, tokens in plan.scheduled:
            request = self._requests.get(number)
            if request is None:  # aborted during the step
                continue
            request.computed += tokens
            if request.computed < request.known:
                continue
            request.generated += 1
            emitted.append(number)
            if request.generated == request.output_tokens:
                finished.append(number)
                self.abort(number)
        return StepOutcome(
            emitted=tuple(emitted),
            finished=tuple(finished),
            sequences=plan.sequences,
            tokens=plan.tokens,
            admitted=plan.admitted,
            preempted=plan.preempted,
        )

    def step(self) -> StepOutcome | None:
        """Plan and complete a step at once, for virtual time; None when there is no work."""
        return None if self.plan_step() is None else self.complete_step()

    def _schedule_running(self) -> tuple[list[tuple[int, int]], list[int]]:
        scheduled: list[tuple[int, int]] = []
        preempted: list[int] = []
        budget = self._profile.max_num_batched_tokens
        while budget and len(scheduled) < len(self._running):
            request = self._running[len(scheduled)]
            tokens = min(request.known - request.computed, budget)
            needed = self._profile.blocks_for(request.computed + tokens) - request.blocks
            while needed > self._free_blocks and self._running[-1] is not request:
                preempted.append(self._preempt_last())
            if needed > self._free_blocks:  # it is the last one itself
                preempted.append(self._preempt_last())
                break
            self._take(request, needed)
            scheduled.append((request.number, tokens))
            budget -= tokens
        return scheduled, preempted

    def _admit(self, budget: int) -> list[tuple[_Request, int]]:
        admitted: list[tuple[_Request, int]] = []
        while budget and self._waiting and len(self._running) < self._profile.max_num_seqs:
            request = self._waiting[0]
            # Blocks for every known token must be free, though only the chunk's are taken (vLLM's
            # scheduler_reserve_full_isl, on by default): or long prompts would be admitted to be preempted.
            if self._profile.blocks_for(request.known) > self._free_blocks:
                break
            tokens = min(request.known, budget)
            self._waiting.popleft()
            self._running.append(request)
            self._take(request, self._profile.blocks_for(tokens))
            admitted.append((request, tokens))
            budget -= tokens
        return admitted

    def _preempt_last(self) -> int:
        request = self._running.pop()
        self._release(request)
        request.computed = 0
        request.preemptions += 1
        self._waiting.appendleft(request)
        return request.number

    def _take(self, request: _Request, blocks: int) -> None:
        request.blocks += blocks
        self._free_blocks -= blocks

    def _release(self, request: _Request) -> None:
        self._free_blocks += request.blocks
        request.blocks = 0
