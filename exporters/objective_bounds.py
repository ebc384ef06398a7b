"""Histograms of latencies whose bucket bounds include the objectives' thresholds."""

from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from exporters import names
from exporters.names import Series
from exporters.registry import histogram
from probe.core.objectives import LATENCIES, Objectives


@dataclass(frozen=True, slots=True)
class ObjectiveBounds:
    """Thresholds (s) that are bucket bounds."""

    ttft: frozenset[float] = frozenset()
    tpot: frozenset[float] = frozenset()
    e2e: frozenset[float] = frozenset()
    itl: frozenset[float] = frozenset()

    @classmethod
    def of(cls, objectives: Iterable[Objectives]) -> "ObjectiveBounds":
        promised = [o.latencies() for o in objectives]
        ttft, tpot, e2e, itl = (
            frozenset(each[name].within_s for each in promised if name in each) for name in LATENCIES
        )
        return cls(ttft, tpot, e2e, tpot | itl)  # TPOT is a mean of gaps, so its threshold is one of theirs


class LatencyHistogram:
    """A histogram whose bounds include the objectives' thresholds."""

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
