"""The step cost model from sums over engine steps, which Kneewatch's plugin for vLLM exports. Pure.

In: snapshots with `step_sums`. Between two of them, the sums of a bound grow by the steps with about the same number
of tokens: one measurement of the cost of their mean content. Without guesses about which requests shared a step
there is no bias to estimate. Model and least squares: step_cost_fit.py.
"""

from collections.abc import Iterator, Sequence
from dataclasses import astuple, replace
from itertools import pairwise

import numpy as np

from probe.capacity.model.fit_data import Floats, step_seconds
from probe.capacity.model.step_cost_fit import MIN_BATCH, MIN_WINDOWS, StepCostModel, fitted_model
from probe.core.snapshot import ServerSnapshot, StepSums

_MIN_STEPS = 100
# The smallest and largest mean of a step that can be; a page can say anything.
_MOST_STEPS = 1e9
_POSSIBLE = {
    "seconds": (1e-6, 60.0),
    "requests": (1.0, 1e5),
    "decode_tokens": (0.0, 1e6),
    "prefill_tokens": (0.0, 1e7),
    "kv_tokens": (0.0, 1e10),
}
_NONE = StepSums(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
# How far a mean duration may be off, as a ratio: of a single step, and of any number of them.
_STEP_NOISE, _LEAST_NOISE = 0.05, 0.003
_PRIOR = 0.1  # how strongly a term is held to its first guess where the sums cannot tell it from the others


class StepData:
    """Mean durations of steps with their mean contents."""

    def __init__(self, segments: Sequence[Sequence[StepSums]], pair_s: float, prompts: Sequence[float]) -> None:
        """Take `prompts`: lengths, all equally likely; `pair_s`: cost of each pair of a prompt's tokens."""
        self.slowdown = np.zeros(len(segments))
        self._segment = np.repeat(np.arange(len(segments)), [len(s) for s in segments])
        sums = np.array([astuple(one) for segment in segments for one in segment])
        self.steps = sums[:, 0]
        self.measured_s, self.requests, self.decodes, self.prefill, self.kv_tokens = (
            sums[:, column] / self.steps for column in range(1, 6)
        )
        lengths = np.array(prompts, dtype=float)
        # A prompt token meets half of its prompt in the mean, and most tokens are in long prompts.
        self._pairs_s = pair_s * self.prefill * float((lengths**2).sum() / lengths.sum()) / 2
        self._scale = self.measured_s
        self._scatter = np.hypot(_LEAST_NOISE, _STEP_NOISE / np.sqrt(self.steps))
        self.guess = self._first_guess()

    def _first_guess(self) -> Floats:
        step_s, tokens = float(np.min(self.measured_s)), self.decodes + self.prefill
        longest = int(np.argmax(tokens))
        token_s = max(float(self.measured_s[longest]) - 0.5 * step_s, 0.1 * step_s) / float(tokens[longest])
        kv, requests = max(float(np.max(self.kv_tokens)), 1.0), float(np.max(self.requests))
        return np.array([0.4 * step_s, 0.1 * step_s / requests, token_s, 0.5 * step_s, 0.1 * step_s / kv])

    def predicted(self, terms: Floats) -> Floats:
        """Return the mean durations that the cost model predicts, in seconds."""
        seconds = step_seconds(terms, self.requests, self.kv_tokens, self.decodes + self.prefill - self.requests)
        return np.asarray((seconds + self._pairs_s) * np.exp(self.slowdown[self._segment]))

    def offsets(self, terms: Floats) -> Floats:
        """Return the logarithm of each measured duration over the predicted one."""
        return np.asarray(np.log(self.measured_s / self.predicted(terms)))

    def errors(self, terms: Floats) -> Floats:
        """Return all errors, each in units of its expected scatter."""
        return np.asarray((self.predicted(terms) - self.measured_s) / self._scale / self._scatter)

    def misfit(self, share: Floats) -> Floats:
        """Return what the fit minimises, for terms given as shares of their first guess."""
        return np.concatenate([self.errors(share * self.guess), _PRIOR * (share - 1)])

    def scale_by(self, terms: Floats) -> None:
        """Take errors relative to these terms' predictions."""
        self._scale = self.predicted(terms)


def fit_steps(
    segments: Sequence[Sequence[ServerSnapshot]],
    prompts: Sequence[float],
    pair_s: float = 0.0,
    kv_ratio: float = 1.0,
) -> StepCostModel | None:
    """Fit the step cost model; None without sums over steps, or if they are of too few steps or too little load.

    `prompts`: at least one prompt length, all equally likely; `pair_s`: cost of each pair of a prompt's tokens, which
    sums cannot show; `kv_ratio`: tokens of requests for each token that their blocks have room for.
    """
    grown = [[replace(one, kv_tokens=one.kv_tokens * kv_ratio) for one in _growth(snapshots)] for snapshots in segments]
    every = [one for segment in grown for one in segment]
    steps = sum(one.steps for one in every)
    has_prompts = any(one.prefill_tokens > 0 for one in every)
    if len(every) < MIN_WINDOWS or steps < _MIN_STEPS or not has_prompts:
        return None
    data = StepData(grown, pair_s, prompts)
    if float(np.max(data.decodes)) < MIN_BATCH:
        return None
    return fitted_model(
        data,
        [len(segment) for segment in grown],
        pair_s,
        residuals=lambda terms: np.abs(np.expm1(data.offsets(terms))),
        batches=data.decodes,
    )


def _growth(snapshots: Sequence[ServerSnapshot]) -> Iterator[StepSums]:
    """Yield what the sums of each bound grew by between successive snapshots, but across a restart."""
    for before, after in pairwise(snapshots):
        old = before.step_sums
        grown = [_difference(sums, old.get(bound, _NONE)) for bound, sums in after.step_sums.items()]
        if old and old.keys() <= after.step_sums.keys() and all(min(astuple(one)) >= 0 for one in grown):
            yield from (one for one in grown if 0 < one.steps <= _MOST_STEPS and _is_possible(one))


def _is_possible(sums: StepSums) -> bool:
    if sums.decode_tokens + sums.prefill_tokens <= 0:
        return False
    return all(low <= getattr(sums, name) / sums.steps <= high for name, (low, high) in _POSSIBLE.items())


def _difference(new: StepSums, old: StepSums) -> StepSums:
    return StepSums(*(a - b for a, b in zip(astuple(new), astuple(old), strict=True)))
