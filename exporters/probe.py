"""What the client saw, as series: RequestRecords in, counters and histograms out."""

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry

from exporters import names
from exporters.registry import counter, gauge, histogram
from probe import latency, slo
from probe.records import UP, Objectives, Outcome, RequestRecord, Traffic
from probe.summary import tokens_spent


class ProbeExporter:
    """The client's series of every target. Only successful requests have latencies."""

    def __init__(self, registry: CollectorRegistry, objectives: Mapping[str, Objectives]) -> None:
        """`objectives` by target: their thresholds become bucket bounds, and series of their own."""
        self._objectives = objectives
        promised = [o.latencies() for o in objectives.values()]
        ttft = [latencies["ttft"].within_s for latencies in promised if "ttft" in latencies]
        tpot = [latencies["tpot"].within_s for latencies in promised if "tpot" in latencies]
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
        for target, o in objectives.items():
            self._publish_objectives(target, o)

    def _publish_objectives(self, target: str, objectives: Objectives) -> None:
        if objectives.availability is not None:
            self._ratio.labels(target, slo.AVAILABILITY).set(objectives.availability)
        for name, objective in objectives.latencies().items():
            self._ratio.labels(target, name).set(objective.ratio)
            self._seconds.labels(target, name).set(objective.within_s)

    def expect(self, target: str, model: str, workload: str, traffic: Traffic) -> None:
        """Starts the counters at zero: without a zero before it, `increase` does not see the first failure."""
        labels = (target, model, workload, traffic.value)
        for outcome in Outcome:
            self._requests.labels(*labels, outcome.value)
        for objective in (slo.AVAILABILITY, *self._objectives[target].latencies(), slo.ALL):
            self._good.labels(*labels, objective)
        for kind in ("prompt", "output"):
            self._tokens.labels(target, model, traffic.value, kind)

    def observe(self, record: RequestRecord, wall_s: float) -> None:
        """Counts one request that ended at `wall_s`."""
        labels = (record.target, record.model, record.spec.workload, record.traffic.value)
        self.expect(record.target, record.model, record.spec.workload, record.traffic)
        self._requests.labels(*labels, record.outcome.value).inc()
        for objective, good in slo.met(record, self._objectives[record.target]).items():
            if good:
                self._good.labels(*labels, objective).inc()
        for kind, tokens in zip(("prompt", "output"), tokens_spent(record), strict=True):
            self._tokens.labels(record.target, record.model, record.traffic.value, kind).inc(tokens)
        if record.traffic is Traffic.CANARY:
            self._up.labels(record.target).set(record.outcome in UP)
        if record.outcome in UP:
            self._last_success.labels(*labels).set(wall_s)
        if record.outcome is Outcome.OK:
            self._observe_latencies(record, labels)

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
