"""The simulated scheduler: continuous batching over a paged KV cache. Pure: no clock, no asyncio.

Input: requests as lengths, aborts, and the call that ends each step. Output: what a step held and which requests got a
token. The caller turns steps into time with cost.py: in real time (mock_server/driver.py) or in virtual time
(replica.py).

The rules are those of vLLM 0.32's default scheduler. First come, first served. Running requests are scheduled first,
one token each for those that decode; a chunk of a long prompt gets what is left of max_num_batched_tokens. A waiting
request is admitted when fewer than max_num_seqs run, and tokens and blocks for its whole prompt are free, but not in a
step that had to preempt. When a running request needs a block and none is free, the one admitted last loses all of its
blocks, goes to the front of the queue and computes prompt and output again.

No livelock: every request fits in the empty cache (`submit` and Profile check that), and the oldest running request may
take blocks from all others, so each step advances it.

Speed: decoding requests all get one token in every step, so nothing is counted up for each of them. A request's end is
known when it begins to decode, and the requests that need a block in a step are known by their lengths modulo the block
size. A step takes almost the same time to simulate for one request or a thousand. Between steps at most one request is
in the middle of its prompt, and it is the last one admitted: it took all the tokens that were left.

With a prefix cache (prefix_cache.py), a request gets what the cache holds of its prompt when it is admitted. If several
requests computed the common prefix at once, each but one frees its copy at the end of its prompt; in vLLM it keeps it.
"""

from collections import defaultdict, deque
from dataclasses import dataclass

from probe.simulator.cost import Batch, Profile
from probe.simulator.prefix_cache import CommonPrefix


@dataclass(frozen=True, slots=True)
class ScheduledStep:
    """A step about to run, and the changes of the batch. Requests are in order of admission."""

    decoding: tuple[int, ...]  # one token each
    prefills: tuple[tuple[int, int], ...]  # (request, tokens)
    batch: Batch
    admitted: tuple[int, ...]  # started for the first time
    resumed: tuple[int, ...]  # started again after a preemption
    preempted: tuple[int, ...]

    @property
    def scheduled(self) -> tuple[tuple[int, int], ...]:
        """Tokens to compute for each request."""
        return (*((number, 1) for number in self.decoding), *self.prefills)


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """A completed step. Requests in `prefilled` got their first token, or the first since a preemption."""

    decoded: tuple[int, ...]
    prefilled: tuple[int, ...]
    finished: tuple[int, ...]

    @property
    def emitted(self) -> tuple[int, ...]:
        """All requests that got a token, in order of admission."""
        return self.decoded + self.prefilled


@dataclass(slots=True, eq=False)
class _Request:
    """`generated` and `computed` are as they were before step `since`; a request that decodes has moved on."""

    number: int
    prompt_tokens: int
    output_tokens: int
    shared_tokens: int
    generated: int = 0
    computed: int = 0  # tokens whose keys and values are in the cache
    since: int = 0
    blocks: int = 0  # of its own, kept while it is not decoding
    shared_blocks: int = 0  # of the common prefix
    preemptions: int = 0

    @property
    def known(self) -> int:
        """Tokens so far, prompt and output; computing the last of them produces the next."""
        return self.prompt_tokens + self.generated


