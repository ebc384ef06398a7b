"""The client's series of one target: RequestRecords in, counters and histograms out.

The bucket bounds of its latencies include the objectives' thresholds.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from exporters import names
from exporters.names import Series
from exporters.registry import counter, gauge, histogram
from exporters.rendered_samples import family_name, samples
from probe.core import latency
from probe.core import objectives as slo
from probe.core.clock import Clock
from probe.core.objectives import LATENCIES, Objectives
from probe.core.request import UNKNOWN_MODEL, Outcome, RequestRecord, Traffic, tokens_spent
from probe.core.target_status import worst

_Kind = tuple[str, str]  # model and workload; the model is UNKNOWN_MODEL where the server reports it


class TargetUp:
    """The newest result of each kind of canary, each for as long as it is valid."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._valid_s: dict[_Kind, float] = {}
        self._newest: dict[_Kind, tuple[bool, int]] = {}  # whether it was up, and when that was known

    def add_kind(self, model: str, workload: str, valid_s: float) -> None:
        """Add a kind of canary. `valid_s`: for how long one of them shows whether the target is up."""
        self._valid_s[model, workload] = valid_s

    def has_kind(self, model: str, workload: str) -> bool:
        """Return whether a kind with this model was added."""
        return (model, workload) in self._valid_s

    def add(self, record: RequestRecord, *, is_up: bool) -> None:
        """Take a canary."""
        kind = record.model, record.spec.workload
        if kind not in self._valid_s:
            kind = UNKNOWN_MODEL, record.spec.workload
        self._newest[kind] = is_up, self._clock.monotonic_ns()

    def forget(self) -> bool:
        """Forget all canaries. Return whether there were any."""
        were_known = bool(self._newest)
        self._newest.clear()
        return were_known

    @property
    def is_up(self) -> bool | None:
        """Return whether the newest canary of each kind succeeded; None if all are too old.

        The metrics page asks in a thread of its own, while canaries end.
        """
        now_ns = self._clock.monotonic_ns()
        return worst(
            is_up
            for kind, (is_up, at_ns) in tuple(self._newest.items())
            if (now_ns - at_ns) * 1e-9 <= self._valid_s.get(kind, float("inf"))
        )


@dataclass(frozen=True, slots=True)
class ObjectiveBounds:
    """Thresholds (s) that are bucket bounds."""

    ttft: frozenset[float] = frozenset()
    tpot: frozenset[float] = frozenset()
    e2e: frozenset[float] = frozenset()
    itl: frozenset[float] = frozenset()

    @classmethod
    def from_objectives(cls, objectives: Iterable[Objectives]) -> "ObjectiveBounds":
        promised = [o.latencies() for o in objectives]
        ttft, tpot, e2e, itl = (
            frozenset(each[name].within_s for each in promised if name in each) for name in LATENCIES
        )
        return cls(ttft, tpot, e2e, tpot | itl)  # TPOT is a mean of gaps, so its threshold is one of theirs


class LatencyHistogram:
    """A histogram with the objectives' thresholds among its bounds."""

    def __init__(self, series: Series, registry: CollectorRegistry, thresholds: Iterable[float]) -> None:
        self._series, self._registry = series, registry
        self._bounds = names.with_bounds(series, thresholds)
        self.metric = histogram(series, registry, thresholds)

    def set_bounds(self, thresholds: Iterable[float]) -> bool:
        """Use other thresholds. Return whether the bounds changed, which restarts the histogram at zero."""
        bounds = names.with_bounds(self._series, thresholds)
        if bounds == self._bounds:
            return False
        self._bounds = bounds
        self._registry.unregister(self.metric)
        self.metric = histogram(self._series, self._registry, thresholds)
        return True


# A target's models with series of their own. A server may answer with another name each time.
_MAX_MODELS = 8
_OTHER_MODELS = "other"


