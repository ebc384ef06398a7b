"""The step cost model: fit what an engine step costs, by what is in it, to windows of a server's metrics. Pure.

Two measurements are explained at once. The mean gap between tokens is the duration of a step as decoding requests see
it: some steps hold decodes only, others also a prompt or a chunk of one. The mean time from scheduling to the first
token is the duration of the steps that hold a prompt. Elapsed time over the number of steps would not do: it contains
idle time. The fit is a robust non-negative least squares, so that a hiccup does not move it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from probe.capacity.model.fit_data import TERMS, FitData, computed_tokens
from probe.capacity.model.least_squares import least_squares
from probe.capacity.model.prompt_mix import Floats
from probe.capacity.model.windows import MetricsWindow
from probe.simulator.cost import StepCost

MIN_WINDOWS = 6
MIN_BATCH = 1.5  # with fewer requests in a step, its cost does not show what another request adds
_MIN_WINDOWS_FOR_SPEED = 4  # with fewer, their mean does not show how fast the server was
_ROUNDS = 2
_IGNORED_DRIFT = 0.03  # up to here segments get no speeds of their own
_FAR = 5.0  # expected errors: a hiccup is no more than that
_MAX_SLOWDOWN = 0.7  # as a logarithm: twice as slow, or twice as fast


@dataclass(frozen=True, slots=True)
class StepCostModel:
    """The fitted cost of a step, for a server at its usual speed.

    `residual`: median relative error of a window; `slowdown`: by what factor steps of each segment took longer than
    the cost model says, all 1 where that is within chance; `drift`: their relative standard deviation; `covariance` of
    the cost's terms, in their order; `batches`: smallest and largest number of decoding requests in the data; `misfit`:
    mean error of a measurement, in units of what is expected; `plans_ahead`: whether a step is planned when the one
    before it begins.
    """

    cost: StepCost
    residual: float
    drift: float
    covariance: tuple[tuple[float, ...], ...]
    slowdown: tuple[float, ...]
    batches: tuple[float, float]
    windows: int
    misfit: float = 0.0
    plans_ahead: bool = False


class Measurements(Protocol):
    """What a fit needs of its data. `slowdown`: of each segment, as a logarithm; `guess`: the terms to begin with."""

    slowdown: Floats
    guess: Floats
    kv_tokens: Floats  # of each measurement

    def errors(self, terms: Floats) -> Floats:
        """Return each measurement's error in units of what is expected of it."""

    def offsets(self, terms: Floats) -> Floats:
        """Return the logarithm of each measurement over its prediction, ordered by segment."""

    def misfit(self, share: Floats) -> Floats:
        """Return what the fit minimises, for terms given as shares of their first guess."""

    def scale_by(self, terms: Floats) -> None:
        """Take errors relative to these terms' predictions."""


def fit(
    segments: Sequence[Sequence[MetricsWindow]],
    chunk_tokens: int,
    prompts: Sequence[float],
    pair_s: float = 0.0,
    *,
    plans_ahead: bool | None = None,
) -> StepCostModel | None:
    """Fit the step cost model; None if there are too few windows, too little load, or no computed prompt in them.

    A segment is a series of windows without a break. `chunk_tokens`: most tokens in a step (max_num_batched_tokens);
    `prompts`: at least one prompt length, all equally likely; `pair_s`: cost of each pair of a prompt's tokens, which
    means alone cannot show. `plans_ahead`: whether the server plans a step when the one before it begins; None: what
    explains the windows better. There, first tokens come a step later although prompts lengthen no gap by it.
    """
    good = [[w for w in s if w.steps > 0 and w.batch >= MIN_BATCH and w.itl_sum_s > 0] for s in segments]
    if sum(map(len, good)) < MIN_WINDOWS:
        return None
    # Without prompts, or with prompts that were all in the prefix cache, the cost of a prompt token is unknown.
    if sum(w.prompts for s in good for w in s) < 1 or sum(computed_tokens(w) for s in good for w in s) < 1:
        return None

    def fitted(*, ahead: bool) -> StepCostModel:
        data = FitData(good, segments, chunk_tokens, prompts, pair_s, plans_ahead=ahead)
        lengths = [len(s) for s in good]
        found = fitted_model(
            data, lengths, pair_s, residuals=lambda terms: np.abs(data.gaps(terms) / data.itl_s - 1), batches=data.batch
        )
        return replace(found, plans_ahead=ahead)

    if plans_ahead is not None:
        return fitted(ahead=plans_ahead)
    before, after = fitted(ahead=False), fitted(ahead=True)
    return min(after, before, key=lambda found: found.misfit)


