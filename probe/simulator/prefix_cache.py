"""The prefix cache: one beginning that prompts have in common, in blocks. Pure.

Input: how many of its blocks a request uses, and that it no longer does. Output: how many blocks of memory that takes
or frees, and how many are known.

The blocks are held once however many requests use them. Unused they are free memory, and known until others are given
that memory; they go from the end of the prefix, as vLLM's do. Not modelled: a second beginning. To this cache two
different ones are the same, so it holds too little for them; vLLM hashes each block, and keeps them apart.
"""

from collections import Counter


class CommonPrefix:
    """`known`: blocks that a prompt would find; `held`: those of them that requests use."""

    def __init__(self) -> None:
        self.known = 0
        self.held = 0
        self._users: Counter[int] = Counter()  # requests, by how many blocks they use

    def taking(self, blocks: int) -> int:
        """Blocks of free memory that a request would take which uses so many."""
        return max(blocks - self.held, 0)

    def use(self, blocks: int) -> int:
        """A request uses so many from now on. Blocks of free memory that this takes."""
        if not blocks:
            return 0
        self._users[blocks] += 1
        taken = self.taking(blocks)
        self.held += taken
        self.known = max(self.known, self.held)
        return taken

    def leave(self, blocks: int) -> int:
        """A request that used so many no longer does. Blocks of memory that this frees."""
        if not blocks:
            return 0
        self._users[blocks] -= 1
        if self._users[blocks]:
            return 0
        del self._users[blocks]
        before, self.held = self.held, max(self._users, default=0)
        return before - self.held

    def keep(self, free_blocks: int) -> None:
        """Forgets what is in use nowhere and no longer in the free memory either."""
        self.known = min(self.known, self.held + free_blocks)
