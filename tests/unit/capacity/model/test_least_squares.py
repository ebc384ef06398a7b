"""Robust least squares against scipy's, which minimises the same loss by another method."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import least_squares as scipys
from simulated_servers import CHAT, FAST, SLOW, WORDY, profile, watched, workload

from probe.capacity.model import least_squares as ours
from probe.capacity.model.fit_data import TERMS, FitData
from probe.capacity.model.lengths import prompt_lengths
from probe.capacity.model.prompt_mix import Floats
from probe.capacity.model.windows import windows

pytestmark = pytest.mark.slow


def losses(errors: Callable[[Floats], Floats], begin: Floats, lower: Floats, upper: Floats) -> tuple[float, float]:
    """Return the loss where ours ends, and the least that scipy finds from there and from the beginning."""
    found = ours.least_squares(errors, begin, lower, upper)
    assert (found.x >= lower).all()
    assert (found.x <= upper).all()
    span = np.where(np.isinf(upper), 1.0, upper - lower)
    # scipy begins strictly inside.
    starts = [
        np.clip(x, lower + 1e-9 * span, np.where(np.isinf(upper), x + 1, upper - 1e-9 * span)) for x in (begin, found.x)
    ]
    solved = [
        scipys(errors, x, bounds=(lower, upper), loss="soft_l1", f_scale=2.0, ftol=1e-13, xtol=1e-13, gtol=1e-13)
        for x in starts
    ]
    best = min(solved, key=lambda one: float(one.cost))
    assert found.jacobian.T @ found.jacobian == pytest.approx(best.jac.T @ best.jac, rel=0.02, abs=0.02)
    return ours._loss(errors(found.x)), float(best.cost)


@pytest.mark.parametrize("seed", range(20))
def test_lines_with_outliers_within_bounds(seed: int) -> None:
    """Some variables end at a bound, some between."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 8))
    slopes, truth = rng.normal(size=(40, count)), rng.normal(size=count)
    values = slopes @ truth + 0.1 * rng.normal(size=40) + np.where(rng.random(40) < 0.1, 50.0, 0.0)
    lower, upper = np.full(count, -0.5), np.where(np.arange(count) % 2, np.inf, 0.5)
    mine, theirs = losses(lambda x: np.asarray((slopes @ x - values) / 0.1), np.zeros(count), lower, upper)
    assert mine <= theirs * (1 + 1e-6)


@pytest.mark.parametrize("seed", range(10))
def test_a_curve(seed: int) -> None:
    rng = np.random.default_rng(seed)
    at = np.linspace(0.0, 4.0, 50)
    rate, height = rng.uniform(0.3, 3.0), rng.uniform(1.0, 5.0)
    values = height * np.exp(-rate * at) + 0.02 * rng.normal(size=50)

    def errors(x: Floats) -> Floats:
        return np.asarray((x[0] * np.exp(-x[1] * at) - values) / 0.02)

    mine, theirs = losses(errors, np.array([1.0, 1.0]), np.zeros(2), np.array([np.inf, 10.0]))
    assert mine <= theirs * (1 + 1e-6)


@pytest.mark.parametrize(("cost", "rate_rps"), [(FAST, 12.0), (SLOW, 1.5), (WORDY, 2.4)], ids=["fast", "slow", "wordy"])
def test_the_fit_of_a_server(cost: object, rate_rps: float) -> None:
    """With a hiccup, and from the first guess: what the step cost model asks for."""
    asked = workload(1500, 100) if cost is WORDY else CHAT
    seen = windows(watched(profile(cost), asked, rate_rps, 120.0))  # type: ignore[arg-type]
    seen = [replace(w, itl_sum_s=w.itl_sum_s * 4) if i % 15 == 7 else w for i, w in enumerate(seen)]
    good = [w for w in seen if w.steps > 0 and w.batch >= 1.5 and w.itl_sum_s > 0]
    data = FitData([good], [seen], 2048, prompt_lengths(asked), 0.0)
    mine, theirs = losses(data.misfit, np.ones(TERMS), np.zeros(TERMS), np.full(TERMS, np.inf))
    assert mine <= theirs * (1 + 1e-6)


def test_nothing_is_gained_where_the_least_is_at_a_corner() -> None:
    found = ours.least_squares(lambda x: x + 1.0, np.array([0.0, 0.0]), np.zeros(2), np.ones(2))
    assert found.x.tolist() == [0.0, 0.0]


def test_it_begins_within_the_bounds() -> None:
    found = ours.least_squares(lambda x: x - 0.25, np.array([9.0]), np.zeros(1), np.ones(1))
    assert found.x == pytest.approx([0.25])


def test_a_variable_that_hardly_matters_near_the_least_holds_up_no_other() -> None:
    """The time for a token, where steps wait for memory: its derivative vanishes there, and it made giant steps."""
    batch = np.linspace(1.0, 20.0, 30)
    kv_tokens = 400 * batch * (1 + 0.1 * np.sin(7 * batch))
    step_s = 15.0 + 0.03 * batch + 6e-5 * kv_tokens

    def errors(x: Floats) -> Floats:
        host, sequence, token, weights, kv_token = x
        longer = ((10 * weights + 2e-3 * kv_token * kv_tokens) ** 4 + (token * (batch + 60)) ** 4) ** 0.25
        off = (5 * host + 0.1 * sequence * batch + longer) / step_s - 1
        return np.concatenate([100 * off, np.array([1.0, 0.5, 0.1, 1.0, 0.5]) * (x - 1)])

    lower, upper = np.zeros(5), np.full(5, np.inf)
    found = ours.least_squares(errors, np.ones(5), lower, upper)
    best = scipys(errors, found.x + 1e-9, bounds=(lower, upper), loss="soft_l1", f_scale=2.0)
    assert ours._loss(errors(found.x)) <= 1.02 * float(best.cost)
