"""Which of Kneewatch's alerts fire, asked of the configured Prometheus for the pages."""

import asyncio
from collections.abc import Callable

from probe.config.config import Config, PrometheusConfig
from probe.core.clock import Clock
from probe.core.errors import TargetError
from probe.core.firing_alerts import FiringAlerts

_EVERY_S = 15.0


class AlertWatch:
    """The last answer; None without a Prometheus, and before its first answer."""

    def __init__(self, config: Callable[[], Config], clock: Clock) -> None:
        """`config`: returns the current configuration."""
        self._config, self._clock = config, clock
        self.last: FiringAlerts | None = None

    async def follow(self) -> None:
        """Ask again and again, until cancelled."""
        while True:
            prometheus = self._config().prometheus
            self.last = await self._ask(prometheus) if prometheus is not None else None
            await asyncio.sleep(_EVERY_S)

    async def _ask(self, prometheus: PrometheusConfig) -> FiringAlerts:
        from probe.prometheus.queries import Prometheus  # noqa: PLC0415 - memory that only this option needs

        try:
            alerts = await Prometheus(prometheus.url, prometheus.ca_file).firing_alerts()
        except TargetError as error:
            return FiringAlerts((), self._clock.wall_s(), str(error))
        return FiringAlerts(alerts, self._clock.wall_s())