class SimulatedEngine:
    """Queue, batch and KV blocks of one server. Requests are the integers that `submit` returns."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._block = profile.block_size
        self._requests: dict[int, _Request] = {}
        self._waiting: deque[_Request] = deque()
        self._decoding: dict[int, _Request] = {}  # in order of admission, so the last one is preempted first
        self._prompts: list[_Request] = []  # admitted, their prompts not fully computed
        self._kv_tokens = 0  # in the cache, of decoding requests
        self._crossing = [0] * profile.block_size  # requests that need a block, by step number modulo block size
        self._ending: defaultdict[int, list[_Request]] = defaultdict(list)  # by the step that ends them
        self._free_blocks = profile.usable_blocks
        self._in_flight: ScheduledStep | None = None
        self._has_aborted = False  # a decoding request, in the step in flight
        self._step = 0
        self._submitted = 0
        self._prefix = CommonPrefix()

    @property
    def running(self) -> int:
        return len(self._decoding) + len(self._prompts)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def free_blocks(self) -> int:
        return self._free_blocks

    @property
    def kv_usage(self) -> float:
        """Share of the usable KV blocks in use, 0 to 1."""
        return 1.0 - self._free_blocks / self._profile.usable_blocks

    @property
    def has_work(self) -> bool:
        return bool(self._decoding or self._waiting or self._prompts)

    def submit(self, *, prompt_tokens: int, output_tokens: int, shared_tokens: int = 0) -> int:
        """Queue a request and return its number. ValueError if it is empty or longer than max_model_len.

        All requests have the same tokens at the beginning of their prompts, as far as their `shared_tokens` reach; a
        prefix cache finds them.
        """
        self._profile.check_lengths(prompt_tokens, output_tokens)
        request = _Request(self._submitted, prompt_tokens, output_tokens, min(shared_tokens, prompt_tokens))
        self._submitted += 1
        self._requests[request.number] = request
        self._waiting.append(request)
        return request.number

    def abort(self, number: int) -> bool:
        """Drop a request and free its blocks, also in the middle of a step. Return False if it is not here."""
        request = self._requests.pop(number, None)
        if request is None:
            return False
        if number in self._decoding:
            self._has_aborted = True
            self._ending[self._end(request)].remove(request)
            self._stop_decoding(request)
        elif request in self._prompts:
            self._prompts.remove(request)
            self._release(request)
        else:
            self._waiting.remove(request)
        return True

    def cached_tokens(self, prompt_tokens: int, shared_tokens: int) -> int:
        """Return how many tokens of such a prompt the prefix cache holds; never all, its last has to be computed."""
        return min(min(shared_tokens, prompt_tokens - 1) // self._block, self._prefix.cached) * self._block

    def plan_step(self) -> ScheduledStep | None:
        """Schedule the next step, taking its blocks; None when there is no work.

        RuntimeError if the step before has not been completed.
        """
        if self._in_flight is not None:
            raise RuntimeError("complete_step() must come before the next plan_step()")
        if not self.has_work:
            return None
        preempted = self._schedule_decoding()
        decoding, kv_tokens = tuple(self._decoding), self._kv_tokens
        budget = self._profile.max_num_batched_tokens - len(decoding)
        prefills: list[tuple[_Request, int]] = []
        if self._prompts and budget and not self._go_on_prefilling(budget, prefills):
            preempted.append(self._preempt_last())
        self._prefix.evict(self._free_blocks)
        admitted: list[int] = []
        resumed: list[int] = []
        if self._waiting and not preempted:
            for request in self._admit(budget - sum(tokens for _, tokens in prefills), prefills):
                (resumed if request.preemptions else admitted).append(request.number)
        prefilled = sum(tokens for _, tokens in prefills)
        batch = Batch(
            sequences=len(decoding) + len(prefills),
            tokens=len(decoding) + prefilled,
            kv_tokens=kv_tokens + sum(request.computed for request, _ in prefills),
            pairs=sum(tokens * (request.computed + tokens / 2) for request, tokens in prefills),
        )
        self._in_flight = ScheduledStep(
            decoding,
            tuple((request.number, tokens) for request, tokens in prefills),
            batch,
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
            decoded = tuple(number for number in decoded if number in self._decoding)
            self._has_aborted = False
        ended = self._ending.pop(self._step, [])  # in order of admission, as they began to decode
        self._step += 1
        self._kv_tokens += len(decoded)
        for done in ended:
            del self._requests[done.number]
            self._stop_decoding(done)
        finished = [done.number for done in ended]
        prefilled: list[int] = []
        for number, tokens in plan.prefills:
            request = self._requests.get(number)
            if request is not None and self._advance(request, tokens):  # it may have been aborted during the step
                prefilled.append(number)
                if request.generated == request.output_tokens:
                    finished.append(number)
                    del self._requests[number]
                    self._release(request)
                else:
                    self._start_decoding(request)
        return StepOutcome(decoded, tuple(prefilled), tuple(finished))

    def decode_only_steps(self) -> int:
        """Return how many steps are certain to only decode, with no request ending or preempted."""
        if self._waiting or self._prompts or not self._decoding or self._in_flight is not None:
            return 0
        cycles = self._free_blocks // len(self._decoding)  # in block_size steps, each request takes one block
        return min(min(self._ending) - self._step, cycles * self._block)

    def decode_only_batch(self, steps: int) -> Batch:
        """Return the mean content of the next `steps` decode-only steps."""
        decoding = len(self._decoding)
        return Batch(decoding, decoding, self._kv_tokens + decoding * (steps - 1) // 2)

    def skip(self, steps: int) -> tuple[int, ...]:
        """Run that many decode-only steps at once. Return the requests that got a token in each."""
        cycles, rest = divmod(steps, self._block)
        phases = ((self._step + i) % self._block for i in range(rest))
        self._free_blocks -= cycles * len(self._decoding) + sum(self._crossing[phase] for phase in phases)
        self._prefix.evict(self._free_blocks)
        self._kv_tokens += steps * len(self._decoding)
        self._step += steps
        return tuple(self._decoding)

    def step(self) -> StepOutcome | None:
        """Plan and complete a step at once; None when there is no work."""
        return None if self.plan_step() is None else self.complete_step()

    @property
    def shared_blocks(self) -> int:
        """Blocks of the common prefix in use."""
        return self._prefix.in_use

    def held_blocks(self) -> dict[int, int]:
        """Return how many blocks each request holds, shared ones left out."""
        return {n: self._blocks_of(r) if n in self._decoding else r.blocks for n, r in self._requests.items()}

    # Decoding: all of them, a token each.

    def _schedule_decoding(self) -> list[int]:
        """Take the blocks that this step's tokens need. Return the requests preempted for them, last admitted first."""
        preempted: list[int] = []
        phase = self._step % self._block
        while self._crossing[phase] > self._free_blocks:
            preempted.append(self._preempt_last())
        self._free_blocks -= self._crossing[phase]
        return preempted

    def _start_decoding(self, request: _Request) -> None:
        request.since = self._step
        self._decoding[request.number] = request
        self._kv_tokens += request.computed
        self._crossing[(self._step - request.computed) % self._block] += 1
        self._ending[self._end(request)].append(request)

    def _stop_decoding(self, request: _Request) -> None:
        """Free all that the request holds and bring its counts up to date."""
        del self._decoding[request.number]
        request.blocks = self._blocks_of(request)
        self._crossing[(request.since - request.computed) % self._block] -= 1
        moved = self._step - request.since
        request.generated += moved
        request.computed += moved
        self._kv_tokens -= request.computed
        self._release(request)

    def _end(self, request: _Request) -> int:
        """Return the step in which a decoding request gets its last token."""
        return request.since + request.output_tokens - request.generated - 1

    def _blocks_of(self, request: _Request) -> int:
        """Return a decoding request's own blocks, in a planned step with that step's token."""
        tokens = request.computed + self._step - request.since + (self._in_flight is not None)
        return -(-tokens // self._block) - request.shared_blocks

    # Prompts.

    def _go_on_prefilling(self, budget: int, prefills: list[tuple[_Request, int]]) -> bool:
        request = self._prompts[0]
        tokens = min(request.known - request.computed, budget)
        if not self._take(request, tokens):
            return False
        prefills.append((request, tokens))
        return True

    def _admit(self, budget: int, prefills: list[tuple[_Request, int]]) -> list[_Request]:
        started: list[_Request] = []
        while budget and self._waiting and self.running < self._profile.max_num_seqs:
            request = self._waiting[0]
            cached = self.cached_tokens(request.known, request.shared_tokens)
            shared = cached // self._block
            # Blocks for the whole prompt must be free, though only the chunk's are taken (vLLM's
            # scheduler_reserve_full_isl, on by default): otherwise long prompts would be admitted only to be preempted.
            needed = self._profile.blocks_for(request.known) - shared + self._prefix.would_allocate(shared)
            if needed > self._free_blocks:
                break
            self._waiting.popleft()
            request.computed = cached
            request.shared_blocks = shared
            self._free_blocks -= self._prefix.acquire(shared)
            tokens = min(request.known - cached, budget)
            self._take(request, tokens)
            self._prefix.evict(self._free_blocks)
            self._prompts.append(request)
            prefills.append((request, tokens))
            started.append(request)
            budget -= tokens
        return started

    def _advance(self, request: _Request, tokens: int) -> bool:
        """Count a chunk as computed. Return whether it was the last, which produces a token."""
        request.computed += tokens
        if request.computed < request.known:
            return False
        self._prompts.remove(request)
        request.generated += 1
        if self._profile.prefix_caching:
            self._publish(request)
        return True

    def _take(self, request: _Request, tokens: int) -> bool:
        blocks = self._profile.blocks_for(request.computed + tokens) - request.shared_blocks - request.blocks
        if blocks > self._free_blocks:
            return False
        request.blocks += blocks
        self._free_blocks -= blocks
        return True

    def _preempt_last(self) -> int:
        if self._prompts:
            request = self._prompts.pop()
            self._release(request)
        else:
            request = next(reversed(self._decoding.values()))
            self._ending[self._end(request)].remove(request)
            self._stop_decoding(request)
        request.computed = 0
        request.preemptions += 1
        self._waiting.appendleft(request)
        return request.number

    def _release(self, request: _Request) -> None:
        self._free_blocks += request.blocks + self._prefix.release(request.shared_blocks)
        request.blocks = request.shared_blocks = 0

    def _publish(self, request: _Request) -> None:
        """Put the common prefix that a request computed into the cache, and drop its own copy of cached blocks."""
        whole = request.shared_tokens // self._block
        own = whole - request.shared_blocks
        if own > 0:
            request.blocks -= own
            self._free_blocks += own + self._prefix.release(request.shared_blocks)
            self._free_blocks -= self._prefix.acquire(whole)
            request.shared_blocks = whole
