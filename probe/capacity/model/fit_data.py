"""The metrics windows as arrays, and what a step cost model says about each of them. Pure; needs numpy.

In: the windows of each segment, and the workload's prompt lengths. Out: for given terms of the cost, the mean gap
between tokens in each window, the mean prefill time of each segment, and how far both are from what was measured. The
least squares of step_cost_fit.py minimise that misfit.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from probe.capacity.model.prefill_data import PrefillData, column
from probe.capacity.model.prompt_mix import Floats, PromptMix
from probe.capacity.model.windows import MetricsWindow

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
        """`good`: of each segment, the windows with enough in them to be fitted."""
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
