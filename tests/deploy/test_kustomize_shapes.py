"""All kustomizations: accepted by Kubernetes and the operator, confined, with the rights that their targets need."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import checks
import pytest
import yaml

from alerts.build import render as rules_of
from alerts.rules import Manifest
from dashboards.build import config_map
from dashboards.build import render as dashboards_of
from probe import __version__
from probe.config.config_file import load_config

pytestmark = [pytest.mark.kubectl, pytest.mark.long]

ROOT = Path(__file__).resolve().parents[2]
OPERATORS = ["PodMonitor", "PrometheusRule"]

Manifests = Callable[[str], list[dict[str, Any]]]
FOUND = ["discovery", "fleet", "gateway", "kserve", "litellm", "production-stack", "ray-serve", "vllm-router"]
GIVEN = ["llama-cpp", "prometheus-operator", "transformers"]
MONITORS = ["base", *(f"overlays/{name}" for name in [*FOUND, *GIVEN])]
JOBS = ["overlays/bench", "overlays/job"]
RESULTS = "overlays/results"  # a volume and nothing else
WITH_PODS = sorted([*MONITORS, *JOBS, "overlays/sidecar"])
FOLDERS = sorted([*WITH_PODS, RESULTS])


def named(manifests: list[dict[str, Any]], kind: str, name: str = "kneewatch") -> dict[str, Any]:
    (found,) = (m for m in checks.of(manifests, kind) if m["metadata"]["name"] == name)
    return found


def pod_of(manifests: list[dict[str, Any]]) -> dict[str, Any]:
    ((_, pod),) = checks.pods(manifests)
    return pod


def labels_of(manifests: list[dict[str, Any]]) -> dict[str, str]:
    ((workload, _),) = checks.pods(manifests)
    labels: dict[str, str] = workload["spec"]["template"]["metadata"]["labels"]
    return labels


def test_every_kustomization_is_tested(deploy: Path) -> None:
    kustomize = deploy / "kustomize"
    found = (file.parent for file in kustomize.rglob("kustomization.yaml"))
    assert sorted(str(f.relative_to(kustomize)) for f in found if f.parent.name != "components") == FOLDERS


@pytest.mark.parametrize("folder", FOLDERS)
def test_kubernetes_and_the_operator_accept_every_resource(manifests: Manifests, folder: str) -> None:
    for manifest in manifests(folder):
        checks.check(manifest)


def test_the_check_would_have_noticed(manifests: Manifests) -> None:
    monitor = named(manifests("overlays/prometheus-operator"), "PodMonitor")
    monitor["spec"]["podMetricsEndpointss"] = []
    with pytest.raises(AssertionError):
        checks.check(monitor)


@pytest.mark.parametrize("folder", [*MONITORS, *JOBS])
def test_every_pod_keeps_the_restricted_standard(manifests: Manifests, folder: str) -> None:
    pod = pod_of(manifests(folder))
    assert checks.loose(pod) == []
    assert all(c["securityContext"]["readOnlyRootFilesystem"] for c in checks.containers(pod))
    assert all("sizeLimit" in v["emptyDir"] for v in pod["volumes"] if "emptyDir" in v)


def test_a_loose_pod_would_have_been_noticed(manifests: Manifests) -> None:
    pod = pod_of(manifests("base"))
    pod["hostNetwork"] = True
    del pod["securityContext"]["seccompProfile"]
    pod["containers"][0]["securityContext"]["capabilities"] = {"drop": ["NET_RAW"]}
    assert checks.loose(pod) == ["hostNetwork", "kneewatch: seccompProfile", "kneewatch: capabilities"]


@pytest.mark.parametrize("folder", WITH_PODS)
def test_a_token_is_there_only_with_rights_that_need_one(manifests: Manifests, folder: str) -> None:
    rendered = manifests(folder)
    needs = bool(checks.rights(rendered))
    assert needs is (folder.removeprefix("overlays/") in FOUND)
    assert pod_of(rendered)["automountServiceAccountToken"] is needs
    assert not any(account["automountServiceAccountToken"] for account in checks.of(rendered, "ServiceAccount"))


@pytest.mark.parametrize("name", FOUND)
def test_the_rights_are_those_that_the_configuration_needs(manifests: Manifests, name: str, tmp_path: Path) -> None:
    rendered = manifests(f"overlays/{name}")
    config = checks.configuration(rendered, tmp_path)
    discovers = [*(t.discover for t in config.templates), *(t.metrics_discovery for t in config.servers)]
    asked = {each.kubernetes.namespace for each in discovers if each is not None and each.kubernetes is not None}
    assert asked
    assert config.lease is not None
    assert checks.rights(rendered) == {
        **{(namespace, "pods"): {"list", "watch"} for namespace in asked},
        (config.lease.namespace, "leases"): {"get", "list", "create", "update", "delete"},
    }
    assert not checks.of(rendered, "ClusterRole")


@pytest.mark.parametrize("folder", [*MONITORS, "overlays/job"])
def test_the_configuration_loads_and_the_pod_mounts_its_keys(manifests: Manifests, folder: str, tmp_path: Path) -> None:
    assert checks.configuration(manifests(folder), tmp_path).targets


@pytest.mark.parametrize("folder", [*MONITORS, "overlays/job", "overlays/sidecar"])
def test_the_command_line_takes_the_containers_arguments(manifests: Manifests, folder: str) -> None:
    (mine,) = (c for c in checks.containers(pod_of(manifests(folder))) if c["name"] == "kneewatch")
    assert mine["image"] == f"kneewatch:{__version__}"
    if "args" in mine:  # else the image's own
        assert str(checks.accepted(mine["args"])["config"]) == "/etc/kneewatch/kneewatch.yml"


@pytest.mark.parametrize("folder", FOLDERS)
def test_there_is_no_secret_in_a_manifest(manifests: Manifests, folder: str) -> None:
    rendered = manifests(folder)
    assert not checks.of(rendered, "Secret")
    for _, pod in checks.pods(rendered):
        given = [e for c in checks.containers(pod) for e in c.get("env", []) if re.search("KEY|TOKEN|PASS", e["name"])]
        assert all("value" not in e and "secretKeyRef" in e["valueFrom"] for e in given)


@pytest.mark.parametrize("folder", FOLDERS)
def test_kubectl_apply_can_keep_its_copy_of_each(manifests: Manifests, folder: str) -> None:
    for manifest in manifests(folder):
        kept = json.dumps(json.dumps(manifest, separators=(",", ":")), ensure_ascii=False)
        assert len(kept.encode()) < checks._APPLIED, manifest["metadata"]["name"]


@pytest.mark.parametrize("folder", MONITORS)
def test_services_monitors_budgets_and_policies_mean_the_pod_and_its_port(manifests: Manifests, folder: str) -> None:
    rendered, labels = manifests(folder), labels_of(manifests(folder))
    ports = {p["name"]: p["containerPort"] for p in pod_of(rendered)["containers"][0]["ports"]}
    assert ports == {"http": 9876}
    for service in checks.of(rendered, "Service"):
        assert checks.selects(service["spec"]["selector"], labels)
        assert {p["targetPort"] for p in service["spec"]["ports"]} == {"http"}
    for monitor in checks.of(rendered, "PodMonitor"):
        assert checks.selects(monitor["spec"]["selector"]["matchLabels"], labels)
        assert [e["port"] for e in monitor["spec"]["podMetricsEndpoints"]] == ["http"]
    for other in [*checks.of(rendered, "PodDisruptionBudget"), named(rendered, "NetworkPolicy")]:
        selector = other["spec"].get("selector") or other["spec"]["podSelector"]
        assert checks.selects(selector["matchLabels"], labels)


@pytest.mark.parametrize("folder", MONITORS)
def test_only_prometheus_and_neighbours_may_ask_and_no_cloud_metadata_may_be_asked(
    manifests: Manifests, folder: str
) -> None:
    spec = named(manifests(folder), "NetworkPolicy")["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    (ingress,) = spec["ingress"]
    assert ingress["ports"] == [{"port": "http"}]
    assert [set(peer) for peer in ingress["from"]] == [{"podSelector"}, {"namespaceSelector", "podSelector"}]
    assert ingress["from"][1]["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "prometheus"}
    blocks = [peer["ipBlock"] for rule in spec["egress"] for peer in rule["to"] if "ipBlock" in peer]
    assert {"cidr": "169.254.20.10/32"} in blocks, "a cache of the DNS on the node"
    assert (len(blocks) > 1) is (folder.removeprefix("overlays/") in FOUND)
    for block in blocks:
        for metadata in map(ip_address, ("169.254.169.254", "fe80::a9fe:a9fe")):
            outside = metadata not in ip_network(block["cidr"])
            assert outside or any(metadata in ip_network(e) for e in block["except"])


@pytest.mark.parametrize("folder", MONITORS)
def test_several_pods_have_a_budget_and_are_spread_and_one_has_neither(manifests: Manifests, folder: str) -> None:
    rendered = manifests(folder)
    ((workload, pod),) = checks.pods(rendered)
    several = workload["spec"]["replicas"] > 1
    assert several is (folder == "overlays/fleet")
    assert bool(checks.of(rendered, "PodDisruptionBudget")) is several
    keys = [c["topologyKey"] for c in pod.get("topologySpreadConstraints", [])]
    assert keys == (["kubernetes.io/hostname", "topology.kubernetes.io/zone"] if several else [])
    # A budget of one replica would let no node be drained; two pods of one volume would not start.
    assert workload["kind"] == ("StatefulSet" if several else "Deployment")


def test_the_fleet_has_as_many_shards_as_pods_and_a_volume_for_each(manifests: Manifests) -> None:
    rendered = manifests("overlays/fleet")
    fleet = named(rendered, "StatefulSet")["spec"]
    ours = checks.accepted(fleet["template"]["spec"]["containers"][0]["args"])
    assert ours["command"] == "run"
    assert ours["total_shards"] == fleet["replicas"] == 3
    assert fleet["serviceName"] in [s["metadata"]["name"] for s in checks.of(rendered, "Service")]
    assert [claim["metadata"]["name"] for claim in fleet["volumeClaimTemplates"]] == ["store"]
    assert not checks.of(rendered, "PersistentVolumeClaim")
    assert "store" not in [volume["name"] for volume in fleet["template"]["spec"]["volumes"]]


@pytest.mark.parametrize("overlay", ["discovery", "fleet"])
def test_an_overlay_takes_rules_and_dashboards_as_components(
    kubectl: str, deploy: Path, tmp_path: Path, overlay: str
) -> None:
    """As the README says: listed before discovery, which puts all into the namespace."""
    shutil.copytree(deploy / "kustomize", tmp_path / "kustomize")
    file = tmp_path / "kustomize/overlays" / overlay / "kustomization.yaml"
    more = "components:\n  - ../../components/operator\n  - ../../components/dashboards\n"
    file.write_text(file.read_text().replace("components:\n", more))
    command = [kubectl, "kustomize", str(file.parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    rendered = list(yaml.safe_load_all(done.stdout))
    assert {"PodMonitor", "PrometheusRule"} <= {m["kind"] for m in rendered}
    assert {m["metadata"]["namespace"] for m in rendered} == {"monitoring", "serving"}
    ((workload, _),) = checks.pods(rendered)
    assert "annotations" not in workload["spec"]["template"]["metadata"]


def test_the_sidecar_can_see_gpus_without_taking_one(kubectl: str, deploy: Path, tmp_path: Path) -> None:
    shutil.copytree(deploy / "kustomize/overlays/sidecar", tmp_path / "sidecar")
    file = tmp_path / "sidecar/kustomization.yaml"
    assert "  # - path: nvml.yaml" in file.read_text()
    file.write_text(file.read_text().replace("  # - path: nvml.yaml", "  - path: nvml.yaml"))
    done = subprocess.run(
        [kubectl, "kustomize", str(file.parent)], capture_output=True, text=True, timeout=60, check=True
    )
    rendered = list(yaml.safe_load_all(done.stdout))
    for manifest in rendered:
        checks.check(manifest)
    pod = pod_of(rendered)
    (mine,) = (c for c in pod["initContainers"] if c["name"] == "kneewatch")
    assert {e["name"]: e["value"] for e in mine["env"]}["NVIDIA_DRIVER_CAPABILITIES"] == "utility"
    assert "nvidia.com/gpu" not in mine["resources"]["limits"]
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 1
    config = (tmp_path / "sidecar/kneewatch.yml").read_text().replace("# gpu: {nvml: true}", "gpu: {nvml: true}")
    assert checks.load(config, tmp_path).servers[0].gpu.nvml


def test_the_operators_prometheus_finds_the_sidecar(kubectl: str, deploy: Path, tmp_path: Path) -> None:
    shutil.copytree(deploy / "kustomize/overlays/sidecar", tmp_path / "sidecar")
    file = tmp_path / "sidecar/kustomization.yaml"
    assert "  # - podmonitor.yaml" in file.read_text()
    file.write_text(file.read_text().replace("  # - podmonitor.yaml", "  - podmonitor.yaml"))
    command = [kubectl, "kustomize", str(file.parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    rendered = list(yaml.safe_load_all(done.stdout))
    (monitor,) = checks.of(rendered, "PodMonitor")
    checks.check(monitor)
    assert checks.selects(monitor["spec"]["selector"]["matchLabels"], labels_of(rendered))
    (mine,) = (c for c in pod_of(rendered)["initContainers"] if c["name"] == "kneewatch")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["path"]) == (mine["ports"][0]["name"], "/metrics")
    # No other container of the pod has a port of that name.
    named_so = [c["name"] for c in checks.containers(pod_of(rendered)) for p in c["ports"] if p["name"] == "kneewatch"]
    assert named_so == ["kneewatch"]


def test_the_number_of_shards_follows_the_replicas(kubectl: str, deploy: Path, tmp_path: Path) -> None:
    shutil.copytree(deploy / "kustomize", tmp_path / "kustomize")
    file = tmp_path / "kustomize/overlays/fleet/statefulset.yaml"
    file.write_text(file.read_text().replace("path: /spec/replicas, value: 3", "path: /spec/replicas, value: 12"))
    command = [kubectl, "kustomize", str(file.parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    fleet = named(list(yaml.safe_load_all(done.stdout)), "StatefulSet")["spec"]
    assert fleet["replicas"] == 12
    assert checks.accepted(fleet["template"]["spec"]["containers"][0]["args"])["total_shards"] == 12


def test_the_fleets_pod_is_the_bases_but_for_what_a_fleet_adds(manifests: Manifests) -> None:
    fleet, base = pod_of(manifests("overlays/fleet")), pod_of(manifests("base"))
    for pod in (fleet, base):
        for key in ("volumes", "topologySpreadConstraints", "automountServiceAccountToken"):
            pod.pop(key, None)
        del pod["containers"][0]["args"]
    assert fleet == base


def test_a_run_is_asked_for_once_and_ends_before_its_deadline(manifests: Manifests, tmp_path: Path) -> None:
    rendered = manifests("overlays/job")
    job = named(rendered, "Job", "kneewatch-ramp")["spec"]
    (target,) = checks.configuration(rendered, tmp_path).targets
    asked = checks.accepted(job["template"]["spec"]["containers"][0]["args"])
    assert (asked["command"], asked["target"], str(asked["out"])) == ("ramp", target.name, "/results/result.json")
    assert str(asked["html_file"]) == "/results/report.html"
    assert job["backoffLimit"] == 0
    assert job["template"]["spec"]["restartPolicy"] == "Never"
    assert job["activeDeadlineSeconds"] > target.capacity.budget.seconds + 60
    (mount,) = (m for m in job["template"]["spec"]["containers"][0]["volumeMounts"] if m["mountPath"] == "/results")
    volumes = {v["name"]: v for v in job["template"]["spec"]["volumes"]}
    (claim,) = manifests(RESULTS)
    assert volumes[mount["name"]]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]


@pytest.mark.parametrize("folder", JOBS)
def test_deleting_a_job_leaves_its_results(manifests: Manifests, folder: str) -> None:
    assert not checks.of(manifests(folder), "PersistentVolumeClaim")
    assert {m["kind"] for m in manifests(RESULTS)} == {"PersistentVolumeClaim"}


@pytest.mark.parametrize("folder", JOBS)
def test_a_jobs_pod_is_no_part_of_the_monitors_service(manifests: Manifests, folder: str) -> None:
    (service,) = checks.of(manifests("base"), "Service")
    assert not checks.selects(service["spec"]["selector"], labels_of(manifests(folder)))


def test_both_jobs_send_alike_and_leave_their_results_together(manifests: Manifests, tmp_path: Path) -> None:
    """So that `kneewatch compare` compares the same requests."""
    bench, job = manifests("overlays/bench"), manifests("overlays/job")
    claims = [
        {v["persistentVolumeClaim"]["claimName"] for v in pod_of(m)["volumes"] if "persistentVolumeClaim" in v}
        for m in (bench, job)
    ]
    assert claims[0] == claims[1] == {"kneewatch-results"}
    config = checks.configuration(job, tmp_path)
    workload = config.workload(config.targets[0].capacity.workload or "")
    arguments = pod_of(bench)["containers"][0]["args"]
    given = dict(a.removeprefix("--").split("=", 1) for a in arguments if "=" in a)
    assert (int(given["random-input-len"]), int(given["random-output-len"])) == (
        workload.prompt_tokens,
        workload.output_tokens,
    )
    assert given["base-url"] == config.servers[0].base_url
    assert given["result-dir"] == "/results"


def test_the_reader_of_results_is_confined_and_mounts_their_volume(manifests: Manifests, deploy: Path) -> None:
    reader = yaml.safe_load((deploy / "kustomize/overlays/job/reader.yaml").read_text())
    checks.check(reader)
    assert checks.loose(reader["spec"]) == []
    (claim,) = (volume["persistentVolumeClaim"]["claimName"] for volume in reader["spec"]["volumes"])
    assert named(manifests(RESULTS), "PersistentVolumeClaim", claim)
    assert reader["spec"]["containers"][0]["image"] == f"kneewatch:{__version__}"


def test_a_changed_configuration_replaces_no_pod(manifests: Manifests) -> None:
    """Kneewatch takes it as it is; in a sidecar, vLLM would be restarted with it."""
    for folder in [*MONITORS, "overlays/sidecar"]:
        rendered = manifests(folder)
        pod = pod_of(rendered)
        (mounted,) = (volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume)
        assert mounted == ("kneewatch-sidecar" if folder == "overlays/sidecar" else "kneewatch"), (
            "no digest of its content"
        )
        # A file that is mounted by subPath is never changed.
        assert not any("subPath" in mount for c in checks.containers(pod) for mount in c.get("volumeMounts", []))


def test_the_operators_rules_are_the_generated_ones(manifests: Manifests, deploy: Path) -> None:
    rendered = manifests("overlays/prometheus-operator")
    (text,) = rules_of(manifest=Manifest()).values()
    assert (deploy / "kustomize/components/operator/kneewatch.prometheusrule.yml").read_text() == text
    monitor = named(rendered, "PodMonitor")
    for generated in yaml.safe_load_all(text):
        rule = named(rendered, "PrometheusRule", generated["metadata"]["name"])
        assert rule["spec"] == generated["spec"]
        assert rule["metadata"]["labels"]["release"] == monitor["metadata"]["labels"]["release"]
    # Scraped once: not by annotations as well.
    assert "annotations" not in named(rendered, "Deployment")["spec"]["template"]["metadata"]


def test_one_label_is_changed_in_one_place_for_rules_and_monitor(kubectl: str, deploy: Path, tmp_path: Path) -> None:
    shutil.copytree(deploy / "kustomize", tmp_path / "kustomize")
    file = tmp_path / "kustomize/components/operator/kustomization.yaml"
    assert file.read_text().count("{release: kube-prometheus-stack}") == 1
    file.write_text(file.read_text().replace("{release: kube-prometheus-stack}", "{prometheus: main}"))
    command = [kubectl, "kustomize", str(tmp_path / "kustomize/overlays/prometheus-operator")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    rendered = list(yaml.safe_load_all(done.stdout))
    asked = [m["metadata"]["labels"].get("prometheus") for kind in OPERATORS for m in checks.of(rendered, kind)]
    assert asked == ["main"] * 3
    assert "kube-prometheus-stack" not in done.stdout


def test_the_rules_can_wait_until_there_are_series(manifests: Manifests) -> None:
    """By the selector of the README, which leaves out nothing else."""
    rendered = manifests("overlays/prometheus-operator")
    later = [m["kind"] for m in rendered if m["metadata"].get("labels", {}).get("role") == "alert-rules"]
    assert later == ["PrometheusRule"] * 2
    assert "--selector 'role!=alert-rules'" in (ROOT / "deploy/README.md").read_text()


def test_the_dashboards_are_those_of_the_base(manifests: Manifests, deploy: Path) -> None:
    rendered = checks.of(manifests("overlays/prometheus-operator"), "ConfigMap")
    maps = {m["metadata"]["name"]: m for m in rendered if "grafana_dashboard" in m["metadata"].get("labels", {})}
    wanted = dashboards_of(load_config(deploy / "kustomize/base/kneewatch.yml"))
    assert {f"{name}.json" for name in maps} == wanted.keys()
    for name, found in maps.items():
        assert found["data"] == yaml.safe_load(config_map(name, wanted[f"{name}.json"]))["data"]


@pytest.mark.parametrize(
    ("name", "labels", "port"),
    [
        # helm/templates/deployment-vllm-multi.yaml of vllm-project/production-stack
        ("production-stack", {"model": "llama-8b", "helm-release-name": "vllm", "environment": "test"}, 8000),
        # pkg/constants/constants.go of kserve/kserve
        ("kserve", {"serving.kserve.io/inferenceservice": "llama-8b", "component": "predictor"}, 8080),
        ("litellm", {"app.kubernetes.io/name": "vllm", "app.kubernetes.io/instance": "llama-8b"}, 8000),
        ("gateway", {"app.kubernetes.io/name": "vllm", "app.kubernetes.io/instance": "llama-8b"}, 8000),
        # docs/environment/kubernetes.md of vllm-project/router
        ("vllm-router", {"app": "vllm-worker", "role": "inference"}, 8000),
        # ray-operator/controllers/ray/utils/constant.go of ray-project/kuberay
        (
            "ray-serve",
            {"ray.io/cluster": "llama-8b-x1", "ray.io/node-type": "worker", "ray.io/group": "llama-8b"},
            8080,
        ),
    ],
)
def test_the_selectors_mean_pods_as_those_projects_make_them(
    manifests: Manifests, tmp_path: Path, name: str, labels: dict[str, str], port: int
) -> None:
    config = checks.configuration(manifests(f"overlays/{name}"), tmp_path)
    discovers = [*(t.discover for t in config.templates), *(t.metrics_discovery for t in config.servers)]
    found = [each.kubernetes for each in discovers if each is not None]
    assert found
    for kubernetes in found:
        assert kubernetes is not None
        asked = dict(requirement.split("=") for requirement in (kubernetes.selector or "").split(","))
        assert checks.selects(asked, labels)
        assert kubernetes.port == port


@pytest.mark.parametrize("name", ["gateway", "litellm", "production-stack", "vllm-router"])
def test_no_load_goes_through_a_gateway(manifests: Manifests, tmp_path: Path, name: str) -> None:
    (gateway,) = checks.configuration(manifests(f"overlays/{name}"), tmp_path).servers
    assert gateway.capacity.mode != "verify"


@pytest.mark.parametrize(
    ("name", "system"),
    [
        ("gateway", "Envoy (two servers, both pages)"),
        ("llama-cpp", "llama.cpp"),
        ("production-stack", "production stack's router (two servers, both pages)"),
        ("ray-serve", "Ray Serve"),
        ("transformers", "Hugging Face `transformers serve`"),
        ("vllm-router", "vllm-router (two servers, both pages)"),
    ],
)
def test_an_overlay_asks_of_a_system_what_works_with_it(
    manifests: Manifests, tmp_path: Path, name: str, system: str
) -> None:
    record = json.loads(max((ROOT / "benchmarks/results").glob("systems-*.json")).read_text())
    (row,) = (row for row in record["rows"] if row["system"] == system)
    (target,) = checks.configuration(manifests(f"overlays/{name}"), tmp_path).servers
    assert (target.capacity.mode == "forecast") is row["forecast"]["works"]
    assert (target.capacity.guard == "stream") is (row["load"]["words"] == "by the stream alone")
