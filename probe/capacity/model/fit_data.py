"""The metrics windows as arrays, and what a step cost model says about each of them. Pure; needs numpy.

In: the windows of each segment, and the workload's prompt lengths. Out: for given terms of the cost, the mean gap
between tokens in each window, the mean prefill time of each segment, and how far both are from what was measured. The
least squares of step_cost_fit.py minimise that misfit.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from probe.capacity.model.windows import MetricsWindow

Floats = NDArray[np.float64]


class PromptMix:
    """Chunks of prompts in each window. A prompt has `full` chunks that fill a step, and one with the `rest`.

    A window with a larger mean prompt has more long prompts than usual, not longer ones.
    `shares`: of the lengths among the prompts; `chunks`: of a prompt, on average; `mean_tokens`: of a chunk;
    `first_tokens`: of a prompt's first chunk. Arrays of all chunks have those that fill a step first: `counts` such
    chunks a prompt, with `tokens` and the `pairs` of them with all before them.
    """

    def __init__(self, lengths: Floats, means: Floats, room: Floats) -> None:
        """Take `lengths`, equally likely; `means`: of each window's prompts; `room`: for prompts in its steps."""
        mean, variance = lengths.mean(), lengths.var()
        is_one = variance <= 1e-12 * mean**2  # equal lengths may have a variance, of rounding errors
        tilt = np.zeros_like(lengths) if is_one else (lengths - mean) / variance
        self.shares = np.maximum(1 + tilt[:, None] * (means - mean), 0.0)
        self.shares /= self.shares.sum(axis=0)
        own = lengths[:, None] * means / (self.shares * lengths[:, None]).sum(axis=0)
        self.full = np.maximum(np.ceil(own / room) - 1, 0.0)
        self.rest = own - self.full * room
        self.room = room
        self.tokens = np.concatenate([np.broadcast_to(room, own.shape), self.rest])
        self.counts = np.concatenate([self.shares * self.full, self.shares])
        self.pairs = self.tokens * np.concatenate([self.full * room / 2, self.full * room + self.rest / 2])
        self.chunks = self.counts.sum(axis=0)
        self.mean_tokens = means / self.chunks
        self.first_tokens = (self.shares * np.minimum(own, room)).sum(axis=0)

    def in_steps(self, begun: Floats) -> tuple[Floats, Floats]:
        """Return the share of steps that hold a prompt, and for each chunk how many tokens its step has.

        `begun`: chunks for each step, as a Poisson process.
        """
        filled = 1 - np.exp(-begun)
        together = np.where(begun > 0, begun / np.maximum(filled, 1e-9), 1.0)
        # What does not fit fills another step.
        tokens = np.minimum(self.tokens + (together - 1) * self.mean_tokens, self.room)
        return np.minimum(begun * self.mean_tokens / np.maximum(self.mean(tokens), 1e-9), 1.0), tokens

    def mean(self, values: Floats) -> Floats:
        """Return the mean over all chunks."""
        return np.asarray((self.counts * values).sum(axis=0) / self.chunks)


_MIN_PREFILLS = 5


