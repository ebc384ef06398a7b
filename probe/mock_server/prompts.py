"""Which beginning a prompt has in common with those before it. Pure but for its memory, which is bounded.

Input: prompts as bytes, four to a token. Output: how many leading tokens, in whole blocks, an earlier prompt began with
too. Each block is known by a hash of itself and all before it, as in vLLM; those not met for longest are forgotten.

Not modelled: what was computed. A prompt counts as met when it arrives, and the engine (prefix.py) knows a common
beginning from the first prompt on that is known to have it. So the second prompt with a beginning computes it again,
and the third finds it; vLLM's second would. Nor are two different beginnings kept apart in the cache's memory.
"""

from hashlib import blake2b

BYTES_PER_TOKEN = 4


class SeenPrompts:
    """The blocks of the last prompts: at most `most_blocks`, of `block_size` tokens."""

    def __init__(self, block_size: int, most_blocks: int) -> None:
        self._block_size, self._most = block_size, most_blocks
        self._keys: dict[bytes, None] = {}  # the last one met at the end

    def meet(self, content: bytes) -> int:
        """Leading tokens that an earlier prompt had too; from now on this is an earlier one."""
        keys = self._keys_of(content)
        known = next((i for i, key in enumerate(keys) if key not in self._keys), len(keys))
        for key in reversed(keys):  # the end of a prompt is forgotten before its beginning
            self._keys.pop(key, None)
            self._keys[key] = None
        while len(self._keys) > self._most:
            del self._keys[next(iter(self._keys))]
        return known * self._block_size

    def _keys_of(self, content: bytes) -> list[bytes]:
        size = self._block_size * BYTES_PER_TOKEN
        keys, key = [], b""
        for at in range(0, len(content) - size + 1, size):
            key = blake2b(key + content[at : at + size], digest_size=16).digest()
            keys.append(key)
        return keys
