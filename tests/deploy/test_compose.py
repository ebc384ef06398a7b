"""The compose file and what it mounts: accepted by the programs that read it, closed to other machines."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.build import render as dashboards_of
from probe.config.config_file import load_config

OURS = ["llama-8b", "kneewatch"]


@pytest.fixture(scope="module")
def folder(deploy: Path) -> Path:
    return deploy / "compose"


@pytest.fixture(scope="module")
def services(folder: Path) -> dict[str, dict[str, Any]]:
    compose = yaml.safe_load((folder / "compose.yml").read_text())
    return dict(compose["services"])


def binds(service: dict[str, Any]) -> dict[str, str]:
    """Return the bind mounts: path in the container to the path from compose.yml."""
    mounts = [mount.split(":") for mount in service.get("volumes", [])]
    return {mount[1]: mount[0] for mount in mounts if mount[0].startswith(".")}


def test_docker_compose_accepts_the_file(docker_compose: list[str], folder: Path) -> None:
    command = [*docker_compose, "-f", str(folder / "compose.yml"), "config", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, f"compose warns: {done.stderr}"
    assert set(json.loads(done.stdout)["services"]) == {*OURS, "prometheus", "alertmanager", "grafana"}


def test_docker_compose_refuses_an_unknown_key(docker_compose: list[str], folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "compose.yml"
    broken.write_text((folder / "compose.yml").read_text().replace("read_only:", "read_onlyy:"))
    command = [*docker_compose, "-f", str(broken), "config", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "read_onlyy" in done.stderr


def test_nothing_listens_on_other_addresses(services: dict[str, dict[str, Any]]) -> None:
    ports = [port for service in services.values() for port in service["ports"]]
    assert len(ports) == len(services)
    assert all(re.fullmatch(r"127\.0\.0\.1:(\d+):\1", port) for port in ports)


def test_every_image_has_its_tag(services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        tag = service["image"].rpartition(":")[2]
        assert tag == "local" if name in OURS else re.fullmatch(r"v?\d+\.\d+\.\d+", tag), service["image"]


def test_every_container_is_confined(services: dict[str, dict[str, Any]]) -> None:
    for service in services.values():
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert not {"privileged", "network_mode", "pid", "user", "cap_add"} & service.keys()


@pytest.mark.parametrize("name", OURS)
def test_our_containers_have_a_read_only_root(services: dict[str, dict[str, Any]], name: str) -> None:
    assert services[name]["read_only"] is True
    assert "/tmp" in services[name]["tmpfs"]  # noqa: S108 - in the container


def test_mounted_files_are_in_the_repository_and_read_only(
    services: dict[str, dict[str, Any]], folder: Path, deploy: Path
) -> None:
    for service in services.values():
        for source in binds(service).values():
            assert (folder / source).resolve().exists(), source
            assert (folder / source).resolve().is_relative_to(deploy.parent)
        assert all(mount.endswith(":ro") for mount in service.get("volumes", []) if mount.startswith("."))


def test_named_volumes_are_declared(services: dict[str, dict[str, Any]], folder: Path) -> None:
    used = {mount.split(":")[0] for service in services.values() for mount in service.get("volumes", [])}
    declared = yaml.safe_load((folder / "compose.yml").read_text())["volumes"]
    assert {name for name in used if not name.startswith(".")} == set(declared)


def test_kneewatch_reads_the_mounted_configuration(services: dict[str, dict[str, Any]], folder: Path) -> None:
    config = load_config(folder / binds(services["kneewatch"])["/etc/kneewatch/kneewatch.yml"])
    assert config.listen == "0.0.0.0:9876"
    assert config.store.path is not None
    assert f"kneewatch:{config.store.path.parent}" in services["kneewatch"]["volumes"]
    assert config.prometheus is not None
    assert config.prometheus.url == "http://prometheus:9090"
    assert [(target.base_url, target.capacity.mode) for target in config.servers] == [
        ("http://llama-8b:8000", "verify")
    ]


def test_the_configuration_names_the_mock_server(services: dict[str, dict[str, Any]]) -> None:
    words = services["llama-8b"]["command"]
    options = dict(zip(words[1::2], words[2::2], strict=True))
    assert words[0] == "sim"
    assert options == {"--host": "0.0.0.0", "--port": "8000", "--profile": "llama-8b", "--model": "llama-8b"}


def test_the_committed_dashboards_fit_the_configuration(folder: Path, deploy: Path) -> None:
    """They are generated from the first example; here they are used with another file."""
    here, example = load_config(folder / "kneewatch.yml"), load_config(deploy / "examples/kneewatch.yml")
    assert dashboards_of(here) == dashboards_of(example)


@pytest.mark.prometheus
def test_prometheus_accepts_its_configuration(promtool: str, folder: Path) -> None:
    done = subprocess.run(
        [promtool, "check", "config", "--syntax-only", str(folder / "prometheus/prometheus.yml")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_prometheus_scrapes_and_alerts_to_services_that_exist(
    services: dict[str, dict[str, Any]], folder: Path
) -> None:
    prometheus = yaml.safe_load((folder / "prometheus/prometheus.yml").read_text())
    scraped = [t for job in prometheus["scrape_configs"] for s in job["static_configs"] for t in s["targets"]]
    alerted = [t for a in prometheus["alerting"]["alertmanagers"] for s in a["static_configs"] for t in s["targets"]]
    published = {f"{name}:{port.rpartition(':')[2]}" for name, s in services.items() for port in s["ports"]}
    assert {"kneewatch:9876", "llama-8b:8000", "localhost:9090"} == set(scraped)
    assert {*scraped, *alerted} - {"localhost:9090"} <= published


def test_prometheus_loads_the_generated_rules(services: dict[str, dict[str, Any]], folder: Path) -> None:
    (pattern,) = yaml.safe_load((folder / "prometheus/prometheus.yml").read_text())["rule_files"]
    inside, _, name = pattern.rpartition("/")
    assert list((folder / binds(services["prometheus"])[inside]).resolve().glob(name))


def test_alertmanager_has_the_example(services: dict[str, dict[str, Any]], folder: Path, deploy: Path) -> None:
    mounted = binds(services["alertmanager"])["/etc/alertmanager/alertmanager.yml"]
    assert (folder / mounted).resolve() == deploy / "examples/alertmanager.yml"


def test_grafana_finds_prometheus_and_the_dashboards(
    services: dict[str, dict[str, Any]], folder: Path, deploy: Path
) -> None:
    grafana = services["grafana"]
    provisioning = folder / binds(grafana)["/etc/grafana/provisioning"]
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text())["datasources"]
    assert (source["type"], source["url"], source["isDefault"]) == ("prometheus", "http://prometheus:9090", True)
    (provider,) = yaml.safe_load((provisioning / "dashboards/kneewatch.yml").read_text())["providers"]
    generated = (folder / binds(grafana)[provider["options"]["path"]]).resolve()
    assert generated == deploy.parent / "dashboards/generated"
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert str(home.parent) == provider["options"]["path"]
    assert home.name in dashboards_of(load_config(deploy / "examples/kneewatch.yml"))


def test_grafana_is_anonymous_and_read_only(services: dict[str, dict[str, Any]]) -> None:
    environment = services["grafana"]["environment"]
    assert environment["GF_AUTH_ANONYMOUS_ENABLED"] == "true"
    assert environment["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert environment["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