def fitted_model(
    data: Measurements,
    lengths: Sequence[int],
    pair_s: float,
    *,
    residuals: Callable[[Floats], Floats],
    batches: Floats,
) -> StepCostModel:
    """Solve for the terms, and return the model. `lengths`: of the segments, in windows; `residuals`: relative ones, of
    terms; `batches`: the batch of each window.
    """
    terms, jacobian, drift = solve(data, lengths)
    spread = max(float(np.median(np.abs(data.errors(terms)))) / 0.6745, 0.2)
    covariance = np.linalg.pinv(jacobian.T @ jacobian)[:TERMS, :TERMS] * spread**2
    if not data.kv_tokens.any():
        terms[-1] = 0.0  # no KV cache use was measured, so this is still the guess; the other terms hold its cost
    return StepCostModel(
        cost=step_cost(terms, pair_s),
        residual=float(np.median(residuals(terms))),
        drift=drift,
        covariance=tuple(tuple(float(v) for v in row) for row in covariance),
        slowdown=tuple(float(one) for one in np.exp(data.slowdown)),
        batches=(float(batches.min()), float(batches.max())),
        windows=len(batches),
        misfit=float(np.mean(np.minimum(np.abs(data.errors(terms)), _FAR))),
    )


def solve(data: Measurements, lengths: Sequence[int]) -> tuple[Floats, Floats, float]:
    """Return the terms, the Jacobian of the misfit, and the drift between segments with so many windows each."""
    terms = data.guess
    for _ in range(_ROUNDS):
        terms, jacobian = _fit_terms(data, terms)
        data.scale_by(terms)
    drift = _drift(data.offsets(terms), lengths)
    if drift > _IGNORED_DRIFT:
        for _ in range(_ROUNDS):
            terms, jacobian = _fit_terms_and_speeds(data, terms, drift)
            data.scale_by(terms)
            drift = float(np.std(data.slowdown))
    return terms, jacobian, drift


def _fit_terms(data: Measurements, terms: Floats) -> tuple[Floats, Floats]:
    """Fit the terms of a server of constant speed, starting from these. Return them and the misfit's Jacobian."""
    solved = least_squares(data.misfit, terms / data.guess, np.zeros(TERMS), np.full(TERMS, np.inf))
    return np.maximum(solved.x, 1e-9) * data.guess, solved.jacobian / data.guess


def _fit_terms_and_speeds(data: Measurements, terms: Floats, drift: float) -> tuple[Floats, Floats]:
    """Fit the terms together with a speed for each segment; sets `data.slowdown`.

    Differences within a segment belong to the terms; differences between segments belong to their speeds, as far as
    `drift` says that speeds differ (a mixed model: Laird and Ware, 1982).
    """
    count = len(data.slowdown)
    lower = np.array([0.0] * TERMS + [-_MAX_SLOWDOWN] * count)
    upper = np.array([np.inf] * TERMS + [_MAX_SLOWDOWN] * count)

    def misfit(values: Floats) -> Floats:
        data.slowdown = values[TERMS:]
        return np.concatenate([data.misfit(values[:TERMS]), values[TERMS:] / drift])

    begin = np.concatenate([terms / data.guess, np.clip(data.slowdown, -0.9 * _MAX_SLOWDOWN, 0.9 * _MAX_SLOWDOWN)])
    solved = least_squares(misfit, begin, lower, upper)
    data.slowdown = solved.x[TERMS:]
    scale = np.concatenate([data.guess, np.ones(count)])
    return np.maximum(solved.x[:TERMS], 1e-9) * data.guess, solved.jacobian / scale


def _drift(off: Floats, lengths: Sequence[int]) -> float:
    """Return the standard deviation of the segments' means, less what the scatter within segments explains.

    Analysis of variance: Fisher, 1925. 0 for a single segment.
    """
    parts = [part for part in np.split(off, np.cumsum(lengths)[:-1]) if len(part) >= _MIN_WINDOWS_FOR_SPEED]
    if len(parts) < 2:  # noqa: PLR2004
        return 0.0
    means = np.array([part.mean() for part in parts])
    chance = float(np.mean([part.var(ddof=1) / len(part) for part in parts]))
    return math.sqrt(max(float(means.var(ddof=1)) - chance, 0.0))


def step_cost(terms: Floats, pair_s: float) -> StepCost:
    host, sequence, token, weights, kv_token = (float(max(term, 0.0)) for term in terms)
    return StepCost(host, sequence, token, weights, kv_token, pair_s)
