"""Servers of known timing: a law for the length of an engine step, vLLM's limits, a workload and its objectives.

Both sides of the bench read them, the served vLLM (executor.py) and its truth in virtual time (virtual_vllm.py), so
they import nothing but the standard library.

A step takes, in milliseconds,

    host + seq * R + max(weights + kv * C / 1000, tok * T) + pair * P / 1e6

times log-normal noise, times 1 + drift * sin(2 pi t / period): R requests in the step, T tokens computed, C tokens in
their caches before it, P the pairs of a prompt's token computed with one before it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

BLOCK_SIZE = 32
MAX_MODEL_LEN = 4096
LONGEST = 4


@dataclass(frozen=True, slots=True)
class Law:
    """Milliseconds of a step by what is in it."""

    host: float
    seq: float
    weights: float
    kv: float
    tok: float
    pair: float = 0.0
    noise: float = 0.02
    drift: float = 0.0
    period_s: float = 600.0

    def mean_s(self, requests: int, tokens: int, cached: int, pairs: float = 0.0) -> float:
        """Return the seconds of a step without noise and drift."""
        longer = max(self.weights + self.kv * cached / 1e3, self.tok * tokens)
        return (self.host + self.seq * requests + longer + self.pair * pairs / 1e6) / 1e3

    def clock(self, random: Random) -> Callable[[float, float], float]:
        """Return a function of a step's mean seconds and its beginning: the seconds that it takes."""

        def seconds(mean_s: float, at_s: float) -> float:
            speed = 1.0 + self.drift * math.sin(2 * math.pi * at_s / self.period_s)
            return mean_s * speed * math.exp(random.gauss(0.0, self.noise))

        return seconds


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of requests: its `weight` among others, and its lengths, as of a case."""

    weight: int
    prompt_tokens: int
    output_tokens: int
    sigma: float = 0.0

    def lengths(self, random: Random) -> tuple[int, int]:
        """Draw a request's prompt and output tokens."""

        def drawn(median: int) -> int:
            return max(2, min(LONGEST * median, round(median * math.exp(random.gauss(0.0, self.sigma)))))

        return drawn(self.prompt_tokens), drawn(self.output_tokens)


