"""How many tokens a server's KV cache has room for, and how that is known. Pure.

A page states one size. In a model with several kinds of attention (sliding windows, a recurrent state) it holds for
requests of max_model_len only: a short request takes more blocks for each of its tokens. On the pages of some versions
it is wrong altogether. So traffic is asked too: blocks in use over running requests is what one of them holds, and the
lengths of requests say how many tokens that is.

What a request of L tokens holds grows with L, and never faster than before. So a size that is learnt from requests of
one length is a lower bound for longer ones. Of shorter ones, at least one kind of attention holds every token less.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from probe.core.snapshot import Histogram, ServerSnapshot
from probe.core.token_length import TokenLength, mean_length, quantile

_ALIKE = 0.15  # lengths this near are the same, and a size this uncertain is exact
_ROUNDING = 0.05  # of a stated size, which is of whole requests, and of whole blocks for each
# By how much more a request must hold than its longest possible mean length explains, before a page is not believed.
_TOO_MUCH = 1.25
_MIN_PROMPTS, _MIN_SNAPSHOTS, _MIN_RUNNING = 20, 10, 20.0
# vLLM's usual tokens of a step: a longer prompt is computed, and gets its blocks, in several.
_USUAL_CHUNK = 2048
_USUAL_BLOCK = 16
# Standard deviation over mean of lengths whose distribution is not known: as of a chat, and the most that is usual.
_USUAL_SPREAD, _WIDE_SPREAD = 0.5, 0.7
_QUANTILES = 20


@dataclass(frozen=True, slots=True)
class KvSize:
    """Tokens that the KV cache of all engines has room for.

    `tokens`: of requests of the length that was asked for, `traffic_tokens`: of those that were seen, and
    `stated_tokens`: by the page, all three alike where one kind of attention uses the cache. `block_tokens`: what all
    blocks have room for. `request_tokens`: of them, what other kinds of attention hold for a request, whatever its
    length: their windows are full. `is_learnt`: from traffic.
    """

    tokens: float
    traffic_tokens: float
    stated_tokens: float
    block_tokens: float
    request_tokens: float = 0.0
    is_learnt: bool = False
    is_lower_bound: bool = False

    @property
    def pool_tokens(self) -> float:
        """Return the room for requests that hold each of their tokens once, and `request_tokens` more."""
        return self.block_tokens if self.request_tokens else self.tokens

    @property
    def is_as_stated(self) -> bool:
        """Return whether the page's size is right for these requests."""
        return not (self.is_learnt or self.is_lower_bound)

    @property
    def words(self) -> str:
        """Return what differs from the page, and how it is known; "" if nothing does."""
        if self.is_as_stated:
            return ""
        least = "at least" if self.is_lower_bound else "about"
        how = "learnt from traffic" if self.is_learnt else "not yet learnt from traffic"
        return (
            f"the KV cache has room for {least} {_rounded(self.tokens):,.0f} tokens of such requests ({how}; the server"
            f" says {self.stated_tokens:,.0f}, {_rounded_ratio(self)})"
        )


def mean_held(prompt: TokenLength, output: TokenLength) -> float:
    """Return the tokens that a running request of these lengths holds, on average over time."""
    outputs = [quantile(output, (i + 0.5) / _QUANTILES) for i in range(_QUANTILES)]
    return mean_length(prompt) + sum(one * one for one in outputs) / sum(outputs) / 2


