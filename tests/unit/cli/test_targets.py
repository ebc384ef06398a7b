"""The targets that a command is for, configured and discovered."""

import json
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from probe.cli import targets
from probe.cli.targets import configured_targets, named_targets, one_target, one_with_gpus
from probe.config.config import Config
from probe.config.config_file import config_from, load_config
from probe.core.errors import ConfigError, TargetError
from probe.discovery.file_sd import FileSource
from probe.discovery.types import DiscoveredServer, State
from probe.monitor.gpu_places import GpuPlace

URL = "http://127.0.0.1:9"


def _config(*names: str) -> Config:
    return config_from({"targets": [{"name": name, "base_url": URL} for name in names]}, "test")


def _discovering(folder: Path, *servers: str) -> Config:
    """Return a configuration with the discovery `pods` of these servers beside the target `a`."""
    (folder / "servers.json").write_text(json.dumps([{"targets": list(servers)}]))
    file = folder / "kneewatch.yml"
    pods = f"{{name: pods, canary: {{timeout: 7s}}, discover: {{file: {{files: ['{folder}/servers*.json']}}}}}}"
    file.write_text(f"targets: [{pods}, {{name: a, base_url: '{URL}'}}]")
    return load_config(file)


def test_the_only_target_needs_no_name_and_one_of_several_does() -> None:
    assert one_target(_config("a"), None).name == "a"
    assert one_target(_config("a", "b"), "b").name == "b"
    with pytest.raises(ConfigError) as refused:
        one_target(_config("a", "b"), None)
    assert str(refused.value) == "--target: the configuration has several targets; expected one of a, b"
    with pytest.raises(ConfigError, match="--target c: not in the configuration"):
        one_target(_config("a", "b"), "c")


def test_a_discovered_target_is_named_as_its_alerts_name_it(tmp_path: Path) -> None:
    config = _discovering(tmp_path, "10.0.0.1:8000", "10.0.0.2:8000")
    found = one_target(config, "pods/10.0.0.2:8000", adds_load=True)
    assert (found.name, found.base_url, found.canary.timeout) == ("pods/10.0.0.2:8000", "http://10.0.0.2:8000", 7.0)
    assert named_targets(config, "pods/10.0.0.2:8000") == [found]
    assert [target.name for target in named_targets(config, "a")] == ["a"]


def test_a_discovered_target_of_a_command_has_its_pods_gpus_or_the_reason_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = {"pod": "llama-0", "namespace": "serving", "node": "gpu-1"}
    (tmp_path / "servers.json").write_text(json.dumps([{"targets": ["10.0.0.1:8000"], "labels": labels}]))
    discover = {"file": {"files": [f"{tmp_path}/servers.json"]}}
    exporters = {"kubernetes": {"selector": "app=dcgm"}}
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    monkeypatch.setattr(targets, "ANSWER_S", 1.0)  # the first attempt fails long before

    def place(gpu: dict[str, object]) -> GpuPlace:
        raw = {"prometheus": {"url": URL}, "targets": [{"name": "pods", "discover": discover, "gpu": gpu}]}
        return one_with_gpus(config_from(raw, "test"), "pods/10.0.0.1:8000")[1]

    of_pod = {"pod": "llama-0", "namespace": "serving"}
    assert place({"prometheus": True}) == GpuPlace(labels=of_pod, node="gpu-1")
    assert "no service account is mounted" in str(place({"dcgm": exporters}).problem)
    assert place({}) == GpuPlace()


def test_a_discovery_s_name_stands_for_all_of_its_targets_in_a_check(tmp_path: Path) -> None:
    config = _discovering(tmp_path, "10.0.0.1:8000", "10.0.0.2:8000")
    assert [target.name for target in named_targets(config, "pods")] == ["pods/10.0.0.1:8000", "pods/10.0.0.2:8000"]


def test_a_command_for_one_server_takes_no_discovery_s_name(tmp_path: Path) -> None:
    config = _discovering(tmp_path, "10.0.0.1:8000")
    with pytest.raises(ConfigError) as refused:
        one_target(config, "pods")
    assert str(refused.value) == (
        "--target pods: its servers are discovered; name one of them, such as pods/ID, or use --base-url URL"
    )
    with pytest.raises(ConfigError, match=r"several targets; expected one of pods/\*, a"):
        one_target(config, None)


def test_an_unknown_server_is_refused_with_those_that_are_found(tmp_path: Path) -> None:
    config = _discovering(tmp_path, *(f"10.0.0.{i}:8000" for i in range(10, 22)))
    with pytest.raises(ConfigError) as refused:
        named_targets(config, "pods/gone")
    words = str(refused.value)
    assert words.startswith(
        "--target pods/gone: the discovery pods does not find it; expected one of pods/10.0.0.10:8000, "
    )
    assert words.endswith(", ...")
    assert words.count("8000") == 10


def test_a_discovery_without_servers_is_an_error_of_a_check(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        named_targets(_discovering(tmp_path), "pods")
    assert str(refused.value) == "--target pods: the discovery pods finds no servers; check its selection"


@pytest.mark.slow
def test_a_discovery_that_cannot_be_read_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "ANSWER_S", 1.0)  # the first attempt fails long before
    config = config_from({"targets": [{"name": "pods", "discover": {"http": {"url": f"{URL}/list"}}}]}, "test")
    with pytest.raises(TargetError) as refused:
        named_targets(config, "pods/a")
    assert str(refused.value).startswith("--target pods/a: the discovery pods found no servers: ")
    assert f"{URL}/list" in str(refused.value)


def test_a_server_in_a_rollout_gets_checks_and_no_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def rolling(_: FileSource) -> AsyncGenerator[State, None]:
        yield (DiscoveredServer("a", URL, revision="2", is_rolling_out=True),)

    monkeypatch.setattr(FileSource, "states", rolling)
    config = _discovering(tmp_path, "10.0.0.1:8000")
    assert one_target(config, "pods/a").base_url == URL
    with pytest.raises(TargetError, match="pods/a: no load was sent, a rollout is under way"):
        one_target(config, "pods/a", adds_load=True)


def test_a_check_without_a_name_asks_the_targets_with_an_address(tmp_path: Path) -> None:
    assert [target.name for target in configured_targets(_discovering(tmp_path, "10.0.0.1:8000"))] == ["a"]
    passive = {"name": "b", "base_url": URL, "passive": True}
    for entry in (passive, {"name": "pods", "discover": {"dns": {"name": "qwen.serving", "port": 8000}}}):
        with pytest.raises(ConfigError, match="no target that can be probed"):
            configured_targets(config_from({"targets": [entry]}, "test"))


def test_a_command_with_one_canary_takes_the_first_kind() -> None:
    kinds = [{"model": "sql", "timeout": "7s"}, {"workload": "long-prefill"}]
    config = config_from({"targets": [{"name": "a", "base_url": URL, "canaries": kinds}]}, "test")
    for name in (None, "a"):
        found = one_target(config, name)
        assert (found.model, found.canary.timeout) == ("sql", 7.0)
    (every,) = named_targets(config, "a")
    assert [kind.canary.workload for kind in every.kinds] == ["default", "long-prefill"]
