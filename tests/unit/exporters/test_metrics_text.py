"""The page is what prometheus_client would have written, and what is relayed stands beside it."""

import math
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families
from property_examples import examples

from exporters import names
from exporters.names import Series
from exporters.registry import MetricsPage
from exporters.rendered_samples import RenderedSamples, SampleLines
from probe.core import snapshot

OPENMETRICS = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3"


def reported(families: Iterable[Metric]) -> dict[tuple[object, ...], object]:
    """Names, kinds, help texts and samples; a value that is no number equals itself."""
    samples = {
        (sample.name, *sorted(sample.labels.items())): repr(sample.value)
        for family in families
        for sample in family.samples
        if not sample.name.endswith("_created")
    }
    return dict(samples)


text = st.text(st.characters(codec="utf-8"), max_size=12)
number = st.floats(allow_nan=True, allow_infinity=True)


@pytest.mark.slow
@given(label=text, value=number, amount=st.floats(0, 1e18))
@examples(60)
def test_the_page_is_what_prometheus_client_would_have_written(label: str, value: float, amount: float) -> None:
    registry = CollectorRegistry()
    Gauge("a_gauge", "says something", ["x", "y"], registry=registry).labels(label, "z").set(value)
    Counter("a_counter", "counts", ["x"], registry=registry).labels(label).inc(amount)
    Histogram("a_histogram", "of times", ["x"], buckets=(0.1, 1.0), registry=registry).labels(label).observe(0.5)
    Gauge("plain", "without labels", registry=registry).set(1)
    page = MetricsPage(registry).render()[0].decode()
    expected = generate_latest(registry).decode()
    assert reported(text_string_to_metric_families(page)) == reported(text_string_to_metric_families(expected))
    heads = [line for line in expected.split("\n") if line.startswith("#") and "_created" not in line]
    assert [line for line in page.split("\n") if line.startswith("#")] == heads
    in_openmetrics = MetricsPage(registry).render(OPENMETRICS)[0].decode()
    if not math.isnan(value):
        assert reported(parse_openmetrics(in_openmetrics)) == reported(text_string_to_metric_families(page))  # type: ignore[no-untyped-call]


def test_relayed_series_are_on_the_page_beside_kneewatch_s() -> None:
    registry = CollectorRegistry()
    Gauge("kneewatch_own", "our own", registry=registry).set(1)
    relay = RenderedSamples((names.SERVER["running"],))
    lines = SampleLines()
    lines.value(names.SERVER["running"], ["a"], 3)
    relay.put("a", lines)
    page, kind = MetricsPage(registry, (relay,)).render()
    assert page.decode().splitlines()[-3:] == [
        f"# HELP kneewatch_server_running_requests {names.SERVER['running'].help}",
        "# TYPE kneewatch_server_running_requests gauge",
        'kneewatch_server_running_requests{target="a"} 3.0',
    ]
    assert kind.startswith("text/plain")
    page, kind = MetricsPage(registry, (relay,)).render(OPENMETRICS)
    assert page.decode().endswith('kneewatch_server_running_requests{target="a"} 3.0\n# EOF\n')
    assert kind.startswith("application/openmetrics-text")


@pytest.mark.parametrize(
    ("series", "plain", "openmetrics"),
    [
        (
            names.SERVER["preemptions"],
            "kneewatch_server_preemptions_total counter",
            "kneewatch_server_preemptions counter",
        ),
        (names.SERVER["ttft"], "kneewatch_server_ttft_seconds histogram", "kneewatch_server_ttft_seconds histogram"),
    ],
)
def test_each_format_names_kinds_in_its_own_way(series: Series, plain: str, openmetrics: str) -> None:
    relay, lines = RenderedSamples((series,)), SampleLines()
    if series.kind == "histogram":
        lines.histogram(series, ["a"], snapshot.Histogram(((math.inf, 1.0),), 1.0))
    else:
        lines.value(series, ["a", *("x" for _ in series.labels[1:])], 1)
    relay.put("a", lines)
    for form, words in ((False, plain), (True, openmetrics)):
        assert f"# TYPE {words.format(series.name)}\n" in "".join(relay.write(openmetrics=form))


def test_a_reading_replaces_the_one_before_it() -> None:
    relay = RenderedSamples((names.SERVER["running"], names.SERVER["kv_cache_usage"]))
    for series in (names.SERVER["running"], names.SERVER["kv_cache_usage"]):
        lines = SampleLines()
        lines.value(series, ["a"], 1)
        relay.put("a", lines)
    written = "".join(relay.write(openmetrics=False))
    assert names.SERVER["kv_cache_usage"].name in written
    assert names.SERVER["running"].name not in written


def test_text_that_cannot_be_encoded_does_not_break_the_page() -> None:
    relay, lines = RenderedSamples((names.SERVER_INFO,)), SampleLines()
    lines.value(names.SERVER_INFO, ["a", "vllm", "\ud800"], 1)
    relay.put("a", lines)
    assert b'version="?"' in MetricsPage(CollectorRegistry(), (relay,)).render()[0]
