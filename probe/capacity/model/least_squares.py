"""Robust least squares within bounds. Pure; numpy.

Levenberg and Marquardt's method with the damping of Nielsen (1999) and the scale of Moré (1978), on the variables that
no bound holds (projected Newton: Bertsekas, 1982). The loss of an error `e` is that of "soft l1": e^2 for small ones,
4 |e| for large ones; it enters the normal equations by the weights of Triggs et al. (Bundle Adjustment, 2000).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probe.capacity.model.prompt_mix import Floats

_LARGE = 2.0  # errors above it count by their size and no longer by its square
_MOST_STEPS = 200
_MOST_DAMPING = 1e16
_ENOUGH = 1e-8  # relative change of the loss or of the variables below which nothing more is gained
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


def least_squares(errors: Callable[[Floats], Floats], begin: Floats, lower: Floats, upper: Floats) -> Solution:
    """Minimise the loss of the errors over lower <= x <= upper, from `begin`."""

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
        if gained <= _ENOUGH * point.loss or length <= _ENOUGH * np.abs(point.x).max(initial=0.0):
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
