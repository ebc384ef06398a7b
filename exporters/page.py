"""The /metrics page: a registry as text."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector


class _WithoutCreated(Collector):
    """prometheus_client adds a `_created` series to every counter and histogram: half of our page, for nothing."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


def render(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """The page and its content type, in the format that the `Accept` header asks for."""
    encode, content_type = choose_encoder(accept)
    filtered = CollectorRegistry()
    filtered.register(_WithoutCreated(registry))
    return encode(filtered), content_type
