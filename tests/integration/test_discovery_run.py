"""The whole command in a cluster: `kneewatch run` follows pods, `kneewatch ramp` holds a server's Lease."""

import asyncio
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from api_server import ApiServer, api_server, pod
from kneewatch_command import start_kneewatch
from monitor import Monitor, Sim
from process import eventually

REVISION = {"app": "qwen", "team": "chat", "pod-template-hash": "one"}


class Cluster:
    """The API server on an event loop of its own, since the programs under test are waited for."""

    def __init__(self, api: ApiServer, loop: asyncio.AbstractEventLoop) -> None:
        self.api = api
        self._loop = loop

    def do(self, change: Callable[[ApiServer], Any]) -> None:
        """What `change` does, on its loop; to its end."""

        async def there() -> None:
            if asyncio.iscoroutine(done := change(self.api)):
                await done

        asyncio.run_coroutine_threadsafe(there(), self._loop).result(10.0)


@contextmanager
def _running() -> Iterator[Cluster]:
    started, ended = threading.Event(), asyncio.Event()
    its: list[Cluster] = []

    async def main() -> None:
        async with api_server() as api:
            its.append(Cluster(api, asyncio.get_running_loop()))
            started.set()
            await ended.wait()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    assert started.wait(10.0)
    try:
        yield its[0]
    finally:
        its[0]._loop.call_soon_threadsafe(ended.set)
        thread.join(10.0)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with _running() as its:
        monkeypatch.setenv("KUBECONFIG", str(its.api.kubeconfig(tmp_path / "kubeconfig")))
        yield its


def up(monitor: Monitor) -> dict[str, float]:
    """The targets that have series, and whether they are up."""
    page = monitor.page("/metrics")
    return {
        name: float(value)
        for name, value in re.findall(r'^kneewatch_target_up\{target="([^"]+)"\} (.+)$', page, re.MULTILINE)
    }


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
        failing = 'kneewatch_discovery_failing{target="qwen"} 1.0'
        eventually(lambda: failing in monitor.page("/metrics"), within_s=20, what="the discovery fails")
        assert up(monitor) == changed
        assert "it needs a Role in serving with the verbs list and watch for pods" in monitor.output
        cluster.do(lambda api: api.forbidden.clear())
        eventually(lambda: failing not in monitor.page("/metrics"), within_s=20, what="the discovery is well")


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
        assert f"the lease of localhost:{tiny.port} is lost: the API server has taken no renewal" in first.tail()
        assert "Traceback" not in first.tail()
    finally:
        first.kill()
    assert json.dumps(cluster.api.leases).count(f"localhost:{tiny.port}") == 1
