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

from collections import defaultdict, deque

from probe.simulator.cost import Batch, Profile
from probe.simulator.engine_step import EngineRequest, ScheduledStep, StepOutcome, step_content
from probe.simulator.kv_blocks import KvBlocks


class DecodingBatch:
    """The requests that decode: each gets one token in every step, so only the number of the step is counted up.

    A request's end is known when it begins to decode, and the requests that need a block in a step are known by their
    lengths modulo the block size. A step takes almost the same time to simulate for one request or a thousand.
    `requests` by number, in order of admission; `kv_tokens`: their tokens in the cache; `step`: completed ones.
    """

    __slots__ = ("_blocks", "_crossing", "_ending", "_is_planned", "_size", "kv_tokens", "requests", "step")

    def __init__(self, blocks: KvBlocks) -> None:
        self.requests: dict[int, EngineRequest] = {}
        self.kv_tokens = 0
        self.step = 0
        self._blocks = blocks
        self._size = blocks.size
        self._crossing = [0] * blocks.size  # requests that need a block, by step number modulo block size
        self._ending: defaultdict[int, list[EngineRequest]] = defaultdict(list)  # by the step that ends them
        self._is_planned = False  # the blocks of the step in flight are taken

    def take_blocks(self) -> bool:
        """Take the blocks for one token each. Return False, and take none, if too few are free."""
        blocks, needed = self._blocks, self._crossing[self.step % self._size]
        if needed > blocks.free:
            return False
        blocks.free -= needed
        self._is_planned = True
        return True

    def advance(self, tokens: int) -> list[EngineRequest]:
        """Complete a step in which that many requests got a token. Stop and return those that got their last.

        As after `remove`, their blocks are the caller's to release.
        """
        self._is_planned = False
        ended = self._ending.pop(self.step, [])  # in order of admission, as they began to decode
        self.step += 1
        self.kv_tokens += tokens
        for request in ended:
            self._stop(request)
        return ended

    def start(self, request: EngineRequest) -> None:
        """Let a request decode from the next step on; its prompt has been computed."""
        request.since = self.step
        self.requests[request.number] = request
        self.kv_tokens += request.computed
        self._crossing[(self.step - request.computed) % self._size] += 1
        self._ending[request.last_step].append(request)

    def remove(self, request: EngineRequest) -> None:
        """Stop a request before its end: it is aborted or preempted."""
        self._ending[request.last_step].remove(request)
        self._stop(request)

    def certain_steps(self) -> int:
        """Return how many steps are certain to end or preempt no request, if none is admitted. There must be one."""
        cycles = self._blocks.free // len(self.requests)  # in block_size steps, each request takes one block
        return min(min(self._ending) - self.step, cycles * self._size)

    def mean_batch(self, steps: int) -> Batch:
        """Return the mean content of the next `steps` steps."""
        decoding = len(self.requests)
        return Batch(decoding, decoding, self.kv_tokens + decoding * (steps - 1) // 2)

    def skip(self, steps: int) -> None:
        """Run that many steps at once."""
        decoding = len(self.requests)
        cycles, rest = divmod(steps, self._size)
        phases = ((self.step + i) % self._size for i in range(rest))
        self._blocks.free -= cycles * decoding + sum(self._crossing[phase] for phase in phases)
        self.kv_tokens += steps * decoding
        self.step += steps

    def blocks_of(self, request: EngineRequest) -> int:
        """Return a request's own blocks, in a planned step with that step's token."""
        tokens = request.computed + self.step - request.since + self._is_planned
        return -(-tokens // self._size) + self._blocks.of_request - request.shared_blocks

    def _stop(self, request: EngineRequest) -> None:
        """Bring the counts of a request that holds its blocks alone from now on up to date."""
        del self.requests[request.number]
        request.blocks = self.blocks_of(request)
        self._crossing[(request.since - request.computed) % self._size] -= 1
        moved = self.step - request.since
        request.generated += moved
        request.computed += moved
        self.kv_tokens -= request.computed


class SimulatedEngine:
    """Queue, batch and KV blocks of one server. Requests are the integers that `submit` returns."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._blocks = KvBlocks(profile)
        self._requests: dict[int, EngineRequest] = {}
        self._waiting: deque[EngineRequest] = deque()
        self._prompts: list[EngineRequest] = []  # admitted, their prompts not fully computed
        self._decoding = DecodingBatch(self._blocks)  # the last one admitted is preempted first
        self._in_flight: ScheduledStep | None = None
        self._has_aborted = False  # a decoding request, in the step in flight
        self._leaving: list[EngineRequest] = []  # ended, with their places while the next step is planned
        self._submitted = 0

    @property
    def running(self) -> int:
        return len(self._decoding.requests) + len(self._prompts)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def free_blocks(self) -> int:
        return self._blocks.free

    @property
    def kv_usage(self) -> float:
        """Return the share of the usable KV blocks in use, 0 to 1."""
        return self._blocks.usage

    @property
    def shared_blocks(self) -> int:
        """Return the blocks of the common prefix in use."""
        return self._blocks.prefix.in_use

    @property
    def is_occupied(self) -> bool:
        return bool(self.running or self._leaving)

    @property
    def has_work(self) -> bool:
        return bool(self._decoding.requests or self._waiting or self._prompts)

    def submit(self, *, prompt_tokens: int, output_tokens: int, shared_tokens: int = 0) -> int:
        """Queue a request and return its number. ValueError if it is empty or longer than max_model_len.

        All prompts begin with the same tokens, `shared_tokens` of them; a prefix cache finds them.
        """
        self._profile.check_lengths(prompt_tokens, output_tokens)
        request = EngineRequest(self._submitted, prompt_tokens, output_tokens, min(shared_tokens, prompt_tokens))
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
            self._has_aborted = True
            self._decoding.remove(request)
        else:
            (self._prompts if request in self._prompts else self._waiting).remove(request)
        self._blocks.release(request)
        return True

    def cached_tokens(self, prompt_tokens: int, shared_tokens: int) -> int:
        """Return how many tokens of such a prompt the prefix cache holds; never all, its last has to be computed."""
        return self._blocks.cached_tokens(prompt_tokens, shared_tokens)

    def plan_step(self) -> ScheduledStep | None:
        """Schedule the next step, taking its blocks; None when there is no work.

        RuntimeError if the step before has not been completed.
        """
        if self._in_flight is not None:
            raise RuntimeError("complete_step() must come before the next plan_step()")
        if not self.has_work:
            self._leave()
            return None
        preempted: list[int] = []  # the last one admitted first
        batch = self._decoding
        while not batch.take_blocks():
            preempted.append(self._preempt_last())
        decoding, kv_tokens = tuple(batch.requests), batch.kv_tokens
        budget = self._profile.max_num_batched_tokens - len(decoding)
        prefills: list[tuple[EngineRequest, int]] = []
        if self._prompts and budget and not self._go_on_prefilling(budget, prefills):
            preempted.append(self._preempt_last())
        self._blocks.evict()
        admitted: list[int] = []
        resumed: list[int] = []
        if self._waiting and not preempted:
            for request in self._admit(budget - sum(tokens for _, tokens in prefills), prefills):
                (resumed if request.preemptions else admitted).append(request.number)
        self._leave()
        self._in_flight = ScheduledStep(
            decoding,
            tuple((request.number, tokens) for request, tokens in prefills),
            step_content(len(decoding), kv_tokens, prefills),
            tuple(admitted),
            tuple(resumed),
            tuple(preempted),
        )
        return self._in_flight

    def complete_step(self) -> StepOutcome:
        """End the planned step: give out its tokens, free finished requests. RuntimeError without a plan."""
        plan = self._in_flight
        if plan is None:
            raise RuntimeError("plan_step() must come before complete_step()")
        self._in_flight = None
        decoded = plan.decoding
        if self._has_aborted:
            decoded = tuple(number for number in decoded if number in self._decoding.requests)
            self._has_aborted = False
        self._leaving = self._decoding.advance(len(decoded))
        prefilled: list[int] = []
        for number, tokens in plan.prefills:
            request = self._requests.get(number)
            if request is not None and self._advance(request, tokens):  # it may have been aborted during the step
                prefilled.append(number)
                if request.generated == request.output_tokens:
                    self._leaving.append(request)
                else:
                    self._decoding.start(request)
        finished = tuple(request.number for request in self._leaving)
        for number in finished:
            del self._requests[number]
        if not self._profile.plans_ahead:
            self._leave()
        return StepOutcome(decoded, tuple(prefilled), finished)

    def step(self) -> StepOutcome | None:
        """Plan and complete a step at once; None when there is no work."""
        return None if self.plan_step() is None else self.complete_step()

    def decode_only_steps(self) -> int:
        """Return how many steps are certain to only decode, with no request ending or preempted."""
        if self._waiting or self._prompts or not self._decoding.requests or self._in_flight is not None:
            return 0
        return self._decoding.certain_steps()

    def decode_only_batch(self, steps: int) -> Batch:
        """Return the mean content of the next `steps` decode-only steps."""
        return self._decoding.mean_batch(steps)

    def skip(self, steps: int) -> tuple[int, ...]:
        """Run that many decode-only steps at once. Return the requests that got a token in each."""
        self._leave()  # nothing waits, so freeing their slots early changes nothing
        self._decoding.skip(steps)
        self._blocks.evict()
        return tuple(self._decoding.requests)

    def held_blocks(self) -> dict[int, int]:
        """Return how many blocks each request holds, shared ones left out."""
        batch = self._decoding
        return {n: batch.blocks_of(r) if n in batch.requests else r.blocks for n, r in self._requests.items()}

    def _go_on_prefilling(self, budget: int, prefills: list[tuple[EngineRequest, int]]) -> bool:
        request = self._prompts[0]
        tokens = min(request.known - request.computed, budget)
        if not self._blocks.take(request, tokens):
            return False
        prefills.append((request, tokens))
        return True

    def _admit(self, budget: int, prefills: list[tuple[EngineRequest, int]]) -> list[EngineRequest]:
        """Start waiting requests within the limits, and append their first chunks to `prefills`."""
        started: list[EngineRequest] = []
        while budget and self._waiting and self.running + len(self._leaving) < self._profile.max_num_seqs:
            request = self._waiting[0]
            if not self._blocks.admit(request):
                break
            self._waiting.popleft()
            tokens = min(request.known - request.computed, budget)
            self._blocks.take(request, tokens)
            self._blocks.evict()
            self._prompts.append(request)
            prefills.append((request, tokens))
            started.append(request)
            budget -= tokens
        return started

    def _advance(self, request: EngineRequest, tokens: int) -> bool:
        """Count a chunk as computed. Return whether it was the last, which produces a token."""
        request.computed += tokens
        if request.computed < request.known:
            return False
        self._prompts.remove(request)
        request.generated += 1
        if self._profile.prefix_caching:
            self._blocks.publish(request)
        return True

    def _leave(self) -> None:
        for request in self._leaving:
            self._blocks.release(request)
        self._leaving = []

    def _preempt_last(self) -> int:
        if self._prompts:
            request = self._prompts.pop()
        else:
            request = next(reversed(self._decoding.requests.values()))
            self._decoding.remove(request)
        self._blocks.release(request)
        request.computed = 0
        request.preemptions += 1
        self._waiting.appendleft(request)
        return request.number
