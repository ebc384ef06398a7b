"""The whole command in a cluster: `run` follows pods and endpoints, `ramp` holds a server's Lease."""

import json
import re
import time
from pathlib import Path

import httpx
import pytest
import yaml
from api_server import endpoint, endpoint_slice, pod
from cluster import Cluster, cluster
from kneewatch_command import start_kneewatch
from monitor import Monitor, Sim
from process import eventually

__all__ = ["cluster"]
pytestmark = [pytest.mark.alone, pytest.mark.long]

REVISION = {"app": "qwen", "team": "chat", "pod-template-hash": "one"}


def up(monitor: Monitor) -> dict[str, float]:
    """Return the targets that have series, and whether they are up."""
    page = monitor.page("/metrics")
    return {
        name: float(value)
        for name, value in re.findall(r'^kneewatch_target_up\{target="([^"]+)"\} (.+)$', page, re.MULTILINE)
    }


@pytest.mark.fault(
    "KU22",
    "A cluster that forbids listing while targets are watched",
    area="Kubernetes",
    users_see="one line",
    stays="no target is taken away",
)
def test_pods_come_and_go_and_a_cluster_that_forbids_it_takes_none_away(
    cluster: Cluster, tiny: Sim, tmp_path: Path
) -> None:
    discover = {"kubernetes": {"selector": "app=qwen", "port": tiny.port, "namespace": "serving"}}
    config: dict[str, object] = {"targets": [{"name": "qwen", "discover": discover, "canary": {"every": "1s"}}]}
    for name in ("qwen-a", "qwen-b"):
        cluster.do(lambda api, name=name: api.put(pod(name, "127.0.0.1", labels=REVISION)))  # type: ignore[misc]
    cluster.do(lambda api: api.put(pod("qwen-loading", "127.0.0.1", labels=REVISION, ready=False)))
    with Monitor(config, tmp_path / "run") as monitor:
        eventually(lambda: up(monitor) == {"qwen/qwen-a": 1.0, "qwen/qwen-b": 1.0}, within_s=20, what="two pods are up")
        assert 'label_team="chat"' in monitor.page("/metrics")
        cluster.do(lambda api: api.delete("qwen-b"))
        cluster.do(lambda api: api.put(pod("qwen-loading", "127.0.0.1", labels=REVISION)))
        changed = {"qwen/qwen-a": 1.0, "qwen/qwen-loading": 1.0}
        eventually(lambda: up(monitor) == changed, within_s=20, what="one has gone and one has come")
        assert "qwen-b" not in monitor.page("/metrics"), "its series have gone with it"
        cluster.do(lambda api: api.forbidden.update({"list pods", "watch pods"}))
        cluster.do(lambda api: api.cut())
        failing = 'kneewatch_discovery_failing{discovery="qwen"} 1.0'
        eventually(lambda: failing in monitor.page("/metrics"), within_s=20, what="the discovery fails")
        eventually(lambda: up(monitor) == changed, within_s=20, what="the same two")
        assert "it needs a Role in serving with the verbs list and watch for pods" in monitor.output
        cluster.do(lambda api: api.forbidden.clear())
        eventually(lambda: failing not in monitor.page("/metrics"), within_s=20, what="the discovery is well")


def test_an_endpoint_of_a_service_that_is_no_pod_is_watched_until_it_goes(
    cluster: Cluster, tiny: Sim, tmp_path: Path
) -> None:
    discover = {"kubernetes": {"endpoints": "qwen", "port": tiny.port}, "metrics_path": "/metrics", "path": "/"}
    config: dict[str, object] = {"targets": [{"name": "qwen", "discover": discover, "canary": {"every": "1s"}}]}
    cluster.do(lambda api: api.put(endpoint_slice("by-hand", endpoint("127.0.0.1", zone="zone-b"))))
    with Monitor(config, tmp_path / "run") as monitor:
        known_as = f"qwen/127.0.0.1:{tiny.port}"
        eventually(lambda: up(monitor) == {known_as: 1.0}, within_s=20, what="the endpoint is up")
        (info,) = re.findall(r"^kneewatch_target_info.*$", monitor.page("/metrics"), re.MULTILINE)
        assert 'label_zone="zone-b"' in info
        assert 'label_kubernetes_io_service_name="qwen"' in info
        cluster.do(lambda api: api.put(endpoint_slice("by-hand", endpoint("127.0.0.1", terminating=True))))
        eventually(lambda: up(monitor) == {}, within_s=20, what="it has gone")


@pytest.mark.fault(
    "KU34",
    "Two Kneewatches, one server, one Lease that goes with the API server",
    area="Kubernetes",
    users_see="one ramp; the other is refused",
    stays="it ends with the API server",
)
def test_of_two_ramps_on_a_server_one_has_the_lease_and_loses_it_with_the_api_server(
    cluster: Cluster, tiny: Sim, tmp_path: Path
) -> None:
    file = tmp_path / "kneewatch.yml"
    file.write_text(yaml.safe_dump({"lease": {}, "targets": [{"name": "a", "base_url": tiny.base_url}]}))
    asked = ("ramp", "-c", file, "--concurrency", "2", "--step-seconds", "60", "--no-guard", "--target", "a")
    first = start_kneewatch(*asked, log=tmp_path / "first.log")
    try:
        eventually(lambda: cluster.api.leases, within_s=30, what="the first has the lease")
        second = start_kneewatch(*asked, log=tmp_path / "second.log")
        eventually(lambda: not second.alive, within_s=30, what="the second ends")
        assert "another prober loads localhost:" in second.tail()
        assert len(second.tail().splitlines()) == 1
        assert first.alive
        cluster.do(lambda api: api.stop())
        eventually(lambda: not first.alive, within_s=30, what="the first ends")
        assert f"the lease of localhost:{tiny.port} is lost: the API server has accepted no renewal" in first.tail()
        assert "Traceback" not in first.tail()
    finally:
        first.kill()
    assert json.dumps(cluster.api.leases).count(f"localhost:{tiny.port}") == 1


