"""What the client saw, as series: RequestRecords in, counters and histograms out."""

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry

from exporters import names
from exporters.registry import counter, gauge, histogram
from exporters.relay import Relay
from exporters.text import family_name, samples
from probe import latency, slo
from probe.records import UP, Objectives, Outcome, RequestRecord, Traffic
from probe.summary import tokens_spent

_SERIES = (
    names.REQUESTS,
    names.GOOD_REQUESTS,
    names.TTFT,
    names.ITL,
    names.TPOT,
    names.E2E,
    names.SCHEDULE_LAG,
    names.TOKENS,
    names.LAST_SUCCESS,
    names.TARGET_UP,
    names.OBJECTIVE_RATIO,
    names.OBJECTIVE_SECONDS,
)


class ProbeExporter:
    """The client's series of every target. Only successful requests have latencies."""

    def __init__(self, objectives: Mapping[str, Objectives]) -> None:
        """`objectives` by target: their thresholds become bucket bounds, and series of their own."""
        promised = [o.latencies() for o in objectives.values()]
        ttft = [latencies["ttft"].within_s for latencies in promised if "ttft" in latencies]
        tpot = [latencies["tpot"].within_s for latencies in promised if "tpot" in latencies]
        self.relay = Relay(_SERIES)
        # The same bounds for all: histograms of several targets are added up.
        self._targets = {target: _ClientSeries(target, o, ttft, tpot) for target, o in objectives.items()}
        for target in self._targets:
            self._write(target)

    def expect(self, target: str, model: str, workload: str, traffic: Traffic) -> None:
        """Starts the counters at zero: without a zero before it, `increase` does not see the first failure."""
        self._targets[target].expect(model, workload, traffic)
        self._write(target)

    def observe(self, record: RequestRecord, wall_s: float) -> None:
        """Counts one request that ended at `wall_s`."""
        self._targets[record.target].observe(record, wall_s)
        if record.traffic is Traffic.CANARY:
            self._write(record.target)
        else:  # there may be hundreds a second
            self.relay.put_later(record.target, self._targets[record.target].text)

    def _write(self, target: str) -> None:
        self.relay.put_text(target, self._targets[target].text())


class _ClientSeries:
    """Those of one target, in a registry of its own: it is written as text when they change (relay.py)."""

    def __init__(self, target: str, objectives: Objectives, ttft: Iterable[float], tpot: Iterable[float]) -> None:
        """`ttft` and `tpot`: thresholds in seconds."""
        self._target = target
        self._objectives = objectives
        self._registry = registry = CollectorRegistry()
        self._requests = counter(names.REQUESTS, registry)
        self._good = counter(names.GOOD_REQUESTS, registry)
        self._tokens = counter(names.TOKENS, registry)
        self._ttft = histogram(names.TTFT, registry, ttft)
        self._itl = histogram(names.ITL, registry, tpot)
        self._tpot = histogram(names.TPOT, registry, tpot)
        self._e2e = histogram(names.E2E, registry)
        self._lag = histogram(names.SCHEDULE_LAG, registry)
        self._last_success = gauge(names.LAST_SUCCESS, registry)
        self._up = gauge(names.TARGET_UP, registry)
        self._ratio = gauge(names.OBJECTIVE_RATIO, registry)
        self._seconds = gauge(names.OBJECTIVE_SECONDS, registry)
        self._counted: set[tuple[str, ...]] = set()  # labels that something was counted under
        self._expected: tuple[str, ...] | None = None  # and those that were announced
        self._publish_objectives()

    def text(self) -> Mapping[str, str]:
        """The lines, by the series' name."""
        return {family_name(metric): "".join(samples(metric)) for metric in self._registry.collect()}

    def _publish_objectives(self) -> None:
        if self._objectives.availability is not None:
            self._ratio.labels(self._target, slo.AVAILABILITY).set(self._objectives.availability)
        for name, objective in self._objectives.latencies().items():
            self._ratio.labels(self._target, name).set(objective.ratio)
            self._seconds.labels(self._target, name).set(objective.within_s)

    def expect(self, model: str, workload: str, traffic: Traffic) -> None:
        self._expected = (self._target, model, workload, traffic.value)
        self._start(self._expected)

    def _start(self, labels: tuple[str, ...]) -> None:
        for outcome in Outcome:
            self._requests.labels(*labels, outcome.value)
        for objective in (slo.AVAILABILITY, *self._objectives.latencies(), slo.ALL):
            self._good.labels(*labels, objective)
        target, model, _, traffic = labels
        for kind in ("prompt", "output"):
            self._tokens.labels(target, model, traffic, kind)

    def observe(self, record: RequestRecord, wall_s: float) -> None:
        labels = (record.target, record.model, record.spec.workload, record.traffic.value)
        self._counted.add(labels)
        self._start(labels)
        self._forget_expected(record)
        self._requests.labels(*labels, record.outcome.value).inc()
        for objective, good in slo.met(record, self._objectives).items():
            if good:
                self._good.labels(*labels, objective).inc()
        for kind, tokens in zip(("prompt", "output"), tokens_spent(record), strict=True):
            self._tokens.labels(record.target, record.model, record.traffic.value, kind).inc(tokens)
        if record.traffic is Traffic.CANARY:
            self._up.labels(record.target).set(record.outcome in UP)
        if record.outcome in UP:
            self._last_success.labels(*labels).set(wall_s)
        # Of step-up load latencies of all its loads would be one histogram: they are in its results, step by step.
        if record.outcome is Outcome.OK and record.traffic is not Traffic.CAPACITY:
            self._observe_latencies(record, labels)

    def _forget_expected(self, record: RequestRecord) -> None:
        """What was announced before the server had said which model it serves, and never came."""
        labels = self._expected
        if labels is None or labels[1] == record.model or labels[3] != record.traffic.value:
            return
        self._expected = None
        if labels in self._counted:
            return
        for outcome in Outcome:
            self._requests.remove(*labels, outcome.value)
        for objective in (slo.AVAILABILITY, *self._objectives.latencies(), slo.ALL):
            self._good.remove(*labels, objective)
        target, model, _, traffic = labels
        for kind in ("prompt", "output"):
            self._tokens.remove(target, model, traffic, kind)

    def _observe_latencies(self, record: RequestRecord, labels: tuple[str, ...]) -> None:
        samples: tuple[tuple[object, Iterable[float | None]], ...] = (
            (self._ttft, (latency.ttft_s(record),)),
            (self._itl, latency.itl_s(record)),
            (self._tpot, (latency.tpot_s(record),)),
            (self._e2e, (latency.e2e_s(record),)),
            (self._lag, (latency.schedule_lag_s(record),)),
        )
        for metric, values in samples:
            child = metric.labels(*labels)  # type: ignore[attr-defined]
            for value in values:
                if value is not None:
                    child.observe(value)