@dataclass(frozen=True, slots=True)
class Case:
    """A server, its workload and its objectives, which 95 % of the requests have to meet.

    `sigma`: lengths are log-normal with the given medians, and at most `LONGEST` times as long; at 0 they are fixed.
    `mixture`: several kinds of requests instead; the case's own lengths are then their means.
    `sliding_groups`: groups of layers that keep `window` tokens each, beside full attention and in the same cache.
    """

    name: str
    law: Law
    max_num_seqs: int
    num_blocks: int
    max_num_batched_tokens: int
    prompt_tokens: int
    output_tokens: int
    ttft_ms: float
    tpot_ms: float
    sigma: float = 0.0
    mixture: tuple[Kind, ...] = ()
    window: int = 0
    sliding_groups: int = 0

    @property
    def window_blocks(self) -> int:
        """The blocks that full windows of a request hold."""
        return self.sliding_groups * (self.window // BLOCK_SIZE + 1)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of requests that are sent."""
        return self.mixture or (Kind(1, self.prompt_tokens, self.output_tokens, self.sigma),)

    def lengths(self, random: Random) -> tuple[int, int]:
        """Draw a request's prompt and output tokens."""
        kind = random.choices(self.kinds, [kind.weight for kind in self.kinds])[0] if self.mixture else self.kinds[0]
        return kind.lengths(random)


_H100_8B = Law(host=1.8, seq=0.015, weights=5.5, kv=0.040, tok=0.024)
_L4_8B = Law(host=2.5, seq=0.030, weights=56.0, kv=0.450, tok=0.150)
_A100_70B = Law(host=4.0, seq=0.050, weights=21.0, kv=0.045, tok=0.110)
_SMALL_KV = Law(host=2.0, seq=0.030, weights=10.0, kv=0.060, tok=0.040)
_LONG_PROMPTS = Law(host=3.0, seq=0.030, weights=8.0, kv=0.040, tok=0.060, pair=2.0)
_LONG_ANSWERS = Law(host=2.0, seq=0.060, weights=12.0, kv=0.090, tok=0.030)
_MIXED = Law(host=2.5, seq=0.040, weights=9.0, kv=0.070, tok=0.050)
_NOISY = Law(host=3.0, seq=0.050, weights=12.0, kv=0.080, tok=0.050, noise=0.10)
_DRIFTING = Law(host=3.0, seq=0.050, weights=12.0, kv=0.080, tok=0.050, noise=0.04, drift=0.10, period_s=300.0)

#     name             law            seqs blocks chunk prompt output  TTFT TPOT
CASES = {
    case.name: case
    for case in (
        Case("h100-8b", _H100_8B, 256, 8000, 8192, 256, 128, 500, 20),
        Case("h100-8b-seqs", _H100_8B, 16, 8000, 2048, 256, 128, 500, 50),
        Case("l4-8b", _L4_8B, 64, 1200, 2048, 512, 128, 2000, 100),
        Case("a100-70b-tp4", _A100_70B, 128, 4000, 2048, 1024, 256, 1500, 70),
        Case("small-kv", _SMALL_KV, 256, 300, 2048, 128, 384, 500, 40),
        Case("long-prompts", _LONG_PROMPTS, 64, 4000, 2048, 3500, 96, 3000, 60),
        Case("long-answers", _LONG_ANSWERS, 96, 3000, 2048, 64, 768, 800, 35),
        Case("mixed", _MIXED, 128, 2500, 2048, 768, 192, 800, 40, sigma=0.45),
        Case("noisy", _NOISY, 64, 2000, 2048, 384, 128, 700, 45),
        Case("drifting", _DRIFTING, 64, 2000, 2048, 384, 128, 700, 45),
    )
}

# Servers like `mixed` for users' mixes: nine chats to one document, two short calls to one with a long history, and
# log-normal lengths with means of 600 and 200 tokens. Not among the ten, whose figures they would change.
_CHATS = (Kind(9, 160, 180, 0.4), Kind(1, 2800, 48))
_AGENTS = (Kind(2, 150, 60, 0.3), Kind(1, 700, 220, 0.3))
MIXTURES = {
    case.name: case
    for case in (
        Case("chats-documents", _MIXED, 128, 2500, 2048, 442, 179, 1000, 40, mixture=_CHATS),
        Case("agents", _MIXED, 128, 2500, 2048, 349, 118, 1000, 40, mixture=_AGENTS),
        Case("lognormal", _MIXED, 128, 2500, 2048, 461, 154, 500, 50, sigma=0.8),
    )
}

# A model of Gemma 3's shape, five layers with a sliding window to each full one: a request of 512 + 256 tokens takes
# about three times the blocks that its tokens fill.
HYBRIDS = {
    case.name: case
    for case in (Case("hybrid", _SMALL_KV, 256, 1300, 2048, 512, 256, 500, 40, window=256, sliding_groups=5),)
}

# Kneewatch was written with the servers above in sight. These, drawn at random, show what it says of others.
_SEATS = 16, 32, 64, 128, 256
_CHUNKS = 1024, 2048, 4096, 8192


def stranger(seed: int) -> Case:
    """Return the server of a seed, by the name `stranger-SEED`.

    Weights, times and lengths are log-uniform. The KV cache holds between a quarter and twice what `max_num_seqs`
    requests take, and the longest request at least. Objectives are multiples of what a request takes on the idle
    server. One in four has steps that vary by 10 %, one in four drifts by 5 % in ten minutes, and one in three has
    lengths that spread.
    """
    random = Random(seed)

    def between(low: float, high: float) -> float:
        return math.exp(random.uniform(math.log(low), math.log(high)))

    weights = between(8.0, 60.0)
    law = Law(
        host=between(1.5, 5.0),
        seq=between(0.01, 0.08),
        weights=weights,
        kv=weights * between(0.003, 0.01),
        tok=between(0.02, 0.15),
        pair=random.choice((0.0, 0.0, between(0.5, 3.0))),
        noise=random.choice((0.02, 0.02, 0.04, 0.10)),
        drift=random.choice((0.0, 0.0, 0.0, 0.05)),
    )
    prompt_tokens, output_tokens = round(between(64, 3000)), round(between(32, 512))
    sigma = random.choice((0.0, 0.0, 0.4)) if prompt_tokens < 1000 else 0.0
    max_num_seqs, chunk = random.choice(_SEATS), random.choice(_CHUNKS)
    blocks = -(-(prompt_tokens + output_tokens) // BLOCK_SIZE)
    first_ms = 1e3 * law.mean_s(1, prompt_tokens, 0, prompt_tokens * prompt_tokens / 2)
    next_ms = 1e3 * law.mean_s(1, 1, prompt_tokens + output_tokens // 2)
    return Case(
        f"stranger-{seed}",
        law,
        max_num_seqs,
        max(MAX_MODEL_LEN // BLOCK_SIZE + 1, round(max_num_seqs * blocks * between(0.25, 2.0))),
        chunk,
        prompt_tokens,
        output_tokens,
        ttft_ms=round(max(200.0, first_ms * between(4.0, 15.0)), -1),
        tpot_ms=round(next_ms * between(1.4, 4.0)),
        sigma=sigma,
    )


STRANGERS = {case.name: case for case in map(stranger, range(1, 21))}
ALL = {**CASES, **MIXTURES, **HYBRIDS, **STRANGERS}
