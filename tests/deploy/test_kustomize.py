"""The kustomizations: generated from the chart, and rendered to its objects, which test_helm.py checks."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checks
import helm_python
import kubernetes_validate
import pytest
from chart_values import SLICES, Values, alike, kustomized, rendered

from benchmarks import kustomizations
from benchmarks.kustomizations import DASHBOARDS, values
from probe.config.config_file import load_config

Manifest = dict[str, Any]
Render = Callable[[str], list[Manifest]]
FOLDERS = {"base", "discovery", "sidecar", "operator"}


@pytest.fixture
def copy(deploy: Path, tmp_path: Path) -> Path:
    """Return a copy of deploy/kustomize to change."""
    return Path(shutil.copytree(deploy / "kustomize", tmp_path / "kustomize"))


def uncomment(file: Path, *lines: str) -> None:
    """Remove the `# ` before lines of a file, as its comments ask for."""
    text = file.read_text()
    for line in lines:
        text, changed = re.subn(rf"^( *)# (?={re.escape(line)})", r"\1", text, flags=re.MULTILINE)
        assert changed == 1, line
    file.write_text(text)


def test_the_files_are_those_that_make_generate_writes() -> None:
    assert [path for path, text in kustomizations.files().items() if path.read_text() != text] == []


def test_every_kustomization_is_tested(deploy: Path) -> None:
    assert {file.parent.name for file in (deploy / "kustomize").rglob("kustomization.yaml")} == FOLDERS


def test_the_newest_kubernetes_that_has_schemas_is_checked() -> None:
    newest = ".".join(kubernetes_validate.latest_version().split(".")[:2])
    assert checks.KUBERNETES[-1] == newest, "take it into checks.KUBERNETES and deploy/README.md"


@pytest.mark.kubectl
@pytest.mark.parametrize(("folder", "given"), [("base", values("services")), ("discovery", values("discovery"))])
def test_a_kustomization_is_the_chart(chart: helm_python.Chart, manifests: Render, folder: str, given: Values) -> None:
    """But for the namespace of the base, which `kubectl -n` names."""
    assert alike(manifests(folder)) == alike(rendered(chart, given))


@pytest.mark.kubectl
def test_on_openshift_it_is_the_chart_on_openshift(chart: helm_python.Chart, kubectl: str, copy: Path) -> None:
    uncomment(copy / "base/kustomization.yaml", "patches:", "  - path: openshift.yaml")
    assert alike(kustomized(kubectl, copy / "base")) == alike(rendered(chart, {"openshift": True}))


@pytest.mark.kubectl
@pytest.mark.parametrize("folder", ["base", "discovery"])
def test_the_operators_monitor_is_the_charts_and_replaces_the_annotations(
    chart: helm_python.Chart, kubectl: str, copy: Path, folder: str
) -> None:
    uncomment(copy / "base/kustomization.yaml", "components:", "  - ../operator")
    operator = {**values("operator"), "prometheusRule": {"enabled": False}, "dashboards": {"enabled": False}}
    given = {**operator, **(values("discovery") if folder == "discovery" else {})}
    assert alike(kustomized(kubectl, copy / folder)) == alike(rendered(chart, given))


@pytest.mark.kubectl
@pytest.mark.parametrize(("folder", "prefix"), [("base", ""), ("sidecar", "kneewatch-")])
def test_the_keys_are_mounted_as_the_chart_mounts_them(kubectl: str, copy: Path, folder: str, prefix: str) -> None:
    if folder == "base":
        uncomment(copy / "base/kustomization.yaml", "patches:")
    uncomment(copy / folder / "kustomization.yaml", "  - path: keys.yaml" if folder == "base" else "- path: keys.yaml")
    ((_, pod),) = checks.pods(kustomized(kubectl, copy / folder))
    (mine,) = (c for c in checks.containers(pod) if c["name"] == "kneewatch")
    assert {"name": f"{prefix}keys", "mountPath": checks.KEYS, "readOnly": True} in mine["volumeMounts"]
    assert {"name": f"{prefix}keys", "secret": {"secretName": "kneewatch-keys"}} in pod["volumes"]
    assert len(mine["volumeMounts"]) == 4, "beside those that were there"


@pytest.mark.kubectl
def test_discovery_of_endpoints_has_the_rights_that_the_chart_gives(
    chart: helm_python.Chart, kubectl: str, copy: Path
) -> None:
    file = copy / "discovery/kustomization.yaml"
    patch = re.findall(r"^  # ((?:- target|  ).*)$", file.read_text(), re.MULTILINE)
    uncomment(file, *patch)
    found = kustomized(kubectl, copy / "discovery")
    for role in checks.of(found, "Role"):
        checks.check(role)
    wanted = checks.rights(rendered(chart, {"config": {"targets": [SLICES], "lease": {}}}))
    assert checks.rights(found) == wanted
    assert ("serving", "endpointslices") in wanted


@pytest.mark.kubectl
def test_the_exporters_of_gpus_have_the_rights_that_the_chart_gives(
    chart: helm_python.Chart, kubectl: str, copy: Path
) -> None:
    uncomment(copy / "discovery/kustomization.yaml", "- gpus.yaml")
    found = kustomized(kubectl, copy / "discovery")
    given = values("discovery")
    (target,) = given["config"]["targets"]
    target["gpu"] = {"dcgm": {"kubernetes": {"namespace": "gpu-operator", "selector": "app=nvidia-dcgm-exporter"}}}
    assert checks.rights(found) == checks.rights(rendered(chart, given))
    assert checks.rights(found)["gpu-operator", "pods"] == {"list", "watch"}


@pytest.mark.kubectl
def test_the_dashboards_are_the_generated_ones_under_grafanas_label(kubectl: str) -> None:
    found = kustomized(kubectl, DASHBOARDS)
    assert {one["metadata"]["labels"]["grafana_dashboard"] for one in found} == {"1"}
    for one in found:
        checks.check(one)
        ((name, text),) = one["data"].items()
        assert name == f"{one['metadata']['name']}.json"
        assert json.loads(text) == json.loads((DASHBOARDS / name).read_text())
    assert {f"{one['metadata']['name']}.json" for one in found} == {file.name for file in DASHBOARDS.glob("*.json")}


@pytest.mark.kubectl
def test_the_sidecar_sees_gpus_without_taking_one_and_prometheus_finds_it(
    kubectl: str, copy: Path, tmp_path: Path
) -> None:
    uncomment(copy / "sidecar/kustomization.yaml", "- path: nvml.yaml", "- podmonitor.yaml")
    found = kustomized(kubectl, copy / "sidecar")
    for manifest in found:
        if not checks.is_of_the_operator(manifest):  # the chart's, which test_helm.py checks
            checks.check(manifest)
    ((workload, pod),) = checks.pods(found)
    (mine,) = (c for c in pod["initContainers"] if c["name"] == "kneewatch")
    assert {e["name"]: e["value"] for e in mine["env"]}["NVIDIA_DRIVER_CAPABILITIES"] == "utility"
    assert "nvidia.com/gpu" not in mine["resources"]["limits"]
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 1
    text = (copy / "sidecar/kneewatch.yml").read_text().replace("# gpu: {nvml: true}", "gpu: {nvml: true}")
    assert checks.load(text, tmp_path).servers[0].gpu.nvml

    (monitor,) = checks.of(found, "PodMonitor")
    labels = workload["spec"]["template"]["metadata"]["labels"]
    assert checks.selects(monitor["spec"]["selector"]["matchLabels"], labels)
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    # No other container of the pod has a port of that name.
    (port,) = (port for c in checks.containers(pod) for port in c["ports"] if port["name"] == endpoint["port"])
    assert (port["containerPort"], endpoint["path"]) == (9876, "/metrics")


@pytest.mark.kubectl
def test_the_sidecar_watches_the_server_in_its_pod(manifests: Render, deploy: Path) -> None:
    found = manifests("sidecar")
    ((_, pod),) = checks.pods(found)
    (server,) = pod["containers"]
    config = load_config(deploy / "kustomize/sidecar/kneewatch.yml")
    assert [target.base_url for target in config.servers] == [f"http://127.0.0.1:{server['ports'][0]['containerPort']}"]
    # Weights load for minutes after Kneewatch has started; vLLM's own startup probe gives them ten.
    probe = server["startupProbe"]
    assert config.targets[0].canary.startup_grace == probe["periodSeconds"] * probe["failureThreshold"]
    assert server["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert "securityContext" not in pod, "Kneewatch's user is its container's, never vLLM's"
    (config_map,) = checks.of(found, "ConfigMap")
    assert config_map["metadata"]["name"] in {v["configMap"]["name"] for v in pod["volumes"] if "configMap" in v}
    assert config_map["metadata"]["name"] == "kneewatch-sidecar", "no digest: a changed configuration restarts no vLLM"


@pytest.mark.kubectl
def test_the_schemas_know_native_sidecars(manifests: Render) -> None:
    (deployment,) = checks.of(manifests("sidecar"), "Deployment")
    deployment["spec"]["template"]["spec"]["initContainers"][0]["restartPolicyy"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, checks.KUBERNETES[-1], strict=True)
