"""The two text formats of Prometheus, for the few kinds of series that there are here.

prometheus_client writes them too, at 15 us a line: half a second for two hundred targets' own series alone. A test
holds its pages and ours to be the same.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache

from prometheus_client import Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST
from prometheus_client.utils import floatToGoString

END = "# EOF\n"  # of a page in OpenMetrics
# The same labels and the same numbers, most of them small and whole, come on every page.
_REMEMBERED = 16_384


def wants_openmetrics(accept: str) -> bool:
    """Whether an `Accept` header names it: Prometheus does, and takes either."""
    return any(part.partition(";")[0].strip() == "application/openmetrics-text" for part in accept.split(","))


def content_type(*, openmetrics: bool) -> str:
    return CONTENT_TYPE_LATEST if openmetrics else CONTENT_TYPE_PLAIN_0_0_4


def head(name: str, kind: str, help_: str, *, openmetrics: bool) -> str:
    """Of a family. `name` is what queries say; OpenMetrics calls a counter's family without its suffix."""
    if openmetrics:
        name = name.removesuffix("_total") if kind == "counter" else name
    else:
        kind = "untyped" if kind == "unknown" else kind
    return f"# HELP {name} {help_}\n# TYPE {name} {kind}\n"


def pairs(labels: Iterable[tuple[str, str]]) -> str:
    """What stands between the braces."""
    return ",".join([_pair(name, value) for name, value in labels])


def family_name(metric: Metric) -> str:
    """The name of prometheus_client's metric, as queries say it."""
    return f"{metric.name}_total" if metric.type == "counter" else metric.name


def samples(metric: Metric) -> Iterator[str]:
    """The lines of one of prometheus_client's metrics."""
    for sample in metric.samples:
        # It adds such a series to every counter and histogram: half of our page, for nothing.
        if not sample.name.endswith("_created"):
            yield line(sample.name, pairs(sample.labels.items()), sample.value)


def line(name: str, labels: str, value: float) -> str:
    """One sample; `labels` as `pairs` gives them."""
    return f"{name}{{{labels}}} {number(value)}\n" if labels else f"{name} {number(value)}\n"


def number(value: float) -> str:
    """As Go writes it, and so Prometheus."""
    return _number(value) if value else repr(float(value))  # two zeros are equal, and are not written alike


@lru_cache(maxsize=_REMEMBERED)
def _number(value: float) -> str:
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]


@lru_cache(maxsize=_REMEMBERED)
def _pair(name: str, value: str) -> str:
    escaped = value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return f'{name}="{escaped}"'