@pytest.mark.long
@pytest.mark.fault("KU6")
def test_a_ramp_that_loses_its_lease_reports_what_it_had_measured(cluster: Cluster, tiny: Sim, tmp_path: Path) -> None:
    file, reported, page = tmp_path / "kneewatch.yml", tmp_path / "result.json", tmp_path / "result.html"
    file.write_text(yaml.safe_dump({"lease": {}, **_SHORT, "targets": [{"name": "a", "base_url": tiny.base_url}]}))
    asked = ("--rates", "10,12", "--step-seconds", "6", "--no-guard", "--json", reported, "--html", page)
    ramp = start_kneewatch("ramp", "-c", file, *asked, log=tmp_path / "ramp.log")
    try:
        eventually(lambda: _steps(ramp.tail()) == 1, within_s=60, what="a step has ended, and the next one runs")
        cluster.do(lambda api: api.leases.clear())
        time.sleep(3.0)
        spent = _tokens(tiny)
        eventually(lambda: not ramp.alive, within_s=15, what="the end of the command")
        time.sleep(1.0)
        assert _tokens(tiny) == spent, "load was gone within 3 s"
        status = ramp.terminate()
    finally:
        ramp.kill()
    said = ramp.tail()
    assert "Traceback" not in said
    assert f"kneewatch: the lease of localhost:{tiny.port} is lost: it was deleted; load was ended" in said
    assert "Ended by:    interrupt (lost the Lease)" in said
    result = json.loads(reported.read_text())
    assert result["stopped"] == {"by": "interrupt", "reason": "lost the Lease"}
    assert len(result["steps"]) == _steps(said) == 1
    assert result["cost"]["requests"] > 50, "those of the step that was cut cost something too"
    assert status == (0 if result["capacity"]["requests_per_second"] is not None else 1)
    assert "lost the Lease" in page.read_text()
    assert cluster.api.leases == {}


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("lock", ["lease", "file"])
@pytest.mark.fault(
    "KU45",
    "Two Kneewatches on one server, by a Lease",
    area="Kubernetes",
    users_see="users are not computed while the other loads",
    stays="users show again afterwards",
    case="lease",
)
@pytest.mark.fault(
    "KU46",
    "Two Kneewatches on one server, by a lock file",
    area="Kubernetes",
    users_see="users are not computed while the other loads",
    stays="users show again afterwards",
    case="file",
)
def test_of_a_pair_the_one_does_not_take_the_others_run_for_users(tiny: Sim, tmp_path: Path, lock: str) -> None:
    (tmp_path / "locks").mkdir()
    by: dict[str, object] = {"lease": {}} if lock == "lease" else {"lock_dir": str(tmp_path / "locks")}
    target = {"name": "a", "base_url": tiny.base_url, "scrape": "1s", "canary": {"every": "2s", "workload": "short"}}
    config: dict[str, object] = {**by, **_SHORT, "targets": [target]}
    with Monitor(config, tmp_path / "run") as monitor:
        eventually(lambda: _users(monitor) == 0.0, within_s=30, what="it knows of no users")
        asked = (
            "--rates",
            "20",
            "--step-seconds",
            "10",
            "--confirm-seconds",
            "0",
            "--no-guard",
            "--json",
            tmp_path / "result.json",
        )
        ramp = start_kneewatch("ramp", "-c", monitor.config_file, *asked, log=tmp_path / "ramp.log")
        try:
            words = "another prober loads the server"
            eventually(lambda: words in monitor.output, within_s=60, what="the other's run is seen")
            eventually(lambda: not ramp.alive, within_s=60, what="the end of the run")
        finally:
            ramp.kill()
        result = json.loads((tmp_path / "result.json").read_text())
        assert result["cost"]["requests"] > 100
        eventually(lambda: "another prober's load is over" in monitor.output, within_s=30, what="its end is seen")
        # Until a scrape has settled what users sent since, there are none to show.
        eventually(lambda: _users(monitor) is not None, within_s=30, what="users are known again")
        time.sleep(3.0)
        before = _users(monitor)
        assert before is not None
        assert before < result["cost"]["requests"] / 3, "what was sent before it was seen, at most"
        for _ in range(20):
            body = {"model": "mock-model", "prompt": "hello", "max_tokens": 3}
            httpx.post(f"{tiny.base_url}/v1/completions", json=body, timeout=20, trust_env=False).raise_for_status()
        eventually(lambda: (_users(monitor) or 0) > before, within_s=30, what="users show again")
        time.sleep(3.0)
        assert 0 < (_users(monitor) or 0) - before <= 20


_SHORT = {"workloads": {"short": {"prompt_tokens": 8, "output_tokens": 3}, "default": {"output_tokens": 16}}}


def _steps(said: str) -> int:
    """Return the number of rows of the table."""
    verdicts = ("passed", "broke", "not judged:", "stopped:")
    return sum(line[:1] == " " and any(word in line for word in verdicts) for line in said.splitlines())


def _tokens(server: Sim) -> float:
    """Return the tokens that the server has generated."""
    page = httpx.get(f"{server.base_url}/metrics", timeout=20, trust_env=False).text
    return sum(map(float, re.findall(r"^vllm:generation_tokens_total{.*} (.+)$", page, re.MULTILINE)))


def _users(monitor: Monitor) -> float | None:
    found = re.findall(
        r'^kneewatch_users_requests_total{.*outcome="ok".*} (.+)$', monitor.page("/metrics"), re.MULTILINE
    )
    return float(found[0]) if found else None
