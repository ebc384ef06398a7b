"""Token counts of the requests of a step, as sent and as the server counted them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Token counts of prompts, or of answers, over a step. All None without any."""

    mean: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class SentTokens:
    """What a step's requests asked for, warm-up included, and what the server counted of those it answered.

    `answered_prompts`, `answered_answers`: what the answered ones had asked for, in the mean. None in older results.
    """

    prompts: TokenCounts = TokenCounts()
    answers: TokenCounts = TokenCounts()
    counted_prompts: TokenCounts = TokenCounts()
    counted_answers: TokenCounts = TokenCounts()
    answered_prompts: float | None = None
    answered_answers: float | None = None
