"""The /metrics page as a whole: exactly this text for these records, clean for Prometheus, and of bounded size."""

import math
import os
import re
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from engine_pages import Engine, ranks
from example_records import CHAT, WALL_S, record, result, snapshot, spec, whole_snapshot
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from exporters import names
from exporters.capacity import CapacityExporter
from exporters.cross_checks import CrossChecksExporter
from exporters.discovery import DiscoveryExporter
from exporters.gpu import GpuExporter
from exporters.health import HealthExporter
from exporters.probe import ProbeExporter
from exporters.registry import MetricsPage
from exporters.server import ServerExporter, UserTrafficExporter
from probe import simulator
from probe.capacity.trend.change_detection import METHODS as SHIFT_METHODS
from probe.capacity.trend.fingerprint import capacity_sample
from probe.config.config_file import config_from
from probe.core.clock import SystemClock
from probe.core.objectives import Objective
from probe.core.request import Outcome, Traffic
from probe.core.result import Stopped
from probe.core.shift import Baseline, Shift
from probe.core.snapshot import CrossChecks, Gpu, GpuSnapshot, Histogram, Imbalance, UserLoad, UserTotals
from probe.gpu.fields import FIELDS, LABELS
from probe.monitor.app import App
from probe.observe.cross_checks import METHODS
from probe.observe.kv_pressure import SIGNS
from probe.scrape import engines
from probe.scrape.page_scraper import REASONS
from probe.simulator.metrics_model import one_two_five

GOLDEN = Path(__file__).parent.parent / "golden/metrics/page.txt"
VLLM_PAGE = Path(__file__).parent.parent / "golden/vllm-0.32/metrics.txt"
_OUTCOMES = {"ok": 4.0, "failed": 1.0, "aborted": 2.0}


def _whole_page() -> MetricsPage:
    """Fill every exporter with a little of everything that can happen."""
    registry = CollectorRegistry()
    promised = replace(CHAT, e2e=Objective(0.95, 0.3), itl=Objective(0.95, 0.1))
    client = ProbeExporter({"a": promised})
    client.start_at_zero("a", "m", "short", Traffic.CANARY)
    for one in (
        record(ttft_s=0.1, gap_s=0.01),
        record(ttft_s=0.7, gap_s=0.01),
        replace(record(traffic=Traffic.ONDEMAND), events=replace(record().events, first_visible=1, first_answer=2)),
        record(outcome=Outcome.TIMEOUT),
        record(outcome=Outcome.ABORTED, traffic=Traffic.CAPACITY),
        record(traffic=Traffic.CAPACITY, asked=spec(16, 1)),
        record(model='odd "name"\\with\nlines', outcome=Outcome.NOT_FOUND),
    ):
        client.observe(one, WALL_S)
    server = ServerExporter(("a", "gone"), REASONS)
    server.add("a", "decode")
    server.observe("a", whole_snapshot(), 0.01, 5000)
    server.count_failure("gone", "timeout")
    server.add("b")
    server.observe("b", ranks({"0": Engine(), "1": Engine()}, 10), 0.01, 5000)
    users = UserTrafficExporter({"a": promised})
    users.observe("a", UserTotals(5.0, 100.0, 50.0, whole_snapshot().histograms, _OUTCOMES))
    joined = CrossChecksExporter()
    joined.observe(
        "a",
        CrossChecks(
            {"matched": 0.003},
            0.25,
            {"output": 1.0},
            0.5,
            3.0,
            {"usage": True, "preemptions": False},
            is_kv_cache_too_small=False,
            imbalance={"load": Imbalance("0", 12.0, 5.0, 2.4)},
            held_back_ratio=0.97,
            users_met={"ttft": True},
            users_uncertain={"ttft": 0.01},
        ),
    )
    gpus = GpuExporter(("a", "gone"))
    labels = {name: f"its {name}" for name in LABELS}
    values = {field.name: float(i) for i, field in enumerate(FIELDS)}
    gpus.observe("a", GpuSnapshot(0, WALL_S, "dcgm", (Gpu(labels, values), Gpu({"UUID": "GPU-1"}, values))))
    gpus.count_failure("gone")
    capacity = CapacityExporter(registry)
    capacity.start_at_zero("a", 86400.0)
    capacity.observe(result())
    capacity.observe(result(stopped=Stopped("guard", "queue"), over_s=1.5))
    capacity.count_refusal("a", "locked")
    capacity.publish_headroom("a", UserLoad(3.0, 200.0))
    baseline = Baseline(requests_per_second=12.0, count=28, since_s=WALL_S, noise_ratio=0.03)
    fired = dict.fromkeys(SHIFT_METHODS, False) | {"median_of_3": True}
    found = capacity_sample(result())
    assert found is not None
    capacity.compare("a", "short", found, Shift(ratio=-0.125, baseline=baseline, fired=fired, since_s=WALL_S))
    with patch.object(simulator, "KIND", "compiled"):  # where there is no compiler, too
        health = HealthExporter(registry, "1.2.3")
    health.publish_config("0123456789ab", WALL_S, pages="https://k.example", grafana="https://g.example")
    health.announce_task("canary", "a", 15.0, WALL_S)
    health.publish_canary_timeout("a", 30.0)
    health.publish_shared_page({"a"})
    health.count_failure("canary", "a")
    health.observe_lateness("canary", 0.002)
    health.observe_loop_lag(0.002)
    discovery = DiscoveryExporter(registry, (1, 3))
    discovery.announce({"pods": 1})
    discovery.publish_found("pods", 2)
    discovery.describe("pods/a", "pods", {"app.kubernetes.io/name": 'odd "name"'})
    relays = (client.relay, server.relay, users.relay, joined.relay, gpus.relay, discovery.relay)
    return MetricsPage(registry, relays)


