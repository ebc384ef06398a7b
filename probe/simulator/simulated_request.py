"""One request to a server in virtual time, and what became of it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class SimulatedRequest:
    """One request and what became of it. Times are seconds of virtual time, NaN before they come.

    What the client sees: arrival_s, first_s, last_s. What the server does, and its metrics tell: entered_s (the front
    end has passed it on), scheduled_s, made_first_s and made_last_s (of the engine, before the front end hands out).
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    ours: bool
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
    steps: int = 0  # in which the answer comes: as many as tokens, or fewer with speculation
    stretches: list[tuple[int, int]] = field(default_factory=list)  # steps that gave it tokens: from, to (exclusive)
    since: int = -1  # the first step of the stretch that has not ended
    out_s: Sequence[float] = ()  # when the tokens of each of the engine's steps were out
    number: int = -1

    @property
    def ttft_s(self) -> float:
        """Arrival to first token."""
        return self.first_s - self.arrival_s

    @property
    def tpot_s(self) -> float:
        """Mean time of the tokens after the first; 0 for one token."""
        return (self.last_s - self.first_s) / (self.output_tokens - 1) if self.output_tokens > 1 else 0.0

    @property
    def tokens_a_step(self) -> float:
        """Mean of the steps after the first."""
        return (self.output_tokens - 1) / (self.steps - 1) if self.steps > 1 else 1.0

    def token_times_s(self) -> list[float]:
        """When each event with tokens left the server."""
        last = [(self.since, len(self.out_s))] if self.since >= 0 else []
        return [at_s for begin, end in (*self.stretches, *last) for at_s in self.out_s[begin:end]]
