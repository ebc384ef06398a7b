"""Capacity as series: CapacityResults in, gauges out. A run that found no knee changes no capacity."""

from prometheus_client import CollectorRegistry

from exporters import names
from exporters.registry import ByTarget, counter_by_target, gauge_by_target
from probe.capacity.model.bottleneck import BOTTLENECKS
from probe.capacity.trend.change_detection import METHODS
from probe.capacity.trend.fingerprint import as_number, capacity_sample, fingerprint, is_comparable, measured_mode
from probe.capacity.trend.headroom import headroom
from probe.core import reasons
from probe.core.result import CapacityResult
from probe.core.shift import CapacitySample, Shift
from probe.core.snapshot import REPLICAS, UserLoad
from probe.core.step import StepSummary

# What `capacity_runs_total` may say besides Stopped.by: a run that a pre-flight check did not let start.
REFUSED = "refused"
_FORECAST = "forecast"
# A target's capacities. Each replaces only its own kind: a run's result, a forecast without load for the same workload,
# or one for what users send.
_MEASURED, _FOR_USERS = "measured", "forecast for users"
_KINDS = (_MEASURED, _FORECAST, _FOR_USERS)
OUTCOMES = (*(end.word for end in reasons.ENDS), REFUSED)
# What a step judges, or why it judges nothing; whatever else a step may have died of counts as a lost worker.
_VALID = "valid"
VERDICTS = (_VALID, *(reason.verdict for reason in reasons.UNJUDGED))


