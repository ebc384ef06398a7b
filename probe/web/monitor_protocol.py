"""What the pages need to know of the monitor, and may ask of it."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from exporters.metrics_page import MetricsPage
from probe.core.request import RequestRecord
from probe.core.result import CapacityResult
from probe.core.target_status import TargetStatus


class Monitor(Protocol):
    """The composition root, as the pages see it."""

    @property
    def page(self) -> MetricsPage: ...
    @property
    def ready(self) -> bool: ...
    def statuses(self) -> Sequence[TargetStatus]: ...
    def results(self, target: str | None = None) -> Sequence[CapacityResult]: ...
    def result_of(self, result_id: str) -> CapacityResult | None: ...
    def config_text(self) -> str: ...

    @property
    def allowed_hosts(self) -> Sequence[str]:
        """The names that the pages are asked for by, beside those that no stranger can have (hosts.py)."""
        ...

    def discovery_problems(self) -> Mapping[str, str]:
        """What is wrong with a discovery, by its name; those that are well are not in it."""
        ...

    async def on_demand(self, target: str, workload: str | None) -> RequestRecord:
        """One canary of traffic "ondemand" now.

        Raises KeyError for a target or workload that is not known, or not known any more when the answer is there.
        """
        ...

    async def reload(self) -> str | None:
        """Takes the configuration anew; the one line that says why not, where it is refused."""
        ...
