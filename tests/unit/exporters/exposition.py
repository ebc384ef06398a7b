"""What Prometheus reads from a registry: samples by name and labels."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


def samples(registry: CollectorRegistry) -> Samples:
    """Every sample of the text page, parsed back. Raises ValueError where the page is not valid."""
    text = generate_latest(registry).decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    """The one sample with exactly these labels, or None."""
    return samples(registry).get((name, frozenset(labels.items())))


def values(registry: CollectorRegistry, name: str, **labels: str) -> list[float]:
    """The samples of that name that have at least these labels."""
    wanted = frozenset(labels.items())
    return [number for (found, has), number in samples(registry).items() if found == name and wanted <= has]
