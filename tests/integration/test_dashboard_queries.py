"""Every panel of every dashboard shows something: its queries, on a real Prometheus that scraped `kneewatch run` beside
a mock server under load and evaluates the rules, give numbers.
"""

import asyncio
import json
import math
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from growing_page import growing_page
from kneewatch_command import kneewatch, measured
from monitor import Monitor, Sim
from process import eventually
from real_prometheus import RealPrometheus
from stub_server import stub_server

from dashboards.build import annotations, queries, substitute
from exporters import names
from probe.capacity.trend.fingerprint import capacity_sample
from probe.config.prometheus import PrometheusConfig
from probe.core.result import CapacityResult
from probe.core.server_values import VALUES, ValueKind, plain
from probe.mock_server.metrics import Metrics
from probe.mock_server.profiles import PROFILES
from probe.monitor.store import Store
from probe.prometheus.queries import Prometheus
from probe.report.result_json import loads
from probe.runtime.kept_program import free_port
from probe.scrape import engines
from probe.simulator.engine import SimulatedEngine

pytestmark = [pytest.mark.prometheus, pytest.mark.long]

PAGES = Path(__file__).parents[1] / "pages"
# A server under load; the page of one that has what the mock server has not; and one that nobody serves.
WORKS, TELLS, GONE = "mock-server", "page", "gone"
# What the first cannot tell, and the target that can: values that the mock server's page lacks.
_OF_MOCK = engines.parse(Metrics(PROFILES["prefix"], "m").page(SimulatedEngine(PROFILES["prefix"])).decode(), 0, 0.0)
_LACKING = [value.key for value in plain() if _OF_MOCK.value(value.key) is None]
_LACKING += [value.key for value in VALUES if value.label and not _OF_MOCK.parts(value.key)]
_LACKING += [
    value.key for value in VALUES if value.kind is ValueKind.HISTOGRAM and value.key not in _OF_MOCK.histograms
]
ELSEWHERE = {
    **{names.SERVER[key]: TELLS for key in _LACKING if key in names.SERVER},
    **dict.fromkeys((*names.ENGINE.values(), *names.ENGINE_LATENCIES.values(), names.IMBALANCE), TELLS),  # one engine
    **dict.fromkeys((names.SERVER_ADAPTER, names.SERVER_STARTED, names.SERVER_ROLE), TELLS),
    names.SERVER["rejections_by_reason"]: TELLS,
    names.SERVER_SCRAPE_ERRORS: GONE,  # the mock server is always readable
    names.CAPACITY_REFUSALS: GONE,  # and its runs may begin
}  # fmt: skip
# What takes longer than a test may.
NOWHERE = {
    names.GPU_NEIGHBOUR: "told of five minutes without users",
    names.MODEL_RESIDUAL: "a run that measures after a forecast, which is made of minutes of traffic",
    names.SERVER["corrupted"]: "a server that computes NaN",
    names.FIRST_ANSWER: "a reasoning model",
    names.PREFILL_TOKENS: "a forecast or a search, which fit a step cost model",
    **dict.fromkeys((names.SHARD, names.SHARDS), "several Kneewatches that share targets: this one has all"),
    names.GUARD_TRIPS: "a run that the guard stops: the mock server takes what it is sent",
}
# Records of a day of users, and of a week ago; a forecast, which is made of minutes of traffic.
_LATER = ("mean1d", "ratio1d", "offset 1w", 'mode="forecast"')
# A knee in requests in flight without an upper bound: runs here have both or neither.
_NO_KNEE = re.compile(r"kneewatch_knee_concurrency\{[^}]*\}\)\s+unless")
# Of a connector and the plugin, which the server of the page has not.
_TRANSFERS = "".join(
    f'{name}{{engine="0",model_name="llama-3.1-8b"}} 10000\n'
    for name in (
        "vllm:nixl_xfer_time_seconds_count", "vllm:nixl_xfer_time_seconds_sum", "vllm:nixl_bytes_transferred_sum",
        "vllm:nixl_num_failed_transfers_total", "vllm:nixl_num_kv_expired_reqs_total",
        "vllm:num_requests_kv_fetch_by_stage", "vllm:kv_offload_load_bytes_total",
        "vllm:kv_offload_store_bytes_total", "vllm:kv_offload_allocation_failure_total",
        "kneewatch_vllm_oldest_request_seconds", "kneewatch_vllm_oldest_unanswered_seconds",
    )
) + "".join(
    f'kneewatch_vllm_prompt_{name}_total{{engine="0",up_to_tokens="1024"}} 10000\n'
    for name in ("requests", "queue_seconds", "prefill_seconds")
)  # fmt: skip


