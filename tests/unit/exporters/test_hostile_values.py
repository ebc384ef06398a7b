"""Whatever values a server or a GPU reports, Kneewatch's own page is OpenMetrics that a strict parser accepts."""

from dataclasses import replace

import pytest
from example_records import whole_snapshot
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from property_examples import examples

from exporters.gpu import GpuExporter
from exporters.registry import MetricsPage
from exporters.rendered_samples import RenderedSamples
from exporters.server import ServerExporter, UserTrafficExporter
from probe.core import server_values
from probe.core.objectives import Objective, Objectives
from probe.core.snapshot import EngineSnapshot, Gpu, GpuSnapshot, Histogram, UserTotals, as_fields
from probe.gpu.fields import NAMES

OPENMETRICS = "application/openmetrics-text"
# Negative, not a number, and beyond what a float holds when it is added.
numbers = st.sampled_from([-5.0, float("nan"), float("inf"), float("-inf"), 1e308, 0.0, -0.0, 3.0, 7.5]) | st.floats()
texts = st.text(alphabet='a"\\\n\r\u2028\ud800{},= #', max_size=4)
histograms = st.builds(lambda its, total: Histogram(tuple(its), total), st.lists(st.tuples(numbers, numbers)), numbers)
falling = st.builds(
    lambda counts, total: Histogram(tuple(zip((0.3, 0.5, float("inf")), counts, strict=True)), total),
    st.tuples(numbers, numbers, numbers),
    numbers,
)
PLAIN = [value.key for value in server_values.plain()]


def strict_names(*relays: RenderedSamples) -> set[str]:
    """Return the names of the samples. Raises ValueError if the page is not OpenMetrics."""
    text = MetricsPage(CollectorRegistry(), relays).render(OPENMETRICS)[0].decode()
    return {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}


@pytest.mark.slow
@examples(200)
@given(
    st.dictionaries(st.sampled_from(PLAIN), numbers, min_size=1),
    st.dictionaries(texts, numbers, max_size=3),
    st.dictionaries(st.sampled_from(sorted(whole_snapshot().histograms)), histograms | falling, max_size=2),
    st.tuples(texts, texts),
)
@pytest.mark.fault("B00o")
def test_a_server_of_any_values_leaves_the_page_valid(
    values: dict[str, float], waiting: dict[str, float], its: dict[str, Histogram], names: tuple[str, str]
) -> None:
    whole = whole_snapshot()
    engines = {label: EngineSnapshot(value, value, value, value, value) for label, value in waiting.items()}
    known = {value.key: whole.value(value.key) for value in server_values.plain()}
    labelled = {"waiting_by_reason": waiting, "finished": waiting}
    snapshot = replace(
        whole, by_engine=engines, version=names[0], adapters=(names[1],),
        **as_fields({**known, **values, **labelled, **whole.histograms, **its}),
    )  # fmt: skip
    exporter = ServerExporter(("a",), ("timeout",))
    exporter.observe("a", snapshot, 0.1, 2000)

    assert "kneewatch_server_scrape_up" in strict_names(exporter.relay)


@given(numbers, numbers, histograms | falling)
def test_user_traffic_of_any_values_leaves_the_page_valid(ok: float, failed: float, ttft: Histogram) -> None:
    exporter = UserTrafficExporter({"a": Objectives("chat", 60.0, 0.99, ttft=Objective(0.9, 0.5))})
    exporter.observe("a", UserTotals(ok, ok, failed, {"ttft": ttft}, {"ok": ok, "failed": failed}))

    strict_names(exporter.relay)


@given(st.dictionaries(st.sampled_from(sorted(NAMES)), numbers), texts)
@pytest.mark.fault("B00o")
def test_gpus_of_any_values_leave_the_page_valid(values: dict[str, float], name: str) -> None:
    exporter = GpuExporter(("a",))
    exporter.observe("a", GpuSnapshot(1, 1.0, "dcgm", (Gpu({"UUID": "1", "modelName": name}, values),)))

    assert "kneewatch_gpu_scrape_up" in strict_names(exporter.relay)


def test_a_counter_that_is_no_count_is_left_out_and_the_others_stay() -> None:
    exporter = ServerExporter(("a",), ("timeout",))
    exporter.observe("a", replace(whole_snapshot(), preemptions=-5.0), 0.1, 2000)

    names = strict_names(exporter.relay)

    assert "kneewatch_server_preemptions_total" not in names
    assert "kneewatch_server_prompt_tokens_total" in names
