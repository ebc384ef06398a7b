"""What the kustomizations render to: valid for Kubernetes, confined, and harmless to the server beside it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from checks import KUBERNETES

from probe import __version__
from probe.config.config_file import load_config

pytestmark = pytest.mark.kubectl

Render = Callable[[str], dict[str, dict[str, Any]]]
FOLDERS = ["base", "overlays/sidecar"]


def pod(rendered: dict[str, dict[str, Any]]) -> dict[str, Any]:
    spec: dict[str, Any] = rendered["Deployment"]["spec"]["template"]["spec"]
    return spec


def kneewatch(rendered: dict[str, dict[str, Any]]) -> dict[str, Any]:
    spec = pod(rendered)
    containers = [*spec["containers"], *spec.get("initContainers", [])]
    (found,) = (container for container in containers if container["name"] == "kneewatch")
    return dict(found)


def volumes(rendered: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the volume mounted at each path of Kneewatch's container."""
    by_name = {volume["name"]: volume for volume in pod(rendered)["volumes"]}
    return {mount["mountPath"]: by_name[mount["name"]] for mount in kneewatch(rendered)["volumeMounts"]}


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("folder", FOLDERS)
def test_kubernetes_accepts_every_resource(render: Render, folder: str, version: str) -> None:
    for resource in render(folder).values():
        kubernetes_validate.validate(resource, version, strict=True)


def test_the_newest_kubernetes_that_has_schemas_is_checked() -> None:
    newest = ".".join(kubernetes_validate.latest_version().split(".")[:2])
    assert KUBERNETES[-1] == newest, "take it into checks.KUBERNETES and deploy/README.md"


def test_the_schemas_know_native_sidecars(render: Render) -> None:
    deployment = render("overlays/sidecar")["Deployment"]
    deployment["spec"]["template"]["spec"]["initContainers"][0]["restartPolicyy"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, KUBERNETES[-1], strict=True)