def _configuration(folder: Path, works: str, tells: str, gpus: str) -> dict[str, object]:
    capacity = {
        "mode": "verify",
        "workload": "short",
        "schedule": {"cron": "* * * * *"},
        "concurrency": [1, 2],
        "step": "3s",
    }
    common = {"objectives": "chat", "scrape": "1s"}
    canary = {"every": "2s", "workload": "short", "timeout": "5s"}
    gone = f"http://127.0.0.1:{free_port()}"
    return {
        "store": {"path": str(folder / "kneewatch.db")},
        "objectives": {
            "chat": {
                "availability": 0.99,
                "ttft": {"ratio": 0.95, "within": "2s"},
                "tpot": {"ratio": 0.95, "within": "200ms"},
                "e2e": {"ratio": 0.95, "within": "5s"},
                "itl": {"ratio": 0.95, "within": "500ms"},
            }
        },
        "workloads": {"short": {"prompt_tokens": 32, "output_tokens": 8}},
        "targets": [
            {
                **common,
                "name": WORKS,
                "base_url": works,
                "canary": canary,
                "capacity": capacity,
                "gpu": {"dcgm_urls": [f"{gpus}/metrics"], "every": "1s"},
            },
            {**common, "name": TELLS, "base_url": tells, "passive": True, "role": "decode"},
            {
                **common,
                "name": "found",
                "discover": {"file": {"files": [str(folder / "servers.json")]}},
                "passive": True,
            },
            {**common, "name": GONE, "base_url": gone, "canary": canary, "capacity": capacity},
        ],
    }


@pytest.fixture(scope="module")
def monitor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitor]:
    """Run a monitor beside users who come and go, with a fortnight of results."""
    folder = tmp_path_factory.mktemp("dashboards")
    # The page of a custom list of fields, and the two that it lacks.
    lacking = "".join(f'DCGM_FI_DEV_ECC_{kind}_VOL_TOTAL{{gpu="0",UUID="GPU-a"}} 0\n' for kind in ("SBE", "DBE"))
    gpus = (PAGES / "gpu/dcgm-4.9.prom").read_text() + lacking
    with (
        Sim(folder / "sim", "prefix") as sim,
        growing_page(_page_of_a_decode_server()) as page,
        stub_server(200, gpus) as dcgm,
        _users(sim.base_url),
    ):
        (folder / "servers.json").write_text(json.dumps([{"targets": [page.removeprefix("http://")]}]))
        running = Monitor(_configuration(folder, sim.base_url, page, dcgm), folder)
        _a_fortnight_of_results(running.config_file, folder)
        with running:
            yield running


def _page_of_a_decode_server() -> str:
    page = (PAGES / "vllm.prom").read_text()
    looked_up = re.compile(r"^(vllm:external_prefix_cache_\w+_total\{.*\}) 0\.0$", re.MULTILINE)
    return looked_up.sub(r"\1 10000", page) + _TRANSFERS


@contextmanager
def _users(base_url: str) -> Iterator[None]:
    """Send user traffic for a while and then none, so that canaries are also alone on the server."""
    done = threading.Event()

    def ask() -> None:
        body = {"model": "mock-model", "prompt": "to be or not to be " * 20, "max_tokens": 8}
        with httpx.Client(base_url=base_url, timeout=10, trust_env=False) as client:
            while not done.wait(0.4 if time.monotonic() % 16 < 6 else 1e-3 + 16 - time.monotonic() % 16):
                client.post("/v1/completions", json=body).raise_for_status()

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(timeout=20)


def _a_fortnight_of_results(config: Path, folder: Path) -> None:
    """Store one run, and the same again on each day before: samples, a baseline, and a forecast."""
    file = folder / "result.json"
    short = ("--concurrency", "1,2", "--step-seconds", "1", "--requests-per-step", "20", "--confirm-seconds", "0")
    done = measured("ramp", "-c", config, "--target", WORKS, *short, "--json", file)
    assert done.status == 0, done.err
    result = loads(file.read_text())
    store = Store(folder / "kneewatch.db")
    for days in range(14, 0, -1):
        store.add(_made(result, days, bottleneck="kv_cache", knee_concurrency=2))
    store.close()


def _made(measured: CapacityResult, days: int, **capacity: Any) -> CapacityResult:
    found = measured.capacity.requests_per_second
    assert found is not None
    # Both bounds, and close by: a figure that is not certain has no baseline.
    figures = replace(measured.capacity, **({"lower": 0.98 * found, "upper": 1.02 * found} | capacity))
    kind = f"{figures.mode}-{days}"
    return replace(measured, id=kind, capacity=figures, started=datetime.now(UTC) - timedelta(days=days))


