"""A month of Kneewatch's capacity series for a target: runs, shifts and forecasts."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np

from alerts.windows import DAY_S
from benchmarks.alerts.nights import Run
from benchmarks.alerts.scene import Scene
from benchmarks.alerts.world import OUTPUT_TOKENS, TICK_S, noise
from benchmarks.backfill import Bools, Floats, Line
from exporters import names
from exporters.capacity import OUTCOMES, REFUSED
from probe.capacity.trend.change_detection import METHODS
from probe.core import reasons
from probe.core.request import Outcome
from probe.core.shift import CapacitySample, Shift
from probe.observe.user_mix import USERS

# Steps of a run by outcome, on average.
_STEPS = {"valid": 9.0, "client_bound": 0.02, "too_few": 0.1, "cut_short": 0.5, "lost": 0.05}
_FORECAST_TICKS = int(1800 / TICK_S)
_FORECAST_SD = 0.05
# Bounds, as factors: those of a forecast are 1.64 standard deviations from it, which holds nine of ten.
_FORECAST_HALF, _MEASURED_HALF = float(np.exp(1.64 * _FORECAST_SD)), 1.05


def capacity(scene: Scene) -> Iterator[Line]:
    """Yield the series of runs and of half-hourly forecasts. A store keeps them across restarts of Kneewatch."""
    yield from _runs(scene)
    yield from _load(scene)
    yield from _measured(scene)
    yield from _forecasts(scene)


def _runs(scene: Scene) -> Iterator[Line]:
    page, labels = scene.page, scene.target
    for outcome in OUTCOMES:
        yield from page.counter(names.CAPACITY_RUNS, {**labels, "outcome": outcome}, _ends(scene, outcome))
    if scene.runs:
        yield from page.gauge(names.CAPACITY_SCHEDULE, labels, DAY_S)
    none = np.zeros(len(scene.world.times))
    for refusal in reasons.REFUSALS:
        refused = _ends(scene, REFUSED) if refusal is reasons.ROLLOUT else none
        yield from page.counter(names.CAPACITY_REFUSALS, {**labels, "reason": refusal.word}, refused)
    for trip in reasons.TRIPS:
        tripped = _ends(scene, "guard") if trip is reasons.QUEUE else none
        yield from page.counter(names.GUARD_TRIPS, {**labels, "reason": trip.word}, tripped)
    done = _ends(scene, "done")
    yield from page.counter(names.OVER_OBJECTIVE, labels, 1.5 * done)
    for verdict, share in _STEPS.items():
        steps = done * scene.rng.poisson(share, len(done))
        yield from page.counter(names.CAPACITY_STEPS, {**labels, "verdict": verdict}, steps)


def _load(scene: Scene) -> Iterator[Line]:
    """Yield the requests of the runs, at half the knee on average over the steps."""
    world, labels = scene.world, scene.knee
    sent = np.zeros(len(world.times))
    for run in scene.runs:
        if run.outcome != REFUSED:
            at = slice(*np.searchsorted(world.times, [run.start_s, run.end_s]))
            sent[at] = np.round(0.5 * world.capacity_rps[at] * TICK_S)
    sending = {**labels, "traffic": "capacity", "outcome": Outcome.OK}
    yield from scene.page.counter(names.REQUESTS, sending, sent)
    tokens = {**scene.target, "model": labels["model"], "traffic": "capacity"}
    yield from scene.page.counter(names.TOKENS, {**tokens, "kind": "prompt"}, 256.0 * sent)
    yield from scene.page.counter(names.TOKENS, {**tokens, "kind": "output"}, 128.0 * sent)


def _measured(scene: Scene) -> Iterator[Line]:
    """Yield the result of the last run with a knee under its mode. The series of the other mode disappears."""
    page, labels = scene.page, scene.knee
    rps = _newest(scene, lambda _, figure: figure.requests_per_second)
    empirical = _newest(scene, lambda _, figure: figure.mode == "empirical") > 0
    known = ~np.isnan(rps)
    for mode, there in (("verified", known & ~empirical), ("empirical", known & empirical)):
        yield from _figures(scene, {**labels, "mode": mode}, rps, there)
        ended = _newest(scene, lambda run, _: run.end_s)
        yield from page.gauge(names.CAPACITY_LAST_SUCCESS, {**labels, "mode": mode}, ended, there)
        compared = there & (_newest(scene, lambda run, _: run.shift is not None) > 0)
        for series, value_of in (
            (names.KNEE_BASELINE, lambda shift: shift.baseline.requests_per_second),
            (names.KNEE_BASELINE_SINCE, lambda shift: shift.baseline.since_s),
            (names.KNEE_SHIFT, lambda shift: shift.ratio),
        ):
            yield from page.gauge(series, {**labels, "mode": mode}, _compared(scene, value_of), compared)
        for method in METHODS:
            fired = _compared(scene, partial(_fired, method))
            yield from page.gauge(names.KNEE_SHIFTED, {**labels, "mode": mode, "method": method}, fired, compared)


def _forecasts(scene: Scene) -> Iterator[Line]:
    """Yield the forecast: the true capacity with an error that persists for hours. Its bounds hold nine of ten.

    Users send what the workload has, so the forecast for them is the same.
    """
    page, world, labels = scene.page, scene.world, scene.knee
    count = len(world.times)
    said = world.capacity_rps * np.exp(noise(scene.rng, count, 4 * 3600, _FORECAST_SD))
    held = np.arange(count) // _FORECAST_TICKS * _FORECAST_TICKS
    always = np.ones(count, bool)
    for workload in (scene.workload, USERS):
        forecast = {**labels, "workload": workload, "mode": "forecast"}
        yield from _figures(scene, forecast, said[held], always)
        yield from page.gauge(names.CAPACITY_LAST_SUCCESS, forecast, world.times[held])

    def residual(run: Run, figure: CapacitySample) -> float:
        before = held[min(int(np.searchsorted(world.times, run.start_s)), count - 1)]
        return float(said[before]) / figure.requests_per_second - 1

    found = _newest(scene, residual)
    yield from page.gauge(names.MODEL_RESIDUAL, labels, found, ~np.isnan(found))


def _figures(scene: Scene, labels: Mapping[str, str], rps: Floats, there: Bools) -> Iterator[Line]:
    half = _FORECAST_HALF if labels["mode"] == "forecast" else _MEASURED_HALF
    for series, values in (
        (names.CAPACITY_RPS, rps),
        (names.CAPACITY_RPS_LOWER, rps / half),
        (names.CAPACITY_RPS_UPPER, rps * half),
        (names.CAPACITY_TOKENS, rps * OUTPUT_TOKENS),
        (names.KNEE_CONCURRENCY, np.round(rps * 5)),
        (names.CAPACITY_FINGERPRINT, np.full(len(rps), 12345.0)),
    ):
        yield from scene.page.gauge(series, labels, values, there)
    world = scene.world
    answered = np.where(world.down | (world.stalled_s > TICK_S), 0.0, world.users_rps)
    # Without a server snapshot, user traffic is unknown.
    yield from scene.page.gauge(names.HEADROOM, labels, 1 - _of_5_minutes(answered) / rps, there & ~world.down)


def _newest(scene: Scene, value_of: Callable[[Run, CapacitySample], float]) -> Floats:
    """Return a value of the last run with a result at each tick; NaN before the first."""
    runs = [(run, run.figure) for run in scene.runs if run.figure is not None]
    values = np.array([np.nan, *(value_of(run, figure) for run, figure in runs)], np.float64)
    found: Floats = values[np.searchsorted([run.end_s for run, _ in runs], scene.world.times, "right")]
    return found


def _compared(scene: Scene, value_of: Callable[[Shift], float]) -> Floats:
    return _newest(scene, lambda run, _: value_of(run.shift) if run.shift is not None else np.nan)


def _fired(method: str, shift: Shift) -> float:
    return float(shift.fired[method])


def _ends(scene: Scene, outcome: str) -> Floats:
    """Return 1 for ticks in which a run ended this way."""
    found = np.zeros(len(scene.world.times))
    for run in scene.runs:
        tick = int(np.searchsorted(scene.world.times, run.end_s))
        if run.outcome == outcome and tick < len(found):
            found[tick] += 1
    return found


def _of_5_minutes(values: Floats) -> Floats:
    count = int(300 / TICK_S)
    total = np.cumsum(np.concatenate((np.zeros(count), values)))
    return np.asarray((total[count:] - total[:-count]) / count, np.float64)