class PrefillData:
    """Segments with prefills (`segment`: their indices), the mean time of each (`seconds`), and its usual `scatter`.

    vLLM counts a prefill when its request ends, long after it happened, so conditions are averaged over a whole
    segment, each window weighted by the prompts that began in it. A prompt comes during a step, a long one rather than
    a short one, together with others. They begin in the next step, or with steps planned ahead in the one after it. The
    rest of a long prompt, which has filled steps before, comes first.
    """

    def __init__(
        self,
        segments: Sequence[Sequence[MetricsWindow]],
        lengths: Floats,
        fresh: float,
        chunk_tokens: int,
        pair_s: float,
        *,
        plans_ahead: bool,
    ) -> None:
        """Take `lengths`: of prompts, equally likely; `fresh`: share of their tokens that is computed."""
        self._plans_ahead, self._pair_s = plans_ahead, pair_s
        self.segment = np.array([i for i, each in enumerate(segments) if _has_prefills(each)], dtype=int)
        usable = [segments[i] for i in self.segment]
        finished = column(sum(w.finished for w in s) for s in usable)
        self.seconds = column(sum(w.prefill_sum_s for w in s) for s in usable) / finished
        self.scatter = 0.02 + 0.2 / np.sqrt(finished)
        self.batch = column(_mean_over_prompts(s, lambda w: w.batch if w.steps else 0.0) for s in usable)
        self.kv_tokens = column(_mean_over_prompts(s, lambda w: w.kv_tokens) for s in usable)
        room = np.maximum(chunk_tokens - self.batch, 1.0)
        ended = column(sum(w.finished_prompt_tokens for w in s) for s in usable) / finished
        self.own = PromptMix(lengths, np.where(ended > 0, ended * fresh, lengths.mean()), room)
        self._others = PromptMix(lengths, np.full_like(ended, lengths.mean()), room)
        self._rate = column(sum(w.prompts for w in s) / sum(w.seconds * w.engines for w in s) for s in usable)
        self._busy = column(_mean_over_prompts(s, _busy) for s in usable)
        gap_s = column(_mean_over_prompts(s, lambda w: w.itl_s) for s in usable)
        self._filled, self._tokens = self._others.in_steps(self._rate * self._others.chunks * gap_s)

    def predict(self, step_s: Callable[[Floats, Floats, Floats | float], Floats]) -> Floats:
        """Return the mean prefill time of each segment. `step_s`: of a step, by batch, KV tokens and prompt tokens."""
        others, filled = self._others, self._filled
        full = len(others.full)  # rows of chunks that fill a step

        def seconds(tokens: Floats | float) -> Floats:
            return step_s(self.batch, self.kv_tokens, tokens)

        bare, held = seconds(0.0), seconds(self._tokens) + self._pair_s * others.pairs
        share = filled * others.counts / others.chunks  # of the steps, by the chunk they hold
        usual_s = (1 - filled) * bare + (share * held).sum(axis=0)
        came = share * held / usual_s  # of the prompts, by the step in which they come
        came_s = (1 - filled) * bare**2 / usual_s + (came * held).sum(axis=0)
        after = share if self._plans_ahead else came
        beside = self._rate * others.first_tokens * came_s + (after[:full] * others.rest).sum(axis=0)
        first_s = self._own_seconds(seconds, self._busy * beside)
        if not self._plans_ahead:
            return first_s
        # The step that is planned already: the rest of a prompt that fills this one, or any other.
        rest_s = seconds(others.rest)
        is_rest = share[:full].sum(axis=0)
        any_s = (usual_s - (share[:full] * rest_s).sum(axis=0)) / np.maximum(1 - is_rest, 1e-9)
        waited_s = (came[:full] * rest_s).sum(axis=0) + (1 - came[:full].sum(axis=0)) * any_s
        return np.asarray(first_s + self._busy * waited_s)

    def _own_seconds(self, seconds: Callable[[Floats | float], Floats], beside: Floats) -> Floats:
        """Return the mean time of a prompt's own steps, the first one with so many other prompt tokens."""
        own = self.own
        full_s = seconds(own.room)
        # What others take of a step that is full is left for the last one.
        later = self._rate * self._others.first_tokens * own.full * full_s
        last_s = seconds(np.minimum(own.rest + beside + later, own.room))
        of_all = own.full * full_s + last_s + self._pair_s * (own.full * own.room + own.rest) ** 2 / 2
        return np.asarray((own.shares * of_all).sum(axis=0))


def column(values: Iterable[float]) -> Floats:
    return np.array(list(values), dtype=float)


def _has_prefills(segment: Sequence[MetricsWindow]) -> bool:
    return (
        sum(w.finished for w in segment) >= _MIN_PREFILLS
        and sum(w.prompts for w in segment) > 0
        and sum(w.prefill_sum_s for w in segment) > 0
    )


def _mean_over_prompts(segment: Sequence[MetricsWindow], value: Callable[[MetricsWindow], float]) -> float:
    """Return the mean of a value over the prompts that began in the segment."""
    return sum(value(w) * w.prompts for w in segment) / sum(w.prompts for w in segment)


def _busy(window: MetricsWindow) -> float:
    """Return the share of the window in which steps ran."""
    return min(window.steps * window.itl_s / window.seconds / window.engines, 1.0)


