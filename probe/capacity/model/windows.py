"""What a server did between two readings of its metrics, as the fit of a step law needs it. Pure.

In: ServerSnapshots in the order of their times. Out: Windows. A restart, an engine that came or went, a reading that
lacks a figure, and a long time without readings give no window; a quiet moment is joined to what comes after it. A
reading that is not later than the one before it is left out.
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
# Longer than Prometheus' scrapes are apart. A law holds for what runs at a time, not for its mean over half an hour.
_MAX_S = 300.0
_COUNTED = ("itl", "ttft", "iteration_tokens", "prefill", "prompt_length")


@dataclass(frozen=True, slots=True)
class MetricsWindow:
    """Sums over one stretch of time. Gauges are the mean of the readings at its ends and between."""

    begin_s: float
    end_s: float
    steps: float  # that gave a token
    decodes: float  # gaps between tokens that were counted
    itl_sum_s: float
    prompts: float  # that got their first token
    prompt_tokens: float  # of theirs
    ttft_sum_s: float
    finished: float
    prefill_sum_s: float  # of the finished ones: from the batch to the first token
    finished_prompt_tokens: float  # of theirs
    generation_tokens: float
    running: float
    waiting: float
    kv_tokens: float  # of one engine
    cached_tokens: float  # prompt tokens that the prefix cache had
    engines: int = 1

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin_s

    @property
    def itl_s(self) -> float:
        """Mean gap between two tokens of a request; 0 where none was counted."""
        return self.itl_sum_s / self.decodes if self.decodes else 0.0

    @property
    def tokens_per_gap(self) -> float:
        """Tokens that come together: above 1 with speculative decoding."""
        return max((self.generation_tokens - self.prompts) / self.decodes, 1.0) if self.decodes else 1.0

    @property
    def batch(self) -> float:
        """Requests that decode in a step of one engine; 0 where no step was counted."""
        return self.decodes / self.steps if self.steps else 0.0

    @property
    def company(self) -> float:
        """Requests that decode in a step, as one of them meets them: itself, and others.

        The longer the window, the more their number changes within it, and the more of its tokens come from full
        steps. Where requests come at random, one meets as many others as there are on average at any time (Slivnyak),
        which is the sum of gaps over the time (Little).
        """
        if not self.itl_sum_s or not self.prompts:
            return self.batch
        others = self.itl_sum_s / self.seconds / self.engines
        # How many times as long as a request decodes the window is, and by that the share of the variance within it:
        # the rest is the variance of its mean, where the times that requests decode are exponential.
        times = min(max(self.seconds * self.prompts / self.itl_sum_s, 1e-3), 1e6)
        within = 1 - 2 * (times - 1 + math.exp(-times)) / times**2
        return self.batch + within * max(1 + others - self.batch, 0.0)


def windows(snapshots: Iterable[ServerSnapshot]) -> list[MetricsWindow]:
    """The windows between readings, those too short to say anything joined to the next."""
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
        told = pending.prompts >= _MIN_PROMPTS or pending.seconds >= _LONG_S
        if pending.seconds >= _MIN_S and pending.decodes >= _MIN_DECODES and told:
            found.append(pending)
            pending = None
    return found


def total(parts: Sequence[MetricsWindow]) -> MetricsWindow:
    """Several windows as one. ValueError without any."""
    if not parts:
        raise ValueError("no windows")
    joined = parts[0]
    for part in parts[1:]:
        joined = _joined(joined, part)
    return joined


def _between(before: ServerSnapshot, after: ServerSnapshot) -> MetricsWindow | None:
    seconds = (after.at_ns - before.at_ns) * 1e-9
    if seconds > _MAX_S or before.engines != after.engines or _fell(before, after):
        return None
    itl, ttft = _delta(before, after, "itl"), _delta(before, after, "ttft")
    prompt_tokens = _growth(before.prompt_tokens, after.prompt_tokens)
    generated = _growth(before.generation_tokens, after.generation_tokens)
    if itl is None or ttft is None or prompt_tokens is None or generated is None:
        return None
    steps = _delta(before, after, "iteration_tokens")
    prefill, lengths = _delta(before, after, "prefill"), _delta(before, after, "prompt_length")
    decodes, itl_sum_s = itl
    # Where the steps are not counted (vLLM before 0.6): as many as the gaps of one request fit in the time.
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
        kv_tokens=_mean(before.kv_cache_usage, after.kv_cache_usage) * (after.kv_cache_tokens or 0.0) / after.engines,
        cached_tokens=_growth(before.prefix_cache_hits, after.prefix_cache_hits) or 0.0,
        engines=after.engines,
    )
    return window if all(map(math.isfinite, astuple(window))) else None


def _fell(before: ServerSnapshot, after: ServerSnapshot) -> bool:
    """Whether something was counted from zero again: the server is another one, or one of its engines is."""
    pairs = ((before.histograms.get(name), after.histograms.get(name)) for name in _COUNTED)
    return any(new.count < old.count or new.sum < old.sum for old, new in pairs if old is not None and new is not None)


def _delta(before: ServerSnapshot, after: ServerSnapshot, name: str) -> tuple[float, float] | None:
    """How many were observed, and their sum; None where the server does not say."""
    old: Histogram | None = before.histograms.get(name)
    new: Histogram | None = after.histograms.get(name)
    return (new.count - old.count, new.sum - old.sum) if old is not None and new is not None else None


def _growth(before: float | None, after: float | None) -> float | None:
    return after - before if before is not None and after is not None and after >= before else None


def _mean(before: float | None, after: float | None) -> float:
    """Of a gauge, by the readings that have it; 0 where none has."""
    known = [value for value in (before, after) if value is not None]
    return sum(known) / len(known) if known else 0.0


def _joined(a: MetricsWindow, b: MetricsWindow) -> MetricsWindow:
    share = b.seconds / (a.seconds + b.seconds) if a.seconds + b.seconds else 0.0

    def mean(x: float, y: float) -> float:
        return x + (y - x) * share

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
        running=mean(a.running, b.running),
        waiting=mean(a.waiting, b.waiting),
        kv_tokens=mean(a.kv_tokens, b.kv_tokens),
        cached_tokens=a.cached_tokens + b.cached_tokens,
        engines=b.engines,
    )
