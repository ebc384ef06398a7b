"""Replicas behind one address that come and go while they are watched, checked and measured."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from api_server import endpoint, endpoint_slice
from cluster import Cluster, cluster
from kneewatch_command import kneewatch, start_kneewatch
from monitor import Monitor, Sim
from process import eventually
from round_robin import round_robin

__all__ = ["cluster"]
pytestmark = [pytest.mark.alone, pytest.mark.long]

_LENIENT = {kind: {"ratio": 0.95, "within": "5s"} for kind in ("ttft", "tpot")}
_COMMON = {"objectives": {"default": _LENIENT}, "workloads": {"short": {"prompt_tokens": 8, "output_tokens": 8}}}


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Sim, Sim, Sim]]:
    """Run three mock servers. The last has answered requests before."""
    folder = tmp_path_factory.mktemp("replicas")
    with Sim(folder / "a", "tiny") as a, Sim(folder / "b", "tiny") as b, Sim(folder / "c", "tiny") as c:
        lengths = ("--prompt-tokens", "8", "--output-tokens", "32", "--ttft", "5s", "--tpot", "5s")
        load = ("--concurrency", "2", "--requests-per-step", "30", "--confirm-seconds", "0")
        before = kneewatch("ramp", "--base-url", c.base_url, *lengths, *load)
        assert before.status == 0, before.err
        yield a, b, c


def _list(file: Path, *servers: Sim) -> None:
    file.write_text(json.dumps([{"targets": [f"127.0.0.1:{each.port}" for each in servers]}]))


def _config(folder: Path, url: str) -> Path:
    found = {"file": {"files": [str(folder / "replicas.json")], "every": "1s"}}
    target = {"name": "router", "base_url": url, "metrics_discovery": found, "canary": {"workload": "short"}}
    file = folder / "kneewatch.yml"
    file.write_text(yaml.safe_dump({**_COMMON, "targets": [target]}))
    return file


def test_the_replicas_that_are_found_are_measured_as_one(three: tuple[Sim, Sim, Sim], tmp_path: Path) -> None:
    async def main() -> None:
        _list(tmp_path / "replicas.json", *three[:2])
        async with round_robin(three[0].base_url, three[1].base_url) as url:
            file, result = _config(tmp_path, url), tmp_path / "result.json"
            checked = await asyncio.to_thread(kneewatch, "check", "-c", file)
            assert checked.status == 0, checked.out + checked.err
            load = ("--concurrency", "2,4", "--requests-per-step", "45", "--confirm-seconds", "0")
            done = await asyncio.to_thread(kneewatch, "ramp", "-c", file, *load, "--json", result)
        assert done.status == 0, done.out + done.err
        found = json.loads(result.read_text())
        assert found["stopped"] == {"by": "done", "reason": None}
        assert found["context"]["flags"]["replicas"] == "2"
        assert found["capacity"]["requests_per_second"] <= max(step["throughput_rps"] for step in found["steps"])

    asyncio.run(main())


@pytest.mark.parametrize("guard", [(), ("--no-guard",), ("--stream-guard",)])
@pytest.mark.fault(
    "TR19",
    "A replica behind one address comes or goes (`metrics_discovery`), in a run and between runs",
    area="Truth",
    users_see="`replicas_changed`, the log names it",
    stays="canaries; the others' counts; no capacity, and no headroom for another number of replicas",
)
def test_a_replica_that_comes_during_a_ramp_ends_it_and_says_so(
    three: tuple[Sim, Sim, Sim], tmp_path: Path, guard: tuple[str, ...]
) -> None:
    async def main() -> None:
        _list(tmp_path / "replicas.json", *three[:2])
        async with round_robin(three[0].base_url, three[1].base_url) as url:
            load = ("--rates", "4,5", "--step-seconds", "30", "--confirm-seconds", "0", *guard)
            asked = ("ramp", "-c", _config(tmp_path, url), *load, "--json", tmp_path / "result.json")
            ramp = start_kneewatch(*asked, log=tmp_path / "ramp.log")
            try:
                await asyncio.sleep(6)
                assert ramp.alive, ramp.tail()
                _list(tmp_path / "replicas.json", *three)
                await asyncio.to_thread(eventually, lambda: not ramp.alive, within_s=20, what="the end of the run")
                said = ramp.tail()
            finally:
                ramp.kill()
        assert "Ended by:    guard (replicas_changed)" in said
        assert "a replica behind the address came or went during the run" in said
        assert "Advice:      measure while the number of replicas does not change" in said
        result = json.loads((tmp_path / "result.json").read_text())
        assert result["capacity"]["requests_per_second"] is None

    asyncio.run(main())


def test_without_replicas_a_ramp_sends_nothing_and_says_why(three: tuple[Sim, Sim, Sim], tmp_path: Path) -> None:
    (tmp_path / "replicas.json").write_text("[]")
    done = kneewatch("ramp", "-c", _config(tmp_path, three[0].base_url), "--concurrency", "1")
    assert done.status == 2
    assert "metrics_discovery finds no replicas" in done.err
    assert len(done.err.splitlines()) == 1


def _engines(page: str) -> set[str]:
    return set(re.findall(r'^kneewatch_server_engine_\w+\{target="router",engine_index="([^"]+)"', page, re.MULTILINE))


def _number(page: str, series: str) -> float:
    return sum(map(float, re.findall(rf"^{series}\{{.*\}} (\S+)$", page, re.MULTILINE)))


@pytest.mark.fault("TR19")
def test_the_list_follows_the_deployment_without_a_new_configuration(
    cluster: Cluster, three: tuple[Sim, Sim, Sim], tmp_path: Path
) -> None:
    def put(sim: Sim, **conditions: bool) -> None:
        pod = endpoint("127.0.0.1", f"qwen-{sim.port}", **conditions)
        ports = [{"name": "http", "port": sim.port}]
        cluster.do(lambda api: api.put(endpoint_slice(f"qwen-{sim.port}", pod, ports=ports)))

    a, _, c = three
    found = {"kubernetes": {"endpoints": "qwen", "port": "http"}}
    target = {"name": "router", "base_url": a.base_url, "metrics_discovery": found, "scrape": "1s"}
    target["canary"] = {"every": "1s", "workload": "short"}
    put(a)
    with Monitor({**_COMMON, "targets": [target]}, tmp_path / "run") as monitor:

        def has(*sims: Sim) -> bool:
            return _engines(monitor.page("/metrics")) == {f"localhost:{each.port}" for each in sims}

        up = 'kneewatch_server_scrape_up{target="router"} 1.0'
        eventually(lambda: up in monitor.page("/metrics"), within_s=20, what="the replica is read")
        eventually(
            lambda: _number(monitor.page("/metrics"), "kneewatch_requests_total") > 0, within_s=20, what="canary"
        )
        before = monitor.page("/metrics")
        put(c)
        eventually(lambda: has(a, c), within_s=20, what="two replicas are read together")
        after = monitor.page("/metrics")
        assert _number(after, "kneewatch_requests_total") >= _number(before, "kneewatch_requests_total") > 0
        assert _number(after, "kneewatch_users_requests_total") == 0, "what it had counted before is no user's"
        assert _number(after, "kneewatch_discovered_targets") == 2
        put(a, terminating=True)
        eventually(lambda: has() or has(c), within_s=20, what="one is left")
        assert up in monitor.page("/metrics")
        assert "monitor is replaced" not in monitor.output
        assert f"localhost:{c.port} came" in monitor.output
        assert f"localhost:{a.port} went" in monitor.output
