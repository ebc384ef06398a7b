"""The common prefix of a prompt with earlier ones. Pure except for its memory, which is bounded.

Input: prompts as bytes, four per token. Output: how many leading tokens, in whole blocks, are shared with an earlier
one. A block is identified by a hash of itself and all blocks before it, as in vLLM; the least recently used ones are
dropped.

Not modelled: what has been computed. A prompt counts as known when it arrives, and the engine
(simulator/kv_blocks.py) caches a common prefix only from the first prompt that is known to share it. So the second
prompt with a prefix computes it again, and the third finds it; in vLLM the second would. Nor are two different prefixes
kept apart in the cache's memory.
"""

from hashlib import blake2b

BYTES_PER_TOKEN = 4


class PromptHistory:
    """The blocks of recent prompts: at most `most_blocks`, of `block_size` tokens each."""

    def __init__(self, block_size: int, most_blocks: int) -> None:
        self._block_size, self._most = block_size, most_blocks
        self._keys: dict[bytes, None] = {}  # most recently used last

    def match_and_add(self, content: bytes) -> int:
        """Return how many leading tokens are shared with an earlier prompt, and add this prompt."""
        keys = self._keys_of(content)
        known = next((i for i, key in enumerate(keys) if key not in self._keys), len(keys))
        for key in reversed(keys):  # the end of a prompt is dropped before its beginning
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
