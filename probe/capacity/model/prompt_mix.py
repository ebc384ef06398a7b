"""Prompts of windows, by their lengths and the chunks that they are computed in. Pure; needs numpy.

In: equally likely prompt lengths, and the mean prompt that each window measured. Out: for each window, how many chunks
of which size a prompt has, on average. A window with more long prompts than usual has a larger mean: its long prompts
are more of all, not longer.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class PromptMix:
    """Chunks of prompts in each window. A prompt has `full` chunks that fill a step, and one with the `rest`.

    `shares`: of the lengths among the prompts; `chunks`: of a prompt, on average; `mean_tokens`: of a chunk;
    `first_tokens`: of a prompt's first chunk. Arrays of all chunks have those that fill a step first: `counts` such
    chunks a prompt, with `tokens` and the `pairs` of them with all before them.
    """

    def __init__(self, lengths: Floats, means: Floats, room: Floats) -> None:
        """`lengths`: equally likely; `means`: of each window's prompts; `room`: for prompts in each window's steps."""
        mean, variance = lengths.mean(), lengths.var()
        tilt = (lengths - mean) / variance if variance > 0 else np.zeros_like(lengths)
        self.shares = np.maximum(1 + tilt[:, None] * (means - mean), 0.0)
        self.shares /= self.shares.sum(axis=0)
        own = lengths[:, None] * means / (self.shares * lengths[:, None]).sum(axis=0)
        self.full = np.maximum(np.ceil(own / room) - 1, 0.0)
        self.rest = own - self.full * room
        self.room = room
        self.tokens = np.concatenate([np.broadcast_to(room, own.shape), self.rest])
        self.counts = np.concatenate([self.shares * self.full, self.shares])
        self.pairs = self.tokens * np.concatenate([self.full * room / 2, self.full * room + self.rest / 2])
        self.chunks = self.counts.sum(axis=0)
        self.mean_tokens = means / self.chunks
        self.first_tokens = (self.shares * np.minimum(own, room)).sum(axis=0)

    def in_steps(self, begun: Floats) -> tuple[Floats, Floats]:
        """Return the share of steps that hold a prompt, and for each chunk how many tokens its step has.

        `begun`: chunks for each step, as a Poisson process.
        """
        filled = 1 - np.exp(-begun)
        together = np.where(begun > 0, begun / np.maximum(filled, 1e-9), 1.0)
        # What does not fit fills another step.
        tokens = np.minimum(self.tokens + (together - 1) * self.mean_tokens, self.room)
        return np.minimum(begun * self.mean_tokens / np.maximum(self.mean(tokens), 1e-9), 1.0), tokens

    def mean(self, values: Floats) -> Floats:
        """Return the mean over all chunks."""
        return np.asarray((self.counts * values).sum(axis=0) / self.chunks)
