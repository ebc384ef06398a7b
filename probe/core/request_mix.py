"""Lengths and prefixes of successive requests: mixtures of kinds, correlated lengths, conversations. Pure.

In: the parts of a workload and a seed. Out: an endless stream of draws; workload.py makes prompts of them.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from statistics import NormalDist, fmean
from typing import NamedTuple

from probe.core.measured_length import MeasuredLength, measured_of
from probe.core.token_length import LognormalLength, TokenLength, longest, quantile

_NORMAL = NormalDist()
_SAMPLES = 4096  # draws that show the lengths of all parts together


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of requests: `share` of all; its prefix is known by `name`.

    `shared_ratio`: the share of its requests that begin with the first `shared_tokens` in common. `correlation`: of the
    two lengths, -1 to 1, by a Gaussian copula. With several `turns`, requests belong to `conversations` at a time:
    `prompt_tokens` is what a turn adds to the prefix, the earlier turns and their answers.
    """

    name: str
    prompt_tokens: TokenLength
    output_tokens: TokenLength
    share: float = 1.0
    shared_tokens: int = 0
    shared_ratio: float = 1.0
    correlation: float = 0.0
    turns: int = 1
    conversations: int = 1

    @property
    def longest(self) -> tuple[int, int]:
        """The most prompt and output tokens of a request."""
        prompt, output = longest(self.prompt_tokens), longest(self.output_tokens)
        if self.turns == 1:
            return prompt, output
        return self.shared_tokens + self.turns * prompt + (self.turns - 1) * output, output


class Draw(NamedTuple):
    """One request. `shared_tokens`: those that an earlier prompt may have had. `prefix`: how many are its part's own.

    `conversation` (slot, which one there): whose prompts continue one another; None: the rest of the prompt is unique.
    """

    part: Part
    prompt_tokens: int
    output_tokens: int
    shared_tokens: int
    prefix: int
    conversation: tuple[int, int] | None = None


@dataclass(slots=True)
class _Conversation:
    """A conversation under way: which one, the turns taken, and the tokens of its last prompt and answer.

    `sent`: those of its last prompt that were sent; of a conversation that begins at a later turn the prefix only.
    """

    number: int = 0
    turns: int = 0
    prompt: int = 0
    answer: int = 0
    sent: int = 0


def draws(parts: Sequence[Part], seed: int, most: int) -> Iterator[Draw]:
    """Yield requests without end; the same seed gives the same. A prompt and its answer have at most `most` tokens."""
    source = random.Random(seed)
    bounds = list(accumulate(part.share for part in parts))
    streams = [_of_part(part, source, most) for part in parts]
    while True:
        chosen = streams[0] if len(streams) == 1 else source.choices(streams, cum_weights=bounds)[0]
        yield next(chosen)


def together(parts: Sequence[Part], most: int) -> tuple[MeasuredLength, MeasuredLength, int]:
    """Return the lengths of prompts and answers of all parts, and how many prompt tokens are shared in the mean."""
    drawn = list(islice(draws(parts, 0, most), _SAMPLES))
    prompts, outputs = measured_of([d.prompt_tokens for d in drawn]), measured_of([d.output_tokens for d in drawn])
    return prompts, outputs, round(fmean(d.shared_tokens for d in drawn))


def _of_part(part: Part, source: random.Random, most: int) -> Iterator[Draw]:
    if part.turns > 1:
        yield from _conversations(part, source, most)
    while True:
        prompt, output = _lengths(part, source)
        prompt = min(prompt, most - 1)
        is_warm = part.shared_tokens > 0 and (part.shared_ratio >= 1 or source.random() < part.shared_ratio)
        shared = min(part.shared_tokens, prompt) if is_warm else 0
        yield Draw(part, prompt, min(output, most - prompt), shared, shared)


def _conversations(part: Part, source: random.Random, most: int) -> Iterator[Draw]:
    """Yield the turns of all conversations, one of each in turn. At first they are at different turns."""
    slots = [_Conversation(turns=slot % part.turns) for slot in range(part.conversations)]
    for one in slots:
        one.prompt = one.sent = part.shared_tokens
        for _ in range(one.turns):  # what was said before the first request
            prompt, one.answer = _lengths(part, source)
            one.prompt += prompt + one.answer
        one.answer = 0
    while True:
        for slot, one in enumerate(slots):
            new, answer = _lengths(part, source)
            known, prompt = one.sent, min(one.prompt + one.answer + new, most - 1)
            one.prompt = one.sent = prompt
            one.answer, one.turns = min(answer, most - prompt), one.turns + 1
            yield Draw(
                part, prompt, one.answer, min(known, prompt), min(part.shared_tokens, prompt), (slot, one.number)
            )
            if one.turns >= part.turns or prompt >= most - 1:
                slots[slot] = _Conversation(one.number + 1, prompt=part.shared_tokens, sent=part.shared_tokens)


def _lengths(part: Part, source: random.Random) -> tuple[int, int]:
    if not part.correlation:
        return _length(part.prompt_tokens, source), _length(part.output_tokens, source)
    one, other = source.gauss(0.0, 1.0), source.gauss(0.0, 1.0)
    other = part.correlation * one + math.sqrt(1 - part.correlation**2) * other
    return _at(part.prompt_tokens, one), _at(part.output_tokens, other)


def _at(tokens: TokenLength, deviation: float) -> int:
    """Return the length that is as rare as this value of a standard normal variable."""
    if isinstance(tokens, LognormalLength):  # its own formula, which has no limit in the tails
        return min(max(round(tokens.median * math.exp(tokens.sigma * deviation)), 1), tokens.maximum)
    return max(round(quantile(tokens, _NORMAL.cdf(deviation))), 1)


def _length(tokens: TokenLength, source: random.Random) -> int:
    if isinstance(tokens, int):
        return tokens
    if isinstance(tokens, MeasuredLength):
        return max(round(tokens.quantile(source.random())), 1)
    drawn = source.lognormvariate(math.log(tokens.median), tokens.sigma)
    return min(max(round(drawn), 1), tokens.maximum)
