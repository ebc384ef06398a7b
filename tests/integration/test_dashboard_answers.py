"""What panels show for targets in trouble: their queries, answered by a real Prometheus."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from alerts import trends
from alerts.links import CAPACITY, FLEET, SERVER, TARGET
from benchmarks.alerts.month import config
from benchmarks.backfill import Line, Prometheus
from dashboards.build import panels_of, render, substitute
from exporters import names
from probe.capacity.model.bottleneck import BOTTLENECKS

pytestmark = pytest.mark.prometheus

NOW_S = 1_795_500_000.0
_TIMES = np.arange(NOW_S - 1800, NOW_S + 1, 30.0)
_XID = "kneewatch_gpu_last_xid"
_RUN = {"model": "m", "workload": "chat", "mode": "verified"}

_OF_MIX = (
    ("verified", "chat", 40.0, 0.5, "kv_cache"),
    ("forecast", "chat", 36.0, 0.4, "kv_cache"),
    ("forecast", "users", 20.0, 0.1, "prefill"),
)


def _line(name: str, value: float, **labels: str) -> Line:
    return Line({"__name__": name, "job": "kneewatch", **labels}, _TIMES, np.full(len(_TIMES), value))


def _alerts() -> Iterator[Line]:
    """Yield loaded rules, and alerts of one target and of Kneewatch itself; a site may have renamed its severities."""
    for target in ("noisy", "fine"):
        yield _line(trends.UP, 1.0, target=target)
    for alert, severity, target in (
        ("KneewatchTTFTBurn", {"severity": "page"}, {"target": "noisy"}),
        ("KneewatchQueueGrowth", {"severity": "P3", "urgency": "ticket"}, {"target": "noisy"}),
        ("KneewatchTargetDown", {"severity": "none"}, {"target": "fine"}),
        ("KneewatchClientBound", {"severity": "P1", "urgency": "page"}, {}),
    ):
        yield _line("ALERTS", 1.0, alertname=alert, alertstate="firing", **severity, **target)
    yield _line("ALERTS", 1.0, alertname="KneewatchE2EBurn", alertstate="pending", severity="page", target="fine")


def _signs() -> Iterator[Line]:
    """Yield signs of causes: one of each target, and one with two."""
    for target, series, value in (
        ("stuck", names.STALLED, 45.0),
        ("stuck", names.KV_TOO_SMALL, 1.0),
        ("full", names.KV_TOO_SMALL, 1.0),
        ("queueing", names.QUEUE_SHARE, 0.7),
        ("fine", names.QUEUE_SHARE, 0.7),  # of a wait that is over: nothing waits
    ):
        yield _line(series.name, value, target=target)
        yield _line(names.TARGET_UP.name, 1.0, target=target, model="m")
    for target, waiting in (("queueing", 3.0), ("fine", 0.0)):
        yield _line(names.SERVER["waiting_by_reason"].name, waiting, target=target, reason="capacity")
    far = {"target": "far", "model": "m"}
    yield _line(names.TARGET_UP.name, 1.0, **far)
    yield _line(names.TTFT_GAP.name, 0.3, target="far", method="matched")
    yield _line(names.OBJECTIVE_SECONDS.name, 0.5, target="far", objective="ttft")


def _lines() -> Iterator[Line]:
    for target, budget in (("dead", -1200.0), ("overspent", -0.4), ("fine", 0.9)):
        yield _line(names.TARGET_UP.name, 1.0, target=target)
        yield _line(trends.BUDGET, budget, target=target)
        yield _line("target_workload:kneewatch_canary_ttft_budget:left_ratio", budget, target=target, workload="chat")
    for target, gpu, xid in (("dead", "0", 94), ("dead", "1", 0), ("overspent", "0", 43), ("fine", "0", 0)):
        yield _line(_XID, xid, target=target, gpu=gpu, UUID=f"GPU-{target}-{gpu}")
    for target, upper in (("overspent", 12.0), ("fine", None)):
        for series, value in (
            (names.CAPACITY_RPS, 10.0),
            (names.CAPACITY_TOKENS, 900.0),
            (names.KNEE_CONCURRENCY, 32.0),
            (names.CAPACITY_RPS_UPPER, upper),
        ):
            if value is not None:
                yield _line(series.name, value, target=target, **_RUN)
    # Measured and forecast for chats, and forecast for what users send.
    for mode, workload, rps, left, bottleneck in _OF_MIX:
        labels = {"target": "mix", "model": "m", "workload": workload, "mode": mode}
        for series, value in (
            (names.CAPACITY_RPS, rps),
            (names.CAPACITY_RPS_UPPER, rps * 1.1),
            (names.HEADROOM, left),
            (names.CAPACITY_LAST_SUCCESS, NOW_S - 600 * rps),
        ):
            yield _line(series.name, value, **labels)
        for name in BOTTLENECKS:
            yield _line(names.BOTTLENECK.name, float(name == bottleneck), bottleneck=name, **labels)
    # Two clusters of one Mimir, with a target of the same name in each.
    for cluster, running in (("east", 3.0), ("west", 40.0)):
        yield _line(names.SERVER["running"].name, running, target="twins", cluster=cluster, namespace="llm")


@pytest.fixture(scope="module")
def prometheus(prometheus_binary: str) -> Iterator[Prometheus]:
    with Prometheus(block="12h", binary=prometheus_binary) as running:
        running.write([*_lines(), *_alerts(), *_signs()])
        yield running


@pytest.fixture(scope="module")
def panels() -> Mapping[tuple[str, str], Any]:
    dashboards = [json.loads(text) for text in render(config()).values()]
    return {(one["uid"], panel["title"]): panel for one in dashboards for panel in panels_of(one)}


def _shown(prometheus: Prometheus, panel: Mapping[str, Any], target: str) -> dict[str, float]:
    """Return the newest value of each line by its legend, with labels filled in."""
    found = {}
    for asked in panel["targets"]:
        for line in prometheus.series(substitute(asked["expr"], target), NOW_S - 60, NOW_S, 30):
            legend = asked["legendFormat"]
            for label, value in line.labels.items():
                legend = legend.replace(f"{{{{{label}}}}}", value)
            found[legend] = float(line.values[-1])
    return found


def test_a_dead_target_leaves_the_other_budgets_legible(prometheus: Prometheus, panels: Any) -> None:
    shown = _shown(prometheus, panels[FLEET, "Lowest error budget left"], "")
    assert shown == {"dead": -1.0, "overspent": -0.4, "fine": 0.9}


def _texts(defaults: Mapping[str, Any]) -> list[tuple[float, float, str]]:
    ranges = [one["options"] for one in defaults.get("mappings", ()) if one["type"] == "range"]
    return [(one["from"], one["to"], one["result"]["text"]) for one in ranges]


def test_a_budget_that_is_spent_twice_is_no_number_of_five_digits(panels: Any) -> None:
    (column,) = [
        {one["id"]: one["value"] for one in override["properties"]}
        for override in panels[FLEET, "Targets, worst first"]["fieldConfig"]["overrides"]
        if override["matcher"]["options"] == "Budget left"
    ]
    of_chart = panels[FLEET, "Lowest error budget left"]["fieldConfig"]["defaults"]
    of_stat = panels[TARGET, "Error budget left"]["fieldConfig"]["defaults"]
    for defaults in (column, of_chart, of_stat):
        assert _texts(defaults) == [(-1e12, -1, "-100 % or less")]


def _by_target(prometheus: Prometheus, expr: str) -> dict[str, float]:
    found = prometheus.series(substitute(expr, ""), NOW_S - 60, NOW_S, 30)
    return {line.labels["target"]: float(line.values[-1]) for line in found}


def test_a_gpu_with_an_xid_error_is_in_the_row_of_its_target(prometheus: Prometheus, panels: Any) -> None:
    table = panels[FLEET, "Targets, worst first"]
    (faults,) = [one["expr"] for one in table["targets"] if one["legendFormat"] == "GPU faults"]
    found = _by_target(prometheus, faults)
    # 43 is an error of a program.
    assert found == {"dead": 1.0, "overspent": 0.0, "fine": 0.0}
    for target, count in found.items():
        assert _shown(prometheus, panels[SERVER, "GPU faults"], target) == {"GPUs": count}
    rank = _by_target(prometheus, table["targets"][-1]["expr"])
    assert rank["dead"] > rank["overspent"] == rank["fine"]  # which are all up


@pytest.mark.parametrize(
    ("title", "value"),
    [("Capacity", 10.0), ("Requests in flight at capacity", 32.0), ("Output tokens at capacity", 900.0)],
)
def test_a_run_in_which_nothing_broke_has_found_no_knee(
    prometheus: Prometheus, panels: Any, title: str, value: float
) -> None:
    panel = panels[CAPACITY, title]
    assert _shown(prometheus, panel, "overspent") == {"verified chat": value}
    assert _shown(prometheus, panel, "fine") == {"at least, verified chat": value}
    assert not any(key == (CAPACITY, "Knee") for key in panels)


def test_targets_of_the_same_name_in_two_clusters_are_filtered_by_cluster(prometheus: Prometheus, panels: Any) -> None:
    query = panels[TARGET, "Requests in the server"]["targets"][0]["expr"]
    for cluster, running in (("east", 3.0), ("west", 40.0), (".*", 40.0)):
        filled = substitute(query.replace("$cluster", cluster), "twins")
        assert [line.values[-1] for line in prometheus.series(filled, NOW_S - 60, NOW_S, 30)] == [running]


def test_each_capacity_of_a_target_is_a_line_of_its_own_with_its_workload(prometheus: Prometheus, panels: Any) -> None:
    legends = [f"{mode} {workload}" for mode, workload, *_ in _OF_MIX]
    for board, title, column in (
        (CAPACITY, "Capacity", 2),
        (CAPACITY, "Headroom now", 3),
        (TARGET, "Headroom", 3),
    ):
        shown = _shown(prometheus, panels[board, title], "mix")
        assert shown == {legend: one[column] for legend, one in zip(legends, _OF_MIX, strict=True)}, title
    limits = _shown(prometheus, panels[CAPACITY, "What limits it"], "mix")
    assert limits == {f"{legend}: {one[4]}": 1.0 for legend, one in zip(legends, _OF_MIX, strict=True)}
    users = _shown(prometheus, panels[TARGET, "Users against capacity"], "mix")
    assert users == {f"capacity {legend}": one[2] for legend, one in zip(legends, _OF_MIX, strict=True)}
    ages = _shown(prometheus, panels[CAPACITY, "Age"], "mix")
    assert ages == {legend: 600 * one[2] for legend, one in zip(legends, _OF_MIX, strict=True)}


def test_the_fleet_has_one_headroom_for_a_target_that_for_its_users(prometheus: Prometheus, panels: Any) -> None:
    found = _column(prometheus, panels, "Headroom")
    assert found.pop("mix") == 0.1
    assert set(found) >= {"dead", "fine"}
    (column,) = [
        {one["id"]: one["value"] for one in override["properties"]}
        for override in panels[FLEET, "Targets, worst first"]["fieldConfig"]["overrides"]
        if override["matcher"]["options"] == "Headroom"
    ]
    ((low, high, text),) = _texts(column)
    assert all(low <= one <= high for one in found.values()), "the column is there, and says that it is not known"
    assert text == "not known"


def test_alerts_of_a_target_are_named_and_none_is_said_only_where_rules_are_loaded(
    prometheus: Prometheus, panels: Any
) -> None:
    firing = panels[TARGET, "Firing alerts"]
    assert _shown(prometheus, firing, "noisy") == {"KneewatchTTFTBurn": 2.0, "KneewatchQueueGrowth": 1.0}
    assert _shown(prometheus, firing, "fine") == {"none": 0.0}
    assert _shown(prometheus, firing, "dead") == {}, "its rules are not evaluated here"
    assert "not loaded" in firing["fieldConfig"]["defaults"]["noValue"]
    assert _shown(prometheus, panels[FLEET, "Alerts that page"], "") == {"page": 2.0}
    assert _column(prometheus, panels, "Alerts") == {"noisy": 2.0, "fine": 0.0}


def _column(prometheus: Prometheus, panels: Any, title: str) -> dict[str, float]:
    table = panels[FLEET, "Targets, worst first"]
    (expr,) = [one["expr"] for one in table["targets"] if one["legendFormat"] == title]
    return _by_target(prometheus, expr)


def test_a_row_of_the_fleet_has_the_strongest_sign_of_a_cause(prometheus: Prometheus, panels: Any) -> None:
    table = panels[FLEET, "Targets, worst first"]
    (column,) = [one for one in table["fieldConfig"]["overrides"] if one["matcher"]["options"] == "Cause"]
    (texts,) = [one["value"][0]["options"] for one in column["properties"] if one["id"] == "mappings"]
    shown = {target: texts[f"{value:g}"]["text"] for target, value in _column(prometheus, panels, "Cause").items()}
    wanted = {"stuck": "engine stalled", "full": "KV cache full", "queueing": "queue", "far": "network"}
    assert {target: shown[target] for target in wanted} == wanted
    assert shown["fine"] == shown["dead"] == "none seen"