class ClientSeries:
    """Series in a registry of their own, rendered when they change (rendered_samples.py)."""

    def __init__(self, target: str, objectives: Objectives, bounds: ObjectiveBounds, clock: Clock) -> None:
        self._target = target
        self._canaries = TargetUp(clock)
        self.objectives = objectives
        self._judged = (slo.AVAILABILITY, *objectives.latencies(), slo.ALL)
        self._registry = registry = CollectorRegistry()
        self._requests = counter(names.REQUESTS, registry)
        self._good = counter(names.GOOD_REQUESTS, registry)
        self._tokens = counter(names.TOKENS, registry)
        self._ttft = LatencyHistogram(names.TTFT, registry, bounds.ttft)
        self._first_answer = histogram(names.FIRST_ANSWER, registry)
        self._first_visible = histogram(names.FIRST_VISIBLE, registry)
        self._itl = LatencyHistogram(names.ITL, registry, bounds.itl)
        self._tpot = LatencyHistogram(names.TPOT, registry, bounds.tpot)
        self._e2e = LatencyHistogram(names.E2E, registry, bounds.e2e)
        self._lag = histogram(names.SCHEDULE_LAG, registry)
        self._last_success = gauge(names.LAST_SUCCESS, registry)
        self._up = gauge(names.TARGET_UP, registry)
        self._ratio = gauge(names.OBJECTIVE_RATIO, registry)
        self._seconds = gauge(names.OBJECTIVE_SECONDS, registry)
        self._window = gauge(names.OBJECTIVE_WINDOW, registry)
        self._models: set[str] = set()
        self._counted: set[tuple[str, ...]] = set()  # label sets with a count
        self._provisional: set[tuple[str, ...]] = set()  # label sets announced before the model is known
        self._publish_objectives()

    def set_bounds(self, bounds: ObjectiveBounds) -> bool:
        """Use other bounds. Return whether that restarted a histogram."""
        emptied = [
            histogram.set_bounds(thresholds)
            for histogram, thresholds in (
                (self._ttft, bounds.ttft),
                (self._itl, bounds.itl),
                (self._tpot, bounds.tpot),
                (self._e2e, bounds.e2e),
            )
        ]
        return any(emptied)

    def text(self) -> Mapping[str, str]:
        """Return the lines by series name."""
        return {family_name(metric): "".join(samples(metric)) for metric in self._registry.collect()}

    def _publish_objectives(self) -> None:
        self._window.labels(self._target, self.objectives.name).set(self.objectives.window_s)
        if self.objectives.availability is not None:
            self._ratio.labels(self._target, slo.AVAILABILITY).set(self.objectives.availability)
        for name, objective in self.objectives.latencies().items():
            self._ratio.labels(self._target, name).set(objective.ratio)
            self._seconds.labels(self._target, name).set(objective.within_s)

    def start_at_zero(self, model: str, workload: str, traffic: Traffic, up_for_s: float) -> None:
        labels = (self._target, model, workload, traffic.value)
        self._canaries.add_kind(model, workload, up_for_s)
        if model == UNKNOWN_MODEL:
            self._provisional.add(labels)
        self._start(labels)

    def _start(self, labels: tuple[str, ...]) -> None:
        for outcome in Outcome:
            self._requests.labels(*labels, outcome.value)
        for objective in self._judged:
            self._good.labels(*labels, objective)
        target, model, _, traffic = labels
        for kind in ("prompt", "output"):
            self._tokens.labels(target, model, traffic, kind)

    def observe(self, record: RequestRecord, wall_s: float) -> None:
        model = self._model(record.model)
        labels = (record.target, model, record.spec.workload, record.traffic.value)
        self._counted.add(labels)
        self._start(labels)
        self._forget_provisional(record)
        self._requests.labels(*labels, record.outcome.value).inc()
        verdict = dict(slo.met(record, self.objectives))
        for name in slo.unknown(record, self.objectives):
            verdict[name] = True  # not judged: alerts take what is not good for bad
        for objective, good in verdict.items():
            if good and objective in self._judged:
                self._good.labels(*labels, objective).inc()
        for kind, tokens in zip(("prompt", "output"), tokens_spent(record), strict=True):
            self._tokens.labels(record.target, model, record.traffic.value, kind).inc(tokens)
        if record.traffic is Traffic.CANARY and record.is_up is not None:
            self._canaries.add(record, is_up=record.is_up)
            self._up.labels(record.target).set(bool(self._canaries.is_up))
        if record.is_up:
            self._last_success.labels(*labels).set(wall_s)
        # A capacity run would mix the latencies of all its steps in one histogram; its result has them by step.
        # A question's length is the model's.
        if record.outcome is Outcome.OK and record.traffic not in (Traffic.CAPACITY, Traffic.ANSWER):
            self._observe_latencies(record, labels)

    def _model(self, name: str) -> str:
        """Return the label of a model: its name, or "other" from the target's ninth model on."""
        if len(self._models) < _MAX_MODELS:
            self._models.add(name)
        return name if name in self._models else _OTHER_MODELS

    @property
    def is_up_valid(self) -> bool:
        """Return whether a canary is recent enough to show whether the target is up."""
        return self._canaries.is_up is not None

    def forget_up(self) -> bool:
        """Forget what the last canaries showed. Return whether that was anything."""
        self._up.clear()
        return self._canaries.forget()

    def _forget_provisional(self, record: RequestRecord) -> None:
        """Remove series announced before the server reported its model, if no request used them."""
        model, workload, traffic = UNKNOWN_MODEL, record.spec.workload, record.traffic.value
        labels = (self._target, model, workload, traffic)
        if labels not in self._provisional or self._canaries.has_kind(record.model, workload):
            return
        self._provisional.discard(labels)
        if labels in self._counted:
            return
        for outcome in Outcome:
            self._requests.remove(*labels, outcome.value)
        for objective in self._judged:
            self._good.remove(*labels, objective)
        if not any((each[1], each[3]) == (model, traffic) for each in self._provisional | self._counted):
            for kind in ("prompt", "output"):
                self._tokens.remove(self._target, model, traffic, kind)

    def _observe_latencies(self, record: RequestRecord, labels: tuple[str, ...]) -> None:
        samples: tuple[tuple[object, Iterable[float | None]], ...] = (
            (self._ttft.metric, (latency.ttft_s(record),)),
            (self._itl.metric, latency.itl_s(record)),
            (self._tpot.metric, (latency.tpot_s(record),)),
            (self._e2e.metric, (latency.e2e_s(record),)),
            (self._lag, (latency.schedule_lag_s(record),)),
        )
        if (reasoned_s := latency.first_answer_s(record)) is not None:  # no series for servers without reasoning
            self._first_answer.labels(*labels).observe(reasoned_s)
        if (visible_s := latency.first_visible_s(record)) is not None:  # nor for those that show each token
            self._first_visible.labels(*labels).observe(visible_s)
        for metric, values in samples:
            child = metric.labels(*labels)  # type: ignore[attr-defined]
            for value in values:
                if value is not None:
                    child.observe(value)