@pytest.mark.parametrize("folder", FOLDERS)
def test_kneewatch_is_confined_as_the_restricted_standard_wants_it(render: Render, folder: str) -> None:
    rendered = render(folder)
    spec = pod(rendered)
    context = spec.get("securityContext", {}) | kneewatch(rendered)["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] == 65532
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert "privileged" not in context
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    assert not any("hostPath" in volume for volume in spec["volumes"])


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_root_is_read_only_and_what_is_written_to_has_a_volume(render: Render, folder: str) -> None:
    rendered = render(folder)
    assert kneewatch(rendered)["securityContext"]["readOnlyRootFilesystem"] is True
    assert volumes(rendered).keys() == {"/etc/kneewatch", "/var/lib/kneewatch", "/tmp"}  # noqa: S108 - in the container
    assert all("sizeLimit" in v["emptyDir"] for v in volumes(rendered).values() if "emptyDir" in v)


@pytest.mark.parametrize("folder", FOLDERS)
def test_kneewatch_gets_no_token_of_the_cluster(render: Render, folder: str) -> None:
    rendered = render(folder)
    assert pod(rendered)["automountServiceAccountToken"] is False
    assert rendered.get("ServiceAccount", {}).get("automountServiceAccountToken") is not True
    assert not {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"} & rendered.keys()


@pytest.mark.parametrize("folder", FOLDERS)
def test_memory_is_limited_and_cpu_is_not_throttled(render: Render, folder: str) -> None:
    resources = kneewatch(render(folder))["resources"]
    assert resources["requests"].keys() == {"cpu", "memory"}
    assert resources["limits"] == {"memory": "384Mi"}


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_image_is_this_version(render: Render, folder: str) -> None:
    assert kneewatch(render(folder))["image"] == f"kneewatch:{__version__}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_mounted_configuration_loads_and_fits_its_pod(render: Render, folder: str, tmp_path: Path) -> None:
    rendered = render(folder)
    config_map = rendered["ConfigMap"]
    assert volumes(rendered)["/etc/kneewatch"]["configMap"]["name"] == config_map["metadata"]["name"]
    file = tmp_path / "kneewatch.yml"
    file.write_text(config_map["data"]["kneewatch.yml"])
    config = load_config(file)
    ports = [port["containerPort"] for port in kneewatch(rendered)["ports"]]
    assert [config.listen_address] == [("0.0.0.0", port) for port in ports]
    assert config.store.path is not None
    assert str(config.store.path.parent) in volumes(rendered)
    assert [target.capacity.mode for target in config.targets] == ["forecast"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_prometheus_finds_the_port_by_the_annotations(render: Render, folder: str) -> None:
    rendered = render(folder)
    annotations = rendered["Deployment"]["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/scrape"] == "true"
    assert annotations["prometheus.io/path"] == "/metrics"
    assert int(annotations["prometheus.io/port"]) in [p["containerPort"] for p in kneewatch(rendered)["ports"]]


def test_two_probers_never_run_at_once(render: Render) -> None:
    spec = render("base")["Deployment"]["spec"]
    assert spec["replicas"] == 1
    assert spec["strategy"] == {"type": "Recreate"}


def test_the_base_asks_kneewatch_about_itself(render: Render) -> None:
    container = kneewatch(render("base"))
    asked = {key: container[key]["httpGet"] for key in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert asked == {
        "startupProbe": {"path": "/-/healthy", "port": "http"},
        "livenessProbe": {"path": "/-/healthy", "port": "http"},
        "readinessProbe": {"path": "/-/ready", "port": "http"},
    }


def test_results_outlive_the_pod_of_the_base(render: Render) -> None:
    rendered = render("base")
    claim = volumes(rendered)["/var/lib/kneewatch"]["persistentVolumeClaim"]["claimName"]
    assert claim == rendered["PersistentVolumeClaim"]["metadata"]["name"]
    assert pod(rendered)["securityContext"]["fsGroup"] == 65532


def test_the_service_selects_the_pod_and_its_port(render: Render) -> None:
    rendered = render("base")
    labels = rendered["Deployment"]["spec"]["template"]["metadata"]["labels"]
    service = rendered["Service"]["spec"]
    assert service["selector"].items() <= labels.items()
    assert service["ports"][0]["targetPort"] in [port["name"] for port in kneewatch(rendered)["ports"]]


def test_the_sidecar_is_native_and_vllm_never_waits_for_it(render: Render) -> None:
    container = kneewatch(render("overlays/sidecar"))
    assert container["restartPolicy"] == "Always"
    # Each of them would count for the pod: start, readiness, and unreadiness while a container restarts.
    assert not {"startupProbe", "readinessProbe", "livenessProbe"} & container.keys()


def test_the_sidecar_watches_the_server_in_its_pod(render: Render, deploy: Path) -> None:
    (server,) = pod(render("overlays/sidecar"))["containers"]
    config = load_config(deploy / "kustomize/overlays/sidecar/kneewatch.yml")
    port = server["ports"][0]["containerPort"]
    assert [target.base_url for target in config.servers] == [f"http://127.0.0.1:{port}"]
    # Weights load for minutes after Kneewatch has started; vLLM's own startup probe gives them ten.
    probe = server["startupProbe"]
    assert config.targets[0].canary.startup_grace == probe["periodSeconds"] * probe["failureThreshold"]
    assert server["image"].startswith("vllm/vllm-openai:v")
    assert server["resources"]["limits"]["nvidia.com/gpu"] == 1


def test_the_patch_leaves_vllm_as_it_was(render: Render) -> None:
    rendered = render("overlays/sidecar")
    (server,) = pod(rendered)["containers"]
    assert server["readinessProbe"]["httpGet"]["path"] == "/health"
    assert {"cache", "shm"} <= {volume["name"] for volume in pod(rendered)["volumes"]}
    assert "securityContext" not in pod(rendered)  # Kneewatch's user is its container's, never vLLM's
