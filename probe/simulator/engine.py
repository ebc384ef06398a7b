"""The simulated scheduler: continuous batching over a paged KV cache. Pure: no clock, no asyncio.

Input: requests as lengths, aborts, and the call that ends each step. Output: what a step held and which requests got a
token. The caller turns steps into time with cost.py: in real time (mock_server/driver.py) or in virtual time
(replica.py).

The rules follow vLLM 0.32's default scheduler. First come, first served. Running requests are scheduled first,
one token each for those that decode; a chunk of a long prompt gets what is left of max_num_batched_tokens. A waiting
request is admitted when fewer than max_num_seqs run, and tokens and blocks for its whole prompt are free, but not in a
step that had to preempt. When a running request needs a block and none is free, the one admitted last loses all of its
blocks, goes to the front of the queue and computes prompt and output again.

No livelock: every request fits in the empty cache (`submit` and Profile check that), and the oldest running request may
take blocks from all others, so each step advances it.

Between steps at most one request is in the middle of its prompt, and it is the last one admitted: it took all the
tokens that were left. KV memory is counted in kv_blocks.py.

Where the profile plans ahead (vLLM's AsyncScheduler), a request that ends in a step keeps its place and blocks while
the next one is planned, which may be empty. Where blocks are short, vLLM may preempt it, and this engine another one.

With a prefix cache (kv_blocks.py), a request gets what the cache holds of its prompt when it is admitted. If several
requests computed the common prefix at once, each but one frees its copy at the end of its prompt; in vLLM it keeps it.
"""

import heapq
from typing import Final

from probe.simulator.cost import Profile
from probe.simulator.engine_step import ScheduledStep, Step, StepOutcome, scheduled
from probe.simulator.kv_blocks import KvBlocks
from probe.simulator.simulated_request import SimulatedRequest

_BITS: Final = 30  # requests of one engine are fewer than 2 to this power
_NEVER: Final = 1 << _BITS


class DecodingBatch:
    """The requests that decode: each gets one token in every step, so only the number of the step is counted up.

    A request's end is known when it begins to decode, and the requests that need a block in a step are known by their
    lengths modulo the block size. A step takes almost the same time to simulate for one request or a thousand.
    `requests` by number, in order of admission; `kv_tokens`: their tokens in the cache; `step`: completed ones.
    """

    def __init__(self, blocks: KvBlocks) -> None:
        self.requests: dict[int, SimulatedRequest] = {}
        self.size = 0  # of the batch
        self.kv_tokens = 0
        self.step = 0
        self._blocks = blocks
        self._block_size = blocks.size
        self._crossing = [0] * blocks.size  # requests that need a block, by step number modulo block size
        self._ending: dict[int, SimulatedRequest] = {}  # by the step that ends them, and the order of admission
        self._ends: list[int] = []  # these keys, the next one first, and those of removed requests
        self._next_end = _NEVER  # the first one's step
        self._started = 0
        self._is_planned = False  # the blocks of the step in flight are taken

    def take_blocks(self) -> bool:
        """Take the blocks for one token each. Return False, and take none, if too few are free."""
        needed = self._crossing[self.step % self._block_size]
        if needed > self._blocks.free:
            return False
        self._blocks.free -= needed
        self._is_planned = True
        return True

    def advance(self, ended: list[SimulatedRequest]) -> None:
        """Complete a step in which each request got a token. Stop those that got their last, and add them to `ended`.

        As after `remove`, their blocks are the caller's to release.
        """
        self._is_planned = False
        self.kv_tokens += self.size
        self.step += 1
        while self._next_end < self.step:
            request = self._ending.pop(heapq.heappop(self._ends), None)
            self._next_end = self._ends[0] >> _BITS if self._ends else _NEVER
            if request is not None:
                self._stop(request)
                ended.append(request)

    def start(self, request: SimulatedRequest) -> None:
        """Let a request decode from the next step on; its prompt has been computed."""
        request.since = self.step
        self.requests[request.number] = request
        self.size += 1
        self.kv_tokens += request.computed
        self._crossing[(self.step - request.computed) % self._block_size] += 1
        self._started += 1
        request.end = (request.last_step() << _BITS) + self._started
        self._ending[request.end] = request
        heapq.heappush(self._ends, request.end)
        self._next_end = self._ends[0] >> _BITS

    def remove(self, request: SimulatedRequest) -> None:
        """Stop a request before its end: it is aborted or preempted."""
        del self._ending[request.end]
        self._stop(request)

    def certain_steps(self) -> int:
        """Return how many steps are certain to end or preempt no request, if none is admitted. There must be one."""
        cycles = self._blocks.free // self.size  # in block_size steps, each request takes one block
        return min(self._next_end - self.step, cycles * self._block_size)

    def mean_kv_tokens(self, steps: int) -> int:
        """Return the mean tokens in the cache in the next `steps` steps."""
        return self.kv_tokens + self.size * (steps - 1) // 2

    def skip(self, steps: int) -> None:
        """Run that many steps at once."""
        cycles = steps // self._block_size
        taken = cycles * self.size
        for step in range(self.step + cycles * self._block_size, self.step + steps):
            taken += self._crossing[step % self._block_size]
        self._blocks.free -= taken
        self.kv_tokens += steps * self.size
        self.step += steps

    def blocks_of(self, request: SimulatedRequest) -> int:
        """Return a request's own blocks, in a planned step with that step's token."""
        tokens = request.computed + self.step - request.since + self._is_planned
        return self._blocks.needed_for(tokens) - request.shared_blocks

    def _stop(self, request: SimulatedRequest) -> None:
        """Bring the counts of a request that holds its blocks alone from now on up to date."""
        del self.requests[request.number]
        self.size -= 1
        request.blocks = self.blocks_of(request)
        self._crossing[(request.since - request.computed) % self._block_size] -= 1
        moved = self.step - request.since
        request.generated += moved
        request.computed += moved
        self.kv_tokens -= request.computed


