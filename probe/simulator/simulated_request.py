"""A request to a server in virtual time, with the times of what happened to it."""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class SimulatedRequest:
    """One request. Times are seconds of virtual time, NaN as long as they are in the future.

    Seen by the client: arrival_s, first_s, last_s. In the server's metrics: entered_s (the front end passed it on),
    scheduled_s, made_first_s and made_last_s (by the engine, before the front end sends the tokens).
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    is_probe: bool
    shared_tokens: int = 0
    entered_s: float = math.nan
    scheduled_s: float = math.nan
    made_first_s: float = math.nan
    made_last_s: float = math.nan
    first_s: float = math.nan
    last_s: float = math.nan
    ended: bool = False  # with its last token, or aborted
    preemptions: int = 0
    found_tokens: int = 0  # in the prefix cache
    steps: int = 0  # that the answer takes: as many as its tokens, or fewer with speculation
    step_ranges: list[tuple[int, int]] = field(default_factory=list)  # with a token for it: from, to (exclusive)
    since: int = -1  # first step of the range that has not ended
    out_s: Sequence[float] = ()  # when the tokens of each of the engine's steps were sent
    number: int = -1

    @property
    def ttft_s(self) -> float:
        """Return the seconds from arrival to first token."""
        return self.first_s - self.arrival_s

    @property
    def tpot_s(self) -> float:
        """Return the mean seconds per token after the first; 0 for one token."""
        return (self.last_s - self.first_s) / (self.output_tokens - 1) if self.output_tokens > 1 else 0.0

    @property
    def e2e_s(self) -> float:
        """Return the seconds from arrival to last token."""
        return self.last_s - self.arrival_s

    @property
    def tokens_a_step(self) -> float:
        """Return the mean tokens in each step after the first."""
        return (self.output_tokens - 1) / (self.steps - 1) if self.steps > 1 else 1.0

    def longest_gap_s(self) -> float:
        """Return the longest time between two events with tokens; 0 for a single one.

        Steps that were simulated at once have their mean duration, so a gap of decoding alone is without its noise.
        """
        longest, before = 0.0, None
        for begin, end in self._ranges():
            times_s = self.out_s[begin:end]
            first = max(times_s[0] - before, 0.0) if before is not None and times_s else 0.0
            longest = max(longest, first, *map(operator.sub, times_s[1:], times_s))
            before = times_s[-1] if times_s else before
        return longest

    def token_times_s(self) -> list[float]:
        """Return when each event with tokens left the server."""
        return [at_s for begin, end in self._ranges() for at_s in self.out_s[begin:end]]

    def _ranges(self) -> Sequence[tuple[int, int]]:
        last = [(self.since, len(self.out_s))] if self.since >= 0 else []
        return (*self.step_ranges, *last)
