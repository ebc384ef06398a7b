"""A request to the simulated server, with what the engine counts of it and, in virtual time, the times of it all."""

import operator
from collections.abc import Sequence
from math import nan

_NONE: list[tuple[int, int]] = []  # most requests are never preempted


class SimulatedRequest:
    """One request. Times are seconds of virtual time, NaN as long as they are in the future.

    Seen by the client: arrival_s, first_s, last_s. In the server's metrics: entered_s (the front end passed it on),
    scheduled_s, made_first_s and made_last_s (by the engine, before the front end sends the tokens).

    In the engine, `generated` and `computed` are as they were before step `since`: a request that decodes has moved on.
    """

    def __init__(
        self,
        arrival_s: float,
        prompt_tokens: int,
        output_tokens: int,
        is_probe: bool = False,  # noqa: FBT001, FBT002 - the order of the fields
        shared_tokens: int = 0,
        *,
        first_s: float = nan,
        last_s: float = nan,
        ended: bool = False,
    ) -> None:
        self.arrival_s, self.entered_s, self.scheduled_s = arrival_s, nan, nan
        self.made_first_s = self.made_last_s = nan
        self.first_s, self.last_s = first_s, last_s
        self.ended = ended  # with its last token, or aborted
        self.is_probe = is_probe
        self.prompt_tokens, self.output_tokens = prompt_tokens, output_tokens
        self.shared_tokens = min(shared_tokens, prompt_tokens)
        self.found_tokens = 0  # in the prefix cache
        self.preemptions = 0
        self.number = -1  # of the engine
        self.steps = output_tokens  # that the answer takes: fewer than tokens with speculation
        self.out_s: Sequence[float] = ()  # when the tokens of each of the engine's steps were sent
        self.from_step, self.to_step = -1, -1  # with a token for it (exclusive); -1: not begun, not ended
        self.earlier: list[tuple[int, int]] = _NONE  # the same, before preemptions
        self.generated = 0  # tokens, of one step each
        self.computed = 0  # tokens with keys and values in the cache
        self.since = 0
        self.end = 0  # in which step it ends decoding (engine.py)
        self.chunk = 0  # tokens of its prompt in the step in flight
        self.blocks = 0  # of its own, kept while it is not decoding
        self.shared_blocks = 0  # of the common prefix

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

    def tokens_a_step(self) -> float:
        """Return the mean tokens in each step after the first."""
        return (self.output_tokens - 1) / (self.steps - 1) if self.steps > 1 else 1.0

    def known(self) -> int:
        """Return the tokens so far, prompt and output; computing the last of them produces the next."""
        return self.prompt_tokens + self.generated

    def last_step(self) -> int:
        """Return the step in which the request gets its last token, if it decodes until then."""
        return self.since + self.steps - self.generated - 1

    def longest_gap_s(self) -> float:
        """Return the longest time between two events with tokens; 0 for a single one.

        Steps that were simulated at once have their mean duration, so a gap of decoding alone is without its noise.
        """
        longest, before = 0.0, None
        for begin, end in self.step_ranges():
            times_s = self.out_s[begin:end]
            first = max(times_s[0] - before, 0.0) if before is not None and times_s else 0.0
            longest = max(longest, first, *map(operator.sub, times_s[1:], times_s))
            before = times_s[-1] if times_s else before
        return longest

    def token_times_s(self) -> list[float]:
        """Return when each event with tokens left the server."""
        return [at_s for begin, end in self.step_ranges() for at_s in self.out_s[begin:end]]

    def step_ranges(self) -> list[tuple[int, int]]:
        """Return the steps with a token for it: from, to (exclusive)."""
        last = self.to_step if self.to_step >= 0 else len(self.out_s)
        return self.earlier if self.from_step < 0 else [*self.earlier, (self.from_step, last)]