class SimulatedEngine:
    """Queue, batch and KV blocks of one server. Requests have the numbers that `submit` returns.

    A step is planned and completed with `plan` and `complete`, which fill `in_flight`, or with `plan_step` and
    `complete_step`, which tell it by numbers.
    """

    def __init__(self, profile: Profile) -> None:
        self.in_flight = Step()
        self._profile = profile
        self._max_seqs, self._max_tokens = profile.max_num_seqs, profile.max_num_batched_tokens
        self._is_caching, self._plans_ahead = profile.prefix_caching, profile.plans_ahead
        self._blocks = KvBlocks(profile)
        self._requests: dict[int, SimulatedRequest] = {}
        self._waiting: list[SimulatedRequest] = []
        self._prompts: list[SimulatedRequest] = []  # admitted, their prompts not fully computed
        self._decoding = DecodingBatch(self._blocks)  # the last one admitted is preempted first
        self._is_planned = False
        self._leaving = 0  # of `in_flight.finished`, with their places while the next step is planned
        self._submitted = 0

    @property
    def running(self) -> int:
        return self._decoding.size + len(self._prompts)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def free_blocks(self) -> int:
        return self._blocks.free

    @property
    def kv_usage(self) -> float:
        """Return the share of the usable KV blocks in use, 0 to 1."""
        return self._blocks.usage()

    @property
    def shared_blocks(self) -> int:
        """Return the blocks of the common prefix in use."""
        return self._blocks.prefix.in_use

    def is_occupied(self) -> bool:
        return self._decoding.size > 0 or len(self._prompts) > 0 or self._leaving > 0

    @property
    def has_work(self) -> bool:
        return self._has_work()

    def _has_work(self) -> bool:
        return self._decoding.size > 0 or len(self._waiting) > 0 or len(self._prompts) > 0

    def submit(self, *, prompt_tokens: int, output_tokens: int, shared_tokens: int = 0) -> int:
        """Queue a request and return its number. ValueError if it is empty or longer than max_model_len.

        All prompts begin with the same tokens, `shared_tokens` of them; a prefix cache finds them.
        """
        self._profile.check_lengths(prompt_tokens, output_tokens)
        return self.enter(SimulatedRequest(0.0, prompt_tokens, output_tokens, shared_tokens=shared_tokens))

    def enter(self, request: SimulatedRequest) -> int:
        """Queue a request of allowed length, and return its number."""
        request.number = self._submitted
        self._submitted += 1
        self._requests[request.number] = request
        self._waiting.append(request)
        return request.number

    def abort(self, number: int) -> bool:
        """Drop a request and free its blocks, also in the middle of a step. Return False if it is not here."""
        request = self._requests.pop(number, None)
        if request is None:
            return False
        if number in self._decoding.requests:
            self._decoding.remove(request)
        elif request in self._prompts:
            self._prompts.remove(request)
        else:
            self._waiting.remove(request)
        self._blocks.release(request)
        return True

    def holds(self, request: SimulatedRequest) -> bool:
        """Return whether the request is here."""
        return self._requests.get(request.number) is request

    def cached_tokens(self, prompt_tokens: int, shared_tokens: int) -> int:
        """Return how many tokens of such a prompt the prefix cache holds; never all, its last has to be computed."""
        return self._blocks.cached_tokens(prompt_tokens, shared_tokens)

    def plan(self) -> bool:
        """Schedule the next step, taking its blocks; False when there is no work.

        RuntimeError if the step before has not been completed.
        """
        if self._is_planned:
            raise RuntimeError("complete_step() must come before the next plan_step()")
        if not self._has_work():
            self._leave()
            return False
        step, batch = self.in_flight, self._decoding
        step.clear()
        while not batch.take_blocks():
            self._preempt_last()
        step.decode(batch.size, batch.kv_tokens)
        budget = self._max_tokens - batch.size
        if self._prompts and budget:
            budget -= self._go_on_prefilling(self._prompts[0], budget)
        self._blocks.evict()
        if self._waiting and not step.preempted:
            self._admit(budget)
        self._leave()
        self._is_planned = True
        return True

    def complete(self) -> None:
        """End the planned step: give out its tokens, free finished requests. RuntimeError without a plan."""
        if not self._is_planned:
            raise RuntimeError("plan_step() must come before complete_step()")
        self._is_planned = False
        step = self.in_flight
        step.decoded = self._decoding.size  # without those that were aborted during the step
        if step.finished:
            step.finished.clear()
        self._decoding.advance(step.finished)
        if step.prefilled:
            step.prefilled.clear()
        for request in step.prefills:
            if self._advance(request):
                step.prefilled.append(request)
        for request in step.finished:
            del self._requests[request.number]
        self._leaving = len(step.finished)
        if not self._plans_ahead:
            self._leave()

    def plan_step(self) -> ScheduledStep | None:
        """As `plan`; None when there is no work."""
        return scheduled(tuple(self._decoding.requests), self.in_flight) if self.plan() else None

    def complete_step(self) -> StepOutcome:
        """As `complete`."""
        decoded = tuple(self._decoding.requests)
        self.complete()
        prefilled, finished = self.in_flight.prefilled, self.in_flight.finished
        return StepOutcome(decoded, tuple(r.number for r in prefilled), tuple(r.number for r in finished))

    def step(self) -> StepOutcome | None:
        """Plan and complete a step at once; None when there is no work."""
        return None if self.plan_step() is None else self.complete_step()

    def decode_only_steps(self) -> int:
        """Return how many steps are certain to only decode, with no request ending or preempted."""
        if self._waiting or self._prompts or not self._decoding.size or self._is_planned:
            return 0
        return self._decoding.certain_steps()

    def mean_kv_tokens(self, steps: int) -> int:
        """Return the mean tokens in the cache in the next `steps` decode-only steps."""
        return self._decoding.mean_kv_tokens(steps)

    def skip(self, steps: int) -> int:
        """Run that many decode-only steps at once. Return how many requests got a token in each."""
        self._leave()  # nothing waits, so freeing their slots early changes nothing
        self._decoding.skip(steps)
        self._blocks.evict()
        return self._decoding.size

    def held_blocks(self) -> dict[int, int]:
        """Return how many blocks each request holds, shared ones left out."""
        batch = self._decoding
        return {n: batch.blocks_of(r) if n in batch.requests else r.blocks for n, r in self._requests.items()}

    def _go_on_prefilling(self, request: SimulatedRequest, budget: int) -> int:
        """Plan a chunk of the prompt that is not fully computed, or preempt it. Return the chunk's tokens."""
        tokens = min(request.known() - request.computed, budget)
        if not self._blocks.take(request, tokens):
            self._preempt_last()
            return 0
        self.in_flight.prefill(request, tokens)
        return tokens

    def _admit(self, budget: int) -> None:
        """Start waiting requests within the limits, with their first chunks."""
        while budget and self._waiting and self._decoding.size + len(self._prompts) + self._leaving < self._max_seqs:
            request = self._waiting[0]
            if not self._blocks.admit(request):
                return
            self._waiting.pop(0)
            tokens = min(request.known() - request.computed, budget)
            self._blocks.take(request, tokens)
            self._blocks.evict()
            self._prompts.append(request)
            self.in_flight.prefill(request, tokens)
            self.in_flight.started.append(request)
            budget -= tokens

    def _advance(self, request: SimulatedRequest) -> bool:
        """Count a chunk as computed. Return whether it was the last, which produces a token."""
        if request.number not in self._requests:  # aborted during the step
            return False
        request.computed += request.chunk
        if request.computed < request.known():
            return False
        self._prompts.pop(0)  # it is the first: those before it are done
        request.generated += 1
        if self._is_caching:
            self._blocks.publish(request)
        if request.generated == request.steps:
            self.in_flight.finished.append(request)
        else:
            self._decoding.start(request)
        return True

    def _leave(self) -> None:
        if self._leaving:
            for request in self.in_flight.finished:
                self._blocks.release(request)
            self._leaving = 0

    def _preempt_last(self) -> None:
        if self._prompts:
            request = self._prompts.pop()
        else:
            request = next(reversed(self._decoding.requests.values()))
            self._decoding.remove(request)
        self._blocks.release(request)
        request.computed = 0
        request.preemptions += 1
        self._waiting.insert(0, request)
        self.in_flight.preempted.append(request)
