"""The replicas behind one address, as `metrics_discovery` finds them."""

from collections.abc import Iterable
from urllib.parse import urljoin

from probe.config.targets import TargetConfig
from probe.discovery.types import DiscoveredServer
from probe.monitor.wiring import engine_of
from probe.scrape import engines


def replica_pages(target: TargetConfig, servers: Iterable[DiscoveredServer]) -> tuple[str, ...]:
    """Return the address of each replica's metrics page."""
    found = target.metrics_discovery
    if found is not None and found.metrics_path is not None:
        return tuple(urljoin(server.base_url, found.metrics_path) for server in servers)
    return tuple(f"{server.base_url}{engines.path(engine_of(target))}" for server in servers)
