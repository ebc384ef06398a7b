"""The /metrics page: the registry and the rendered samples, as text.

It may be rendered outside the event loop's thread, which timestamps what canaries receive.
"""

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Metric

from exporters.exposition_format import END, content_type, family_name, head, samples, wants_openmetrics
from exporters.rendered_samples import RenderedSamples


class MetricsPage:
    """All series of the process."""

    def __init__(self, registry: CollectorRegistry, relays: Sequence[RenderedSamples] = ()) -> None:
        self._registry = registry
        self._relays = tuple(relays)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Return the page and its content type, in the format of the `Accept` header."""
        openmetrics = wants_openmetrics(accept)
        written = [text for metric in self._registry.collect() for text in _family(metric, openmetrics=openmetrics)]
        for relay in self._relays:
            written += relay.write(openmetrics=openmetrics)
        if openmetrics:
            written.append(END)
        # A lone surrogate, which a server may have sent in a name, cannot be encoded.
        return "".join(written).encode("utf-8", "replace"), content_type(openmetrics=openmetrics)


def _family(metric: Metric, *, openmetrics: bool) -> Iterator[str]:
    yield head(family_name(metric), metric.type, metric.documentation, openmetrics=openmetrics)
    yield from samples(metric)
