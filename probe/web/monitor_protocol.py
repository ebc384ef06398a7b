"""The monitor's interface for the pages."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from exporters.registry import MetricsPage
from probe.core.request import RequestRecord
from probe.core.result import CapacityResult
from probe.core.target_status import FiringAlerts, OwnClock, TargetStatus


class Monitor(Protocol):
    """The running monitor, as the pages use it."""

    @property
    def page(self) -> MetricsPage: ...
    @property
    def is_ready(self) -> bool: ...
    def statuses(self) -> Sequence[TargetStatus]: ...
    def results(self, target: str | None = None) -> Sequence[CapacityResult]: ...
    def result_of(self, result_id: str) -> CapacityResult | None: ...
    def config_text(self) -> str: ...

    @property
    def allowed_hosts(self) -> Sequence[str]:
        """Return the configured host names of the pages, in addition to private ones (hosts.py)."""
        ...

    def discovery_problems(self) -> Mapping[str, str]:
        """Return the problems of discoveries by name; discoveries that work are not in it."""
        ...

    def firing_alerts(self) -> FiringAlerts | None:
        """Return which alerts fire in the configured Prometheus; None: there is none, or no answer yet."""
        ...

    def own_clock(self) -> OwnClock | None:
        """Return how late Kneewatch took its timestamps in the last minutes; None: not known yet."""
        ...

    async def on_demand(self, target: str, workload: str | None) -> RequestRecord:
        """Send one canary with traffic "ondemand" now.

        Raises KeyError for an unknown target or workload, also if it was removed during the request.
        """
        ...

    async def reload(self) -> str | None:
        """Reload the configuration file. Return the error in one line, or None."""
        ...
