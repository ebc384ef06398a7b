"""The step cost model: fit what an engine step costs, by what is in it, to windows of a server's metrics. Pure.

Two measurements are explained at once. The mean gap between tokens is the duration of a step as decoding requests see
it: some steps hold decodes only, others also a prompt or a chunk of one. The mean time from scheduling to the first
token is the duration of the steps that hold a prompt. Elapsed time over the number of steps would not do: it contains
idle time. The fit is a robust non-negative least squares, so that a hiccup does not move it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from probe.capacity.model.fit_data import TERMS, FitData, Floats, computed_tokens
from probe.capacity.model.windows import MetricsWindow
from probe.simulator.cost import StepCost

MIN_WINDOWS = 6
MIN_BATCH = 1.5  # with fewer requests in a step, its cost does not show what another request adds
_MIN_WINDOWS_FOR_SPEED = 4  # with fewer, their mean does not show how fast the server was
_ROUNDS = 2
_IGNORED_DRIFT = 0.03  # up to here segments get no speeds of their own
_MOST_MISFIT = 5.0  # expected errors: a hiccup is no more than that
_ENOUGH = 1e-6  # relative change of the misfit below which chance is all that is fitted
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
        """Return each measurement's error in units of its expected error."""

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
    near: StepCost | None = None,
) -> StepCostModel | None:
    """Fit the step cost model; None if there are too few windows, too little load, or no computed prompt in them.

    A segment is a series of windows without a break. `chunk_tokens`: most tokens in a step (max_num_batched_tokens);
    `prompts`: at least one prompt length, all equally likely; `pair_s`: cost of each pair of a prompt's tokens, which
    means alone cannot show. `plans_ahead`: whether the server plans a step when the one before it begins; None: what
    explains the windows better. There, first tokens come a step later although prompts lengthen no gap by it. `near`: a
    cost that was fitted to nearly the same windows, to begin with.
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
            data,
            lengths,
            pair_s,
            residuals=lambda terms: np.abs(data.gaps(terms) / data.itl_s - 1),
            batches=data.batch,
            near=near,
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
    near: StepCost | None = None,
) -> StepCostModel:
    """Solve for the terms, and return the model. `lengths`: of the segments, in windows; `residuals`: relative ones, of
    terms; `batches`: the batch of each window; `near`: as for `fit`.
    """
    terms, jacobian, drift = solve(data, lengths, near)
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
        misfit=float(np.mean(np.minimum(np.abs(data.errors(terms)), _MOST_MISFIT))),
    )


def solve(data: Measurements, lengths: Sequence[int], near: StepCost | None = None) -> tuple[Floats, Floats, float]:
    """Return the terms, the Jacobian of the misfit, and the drift between segments with so many windows each."""
    terms, rounds = data.guess, _ROUNDS
    if near is not None:
        terms, rounds = np.array(astuple(near)[:TERMS]), 1
        data.scale_by(terms)
    for _ in range(rounds):
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
    solved = least_squares(data.misfit, terms / data.guess, np.zeros(TERMS), np.full(TERMS, np.inf), enough=_ENOUGH)
    return np.maximum(solved.x, 1e-9) * data.guess, solved.jacobian / data.guess


def _fit_terms_and_speeds(data: Measurements, terms: Floats, drift: float) -> tuple[Floats, Floats]:
    """Fit the terms together with a speed for each segment; sets `data.slowdown`.

    Differences within a segment belong to the terms; differences between segments belong to their speeds, unless
    `drift` says that speeds differ (a mixed model: Laird and Ware, 1982).
    """
    count = len(data.slowdown)
    lower = np.array([0.0] * TERMS + [-_MAX_SLOWDOWN] * count)
    upper = np.array([np.inf] * TERMS + [_MAX_SLOWDOWN] * count)

    def misfit(values: Floats) -> Floats:
        data.slowdown = values[TERMS:]
        return np.concatenate([data.misfit(values[:TERMS]), values[TERMS:] / drift])

    begin = np.concatenate([terms / data.guess, np.clip(data.slowdown, -0.9 * _MAX_SLOWDOWN, 0.9 * _MAX_SLOWDOWN)])
    solved = least_squares(misfit, begin, lower, upper, enough=_ENOUGH)
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


# Robust least squares within bounds: Levenberg and Marquardt's method with the damping of Nielsen (1999) and the scale
# of Moré (1978), on the variables that no bound holds (projected Newton: Bertsekas, 1982). The loss of an error `e` is
# "soft l1": e^2 for small ones, 4 |e| for large ones; it enters the normal equations by the weights of Triggs et al.
# (Bundle Adjustment, 2000).

_LARGE = 2.0  # errors above it count by their size and no longer by its square
_MOST_STEPS = 200
_MOST_DAMPING = 1e16
_EXACT = 1e-8  # relative change of the loss or of the variables below which nothing more is gained
_DIFFERENCE = float(np.sqrt(np.finfo(float).eps))


@dataclass(frozen=True, slots=True)
class Solution:
    """The variables with the least loss, and the Jacobian of the errors there, weighted as the loss does."""

    x: Floats
    jacobian: Floats


@dataclass(frozen=True, slots=True)
class _Point:
    x: Floats
    errors: Floats
    loss: float


@dataclass(frozen=True, slots=True)
class _Model:
    """The loss near a point, up to its second derivatives.

    `scale`: the largest curvature of each variable so far, so that one which hardly matters here makes no giant steps;
    `free`: the variables that no bound holds there.
    """

    gradient: Floats
    curvature: Floats
    scale: Floats
    free: NDArray[np.bool_]


def least_squares(
    errors: Callable[[Floats], Floats], begin: Floats, lower: Floats, upper: Floats, *, enough: float = _EXACT
) -> Solution:
    """Minimise the loss of the errors over lower <= x <= upper, from `begin`.

    `enough`: the relative change below which a step is the last one.
    """

    def at(x: Floats) -> _Point:
        within = np.clip(x, lower, upper)
        found = errors(within)
        return _Point(within, found, _loss(found))

    point, damping, scale = at(begin), 1e-3, np.zeros_like(begin)
    for _ in range(_MOST_STEPS):
        jacobian = _jacobian(errors, point, upper)
        gradient, curvature = _normal_equations(point.errors, jacobian)
        scale = np.maximum(scale, np.diag(curvature))
        free = ~(((point.x <= lower) & (gradient > 0)) | ((point.x >= upper) & (gradient < 0)))
        moved, damping = _step(at, point, _Model(gradient, curvature, scale, free), damping)
        gained, length = point.loss - moved.loss, np.abs(moved.x - point.x).max(initial=0.0)
        point = moved
        if gained <= enough * point.loss or length <= enough * np.abs(point.x).max(initial=0.0):
            break
    weights = _weights(point.errors)
    return Solution(point.x, _jacobian(errors, point, upper) * weights[:, None])


def _step(at: Callable[[Floats], _Point], point: _Point, model: _Model, damping: float) -> tuple[_Point, float]:
    """Return a point of less loss and the damping to go on with; the same point if there is none."""
    diagonal = np.maximum(model.scale, 1e-12 * max(float(model.scale.max(initial=0.0)), 1.0))
    raised = 2.0
    while damping < _MOST_DAMPING and model.free.any():
        step = np.zeros_like(point.x)
        damped = model.curvature + damping * np.diag(diagonal)
        step[model.free] = np.linalg.solve(damped[np.ix_(model.free, model.free)], -model.gradient[model.free])
        moved = at(point.x + step)
        if moved.loss < point.loss:
            taken = moved.x - point.x
            predicted = -float(model.gradient @ taken + taken @ model.curvature @ taken / 2)
            gain = (point.loss - moved.loss) / predicted if predicted > 0 else 0.0
            return moved, damping * max(1 / 3, 1 - (2 * gain - 1) ** 3)
        damping, raised = damping * raised, raised * 2
    return point, damping


def _loss(errors: Floats) -> float:
    return float(_LARGE**2 * np.sum(np.sqrt(1 + (errors / _LARGE) ** 2) - 1))


def _weights(errors: Floats) -> Floats:
    """Return the root of the loss's second derivative, for each error."""
    return np.asarray((1 + (errors / _LARGE) ** 2) ** -0.75)


def _normal_equations(errors: Floats, jacobian: Floats) -> tuple[Floats, Floats]:
    """Return the gradient of the loss, and Gauss and Newton's approximation of its Hessian."""
    weighted = jacobian * _weights(errors)[:, None]
    slope = errors / np.sqrt(1 + (errors / _LARGE) ** 2)
    return np.asarray(jacobian.T @ slope), np.asarray(weighted.T @ weighted)


def _jacobian(errors: Callable[[Floats], Floats], point: _Point, upper: Floats) -> Floats:
    """Return the derivatives of the errors by differences, towards the inside at an upper bound."""
    columns = []
    for i, value in enumerate(point.x):
        change = _DIFFERENCE * max(1.0, abs(value))
        moved = point.x.copy()
        moved[i] = value - change if value + change > upper[i] else value + change
        columns.append((errors(moved) - point.errors) / (moved[i] - value))
    return np.stack(columns, axis=1)
