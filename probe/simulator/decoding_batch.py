"""The requests that decode: each gets one token in every step, so only the number of the step is counted up.

A request's end is known when it begins to decode, and the requests that need a block in a step are known by their
lengths modulo the block size. A step takes almost the same time to simulate for one request or a thousand.
"""

from collections import defaultdict

from probe.simulator.cost import Batch
from probe.simulator.engine_request import EngineRequest
from probe.simulator.kv_blocks import KvBlocks


class DecodingBatch:
    """`requests` by number, in order of admission; `kv_tokens`: their tokens in the cache; `step`: completed ones."""

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
        return -(-tokens // self._size) - request.shared_blocks

    def _stop(self, request: EngineRequest) -> None:
        """Bring the counts of a request that holds its blocks alone from now on up to date."""
        del self.requests[request.number]
        request.blocks = self.blocks_of(request)
        self._crossing[(request.since - request.computed) % self._size] -= 1
        moved = self.step - request.since
        request.generated += moved
        request.computed += moved
        self.kv_tokens -= request.computed