def _page(accept: str = "") -> str:
    """Return the page, with the process's own resource use, which always differs, replaced by 1."""
    page = _whole_page().render(accept)[0].decode()
    return re.sub(r"^((?:kneewatch_)?process_\w+) .*", r"\1 1.0", page, flags=re.MULTILINE)


def test_the_page_is_exactly_this() -> None:
    """KNEEWATCH_UPDATE_GOLDEN=1 writes it anew; a name or label that changes is a breaking change."""
    page = _page()
    if os.environ.get("KNEEWATCH_UPDATE_GOLDEN") == "1":
        GOLDEN.parent.mkdir(parents=True, exist_ok=True)
        GOLDEN.write_text(page)
    assert page == GOLDEN.read_text()


def test_every_series_is_in_the_list_with_its_kind_and_labels() -> None:
    listed = {series.name.removesuffix("_total"): series for series in names.ALL}
    families = list(text_string_to_metric_families(_page()))
    assert {family.name for family in families} <= set(listed)
    for family in families:
        series = listed[family.name]
        assert family.type == series.kind, family.name
        assert family.documentation == series.help
        for sample in family.samples:
            own = {label for label in sample.labels if series is names.TARGET_INFO and label.startswith("label_")}
            assert set(sample.labels) - {"le"} - own <= set(series.labels), sample.name


def test_every_series_of_the_list_is_on_the_page() -> None:
    found = {family.name for family in text_string_to_metric_families(_page())}
    assert {series.name.removesuffix("_total") for series in names.ALL} <= found


@pytest.mark.prometheus
def test_promtool_finds_nothing_to_say_but_of_a_label_of_dcgm_exporters(promtool: str) -> None:
    done = subprocess.run(
        [promtool, "check", "metrics"], input=_page(), check=False, capture_output=True, text=True, timeout=30
    )
    said = {tuple(line.split(" ", 1)) for line in (done.stdout + done.stderr).splitlines()}
    of_labels = "label names should be written in 'snake_case' not 'camelCase'"  # modelName
    assert said == {(series.name, of_labels) for series in names.GPU}


def test_the_page_is_the_same_in_openmetrics_which_prometheus_asks_for_first() -> None:
    text = _values(text_string_to_metric_families(_page()))
    openmetrics = _page("application/openmetrics-text")
    assert _values(parse_openmetrics(openmetrics)) == text  # type: ignore[no-untyped-call]


def _values(families: Iterable[Metric]) -> dict[tuple[object, ...], float]:
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


USUAL = {"ttft": "333ms", "tpot": "33ms"}


@pytest.mark.parametrize(("limits", "most"), [(USUAL, 570), ({**USUAL, "e2e": "3.3s", "itl": "133ms"}, 600)])
def test_a_target_has_fewer_than_570_series_for_each_workload(limits: dict[str, str], most: int) -> None:
    """Or 600 with all objectives: of users' E2E, and of what met them."""
    target = {
        "name": "a",
        "base_url": "http://127.0.0.1:9",
        "canary": {"workload": "short"},
        "capacity": {"mode": "verify"},
        "objectives": "odd",
    }
    raw = {
        "objectives": {"odd": {name: {"ratio": 0.9, "within": within} for name, within in limits.items()}},
        "workloads": {"short": {"prompt_tokens": 8, "output_tokens": 3}},
        "targets": [target],
    }
    app = App(config_from(raw, "test"), SystemClock())
    for outcome in Outcome:
        app.measurements.record(record(outcome=outcome))
        app.measurements.record(record(outcome=outcome, traffic=Traffic.CAPACITY))
    reported = engines.parse(VLLM_PAGE.read_text(), 0, WALL_S)
    app.measurements.snapshot("a", reported, 0.01, 5000)
    lengths = Histogram(tuple((float(bound), 1.0) for bound in (*one_two_five(131_072), math.inf)), 1.0)
    users = {**reported.histograms, **dict.fromkeys(("prompt_length", "output_length"), lengths)}
    app.measurements.users("a", UserTotals(5.0, 100.0, 50.0, users, _OUTCOMES))
    signs = dict.fromkeys(SIGNS, False)
    checks = CrossChecks(
        dict.fromkeys(METHODS, 0.1),
        0.1,
        {"prompt": 1.0, "output": 1.0},
        0.1,
        0.0,
        signs,
        is_kv_cache_too_small=False,
        held_back_ratio=0.0,
    )
    app.measurements.cross_checks("a", checks, UserLoad(3.0, 200.0))
    for stopped in ("done", "guard", "budget", "interrupt"):
        app.measurements.result(result(result_id=stopped, stopped=Stopped(stopped, "queue")))
    for night in range(10):
        app.measurements.result(result(result_id=f"night {night}", started_s=WALL_S + night * 86400))
    page = app.page.render()[0].decode()
    series = [line for line in page.splitlines() if 'target="a"' in line]
    assert any("kneewatch_server_ttft_seconds_bucket" in line for line in series)
    assert any("kneewatch_knee_shifted" in line for line in series)
    assert {workload[1] for line in series if (workload := re.search('workload="(.*?)"', line))} == {"short"}
    assert len(series) < most


def test_a_target_that_stops_answering_keeps_only_that_it_does() -> None:
    server = ServerExporter(("a",), ("timeout",))
    server.observe("a", replace(snapshot(), waiting_by_reason={"capacity": 1.0}), 0.01, 5000)
    server.count_failure("a", "timeout")
    lines = [line for line in "".join(server.relay.write(openmetrics=False)).splitlines() if not line.startswith("#")]
    assert lines == [
        'kneewatch_server_scrape_up{target="a"} 0.0',
        'kneewatch_server_scrape_errors_total{target="a",reason="timeout"} 1.0',
    ]
