"""The two text formats of Prometheus, for Kneewatch's kinds of series.

prometheus_client takes 15 us a line: half a second for the client series of two hundred targets. A test checks that its
pages and these are the same.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache

from prometheus_client import Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST
from prometheus_client.utils import floatToGoString

END = "# EOF\n"  # of a page in OpenMetrics
# Most labels and numbers, which are small integers, are the same on every page.
_REMEMBERED = 16_384


def wants_openmetrics(accept: str) -> bool:
    """Return whether an `Accept` header names OpenMetrics. Prometheus does, and accepts either format."""
    return any(part.partition(";")[0].strip() == "application/openmetrics-text" for part in accept.split(","))


def content_type(*, openmetrics: bool) -> str:
    return CONTENT_TYPE_LATEST if openmetrics else CONTENT_TYPE_PLAIN_0_0_4


def head(name: str, kind: str, help_: str, *, openmetrics: bool) -> str:
    """Return the head of a family. `name` is the name in queries; OpenMetrics drops a counter's suffix in it."""
    if openmetrics:
        name = name.removesuffix("_total") if kind == "counter" else name
    else:
        kind = "untyped" if kind == "unknown" else kind
    return f"# HELP {name} {help_}\n# TYPE {name} {kind}\n"


def pairs(labels: Iterable[tuple[str, str]]) -> str:
    """Return the text between the braces."""
    return ",".join([_pair(name, value) for name, value in labels])


def family_name(metric: Metric) -> str:
    """Return the name in queries of a prometheus_client metric."""
    return f"{metric.name}_total" if metric.type == "counter" else metric.name


def samples(metric: Metric) -> Iterator[str]:
    """Yield the lines of a prometheus_client metric."""
    for sample in metric.samples:
        # prometheus_client adds `_created` to every counter and histogram: half of the page, without use.
        if not sample.name.endswith("_created"):
            yield line(sample.name, pairs(sample.labels.items()), sample.value)


def line(name: str, labels: str, value: float) -> str:
    """Return one sample; `labels` as returned by `pairs`."""
    return f"{name}{{{labels}}} {number(value)}\n" if labels else f"{name} {number(value)}\n"


def number(value: float) -> str:
    """Return the number in Go's notation, as Prometheus writes it."""
    return _number(value) if value else repr(float(value))  # 0.0 and -0.0 are equal, but differ in text


@lru_cache(maxsize=_REMEMBERED)
def _number(value: float) -> str:
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]


@lru_cache(maxsize=_REMEMBERED)
def _pair(name: str, value: str) -> str:
    escaped = value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return f'{name}="{escaped}"'