def kv_size(snapshots: Sequence[ServerSnapshot], held_tokens: float | None = None) -> KvSize | None:
    """Return the size for requests that hold so many tokens on average, or for those that were seen.

    None if no snapshot states a size.
    """
    last = next((one for one in reversed(snapshots) if one.kv_cache_tokens), None)
    if last is None or not last.kv_cache_tokens:
        return None
    stated, blocks = last.kv_cache_tokens, _block_tokens(last)
    seen = _observed(snapshots, _block_size(last))
    is_of_one_kind = last.value("kv_longest_requests") is None and abs(stated / blocks - 1) <= _ROUNDING
    if is_of_one_kind and (seen is None or seen.is_explained):
        return KvSize(stated, stated, stated, blocks)
    asked = held_tokens or (seen.mean if seen is not None else 0.0)
    if seen is None:
        least, traffic = _least_by_page(last, stated, blocks, asked), 0.0
    elif abs(asked / seen.mean - 1) <= _ALIKE:
        least = traffic = blocks * asked / seen.block_tokens
    else:
        traffic = blocks * seen.mean / seen.block_tokens
        least = traffic if asked > seen.mean else blocks * asked / seen.most_held_by(asked)
    tokens = min(least, max(stated, blocks))
    return KvSize(
        tokens,
        min(traffic or tokens, max(stated, blocks)),
        stated,
        blocks,
        request_tokens=0.0 if is_of_one_kind else max(asked * (blocks / tokens - 1), 0.0),
        is_learnt=seen is not None,
        is_lower_bound=seen is None or abs(asked / seen.mean - 1) > _ALIKE or seen.hits > _ALIKE,
    )


@dataclass(frozen=True, slots=True)
class _Observed:
    """Running requests, on average over time: the block tokens that one holds, and its own tokens.

    `mean` of them if lengths of prompts and answers have nothing to do with each other, and `most` if long prompts
    have long answers. `hits`: the share of prompts that the prefix cache had. Several requests may hold it together,
    so only `most` counts it.
    """

    block_tokens: float
    mean: float
    most: float
    hits: float

    @property
    def is_explained(self) -> bool:
        """Return whether the requests may be so long that each token is held once."""
        return self.block_tokens <= _TOO_MUCH * self.most

    def most_held_by(self, tokens: float) -> float:
        """Return what a shorter request holds at most: of one kind of attention each token less."""
        return self.block_tokens - (self.mean - tokens) if self.block_tokens > self.mean else self.block_tokens


def _observed(snapshots: Sequence[ServerSnapshot], block_size: float) -> _Observed | None:
    busy = [(one.running, used) for one in snapshots if one.running and (used := _used(one)) is not None]
    running = sum(each for each, _ in busy)
    used = sum(each for _, each in busy)
    traffic = _traffic(snapshots)
    if len(busy) < _MIN_SNAPSHOTS or running < _MIN_RUNNING or used <= 0 or traffic is None:
        return None
    spreads = [_spread(snapshots[-1].histograms.get(name)) for name in ("prompt_length", "output_length")]
    wide = [one or _WIDE_SPREAD for one in spreads]

    def held(prompt: float, while_computed: float, output_spread: float) -> float:
        decoding = prompt + traffic.output * (1 + output_spread**2) / 2
        return decoding + (while_computed - decoding) * traffic.prefill_share

    more = min(math.prod(wide), 1.0)  # how much longer the prompts of long answers may be (Cauchy and Schwarz)
    own = traffic.prompt * (1 - traffic.hits)
    computed = (own + min(own, _USUAL_CHUNK)) / 2
    return _Observed(
        block_tokens=used / running,
        mean=max(held(own, computed, spreads[1] or _USUAL_SPREAD), 1.0),
        most=held(traffic.prompt * (1 + more), traffic.prompt, wide[1]) + block_size,
        hits=traffic.hits,
    )


@dataclass(frozen=True, slots=True)
class _Traffic:
    """Mean lengths of the requests that began; the share of prompts in the prefix cache, and of time in prefill."""

    prompt: float
    output: float
    hits: float
    prefill_share: float


def _traffic(snapshots: Sequence[ServerSnapshot]) -> _Traffic | None:
    sums = dict.fromkeys(("prompts", "prompt", "output", "hits", "prefill", "decode"), 0.0)
    for before, after in pairwise(snapshots):
        grown = _grown(before, after)
        if grown is not None:
            sums = {name: value + grown[name] for name, value in sums.items()}
    if sums["prompts"] < _MIN_PROMPTS or sums["prompt"] <= 0 or sums["output"] <= 0:
        return None
    seconds = sums["prefill"] + sums["decode"]
    return _Traffic(
        sums["prompt"] / sums["prompts"],
        sums["output"] / sums["prompts"],
        min(sums["hits"] / sums["prompt"], 1.0),
        sums["prefill"] / seconds if seconds else 0.0,
    )


