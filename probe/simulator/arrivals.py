"""Requests that arrive at a simulated server by themselves: a Poisson process, with a workload's lengths. Pure."""

import math
from functools import lru_cache
from random import Random
from threading import Lock
from typing import Final

from probe.core.workload import Workload, lengths
from probe.simulator.simulated_request import SimulatedRequest

_SMALLEST: Final = 2.0**-53  # difference of two random numbers
_MANY: Final = 64  # drawn at a time


class Draws:
    """A workload's requests with the gaps between them at one a second, drawn once for any number of simulations."""

    def __init__(self, workload: Workload, seed: int, chance: Random, *, is_mirrored: bool = False) -> None:
        self.lengths: list[tuple[int, int, int]] = []  # prompt, output and shared tokens
        self.gaps_s: list[float] = []
        self._source = lengths(workload, seed)
        self._uniform, self._is_mirrored = chance.random, is_mirrored
        self._lock = Lock()

    def draw(self, count: int) -> None:
        """Have at least this many."""
        with self._lock:
            while len(self.gaps_s) < count:
                self.lengths.append(next(self._source))
                uniform = self._uniform()
                if self._is_mirrored:
                    uniform = max(1.0 - uniform - _SMALLEST, 0.0)  # 1 is no random number
                self.gaps_s.append(-math.log(1.0 - uniform))


@lru_cache(maxsize=4)
def draws_of(workload: Workload, seed: int, name: str, *, is_mirrored: bool = False) -> Draws:
    """Return the draws of a seed, which simulations at different rates have in common."""
    return Draws(workload, seed, Random(name), is_mirrored=is_mirrored)


class Arrivals:
    """The requests of `draws` at a rate, one after the other: `next` arrives next; None if none ever does."""

    def __init__(
        self, draws: Draws, rate_rps: float, *, is_probe: bool, start_s: float = 0.0, ahead: int = _MANY
    ) -> None:
        """Take `ahead`: how many to draw at a time."""
        self.next: SimulatedRequest | None = None
        self._draws, self._rate_rps, self._is_probe = draws, rate_rps, is_probe
        self._at_s, self._taken, self._ahead = start_s, 0, ahead

    def advance(self) -> None:
        """Pass on to the request after `next`."""
        if self._rate_rps <= 0:
            return
        taken = self._taken
        if taken >= len(self._draws.gaps_s):
            self._draws.draw(taken + self._ahead)
        self._at_s += self._draws.gaps_s[taken] / self._rate_rps
        prompt_tokens, output_tokens, shared_tokens = self._draws.lengths[taken]
        self._taken = taken + 1
        self.next = SimulatedRequest(self._at_s, prompt_tokens, output_tokens, self._is_probe, shared_tokens)
