"""The metrics windows as arrays, and what a step cost model says about each of them. Pure; needs numpy.

In: the windows of each segment, and the workload's prompt lengths. Out: for given terms of the cost, the mean gap
between tokens in each window, the mean prefill time of each segment, and how far both are from what was measured. The
least squares of step_cost_fit.py minimise that misfit.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from probe.capacity.model.windows import MetricsWindow

Floats = NDArray[np.float64]

# How strongly a term is held to its first guess where the windows cannot tell it from the others.
_PRIOR = np.array([1.0, 0.5, 0.1, 1.0, 0.5])
TERMS = len(_PRIOR)
_MIN_PREFILLS = 5


class FitData:
    """The windows as arrays, and what a step cost model makes of them.

    Prompts begin in a step as a Poisson process; their lengths are those in `prompts`, all equally likely.
    """

    def __init__(
        self,
        good: Sequence[Sequence[MetricsWindow]],
        segments: Sequence[Sequence[MetricsWindow]],
        chunk_tokens: int,
        prompts: Sequence[float],
        pair_s: float,
        *,
        plans_ahead: bool = False,
    ) -> None:
        """`good`: of each segment, the windows with enough in them to be fitted."""
        self._plans_ahead = plans_ahead
        windows = [w for s in good for w in s]
        self.slowdown = np.zeros(len(segments))  # of each segment, as a logarithm
        self.segment = np.repeat(np.arange(len(good)), [len(s) for s in good])  # of each window
        self.itl_s = _column(w.itl_s for w in windows)
        self.batch = _column(w.batch for w in windows)
        self.experienced_batch = _column(w.experienced_batch for w in windows)
        self.kv_tokens = _column(w.kv_tokens for w in windows)
        steps = _column(w.steps for w in windows)
        started = _column(w.prompts for w in windows)
        computed = _column(computed_tokens(w) for w in windows)
        lengths = np.array(prompts, dtype=float)
        lengths *= computed.sum() / max(started.sum(), 1.0) / lengths.mean()
        self._add_prompt_chunks(windows, started, computed, lengths, chunk_tokens=chunk_tokens, pair_s=pair_s)
        fresh = computed.sum() / max(sum(w.prompt_tokens for w in windows), 1.0)
        self._add_prefills(segments, chunk_tokens, lengths, fresh, pair_s)
        share = 1 - self.itl_s.min() / self.itl_s  # of the gaps that prompts cause, roughly
        self.itl_scatter = np.sqrt(0.01**2 + 0.1**2 / steps + (0.7 * share) ** 2 / np.maximum(started, 1.0))
        self.itl_scale, self.prefill_scale = self.itl_s, self.prefill_s
        self.guess = self._first_guess()

    def _add_prompt_chunks(
        self,
        windows: Sequence[MetricsWindow],
        started: Floats,
        computed: Floats,
        lengths: Floats,
        *,
        chunk_tokens: int,
        pair_s: float,
    ) -> None:
        """Estimate for each window the share of steps that hold a prompt, and how many prompt tokens these hold."""
        chunks = np.ceil(lengths / chunk_tokens)
        # Prompt chunks in a step, as a decoding request meets them: a rate over time, since no request decodes in an
        # idle step.
        seconds = _column(w.seconds for w in windows)
        engines = _column(w.engines for w in windows)
        begun = started * chunks.mean() * self.itl_s / seconds / engines
        filled = 1 - np.exp(-begun)
        # Prompt lengths of this window: spread as all are, with the mean that was measured here.
        own = np.where(started > 0, computed / np.maximum(started, 1.0) / lengths.mean(), 1.0)
        together = np.where(begun > 0, begun / np.maximum(filled, 1e-9), 1.0)
        alone = (lengths / chunks)[:, None] * own[None, :]
        # A step has room for chunk_tokens; what does not fit fills another step.
        self.chunk = np.minimum(alone * together[None, :], float(chunk_tokens))
        self.filled = np.minimum(begun * alone.mean(axis=0) / np.maximum(self.chunk.mean(axis=0), 1e-9), 1.0)
        # Attention pairs of a chunk, averaged over the prompt's chunks: its tokens times half of the whole length.
        self.chunk_pairs_s = pair_s * self.chunk * (lengths[:, None] * own[None, :]) / 2

    def _add_prefills(
        self,
        segments: Sequence[Sequence[MetricsWindow]],
        chunk_tokens: int,
        lengths: Floats,
        fresh: float,
        pair_s: float,
    ) -> None:
        """Compute the mean prefill time of each segment, and the conditions under which prompts began there.

        vLLM counts a prefill when its request ends, long after it happened, so conditions are averaged over the whole
        segment, each window weighted by the prompts that began in it.
        """
        enough = [
            sum(w.finished for w in s) >= _MIN_PREFILLS
            and sum(w.prompts for w in s) > 0
            and sum(w.prefill_sum_s for w in s) > 0
            for s in segments
        ]
        self.prefill_segment = np.flatnonzero(enough)
        usable = [s for s, has_enough in zip(segments, enough, strict=True) if has_enough]
        finished = _column(sum(w.finished for w in s) for s in usable)
        self.prefill_s = _column(sum(w.prefill_sum_s for w in s) for s in usable) / finished
        self.begun_batch = _column(_mean_over_prompts(s, lambda w: w.batch if w.steps else 0.0) for s in usable)
        self.begun_kv = _column(_mean_over_prompts(s, lambda w: w.kv_tokens) for s in usable)
        ended = _column(sum(w.finished_prompt_tokens for w in s) for s in usable) / finished
        own = lengths[:, None] * np.where(ended > 0, ended * fresh / lengths.mean(), 1.0)[None, :]
        self.chunks = np.ceil(own / chunk_tokens)
        self.pairs_s = pair_s * own**2 / 2
        each = np.ceil(lengths / chunk_tokens)
        mean_chunk, mean_chunks = (lengths / each).mean(), each.mean()
        # Other prompts that begin in the same step: all that came during the step before, which was a long one if it
        # held a prompt.
        rate = _column(sum(w.prompts for w in s) / sum(w.seconds * w.engines for w in s) for s in usable)
        self.begun_busy = _column(_mean_over_prompts(s, _busy) for s in usable)
        waited_s = self.begun_busy * _column(_mean_over_prompts(s, lambda w: w.itl_s) for s in usable)
        own_s = np.maximum(self.prefill_s - waited_s * self._plans_ahead, 0.1 * self.prefill_s)
        busy = 1 - np.exp(-rate * own_s)
        calm = _column(_mean_over_prompts(s, lambda w: w.prompts / w.steps if w.steps else 0.0) for s in usable)
        beside = busy * rate * own_s + (1 - busy) * calm * mean_chunks
        # Of the step that is planned already when a prompt comes: that there is one, and that it holds a prompt.
        self.begun_filled = 1 - np.exp(-calm * mean_chunks)
        self.mean_chunk = min(mean_chunk, float(chunk_tokens))
        self.begun_chunk = np.minimum(own / self.chunks + mean_chunk * beside[None, :], float(chunk_tokens))
        self.prefill_scatter = 0.02 + 0.2 / np.sqrt(finished)

    def _first_guess(self) -> Floats:
        step_s = float(np.min(self.itl_s))
        first_s = float(np.median(self.prefill_s)) if self.prefill_s.size else 2 * step_s
        chunk = float(self.begun_chunk.mean()) if self.prefill_s.size else float(self.chunk.mean())
        chunks = float(self.chunks.mean()) if self.prefill_s.size else 1.0
        token_s = max(first_s / chunks - 0.5 * step_s, 0.1 * step_s) / max(chunk, 1.0)
        kv, batch = max(float(np.max(self.kv_tokens)), 1.0), max(float(np.max(self.batch)), 1.0)
        return np.array([0.4 * step_s, 0.1 * step_s / batch, token_s, 0.5 * step_s, 0.1 * step_s / kv])

    def gaps(self, terms: Floats) -> Floats:
        """Return the mean gap between tokens that the cost model predicts for each window, in seconds."""
        bare = step_seconds(terms, self.experienced_batch, self.kv_tokens, 0.0)
        filled = step_seconds(terms, self.experienced_batch, self.kv_tokens, self.chunk) + self.chunk_pairs_s
        slowdown = np.exp(self.slowdown[self.segment])
        return np.asarray(((1 - self.filled) * bare + self.filled * filled.mean(axis=0)) * slowdown)

    def prefills(self, terms: Floats) -> Floats:
        """Return the mean prefill time that the cost model predicts for each segment, in seconds."""
        steps = step_seconds(terms, self.begun_batch, self.begun_kv, self.begun_chunk)
        slowdown = np.exp(self.slowdown[self.prefill_segment])
        own = (self.chunks * steps + self.pairs_s).mean(axis=0)
        return np.asarray((own + self._waited(terms)) * slowdown)

    def _waited(self, terms: Floats) -> Floats | float:
        """Return for how long a prompt waits for a step planned before it, on average, in seconds."""
        if not self._plans_ahead:
            return 0.0
        bare = step_seconds(terms, self.begun_batch, self.begun_kv, 0.0)
        filled = step_seconds(terms, self.begun_batch, self.begun_kv, self.mean_chunk)
        return np.asarray(self.begun_busy * ((1 - self.begun_filled) * bare + self.begun_filled * filled))

    def scale_by(self, terms: Floats) -> None:
        """Take errors relative to these terms' predictions.

        Relative to the measured values, a window that is low by chance would weigh more.
        """
        self.itl_scale, self.prefill_scale = self.gaps(terms), self.prefills(terms)

    def offsets(self, terms: Floats) -> Floats:
        """Return the logarithm of each measured gap over the predicted one."""
        return np.log(self.itl_s / self.gaps(terms))

    def misfit(self, share: Floats) -> Floats:
        """Return what the fit minimises, for terms given as shares of their first guess."""
        return np.concatenate([self.errors(share * self.guess), _PRIOR * (share - 1)])

    def errors(self, terms: Floats) -> Floats:
        """Return all errors, each in units of its expected scatter."""
        gaps = (self.gaps(terms) - self.itl_s) / self.itl_scale / self.itl_scatter
        return np.concatenate(
            [gaps, (self.prefills(terms) - self.prefill_s) / self.prefill_scale / self.prefill_scatter]
        )


def computed_tokens(window: MetricsWindow) -> float:
    """Return the prompt tokens that the prefix cache did not hold."""
    return max(window.prompt_tokens - window.cached_tokens, 0.0)


def _mean_over_prompts(segment: Sequence[MetricsWindow], value: Callable[[MetricsWindow], float]) -> float:
    """Return the mean of a value over the prompts that began in the segment."""
    return sum(value(w) * w.prompts for w in segment) / sum(w.prompts for w in segment)


def _busy(window: MetricsWindow) -> float:
    """Return the share of the window in which steps ran."""
    return min(window.steps * window.itl_s / window.seconds / window.engines, 1.0)


def _column(values: Iterable[float]) -> Floats:
    return np.array(list(values), dtype=float)


def step_seconds(terms: Floats, batch: Floats, kv_tokens: Floats, prefill: Floats | float) -> Floats:
    """Return probe.simulator.cost.StepCost.step_seconds for arrays."""
    host, sequence, token, weights, kv_token = terms
    memory = weights + kv_token * kv_tokens
    compute = token * (batch + prefill)
    return np.asarray(host + sequence * batch + (memory**4 + compute**4 + 1e-30) ** 0.25)