def _grown(before: ServerSnapshot, after: ServerSnapshot) -> dict[str, float] | None:
    """Return what was counted between two snapshots; None if a counter is missing, or fell."""

    def counts(one: ServerSnapshot) -> tuple[float | None, ...]:
        ttft, prefill, itl = (one.histograms.get(name) for name in ("ttft", "prefill", "itl"))
        return (
            ttft.count if ttft is not None else None,
            one.prompt_tokens,
            one.generation_tokens,
            one.prefix_cache_hits or 0.0,
            prefill.sum if prefill is not None else 0.0,
            itl.sum if itl is not None else 0.0,
        )

    grown: list[float] = []
    for old, new in zip(counts(before), counts(after), strict=True):
        if old is None or new is None or not new >= old:
            return None
        grown.append(new - old)
    return dict(zip(("prompts", "prompt", "output", "hits", "prefill", "decode"), grown, strict=True))


def mean_usage(snapshot: ServerSnapshot) -> float | None:
    """Return the share of all engines' KV cache in use; None if that is known of the fullest engine only."""
    used, blocks = _used(snapshot), _block_tokens(snapshot)
    return used / blocks if used is not None and blocks else None


def _used(snapshot: ServerSnapshot) -> float | None:
    """Return the block tokens in use over all engines; None if that is known of the fullest one only."""
    if snapshot.replicas:
        each = [_used(one) for one in snapshot.replicas.values()]
        return None if None in each else sum(one for one in each if one is not None)
    if not snapshot.kv_cache_tokens:
        return None
    usage = [engine.kv_cache_usage for engine in snapshot.by_engine.values()]
    if not usage and snapshot.engines == 1:
        usage = [snapshot.kv_cache_usage]
    known = [one for one in usage if one is not None]
    return sum(known) / len(usage) * _block_tokens(snapshot) if known and None not in usage else None


def _block_tokens(snapshot: ServerSnapshot) -> float:
    return snapshot.value("kv_block_tokens") or snapshot.kv_cache_tokens or 0.0


def _block_size(snapshot: ServerSnapshot) -> float:
    stated = snapshot.flags.get("block_size", "")
    return float(stated) if stated.isdecimal() and stated.isascii() else _USUAL_BLOCK


def _least_by_page(snapshot: ServerSnapshot, stated: float, blocks: float, held_tokens: float | None) -> float:
    """Return a lower bound before traffic shows more: the page's size holds for the longest requests."""
    requests = snapshot.value("kv_longest_requests")
    if stated > blocks or not requests or not held_tokens:
        return min(stated, blocks)
    longest = stated / requests
    held = min(held_tokens, longest)
    return blocks * held / (blocks / requests - (longest - held))


def _spread(lengths: Histogram | None) -> float | None:
    """Return the standard deviation over the mean, of lengths uniform in each bucket; None if buckets are unknown."""
    if lengths is None or len(lengths.buckets) < 2:  # noqa: PLR2004 - only the one that has all
        return None
    count = first = second = below = before = 0.0
    for bound, cumulative in lengths.buckets:
        high = bound if math.isfinite(bound) else 2 * below
        here = max(cumulative - before, 0.0)
        count, before = count + here, cumulative
        first += here * (below + high) / 2
        second += here * (below * below + below * high + high * high) / 3
        below = high
    return math.sqrt(max(second * count / first**2 - 1, 0.0)) if first > 0 else None


def _rounded(tokens: float) -> float:
    """Round to two digits."""
    return float(f"{tokens:.2g}")


def _rounded_ratio(size: KvSize) -> str:
    ratio = size.stated_tokens / size.tokens
    return f"{ratio:.2g} times as many" if ratio > 1 else "for requests of max_model_len"