@pytest.fixture(scope="module")
def prometheus(
    monitor: Monitor, prometheus_binary: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealPrometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    rules = folder / "rules"
    done = kneewatch("alerts", "-c", monitor.config_file, "-o", rules, "--window-scale", "0.01")
    assert done.status == 0, done.err
    with RealPrometheus(
        prometheus_binary, folder, addresses=[monitor.address], rule_files=sorted(rules.iterdir())
    ) as running:
        yield running


@pytest.fixture(scope="module")
def dashboards(monitor: Monitor, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("written")
    done = kneewatch("dashboards", "-c", monitor.config_file, "-o", folder)
    assert done.status == 0, done.err
    return {file.stem: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}


def _target_for(query: str) -> str | None:
    """Return the target that can answer the query, or None."""
    if "ALERTS{" in query:  # the dead target's, and none of the other's
        return WORKS if "unless" in query else GONE
    words = set(re.findall(r"[a-zA-Z_]+", query))
    used = [series for series in names.ALL if {series.name, f"{series.name}_bucket", f"{series.name}_sum"} & words]
    if _NO_KNEE.search(query) or any(series in NOWHERE for series in used) or any(each in query for each in _LATER):
        return None
    return next((ELSEWHERE[series] for series in used if series in ELSEWHERE), WORKS)


def _answers(prometheus: RealPrometheus, query: str) -> bool:
    return any(not math.isnan(value) for _, value in prometheus.query(query))


def test_no_panel_is_empty_once_canaries_users_and_a_capacity_run_are_done(
    prometheus: RealPrometheus, dashboards: dict[str, dict[str, Any]]
) -> None:
    asked = {(query, _target_for(query)) for each in dashboards.values() for query in queries(each)}
    waited_for = {substitute(query, target) for query, target in asked if target is not None}
    assert len(waited_for) > 150
    unanswered = set(waited_for)

    def left() -> set[str]:
        # An event of a minute ago need not be one of now.
        unanswered.difference_update([query for query in unanswered if _answers(prometheus, query)])
        return unanswered

    _none_left(left)


def _none_left(left: Callable[[], Collection[str]]) -> None:
    """Wait until no query is left that is empty."""
    try:
        # A run starts at the full minute and takes most of one; two scrapes after it its series have a rate.
        eventually(lambda: not left(), within_s=240, what="an answer to every query", every_s=2)
    except AssertionError:
        empty = sorted(left())
        pytest.fail(f"{len(empty)} empty:\n" + "\n\n".join(empty), pytrace=False)


def test_the_fleet_is_a_row_for_each_target_and_the_dead_one_is_first(
    prometheus: RealPrometheus, dashboards: dict[str, dict[str, Any]]
) -> None:
    (table,) = [panel for panel in dashboards["kneewatch-fleet"]["panels"] if panel["type"] == "table"]
    by_id = {each["id"]: each["options"] for each in table["transformations"]}
    (order,) = by_id["sortBy"]["sort"]
    (rank,) = [one["expr"] for one in table["targets"] if order == {"field": f"Value #{one['refId']}", "desc": True}]

    def ranked() -> list[str]:
        found = [(value, labels["target"]) for labels, value in prometheus.query(substitute(rank, ""))]
        return [target.partition("/")[0] for _, target in sorted(found, reverse=True)]

    # Each target is there with its first canary or scrape, and the dead one is known to be dead with its first canary.
    eventually(lambda: ranked()[:1] == [GONE] and len(ranked()) == 4, within_s=60, what="a row for each target")
    assert set(ranked()) == {WORKS, TELLS, GONE, "found"}
    for one in table["targets"]:
        # A second row for a target would be two answers to one question.
        rows = [labels for labels, _ in prometheus.query(substitute(one["expr"], ""))]
        assert all(set(labels) == {"target"} for labels in rows)
        assert len({labels["target"] for labels in rows}) == len(rows)


def test_events_are_marked_on_the_time_axis(prometheus: RealPrometheus, dashboards: dict[str, dict[str, Any]]) -> None:
    # The setup stays the same, and no server is put to sleep.
    never = (names.CAPACITY_FINGERPRINT.name, names.SERVER_ASLEEP.name)
    asked = {query for each in dashboards.values() for query in annotations(each)}
    expected = {
        query: target
        for query in asked
        if (target := _target_for(query)) is not None and not any(name in query for name in never)
    }

    def unmarked() -> list[str]:
        marks = {query: substitute(query, target, interval="20s") for query, target in expected.items()}
        return [one for one, filled in marks.items() if max(prometheus.history(filled, seconds=240), default=0) <= 0]

    assert expected
    _none_left(unmarked)


def test_the_history_of_capacity_comes_from_prometheus(monitor: Monitor, prometheus: RealPrometheus) -> None:
    """For a monitor without a store: the figure is there, with what it holds for."""
    capacity = f'{names.CAPACITY_LAST_SUCCESS.name}{{target="{WORKS}"}}'
    eventually(lambda: prometheus.query(capacity), within_s=120, what="a capacity run that found the capacity")
    history = asyncio.run(
        Prometheus(PrometheusConfig(url=prometheus.base_url)).capacity_history(WORKS, "short", time.time())
    )
    runs = f"{monitor.base_url}/api/v1/runs"
    ids = [run["id"] for run in httpx.get(runs, timeout=5, trust_env=False).json()]
    results = [loads(httpx.get(f"{runs}/{one}", timeout=5, trust_env=False).text) for one in ids]
    # Prometheus has no ids of runs.
    samples = [one for one in map(capacity_sample, results) if one is not None]
    measured = [replace(one, at_s=0.0, run=None, confirms=None) for one in samples]
    assert history
    for one in history:  # its time is the run's end, and not its beginning
        assert replace(one, at_s=0.0) in measured
