"""The client's measurements as series: RequestRecords in, counters and histograms out."""

from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial

from exporters import names
from exporters.client_series import ClientSeries, ObjectiveBounds
from exporters.rendered_samples import RenderedSamples
from probe.core.clock import Clock, SystemClock
from probe.core.objectives import Objectives
from probe.core.request import RequestRecord, Traffic

_SYSTEM_CLOCK = SystemClock()
_SERIES = (
    names.REQUESTS,
    names.GOOD_REQUESTS,
    names.TTFT,
    names.FIRST_ANSWER,
    names.FIRST_VISIBLE,
    names.ITL,
    names.TPOT,
    names.E2E,
    names.SCHEDULE_LAG,
    names.TOKENS,
    names.LAST_SUCCESS,
    names.TARGET_UP,
    names.OBJECTIVE_RATIO,
    names.OBJECTIVE_SECONDS,
    names.OBJECTIVE_WINDOW,
)


class ProbeExporter:
    """The client's series of every target. Only successful requests have latencies."""

    def __init__(self, objectives: Mapping[str, Objectives], clock: Clock = _SYSTEM_CLOCK) -> None:
        """Export the `objectives` of each target too; their thresholds become bucket bounds."""
        self._clock = clock
        self.relay = RenderedSamples(_SERIES)
        self._targets: dict[str, ClientSeries] = {}
        self._bounds = ObjectiveBounds()
        self.set_bounds(objectives.values())
        for target, promised in objectives.items():
            self.add(target, promised)

    def set_bounds(self, objectives: Iterable[Objectives]) -> None:
        """Use the thresholds of all `objectives` as bucket bounds.

        All targets have the same bounds, so that their histograms can be added up. When bounds change, a histogram
        restarts at zero; the other series keep their counts.
        """
        bounds = ObjectiveBounds.from_objectives(objectives)
        if bounds == self._bounds:
            return
        self._bounds = bounds
        for target, series in self._targets.items():
            if series.set_bounds(bounds):
                # There may be a thousand targets: render on the first page, or at the target's next canary.
                self.relay.put_later(target, partial(_current, series, cache(series.text)))

    def add(self, target: str, objectives: Objectives) -> None:
        """Add a target. `set_bounds` must have been called with its thresholds."""
        self._targets[target] = ClientSeries(target, objectives, self._bounds, self._clock)
        self._write(target)

    def forget(self, target: str) -> None:
        """Remove the series of a target that is no longer watched."""
        self._targets.pop(target, None)
        self.relay.forget(target)

    def start_at_zero(
        self, target: str, model: str, workload: str, traffic: Traffic, up_for_s: float = float("inf")
    ) -> None:
        """Start the counters of a kind of canary at zero: without that, `increase` misses the first failure.

        `up_for_s`: for how long a canary shows whether the target is up.
        """
        self._targets[target].start_at_zero(model, workload, traffic, up_for_s)
        self._write(target)

    def observe(self, record: RequestRecord, wall_s: float) -> None:
        """Count one request that ended at `wall_s`."""
        self._targets[record.target].observe(record, wall_s)
        if record.traffic is Traffic.CANARY:
            self._write(record.target)
        else:  # there may be hundreds a second
            series = self._targets[record.target]
            self.relay.put_later(record.target, partial(_current, series, series.text))

    def remove_up(self, target: str) -> None:
        """Remove what the last canaries showed: while the server sleeps there are none."""
        if self._targets[target].forget_up():
            self._write(target)

    def _write(self, target: str) -> None:
        series = self._targets[target]
        text = series.text()
        self.relay.put_later(target, partial(_current, series, lambda: text))


def _current(series: ClientSeries, text: Callable[[], Mapping[str, str]]) -> Mapping[str, str]:
    """Return the lines without those that have become too old."""
    lines = text()
    return lines if series.is_up_valid else {name: lines[name] for name in lines if name != names.TARGET_UP.name}
