"""A network that delays, loses, cuts and chokes, between a real Kneewatch and a server in another network namespace."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kneewatch_command import Finished, kneewatch, start_kneewatch
from monitor import Monitor
from process import eventually

from faults.far_server import FarServer

CUT = {"is_cut_to_far": True, "is_cut_to_near": True}
GONE_S = 3.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarServer]:
    with FarServer(tmp_path_factory.mktemp("far")) as running:
        yield running


@pytest.fixture
def far(server: FarServer) -> Iterator[FarServer]:
    yield server
    server.weather()
    eventually(lambda: server.load == 0, within_s=30, what="the server is idle for the next test")


def configured(far: FarServer, folder: Path, timeout: str, prompt_tokens: int = 16, output_tokens: int = 20) -> Path:
    canary = {"every": timeout, "timeout": timeout}
    file = folder / "kneewatch.yml"
    workload = {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens}
    target = {"name": "far", "base_url": far.base_url, "canary": canary}
    file.write_text(yaml.safe_dump({"workloads": {"default": workload}, "targets": [target]}))
    return file


def checked(config: Path) -> tuple[dict[str, Any], Finished]:
    done = kneewatch("check", "-c", config, "--json")
    assert "Traceback" not in done.err
    (answer,) = json.loads(done.out)
    return answer, done


@pytest.mark.parametrize(
    "weather",
    [
        pytest.param({"delay_s": 0.1}, id="delay"),
        pytest.param({"delay_s": 0.01, "jitter_s": 0.05}, id="reordering"),
        pytest.param({"loss": 0.05}, id="loss"),
        pytest.param({"duplicates": 0.3}, id="duplicates"),
        pytest.param({"corruption": 0.05}, id="corruption"),
        pytest.param({"bytes_per_s": 60_000}, id="bandwidth"),
    ],
)
@pytest.mark.fault(
    "NE1",
    "100 ms of delay each way",
    area="Network",
    users_see="canary ok; the delay is in TTFT",
    stays="-",
    case="delay",
)
@pytest.mark.fault(
    "NE2",
    "Packets arrive in another order",
    area="Network",
    users_see="canary ok",
    stays="-",
    case="reordering",
)
@pytest.mark.fault(
    "NE3",
    "5 % of packets are lost",
    area="Network",
    users_see="canary ok, perhaps late",
    stays="-",
    case="loss",
)
@pytest.mark.fault(
    "NE4",
    "30 % of packets arrive twice",
    area="Network",
    users_see="canary ok",
    stays="-",
    case="duplicates",
)
@pytest.mark.fault(
    "NE5",
    "5 % of packets are corrupted",
    area="Network",
    users_see="canary ok: checksums drop them",
    stays="-",
    case="corruption",
)
@pytest.mark.fault(
    "NE6",
    "60 kB/s",
    area="Network",
    users_see="canary ok",
    stays="-",
    case="bandwidth",
)
def test_a_canary_gets_through(far: FarServer, tmp_path: Path, weather: dict[str, Any]) -> None:
    far.weather(**weather)
    answer, _ = checked(configured(far, tmp_path, "20s"))
    assert answer["outcome"] in ("ok", "client_bound"), answer
    assert answer["output_tokens"] == 20
    assert answer["ttft_s"] >= 2 * weather.get("delay_s", 0.0), "the network's part is in the latency"


@pytest.mark.fault(
    "NE7",
    "A tunnel drops large packets without a word",
    area="Network",
    users_see="canary `timeout` at its limit, one line",
    stays="-",
)
def test_packets_that_are_too_large_are_a_timeout_and_not_an_endless_wait(far: FarServer, tmp_path: Path) -> None:
    far.weather(largest_bytes=400)
    answer, done = checked(configured(far, tmp_path, "2s", prompt_tokens=400))
    assert answer["outcome"] == "timeout", answer
    assert done.status == 2
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize(
    "cut",
    [
        pytest.param(CUT, id="both"),
        pytest.param({"is_cut_to_far": True}, id="requests"),
        pytest.param({"is_cut_to_near": True}, id="answers"),
    ],
)
@pytest.mark.fault(
    "NE8",
    "The network is cut while canaries run",
    area="Network",
    users_see="canaries `timeout` or `unreachable`, `target_up` 0",
    stays="pages answer; canaries succeed once it heals",
    case="both",
)
@pytest.mark.fault(
    "NE9",
    "Requests do not arrive, answers would",
    area="Network",
    users_see="the same",
    stays="the same",
    case="requests",
)
@pytest.mark.fault(
    "NE10",
    "Requests arrive, answers do not",
    area="Network",
    users_see="the same",
    stays="the same",
    case="answers",
)
def test_a_cut_network_is_a_failed_canary_and_heals(far: FarServer, tmp_path: Path, cut: dict[str, Any]) -> None:
    workload = {"prompt_tokens": 16, "output_tokens": 8}
    target = {"name": "far", "base_url": far.base_url, "scrape": "1s", "canary": {"every": "1s", "timeout": "2s"}}
    with Monitor({"workloads": {"default": workload}, "targets": [target]}, tmp_path) as monitor:
        eventually(lambda: canaries(monitor, "ok") >= 2, within_s=30, what="canaries that succeed")
        far.weather(**cut)
        failed = "timeout|unreachable"
        eventually(lambda: canaries(monitor, failed) >= 2, within_s=30, what="canaries that fail")
        eventually(lambda: "kneewatch_server_scrape_up{" in monitor.page("/metrics"), within_s=10, what="the pages")
        up = 'kneewatch_target_up{target="far"} '
        eventually(lambda: f"{up}0.0" in monitor.page("/metrics"), within_s=10, what="the server is down")
        far.weather()
        ok = canaries(monitor, "ok")
        eventually(lambda: canaries(monitor, "ok") >= ok + 2, within_s=30, what="canaries that succeed again")
        # A canary that was sent during the cut may end after those.
        eventually(lambda: f"{up}1.0" in monitor.page("/metrics"), within_s=10, what="the server is up")
        assert "Traceback" not in monitor.output


@pytest.mark.fault(
    "NE11",
    "The network is too slow for the metrics page when a ramp begins",
    area="Network",
    users_see="refused in one line, exit 2",
    stays="no request is sent",
)
def test_no_load_is_sent_where_the_metrics_page_does_not_arrive_in_time(far: FarServer, tmp_path: Path) -> None:
    far.weather(bytes_per_s=1500)
    asked = far.asked
    done = kneewatch("ramp", "-c", configured(far, tmp_path, "5s"), "--concurrency", "4")
    assert done.status == 2, done.out
    assert len(done.err.splitlines()) == 1
    assert far.asked == asked


@pytest.mark.parametrize(
    ("weather", "ended"),
    [
        pytest.param(CUT, "guard", id="partition"),
        pytest.param({"is_cut_to_near": True}, "guard", id="answers"),
        pytest.param({"delay_s": 1.5}, "guard", id="delay"),
        pytest.param({"bytes_per_s": 2000}, "guard", id="bandwidth"),
        pytest.param({"loss": 0.5}, "guard", id="loss"),
        pytest.param({"loss": 0.02}, "guard|budget", id="some-loss"),
    ],
)
@pytest.mark.fault(
    "NE12",
    "The network is cut under load",
    area="Network",
    users_see="the guard ends the run, no figure",
    stays="nothing is sent once it heals, and the server drops what it still computes within 3 s",
    case="partition",
)
@pytest.mark.fault(
    "NE13",
    "Answers stop arriving under load",
    area="Network",
    users_see="the guard ends the run, no figure",
    stays="the same",
    case="answers",
)
@pytest.mark.fault(
    "NE14",
    "1.5 s of delay each way begins under load",
    area="Network",
    users_see="the guard ends the run, no figure",
    stays="load gone within 3 s of its end",
    case="delay",
)
@pytest.mark.fault(
    "NE15",
    "The bandwidth falls to 2 kB/s under load",
    area="Network",
    users_see="the guard ends the run, no figure",
    stays="load gone within 3 s of its end",
    case="bandwidth",
)
@pytest.mark.fault(
    "NE16",
    "Half of all packets are lost under load",
    area="Network",
    users_see="the guard ends the run, no figure",
    stays="load gone within 3 s of its end",
    case="loss",
)
@pytest.mark.fault(
    "NE17",
    "2 % of packets are lost under load",
    area="Network",
    users_see="the run goes on to its budget or the guard",
    stays="load gone within 3 s of its end",
    case="some-loss",
)
def test_a_network_that_fails_under_load_ends_the_run(
    far: FarServer, tmp_path: Path, weather: dict[str, Any], ended: str
) -> None:
    load = ("--prompt-tokens", "16", "--output-tokens", "150", "--tpot", "1s")
    steps = ("--concurrency", "4", "--step-seconds", "60", "--max-seconds", "20", "--json", tmp_path / "result.json")
    ramp = start_kneewatch("ramp", "--base-url", far.base_url, *load, *steps, log=tmp_path / "ramp.log")
    try:
        eventually(lambda: far.load == 4, within_s=40, what="the load is there")
        time.sleep(1.0)
        far.weather(**weather)
        eventually(lambda: not ramp.alive, within_s=40, what="the end of the run")
        if "is_cut_to_near" in weather:
            asked = far.asked
            far.weather()
        eventually(lambda: far.load == 0, within_s=GONE_S, what="the load is gone", every_s=0.05)
        if "is_cut_to_near" in weather:
            assert far.asked == asked, "nothing was sent to the server that could not be heard"
    finally:
        ramp.kill()
    said = ramp.tail()
    assert "Traceback" not in said
    assert re.search(f"Ended by:    ({ended}) ", said), said
    result = json.loads((tmp_path / "result.json").read_text())
    if ended == "guard":
        assert result["capacity"]["requests_per_second"] is None


def canaries(monitor: Monitor, outcomes: str) -> float:
    """Return how many canaries had one of these outcomes."""
    line = rf'^kneewatch_requests_total{{.*traffic="canary".*outcome="(?:{outcomes})".*}} (.+)$'
    return sum(map(float, re.findall(line, monitor.page("/metrics"), re.MULTILINE)))
