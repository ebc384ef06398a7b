"""Load from a Ray cluster, as far as no Ray is needed: when it is chosen, what is said, and what its driver is told."""

import asyncio
import importlib.util
import socket
import subprocess
import sys
from typing import Any

import pytest

from probe.client.endpoint import Endpoint
from probe.config.config_file import config_from
from probe.core.clock import SystemClock
from probe.core.errors import ConfigError, LoadError
from probe.core.request import Api
from probe.core.workload import Workload
from probe.load import local_backend as place
from probe.load import ray_backend as ray
from probe.load.local_backend import LocalBackend
from probe.load.ray_backend import RayBackend
from probe.load.request_source import RequestSource
from probe.load.worker_pool import WorkerPool, workers_of

CLOCK = SystemClock()
SOURCE = RequestSource(Endpoint("a", "http://127.0.0.1:1"), "m", Workload("w", Api.COMPLETIONS, 16, 8), 1.0)


def _load(section: dict[str, Any] | None) -> Any:
    raw: dict[str, Any] = {"targets": [{"name": "a", "base_url": "http://a"}]}
    return config_from(raw | ({} if section is None else {"load": section}), "test").load


@pytest.mark.parametrize(
    "address", ["auto", "head:6379", "10.0.0.1:6379", "ray://head.ray.svc:10001", "[fd00::1]:6379"]
)
def test_a_cluster_is_chosen_by_its_address(address: str) -> None:
    workers = workers_of(_load({"ray": {"address": address}}), SOURCE, 300, CLOCK)
    assert isinstance(workers._backend, RayBackend)
    assert workers._count == 3


@pytest.mark.parametrize("section", [None, {}, {"ray": None}])
def test_without_one_load_is_made_here(section: dict[str, Any] | None) -> None:
    workers = workers_of(_load(section), SOURCE, 1, CLOCK, 2)
    assert isinstance(workers._backend, LocalBackend)
    assert workers._count == 2


def test_the_command_line_says_how_many_before_the_file_does() -> None:
    load = _load({"ray": {"address": "auto", "workers": 5}})
    assert workers_of(load, SOURCE, 1, CLOCK)._count == 5
    assert workers_of(load, SOURCE, 1, CLOCK, 2)._count == 2


@pytest.mark.parametrize(
    "address", ["head", "http://head:6379", "ray://head", "head:0", "head:65536", "a b:1", "local", ""]
)
def test_an_invalid_cluster_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=r"load\.ray\.address: .*expected HOST:PORT of a Ray cluster"):
        _load({"ray": {"address": address}})


def test_a_file_that_wants_ray_where_it_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _without_ray(monkeypatch)
    with pytest.raises(
        ConfigError, match=r"load\.ray: the package ray is not installed; pip install 'kneewatch\[ray\]'"
    ):
        _load({"ray": {"address": "auto"}})


def _without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else real(name))


def _said(address: str, within_s: float = 1.0) -> str:
    """Return the one-line error of a start that fails, and assert that nothing is left of it."""

    async def main() -> str:
        with pytest.raises(LoadError) as caught:
            async with WorkerPool(SOURCE, 2, CLOCK, RayBackend(address, within_s)):
                pass
        return str(caught.value)

    said = asyncio.run(main())
    assert "\n" not in said
    return said


@pytest.mark.fault("CO28")
def test_without_the_package_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    _without_ray(monkeypatch)
    assert _said("head:6379").endswith("pip install 'kneewatch[ray]'")


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_a_refused_connection_to_the_cluster_is_reported_at_once(scheme: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"{scheme}127.0.0.1:{taken.getsockname()[1]}"
        assert f"no Ray cluster at {address}" in _said(address)


def test_a_driver_that_ends_before_it_has_placed_anything_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place.sys, "executable", "/bin/false")
    assert "Ray ended its driver" in _said("auto")


def test_a_python_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place.sys, "executable", "/nowhere/python")
    assert "driver did not start" in _said("auto")


@pytest.mark.slow
def test_a_driver_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(*_: object, **__: object) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec("sleep", "60", pass_fds=[there.fileno() for there in _[1:]])
        started.append(process)
        return process

    started: list[asyncio.subprocess.Process] = []
    monkeypatch.setattr(ray, "start_module", silent)
    monkeypatch.setattr(ray, "_JOIN_S", 0.2)
    monkeypatch.setattr(ray, "_LEAVE_S", 0.2)
    assert "did not accept the driver" in _said("auto", 0.1)
    assert started[0].returncode is not None


def test_its_driver_inherits_no_proxies_and_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTPS_PROXY", "grpc_proxy", "ALL_PROXY", "LLAMA_API_KEY", "RAY_ADDRESS"):
        monkeypatch.setenv(name, "http://elsewhere:1")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    found = ray._environment()
    assert "http://elsewhere:1" not in found.values()
    assert (found["RAY_AUTH_MODE"], found["RAY_USAGE_STATS_ENABLED"]) == ("token", "0")
    assert "PATH" in found


@pytest.mark.slow
def test_nothing_of_the_monitor_imports_ray() -> None:
    code = "import sys, probe.monitor.app, probe.cli.ramp, probe.load.worker; sys.exit('ray' in sys.modules)"
    subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=60)
