"""What Prometheus reads from a page: samples by name and labels."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from exporters.registry import MetricsPage
from exporters.rendered_samples import RenderedSamples

Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


def samples(page: CollectorRegistry | RenderedSamples) -> Samples:
    """Parse every sample of the text page. Raises ValueError if the page is not valid."""
    whole = MetricsPage(CollectorRegistry(), (page,)) if isinstance(page, RenderedSamples) else MetricsPage(page)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(whole.render()[0].decode())
        for sample in family.samples
    }


def value(page: CollectorRegistry | RenderedSamples, /, name: str, **labels: str) -> float | None:
    """Return the one sample with exactly these labels, or None."""
    return samples(page).get((name, frozenset(labels.items())))


def values(page: CollectorRegistry | RenderedSamples, /, name: str, **labels: str) -> list[float]:
    """Return the samples of that name that have at least these labels."""
    wanted = frozenset(labels.items())
    return [number for (found, has), number in samples(page).items() if found == name and wanted <= has]
