"""Windows: differences between snapshots of a server's metrics, as the fit of the step cost model needs them. Pure.

In: ServerSnapshots in order of time. Out: MetricsWindows. There is no window across a restart, a change in the number
of engines, a snapshot without a needed counter, or more than five minutes. A window with too little in it is joined
to the next one. A snapshot that is not later than the one before it is skipped.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass

from probe.core.snapshot import Histogram, ServerSnapshot

# Shorter ones are joined: with few steps in them their means are noise.
_MIN_S = 0.9
_MIN_DECODES = 20
_LONG_S = 8.0
_MIN_PROMPTS = 5  # a prompt is counted when it ends, and may have begun in the window before
# Longer than any usual scrape interval. The cost of a step depends on the batch of that moment, not on its mean over
# half an hour.
_MAX_S = 300.0
_COUNTED = ("itl", "ttft", "iteration_tokens", "prefill", "prompt_length")


@dataclass(frozen=True, slots=True)
class MetricsWindow:
    """Sums over a span of time; gauges are means of the snapshots at its ends and between, None where unknown."""

    begin_s: float
    end_s: float
    steps: float  # engine steps that produced a token
    decodes: float  # gaps between tokens, over all requests
    itl_sum_s: float
    prompts: float  # requests that got their first token
    prompt_tokens: float  # of these requests
    ttft_sum_s: float
    finished: float
    prefill_sum_s: float  # of the finished requests, from scheduling to the first token
    finished_prompt_tokens: float
    generation_tokens: float
    running: float | None
    waiting: float | None
    kv_tokens: float  # of one engine; 0 where unknown: a fit without any sets no cost for KV tokens
    cached_tokens: float  # prompt tokens that the prefix cache held
    engines: int = 1

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin_s

    @property
    def itl_s(self) -> float:
        """Return the mean gap between two tokens of a request; 0 without any gap."""
        return self.itl_sum_s / self.decodes if self.decodes else 0.0

    @property
    def tokens_per_gap(self) -> float:
        """Return the mean tokens of a request in one step: above 1 with speculative decoding."""
        return max((self.generation_tokens - self.prompts) / self.decodes, 1.0) if self.decodes else 1.0

    @property
    def batch(self) -> float:
        """Return the mean number of requests that decode in a step of one engine; 0 without any step."""
        return self.decodes / self.steps if self.steps else 0.0

    @property
    def experienced_batch(self) -> float:
        """Return the mean batch size as a decoding request experiences it, itself included.

        It exceeds the mean over steps, since most tokens come from full steps (the inspection paradox), and the more
        so the longer the window. A request that arrives at random meets as many others as there are on average over
        time (Slivnyak), which is the sum of the gaps over the seconds (Little's law).
        """
        if not self.itl_sum_s or not self.prompts:
            return self.batch
        others = self.itl_sum_s / self.seconds / self.engines
        # The window's length in mean decode times gives the share of the batch size's variance that lies within the
        # window; the rest is the variance of the window's mean. Exponential decode times are assumed.
        times = min(max(self.seconds * self.prompts / self.itl_sum_s, 1e-3), 1e6)
        within = 1 - 2 * (times - 1 + math.exp(-times)) / times**2
        return self.batch + within * max(1 + others - self.batch, 0.0)


def windows(snapshots: Iterable[ServerSnapshot]) -> list[MetricsWindow]:
    """Return the windows between snapshots; a window with too little in it is joined to the next one."""
    found: list[MetricsWindow] = []
    pending: MetricsWindow | None = None
    before: ServerSnapshot | None = None
    for after in snapshots:
        if before is None or after.at_ns <= before.at_ns:
            before = before or after
            continue
        window = _between(before, after)
        before = after
        if window is None:
            pending = None
            continue
        fits = pending is not None and pending.seconds + window.seconds <= _MAX_S
        pending = _joined(pending, window) if pending is not None and fits else window
        has_prompts = pending.prompts >= _MIN_PROMPTS or pending.seconds >= _LONG_S
        if pending.seconds >= _MIN_S and pending.decodes >= _MIN_DECODES and has_prompts:
            found.append(pending)
            pending = None
    return found


def join_windows(parts: Sequence[MetricsWindow]) -> MetricsWindow:
    """Join several windows into one. ValueError without any."""
    if not parts:
        raise ValueError("no windows")
    joined = parts[0]
    for part in parts[1:]:
        joined = _joined(joined, part)
    return joined


def _between(before: ServerSnapshot, after: ServerSnapshot) -> MetricsWindow | None:
    seconds = (after.at_ns - before.at_ns) * 1e-9
    if seconds > _MAX_S or before.engines != after.engines or _was_restarted(before, after):
        return None
    itl, ttft = _delta(before, after, "itl"), _delta(before, after, "ttft")
    prompt_tokens = _growth(before.prompt_tokens, after.prompt_tokens)
    generated = _growth(before.generation_tokens, after.generation_tokens)
    if itl is None or ttft is None or prompt_tokens is None or generated is None:
        return None
    steps = _delta(before, after, "iteration_tokens")
    prefill, lengths = _delta(before, after, "prefill"), _delta(before, after, "prompt_length")
    decodes, itl_sum_s = itl
    # Without a counter of steps (vLLM before 0.6): as many as gaps of one request fit in the time.
    uncounted = seconds * after.engines * decodes / itl_sum_s if itl_sum_s else 0.0
    window = MetricsWindow(
        begin_s=before.at_ns * 1e-9,
        end_s=after.at_ns * 1e-9,
        steps=steps[0] if steps is not None else uncounted,
        decodes=decodes,
        itl_sum_s=itl_sum_s,
        prompts=ttft[0],
        prompt_tokens=prompt_tokens,
        ttft_sum_s=ttft[1],
        finished=prefill[0] if prefill else 0.0,
        prefill_sum_s=prefill[1] if prefill else 0.0,
        finished_prompt_tokens=lengths[1] if prefill and lengths else 0.0,
        generation_tokens=generated,
        running=_mean(before.running, after.running),
        waiting=_mean(before.waiting, after.waiting),
        kv_tokens=(_mean(before.kv_cache_usage, after.kv_cache_usage) or 0.0)
        * (after.kv_cache_tokens or 0.0)
        / after.engines,
        # Fetched from another server or store, or found here: neither is computed.
        cached_tokens=(_growth(before.prefix_cache_hits, after.prefix_cache_hits) or 0.0)
        + (_growth(before.external_cache_hits, after.external_cache_hits) or 0.0),
        engines=after.engines,
    )
    return window if all(math.isfinite(value) for value in astuple(window) if value is not None) else None


def _was_restarted(before: ServerSnapshot, after: ServerSnapshot) -> bool:
    """Return whether a counter fell: the server, or one of its engines, counts from zero again."""
    pairs = ((before.histograms.get(name), after.histograms.get(name)) for name in _COUNTED)
    return any(new.count < old.count or new.sum < old.sum for old, new in pairs if old is not None and new is not None)


def _delta(before: ServerSnapshot, after: ServerSnapshot, name: str) -> tuple[float, float] | None:
    """Return by how much a histogram's count and sum grew; None if it is missing from a snapshot."""
    old: Histogram | None = before.histograms.get(name)
    new: Histogram | None = after.histograms.get(name)
    return (new.count - old.count, new.sum - old.sum) if old is not None and new is not None else None


def _growth(before: float | None, after: float | None) -> float | None:
    return after - before if before is not None and after is not None and after >= before else None


def _mean(before: float | None, after: float | None) -> float | None:
    """Return the mean of a gauge over the snapshots that have it; None if neither has."""
    known = [value for value in (before, after) if value is not None]
    return sum(known) / len(known) if known else None


def _joined(a: MetricsWindow, b: MetricsWindow) -> MetricsWindow:
    share = b.seconds / (a.seconds + b.seconds) if a.seconds + b.seconds else 0.0

    def mean(x: float, y: float) -> float:
        return x + (y - x) * share

    def gauge(x: float | None, y: float | None) -> float | None:
        return mean(x, y) if x is not None and y is not None else x if y is None else y

    return MetricsWindow(
        begin_s=a.begin_s,
        end_s=b.end_s,
        steps=a.steps + b.steps,
        decodes=a.decodes + b.decodes,
        itl_sum_s=a.itl_sum_s + b.itl_sum_s,
        prompts=a.prompts + b.prompts,
        prompt_tokens=a.prompt_tokens + b.prompt_tokens,
        ttft_sum_s=a.ttft_sum_s + b.ttft_sum_s,
        finished=a.finished + b.finished,
        prefill_sum_s=a.prefill_sum_s + b.prefill_sum_s,
        finished_prompt_tokens=a.finished_prompt_tokens + b.finished_prompt_tokens,
        generation_tokens=a.generation_tokens + b.generation_tokens,
        running=gauge(a.running, b.running),
        waiting=gauge(a.waiting, b.waiting),
        kv_tokens=mean(a.kv_tokens, b.kv_tokens),
        cached_tokens=a.cached_tokens + b.cached_tokens,
        engines=b.engines,
    )
