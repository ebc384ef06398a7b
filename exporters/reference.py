"""docs/metrics.md, written from names.py: `python -m exporters.reference` prints it."""

from collections.abc import Iterator

from exporters import names
from exporters.names import Series

_UNITS = {
    **{name: name for name in ("seconds", "ratio", "bytes", "tokens", "hertz", "watts", "joules")},
    "celsius": "degrees Celsius",
}
_INTRO = """\
# Series

After this page you can find the series for a query, with its labels and unit.

Everything on Kneewatch's `/metrics`. `make generate` writes this page from [exporters/series/](../exporters/series);
edit those files, not this page.

A series is absent while its value is unknown; no value stands for "unknown". Times are in seconds, shares from 0 to 1.
A target with one workload has fewer than 570 series, and fewer than 600 with all four latency objectives. Optional
sources add more: up to 30 for each GPU, eleven for each of 2 to 32 replicas or data-parallel engines, 25 for each of
the server's optional KV histograms.

`promtool check metrics` reports nothing but the label `modelName` of the GPU series, which is dcgm-exporter's.

Histograms are classic ones, with buckets: prometheus_client 0.26 cannot export native ones. Prometheus 3 stores them as
native ones too, where the scrape job has `convert_classic_histograms_to_nhcb: true`; the rules and dashboards read the
classic ones, so add `always_scrape_classic_histograms: true`.

The page is compressed for those who ask for it (`Accept-Encoding: gzip`), as Prometheus does.

**What may change.** Names, kinds, labels and units of `stable` series stay within a major version. A renamed series is
exported under both names for two minor versions; the old one is listed here as deprecated, with the new name, and the
release's [CHANGELOG.md](../CHANGELOG.md) lists the rename or removal as a breaking change. Help texts, buckets (except
the objectives' thresholds, which are always included) and the order of lines may change at any time. `experimental`
series may change with any release.
"""


def reference() -> str:
    """Return the page."""
    return "\n".join([_INTRO, *_labels(), *(line for source in names.SOURCES for line in _section(source))])


def unit(series: Series) -> str:
    """Return the series' unit, by the suffix of its name."""
    words = series.name.removesuffix("_total").removesuffix("_lower").removesuffix("_upper").split("_")
    if words[-3:] in (["requests", "per", "second"], ["tokens", "per", "second"]):
        return f"{words[-3]} per second"
    if words[-3:-1] == ["bytes", "per"]:
        return "bytes per second"
    if words[-2:] == ["timestamp", "seconds"]:
        return "seconds since 1970"
    return _UNITS.get(words[-1], "")


def _labels() -> Iterator[str]:
    yield "## Labels\n"
    yield "| label | meaning |"
    yield "|---|---|"
    for name, meaning in names.LABELS.items():
        yield f"| `{name}` | {meaning} |"
    yield ""


def _section(source: str) -> Iterator[str]:
    section = [series for series in names.ALL if series.source == source]
    yield f"## {source.capitalize() if source != 'gpu' else 'GPU'}\n"
    description = names.SOURCES[source]
    yield f"{description[0].upper()}{description[1:]}.\n"
    if source == "gpu":
        labels = f"the labels {_code(names.GPU[0].labels)}; an unknown one is absent"
        yield f"Values of a GPU have {labels}. dcgm-exporter's name, of any version, is in brackets.\n"
    yield "| series | kind | unit | labels | meaning | stability |"
    yield "|---|---|---|---|---|---|"
    for series in section:
        labels = "see above" if series in names.GPU else _code(series.labels)
        row = (f"`{series.name}`", series.kind, unit(series), labels, series.help, series.stability)
        yield f"| {' | '.join(row)} |"
    yield ""
    bounds = {series.buckets: series.name for series in reversed(section) if series.buckets}
    for buckets, name in reversed(bounds.items()):
        same = [series.name for series in section if series.buckets == buckets and series.name != name]
        also = f" (and {_code(same)})" if same else ""
        yield f"Buckets of `{name}`{also}: {', '.join(f'{bound:g}' for bound in buckets)}.\n"
    if any(series.kind == "histogram" and not series.buckets for series in section):
        yield "Histograms without listed buckets have the server's own.\n"


def _code(words: tuple[str, ...] | list[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


if __name__ == "__main__":
    print(reference(), end="")  # noqa: T201 - its whole purpose