class CapacityExporter:
    """The last known knee of every target."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._rps = gauge_by_target(names.CAPACITY_RPS, registry)
        self._lower = gauge_by_target(names.CAPACITY_RPS_LOWER, registry)
        self._upper = gauge_by_target(names.CAPACITY_RPS_UPPER, registry)
        self._tokens = gauge_by_target(names.CAPACITY_TOKENS, registry)
        self._concurrency = gauge_by_target(names.KNEE_CONCURRENCY, registry)
        self._prefill = gauge_by_target(names.PREFILL_TOKENS, registry)
        self._headroom = gauge_by_target(names.HEADROOM, registry)
        self._bottleneck = gauge_by_target(names.BOTTLENECK, registry)
        self._steps = counter_by_target(names.CAPACITY_STEPS, registry)
        self._residual = gauge_by_target(names.MODEL_RESIDUAL, registry)
        self._last_success = gauge_by_target(names.CAPACITY_LAST_SUCCESS, registry)
        self._fingerprint = gauge_by_target(names.CAPACITY_FINGERPRINT, registry)
        self._knee_upper = gauge_by_target(names.KNEE_UPPER, registry)
        self._baseline = gauge_by_target(names.KNEE_BASELINE, registry)
        self._since = gauge_by_target(names.KNEE_BASELINE_SINCE, registry)
        self._shift = gauge_by_target(names.KNEE_SHIFT, registry)
        self._shifted = gauge_by_target(names.KNEE_SHIFTED, registry)
        self._runs = counter_by_target(names.CAPACITY_RUNS, registry)
        self._schedule = gauge_by_target(names.CAPACITY_SCHEDULE, registry)
        self._refusals = counter_by_target(names.CAPACITY_REFUSALS, registry)
        self._trips = counter_by_target(names.GUARD_TRIPS, registry)
        self._over = counter_by_target(names.OVER_OBJECTIVE, registry)
        self._all = [metric for metric in vars(self).values() if isinstance(metric, ByTarget)]
        # The labels of the knee and the result, by target and kind.
        self._shown: dict[tuple[str, str], tuple[tuple[str, ...], CapacityResult]] = {}
        self._compared: dict[str, tuple[str, ...]] = {}  # the labels of each target's shift

    def forget(self, target: str) -> None:
        """Return the target is not watched any more: what is known of its capacity is shown no more."""
        for metric in self._all:
            metric.forget(target)
        for kind in _KINDS:
            self._shown.pop((target, kind), None)
        self._compared.pop(target, None)

    def start_at_zero(self, target: str, schedule_interval_s: float) -> None:
        """Start the counters of a target with capacity runs at zero, and publish how often a run is due."""
        self._schedule.labels(target).set(schedule_interval_s)
        for outcome in OUTCOMES:
            self._runs.labels(target, outcome)
        for trip in reasons.TRIPS:
            self._trips.labels(target, trip.word)
        for refusal in reasons.REFUSALS:
            self._refusals.labels(target, refusal.word)
        for verdict in VERDICTS:
            self._steps.labels(target, verdict)
        self._over.labels(target)

    def observe(self, result: CapacityResult) -> None:
        """Count a run that has just ended, and publish its knee."""
        self._runs.labels(result.target, result.stopped.by).inc()
        self._over.labels(result.target).inc(result.cost.over_objective_seconds)
        for step in result.steps:
            self._steps.labels(result.target, _verdict(step)).inc()
        for reason in _trips(result):
            self._trips.labels(result.target, reason).inc()
        self.restore(result)

    def count_refusal(self, target: str, reason: str) -> None:
        """Count a run that was refused."""
        self._runs.labels(target, REFUSED).inc()
        self._refusals.labels(target, reason).inc()

    def restore(self, result: CapacityResult) -> None:
        """Publish the knee of a run, which may be an old one; the timestamp series shows its age.

        It replaces the target's previous knee, even of another model or mode: two would answer one question twice,
        and the older one would grow stale. A run that was not verified and found no upper bound replaces none: it says
        less. A forecast without load and a run do not replace each other: each has an age of its own.
        """
        capacity = result.capacity
        if (result.target, _MEASURED) in self._shown and capacity.mode == _FORECAST and capacity.is_lower_bound:
            return
        self._show(result, _MEASURED)

    def publish_forecast(self, result: CapacityResult) -> None:
        """Publish the forecast for the configured workload from live traffic."""
        self._show(result, _FORECAST)

    def publish_for_users(self, result: CapacityResult) -> None:
        """Publish the forecast for what users send, in addition to the capacity for the configured workload."""
        self._show(result, _FOR_USERS)

    def _show(self, result: CapacityResult, kind: str) -> None:
        capacity = result.capacity
        if capacity.requests_per_second is None:
            return
        labels = _labels(result, measured_mode(capacity) if kind == _MEASURED else capacity.mode)
        key = (result.target, kind)
        for other in _KINDS:
            shown = self._shown.get((result.target, other))
            if other != kind and shown is not None and shown[0] == labels:
                del self._shown[result.target, other]  # of users as the configured workload; the series is this one's
        before = self._shown[key][0] if key in self._shown else labels
        sample = capacity_sample(result) if kind == _MEASURED else None
        for metric, value in (
            (self._rps, capacity.requests_per_second),
            (self._last_success, result.ended_s),
            (self._lower, capacity.lower),
            (self._upper, capacity.upper),
            (self._knee_upper, sample.upper if sample is not None else None),
            (self._tokens, capacity.output_tokens_per_second),
            (self._prefill, capacity.prefill_tokens_per_second),
            (self._concurrency, capacity.knee_concurrency),
            (self._fingerprint, as_number(fingerprint(result.model, result.context))),
        ):
            metric.remove(*before)
            if value is not None:
                metric.labels(*labels).set(value)
        self._show_bottleneck(before, labels, capacity.bottleneck)
        self._headroom.remove(*before)
        self._shown[key] = labels, result

    def _show_bottleneck(self, before: tuple[str, ...], labels: tuple[str, ...], found: str | None) -> None:
        for name in BOTTLENECKS:
            self._bottleneck.remove(*before, name)
        if found is not None:
            for name in BOTTLENECKS:
                self._bottleneck.labels(*labels, name).set(name == found)

    def publish_headroom(
        self, target: str, users: UserLoad | None, replicas: str | None = None, *, forecasts_since_s: float = 0.0
    ) -> None:
        """Publish the headroom of each capacity. Remove it while user traffic is unknown, and while there are other
        than as many replicas as it was measured with: the server can do less than that, or more. Remove that of a
        forecast from before `forecasts_since_s`, which says nothing about now.
        """
        for kind in _KINDS:
            if (target, kind) not in self._shown:
                continue
            labels, result = self._shown[target, kind]
            is_of_now = replicas == result.context.flags.get(REPLICAS)
            is_old = kind != _MEASURED and result.ended_s < forecasts_since_s
            left = headroom(users, result.capacity) if is_of_now and not is_old else None
            if left is not None:
                self._headroom.labels(*labels).set(left)
            else:
                self._headroom.remove(*labels)

    def publish_forecast_error(self, result: CapacityResult, forecast: CapacityResult | None) -> None:
        """Publish the error of the last forecast, if the run measured the same setup."""
        found = result.capacity
        predicted = None
        if forecast is not None and is_comparable(forecast, result) and not forecast.capacity.is_lower_bound:
            predicted = forecast.capacity.requests_per_second
        # Where no load broke anything the capacity is a lower bound, and a forecast above it may be right.
        if predicted and found.requests_per_second and found.upper is not None and found.mode != _FORECAST:
            self._residual.forget(result.target)  # it was another model's
            self._residual.labels(*_labels(result, found.mode)[:3]).set(predicted / found.requests_per_second - 1)

    def compare(self, target: str, workload: str, sample: CapacitySample, shift: Shift | None) -> None:
        """Publish how the capacity of a run compares with its baseline; `shift` is None without a baseline.

        Samples of all modes are compared with one another, so they replace each other here.
        """
        labels = (target, sample.model, workload, sample.mode)
        before = self._compared.pop(target, labels)
        for metric in (self._baseline, self._since, self._shift):
            metric.remove(*before)
        for method in METHODS:
            self._shifted.remove(*before, method)
        if shift is None:
            return
        self._baseline.labels(*labels).set(shift.baseline.requests_per_second)
        self._since.labels(*labels).set(shift.baseline.since_s)
        self._shift.labels(*labels).set(shift.ratio)
        for method, fired in shift.fired.items():
            self._shifted.labels(*labels, method).set(fired)
        self._compared[target] = labels


def _trips(result: CapacityResult) -> list[str]:
    """Return why the guard ended steps of the run, and why it ended the run."""
    trips = [step.tripped for step in result.steps if step.tripped is not None]
    stopped = result.stopped
    if stopped.by == "guard" and (not trips or trips[-1] != stopped.reason):
        trips.append(stopped.reason or "unknown")
    return trips


def _verdict(step: StepSummary) -> str:
    if step.reason is None:
        return _VALID
    return (reasons.find(reasons.UNJUDGED, step.reason) or reasons.WORKER_LOST).verdict


def _labels(result: CapacityResult, mode: str) -> tuple[str, ...]:
    return (result.target, result.model, str(result.context.workload["name"]), mode)
