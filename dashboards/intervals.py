"""How often Prometheus has a new value, which decides how long the windows of rates must be. Pure.

Grafana computes $__rate_interval from the query's "Min step" or, without one, from the scrape interval in the data
source's settings, which is 15 s unless somebody has set it. So each query with a rate has a "Min step": its window is
then at least four scrapes, whatever the settings say.
"""

from dataclasses import dataclass

from alerts.windows import duration
from dashboards.queries import RATE
from exporters import names

# Prometheus' own default, and the longest interval that the rules support.
SCRAPE_S = 60.0
# Series that change with each canary, and not with each scrape.
_BY_CANARY = (*(one.name for one in names.ALL if one.source == "client"), names.TASK_LATENESS.name)


@dataclass(frozen=True, slots=True)
class Intervals:
    """Seconds between two scrapes of Kneewatch, and between two canaries of the slowest target."""

    scrape_s: float = SCRAPE_S
    canary_s: float = 0.0

    def min_step(self, expr: str) -> str | None:
        """Return the query's "Min step": the time between two values; None if it has no rate."""
        if RATE not in expr:
            return None
        is_by_canary = any(name in expr for name in _BY_CANARY)
        return duration(max(self.scrape_s, self.canary_s) if is_by_canary else self.scrape_s)
