"""Workloads: endless, seeded streams of RequestSpec. Pure.

Prompts are token ids if the API accepts them, so that their lengths are exact. They are unique by default: a repeated
prompt would hit the server's prefix cache and fake a good TTFT. The seed decides only the lengths. The tokens also
depend on a salt, new in every process, so that repeating a run with its seed repeats the load but not the prompts.

A workload may be a mixture of kinds, with correlated lengths and conversations: `draws` has the lengths and prefixes of
successive requests.
"""

import math
import random
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from statistics import NormalDist, fmean
from typing import NamedTuple

from probe.core.request import Api, RequestSpec
from probe.core.token_length import LognormalLength, MeasuredLength, TokenLength, measured_of, quantile
from probe.core.token_length import longest as longest_length

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
        """Return the most prompt and output tokens of a request."""
        prompt, output = longest_length(self.prompt_tokens), longest_length(self.output_tokens)
        if self.turns == 1:
            return prompt, output
        return self.shared_tokens + self.turns * prompt + (self.turns - 1) * output, output


class Draw(NamedTuple):
    """One request. `shared_tokens`: how many an earlier prompt may have had. `prefix`: how many are its part's own.

    `conversation` (slot, number): its prompts continue one another; None: the rest of the prompt is unique.
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

    `sent`: how many tokens of its last prompt were sent; only the prefix if the conversation began at a later turn.
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


__all__ = [
    "MAX_TOKENS",
    "TEMPLATE_TOKENS",
    "LognormalLength",
    "TokenLength",
    "Workload",
    "as_text",
    "content",
    "lengths",
    "longest",
    "longest_request",
    "mixed",
    "requests",
]

# Ids that are ordinary text in every known tokenizer: above the control tokens at the start (1000 in Mistral's, 256 in
# Gemma's) and inside the smallest vocabularies in use. With 3000 ids the first cache block of 16 tokens is unique.
_FIRST_TOKEN_ID = 1000
_LAST_TOKEN_ID = 3999

# For APIs that accept only text: short words that are one token in common tokenizers. The record has the server's
# count.
_WORDS = (  # noqa: SIM905 - a list of 80 quoted words would fill a page
    "time year people way day man thing woman life child world school state family student group country problem "
    "hand part place case week company system program question work government number night point home water room "
    "mother area money story fact month lot right study book eye job word business issue side kind head house "
    "service friend father power hour game line end member law car city community name president team minute idea "
    "body "
).split()
# Tokens that a chat template adds around one user message; an estimate that affects only the requested length.
TEMPLATE_TOKENS = 10
MAX_TOKENS = 2_000_000  # of a prompt and its answer: twice what the configuration allows of one


@dataclass(frozen=True, slots=True)
class Workload:
    """Lengths in tokens, fixed or distributed; the first `shared_tokens` of each prompt are the same.

    A prompt and its answer have at most `context_tokens` together, if that is given: the answer is cut to it. A
    workload of `parts` sends theirs; its own lengths describe all parts together, and its shared tokens are
    their mean. `trace`: the digest of a trace (trace.py), with the lengths of the trace.
    """

    name: str
    api: Api
    prompt_tokens: TokenLength
    output_tokens: TokenLength
    shared_tokens: int = 0
    context_tokens: int | None = None
    parts: tuple[Part, ...] | None = None
    trace: str | None = None

    @property
    def kinds(self) -> tuple[Part, ...]:
        """Return the kinds of requests that are sent."""
        return self.parts or (
            Part(self.name, self.prompt_tokens, self.output_tokens, shared_tokens=self.shared_tokens),
        )

    @property
    def most_tokens(self) -> int:
        """Return the most tokens that a prompt and its answer may have together."""
        return self.context_tokens or MAX_TOKENS


def mixed(name: str, api: Api, parts: tuple[Part, ...]) -> Workload:
    """Return the workload of these parts."""
    prompts, outputs, shared = together(parts, MAX_TOKENS)
    return Workload(name, api, prompts, outputs, shared, parts=parts)


def longest(workload: Workload) -> tuple[int, int]:
    """Return the most prompt and output tokens of a request."""
    if workload.parts is None:
        return longest_length(workload.prompt_tokens), longest_length(workload.output_tokens)
    each = [part.longest for part in workload.parts]
    return max(prompt for prompt, _ in each), max(output for _, output in each)


def longest_request(workload: Workload) -> int:
    """Return the most tokens of a prompt and its answer together."""
    return min(max(sum(part.longest) for part in workload.kinds), workload.most_tokens)


def lengths(workload: Workload, seed: int = 0) -> Iterator[tuple[int, int, int]]:
    """Yield prompt, output and shared tokens without end; the same seed gives the same ones."""
    for draw in draws(workload.kinds, seed, workload.most_tokens):
        yield draw.prompt_tokens, draw.output_tokens, draw.shared_tokens


def requests(
    workload: Workload, seed: int = 0, salt: str | None = None, shard: tuple[int, int] = (0, 1)
) -> Iterator[RequestSpec]:
    """Yield requests without end. The same seed gives the same lengths; the same seed and salt, the same prompts.

    `shard` (index, count) selects every count-th request, and of conversations every count-th with all of its turns:
    all shards together have the lengths of the whole.
    """
    index, count = shard
    salt = f"{seed}/{salt if salt is not None else secrets.token_hex(16)}"
    unique = random.Random(f"{salt}/{index}" if index else salt)
    prefixes = {part.name: _prefix(workload.api, part) for part in workload.kinds}
    for number, draw in enumerate(draws(workload.kinds, seed, workload.most_tokens)):
        # By slot and number: the conversations of a slot go round the shards, which may be more than the slots.
        if (number if draw.conversation is None else sum(draw.conversation)) % count != index:
            continue
        source = unique
        if draw.conversation is not None:
            source = random.Random(f"{salt}/{draw.part.name}/{draw.conversation}")
        prompt = _prompt(workload.api, draw, prefixes[draw.part.name], source)
        yield RequestSpec(
            workload=workload.name,
            api=workload.api,
            prompt=tuple(prompt) if workload.api.takes_ids else as_text(prompt),
            prompt_tokens=draw.prompt_tokens,
            output_tokens=draw.output_tokens,
            shared_tokens=draw.shared_tokens,
        )


def _prefix(api: Api, part: Part) -> list[int]:
    """Return the tokens that prompts of a part share. A chat template adds some in front, which count first."""
    template = TEMPLATE_TOKENS if api.has_template else 0
    return content(api, random.Random(f"{part.name}/shared"), max(part.shared_tokens - template, 0))


def _prompt(api: Api, draw: Draw, prefix: list[int], source: random.Random) -> list[int]:
    template = TEMPLATE_TOKENS if api.has_template else 0
    own = max(draw.prompt_tokens - max(draw.prefix, template), 1 if template else 0)
    return (prefix[: draw.prompt_tokens] if draw.prefix else []) + content(api, source, own)


def content(api: Api, source: random.Random, count: int) -> list[int]:
    """Return token ids, or indexes of words for an API that takes text."""
    low, high = (_FIRST_TOKEN_ID, _LAST_TOKEN_ID) if api.takes_ids else (0, len(_WORDS) - 1)
    return source.choices(range(low, high + 1), k=count)


def as_text(tokens: Sequence[int]) -> str:
    """Return text with a word for each token: for APIs that accept no token ids. Different prompts stay different."""
    return " ".join(_WORDS[token % len(_WORDS)] for token in tokens)
