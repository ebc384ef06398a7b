"""The prefix cache: one common prompt prefix, counted in KV blocks. Pure.

Input: how many of the prefix's blocks each request starts and stops using. Output: how many blocks of memory that
allocates or frees, and how many blocks of the prefix are cached.

A block is stored once, however many requests use it. An unused block counts as free memory and stays cached until its
memory is needed; blocks are evicted from the end of the prefix, as in vLLM. Not modelled: a second prefix. This cache
takes two different prefixes for the same one, so it needs too little memory for them; vLLM hashes each block and keeps
them apart.
"""

from collections import Counter


class CommonPrefix:
    """`cached`: blocks that a prompt would find; `in_use`: those of them that requests use."""

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