# How strongly a term is held to its first guess where the windows cannot tell it from the others.
_PRIOR = np.array([1.0, 0.5, 0.1, 1.0, 0.5])
TERMS = len(_PRIOR)


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
        """Take `good`: the windows of each segment with enough in them to be fitted."""
        windows = [w for s in good for w in s]
        self.slowdown = np.zeros(len(segments))  # of each segment, as a logarithm
        self.segment = np.repeat(np.arange(len(good)), [len(s) for s in good])  # of each window
        self.itl_s = column(w.itl_s for w in windows)
        self.batch = column(w.batch for w in windows)
        self.experienced_batch = column(w.experienced_batch for w in windows)
        self.kv_tokens = column(w.kv_tokens for w in windows)
        steps = column(w.steps for w in windows)
        started = column(w.prompts for w in windows)
        computed = column(computed_tokens(w) for w in windows)
        lengths = np.array(prompts, dtype=float)
        lengths *= computed.sum() / max(started.sum(), 1.0) / lengths.mean()
        self._add_prompt_chunks(windows, started, computed, lengths, chunk_tokens=chunk_tokens, pair_s=pair_s)
        fresh = computed.sum() / max(sum(w.prompt_tokens for w in windows), 1.0)
        self.prefill = PrefillData(segments, lengths, fresh, chunk_tokens, pair_s, plans_ahead=plans_ahead)
        share = 1 - self.itl_s.min() / self.itl_s  # of the gaps that prompts cause, roughly
        self.itl_scatter = np.sqrt(0.01**2 + 0.1**2 / steps + (0.7 * share) ** 2 / np.maximum(started, 1.0))
        self.itl_scale, self.prefill_scale = self.itl_s, self.prefill.seconds
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
        # Prompt chunks in a step, as a decoding request meets them: a rate over time, since no request decodes in an
        # idle step.
        seconds = column(w.seconds for w in windows)
        engines = column(w.engines for w in windows)
        means = np.where(started > 0, computed / np.maximum(started, 1.0), lengths.mean())
        self.mix = PromptMix(lengths, means, np.maximum(chunk_tokens - self.experienced_batch, 1.0))
        begun = started * self.mix.chunks * self.itl_s / seconds / engines
        self.filled, self.chunk = self.mix.in_steps(begun)
        self.pairs_s = pair_s * begun * self.mix.mean(self.mix.pairs)  # of a step

    def _first_guess(self) -> Floats:
        step_s = float(np.min(self.itl_s))
        prefill = self.prefill
        has_prefills = prefill.seconds.size > 0
        first_s = float(np.median(prefill.seconds)) if has_prefills else 2 * step_s
        mix = prefill.own if has_prefills else self.mix
        token_s = max(first_s / mix.chunks.mean() - 0.5 * step_s, 0.1 * step_s) / max(mix.mean_tokens.mean(), 1.0)
        kv, batch = max(float(np.max(self.kv_tokens)), 1.0), max(float(np.max(self.batch)), 1.0)
        return np.array([0.4 * step_s, 0.1 * step_s / batch, token_s, 0.5 * step_s, 0.1 * step_s / kv])

    def gaps(self, terms: Floats) -> Floats:
        """Return the mean gap between tokens that the cost model predicts for each window, in seconds."""
        bare = step_seconds(terms, self.experienced_batch, self.kv_tokens, 0.0)
        filled = step_seconds(terms, self.experienced_batch, self.kv_tokens, self.chunk)
        slowdown = np.exp(self.slowdown[self.segment])
        return np.asarray(((1 - self.filled) * bare + self.filled * self.mix.mean(filled) + self.pairs_s) * slowdown)

    def prefills(self, terms: Floats) -> Floats:
        """Return the mean prefill time that the cost model predicts for each segment, in seconds."""
        slowdown = np.exp(self.slowdown[self.prefill.segment])
        return np.asarray(self.prefill.predict(partial(step_seconds, terms)) * slowdown)

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
            [gaps, (self.prefills(terms) - self.prefill.seconds) / self.prefill_scale / self.prefill.scatter]
        )


def computed_tokens(window: MetricsWindow) -> float:
    """Return the prompt tokens that the prefix cache did not hold."""
    return max(window.prompt_tokens - window.cached_tokens, 0.0)


def step_seconds(terms: Floats, batch: Floats, kv_tokens: Floats, prefill: Floats | float) -> Floats:
    """Return probe.simulator.cost.StepCost.step_seconds for arrays."""
    host, sequence, token, weights, kv_token = terms
    memory = weights + kv_token * kv_tokens
    compute = token * (batch + prefill)
    return np.asarray(host + sequence * batch + (memory**4 + compute**4 + 1e-30) ** 0.25)
