"""Workloads: endless, seeded streams of RequestSpec. Pure.

Prompts are token ids if the API accepts them, so that their lengths are exact. They are unique by default: a repeated
prompt would hit the server's prefix cache and fake a good TTFT. The seed decides only the lengths. The tokens also
depend on a salt, new in every process, so that repeating a run with its seed repeats the load but not the prompts.
"""

import math
import random
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from probe.core.measured_length import MeasuredLength
from probe.core.request import Api, RequestSpec

# Ids that are ordinary text in every known tokenizer: above the control tokens at the start (1000 in Mistral's, 256 in
# Gemma's) and inside the smallest vocabularies in use. With 3000 ids the first cache block of 16 tokens is unique.
_FIRST_TOKEN_ID = 1000
_LAST_TOKEN_ID = 3999

# For chat, which accepts only text: short words that are one token in common tokenizers. The record has the server's
# count.
_WORDS = (  # noqa: SIM905 - a list of 80 quoted words would fill a page
    "time year people way day man thing woman life child world school state family student group country problem "
    "hand part place case week company system program question work government number night point home water room "
    "mother area money story fact month lot right study book eye job word business issue side kind head house "
    "service friend father power hour game line end member law car city community name president team minute idea "
    "body "
).split()
# Tokens that a chat template adds around one user message; an estimate that affects only the requested length.
_TEMPLATE_TOKENS = 10
MAX_TOKENS = 2_000_000  # of a prompt and its answer: twice what the configuration allows of one


@dataclass(frozen=True, slots=True)
class LognormalLength:
    """Lengths with this median (tokens) and log-scale sigma, between 1 and `maximum`."""

    median: int
    sigma: float
    maximum: int


TokenLength = int | LognormalLength | MeasuredLength


@dataclass(frozen=True, slots=True)
class Workload:
    """Lengths in tokens, fixed or distributed; the first `shared_tokens` of each prompt are the same.

    A prompt and its answer have at most `context_tokens` together, if that is given: the answer is cut to it.
    """

    name: str
    api: Api
    prompt_tokens: TokenLength
    output_tokens: TokenLength
    shared_tokens: int = 0
    context_tokens: int | None = None


def longest(workload: Workload) -> tuple[int, int]:
    """Return the most prompt and output tokens of a request."""
    prompt, output = (
        length if isinstance(length, int) else length.maximum
        for length in (workload.prompt_tokens, workload.output_tokens)
    )
    return prompt, output


def longest_request(workload: Workload) -> int:
    """Return the most tokens of a prompt and its answer together."""
    return min(sum(longest(workload)), workload.context_tokens or MAX_TOKENS)


def lengths(workload: Workload, seed: int = 0) -> Iterator[tuple[int, int]]:
    """Yield pairs of prompt and output tokens without end; the same seed gives the same pairs."""
    source = random.Random(seed)
    most = workload.context_tokens or MAX_TOKENS
    while True:
        prompt = min(_length(workload.prompt_tokens, source), most - 1)
        yield prompt, min(_length(workload.output_tokens, source), most - prompt)


def requests(
    workload: Workload, seed: int = 0, salt: str | None = None, shard: tuple[int, int] = (0, 1)
) -> Iterator[RequestSpec]:
    """Yield requests without end. The same seed gives the same lengths; the same seed and salt, the same prompts.

    `shard` (index, count) selects every count-th request: all shards together have the lengths of the whole.
    """
    index, count = shard
    unique = random.Random(f"{seed}/{salt if salt is not None else secrets.token_hex(16)}")
    shared = random.Random(f"{workload.name}/shared")
    # Chat: the template adds tokens in front, which count as shared tokens first.
    template = _TEMPLATE_TOKENS if workload.api is Api.CHAT else 0
    prefix = _content(workload.api, shared, max(workload.shared_tokens - template, 0))
    for number, (prompt_tokens, output_tokens) in enumerate(lengths(workload, seed)):
        if number % count != index:
            continue
        own = max(prompt_tokens - max(workload.shared_tokens, template), 1 if template else 0)
        prompt = prefix[:prompt_tokens] + _content(workload.api, unique, own)
        yield RequestSpec(
            workload=workload.name,
            api=workload.api,
            prompt=tuple(prompt) if workload.api is Api.COMPLETIONS else as_text(prompt),
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
        )


def _length(tokens: TokenLength, source: random.Random) -> int:
    if isinstance(tokens, int):
        return tokens
    if isinstance(tokens, MeasuredLength):
        return max(round(tokens.quantile(source.random())), 1)
    drawn = source.lognormvariate(math.log(tokens.median), tokens.sigma)
    return min(max(round(drawn), 1), tokens.maximum)


def _content(api: Api, source: random.Random, count: int) -> list[int]:
    """Return token ids, or indexes of words for chat."""
    low, high = (_FIRST_TOKEN_ID, _LAST_TOKEN_ID) if api is Api.COMPLETIONS else (0, len(_WORDS) - 1)
    return source.choices(range(low, high + 1), k=count)


def as_text(tokens: Sequence[int]) -> str:
    """Return text with a word for each token: for APIs that accept no token ids. Different prompts stay different."""
    return " ".join(_WORDS[token % len(_WORDS)] for token in tokens)
