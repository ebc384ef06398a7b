"""The KV cache of a simulated engine, counted in blocks: free ones, the requests', and the common prefix's."""

from collections import Counter

from probe.simulator.cost import Profile
from probe.simulator.simulated_request import SimulatedRequest


class CommonPrefix:
    """A common prefix of prompts. `cached`: blocks that a prompt would find; `in_use`: cached blocks that requests use.

    A block is stored once, however many requests use it. An unused block counts as free memory and stays cached until
    its memory is needed; blocks are evicted from the end of the prefix, as in vLLM. Two different prefixes are taken
    for the same one, and so need too little memory; vLLM hashes each block and keeps them apart.
    """

    def __init__(self) -> None:
        self.cached = 0
        self.in_use = 0
        self._users: Counter[int] = Counter()  # number of requests, by how many blocks they use

    def would_allocate(self, blocks: int) -> int:
        """Return how many blocks of free memory a request that uses `blocks` of the prefix would take."""
        return max(blocks - self.in_use, 0)

    def acquire(self, blocks: int) -> int:
        """Count a request that uses `blocks` of the prefix. Return how many blocks of free memory it takes."""
        if not blocks:
            return 0
        self._users[blocks] += 1
        taken = self.would_allocate(blocks)
        self.in_use += taken
        self.cached = max(self.cached, self.in_use)
        return taken

    def release(self, blocks: int) -> int:
        """Uncount a request that used `blocks` of the prefix. Return how many blocks of memory that frees."""
        if not blocks:
            return 0
        self._users[blocks] -= 1
        if self._users[blocks]:
            return 0
        del self._users[blocks]
        before, self.in_use = self.in_use, max(self._users, default=0)
        return before - self.in_use

    def evict(self, free_blocks: int) -> None:
        """Drop cached blocks that no request uses and that no longer fit into the free memory."""
        self.cached = min(self.cached, self.in_use + free_blocks)


class KvBlocks:
    """The blocks of one engine.

    `free`: blocks that no request holds; `size`: tokens in a block; `of_request`: blocks of each beside its tokens'.
    """

    def __init__(self, profile: Profile) -> None:
        self.size = profile.block_size
        self.free = profile.usable_blocks
        self.of_request = profile.request_blocks
        self.prefix = CommonPrefix()
        self._usable = profile.usable_blocks

    def needed_for(self, tokens: int) -> int:
        """Return how many blocks `tokens` tokens of one request occupy."""
        return -(-tokens // self.size) + self.of_request

    def usage(self) -> float:
        """Return the share of the usable blocks in use, 0 to 1."""
        return 1.0 - self.free / self._usable

    def cached_tokens(self, prompt_tokens: int, shared_tokens: int) -> int:
        """Return how many tokens of such a prompt the prefix cache holds; never all, its last has to be computed."""
        return min(min(shared_tokens, prompt_tokens - 1) // self.size, self.prefix.cached) * self.size

    def admit(self, request: SimulatedRequest) -> bool:
        """Give a request the cached part of its prompt. Return False if the rest of the prompt does not fit.

        Blocks for the whole prompt must be free, though only the chunk's are taken (vLLM's
        scheduler_reserve_full_isl, on by default): otherwise long prompts would be admitted only to be preempted.
        """
        cached = self.cached_tokens(request.known(), request.shared_tokens)
        shared = cached // self.size
        needed = self.needed_for(request.known()) - shared + self.prefix.would_allocate(shared)
        if needed > self.free:
            return False
        request.computed = cached
        request.shared_blocks = shared
        self.free -= self.prefix.acquire(shared)
        return True

    def take(self, request: SimulatedRequest, tokens: int) -> bool:
        """Take the blocks for the next tokens of a prompt. Return False if too few are free."""
        blocks = self.needed_for(request.computed + tokens) - request.shared_blocks - request.blocks
        if blocks > self.free:
            return False
        request.blocks += blocks
        self.free -= blocks
        return True

    def release(self, request: SimulatedRequest) -> None:
        """Free all blocks of a request."""
        self.free += request.blocks + self.prefix.release(request.shared_blocks)
        request.blocks = request.shared_blocks = 0

    def publish(self, request: SimulatedRequest) -> None:
        """Put the common prefix that a request computed into the cache, and drop its own copy of cached blocks."""
        whole = request.shared_tokens // self.size
        own = whole - request.shared_blocks
        if own > 0:
            request.blocks -= own
            self.free += own + self.prefix.release(request.shared_blocks)
            self.free -= self.prefix.acquire(whole)
            request.shared_blocks = whole

    def evict(self) -> None:
        """Drop cached blocks that no longer fit into the free memory."""
        if self.prefix.cached:  # called in every step
            self.prefix.evict(self.free)
