"""The chart in vLLM's pod: as a dependency of the chart that makes the pod, and as a patch for one that is there."""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import checks
import helm_python
import pytest
import yaml
from chart_values import FOUND, LOCAL, SHAPES, Values, alike, rendered

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy/kustomize/sidecar"
Manifests = Callable[[str], list[dict[str, Any]]]
Manifest = dict[str, Any]
# The chart's README's own lines: the dependency, and what vLLM's template includes.
PAGE = (ROOT / "deploy/helm/kneewatch/README.md").read_text()
(DEPENDENCY,) = re.findall(r"```yaml\n(dependencies:\n.*?)```", PAGE, flags=re.DOTALL)
(TEMPLATE,) = re.findall(r"```yaml\n(  template:\n.*?)```", PAGE, flags=re.DOTALL)
# The kustomization's ConfigMap has another name.
SIDECAR: Values = {"sidecar": {"enabled": True, "deployment": "llama-8b"}, "existingConfigMap": "kneewatch-sidecar"}


def included(key: str) -> str:
    """Return the page's line that includes what goes below this key."""
    (line,) = (line for line in TEMPLATE.splitlines() if f'"kneewatch.sidecar.{key}"' in line)
    return f"{line}\n"


def vllm_template() -> str:
    """Return the example server as the template of a chart that includes Kneewatch as the page shows."""
    text = (FOLDER / "vllm.yaml").read_text()
    for before, key in (
        (
            "      labels: {app.kubernetes.io/name: vllm, app.kubernetes.io/instance: llama-8b}\n    spec:\n",
            "annotations",
        ),
        ("      containers:\n", "initContainers"),
    ):
        assert text.count(before) == 1
        first, *rest = before.splitlines(keepends=True)
        new = first + included(key) + "".join(rest) if rest else included(key) + first
        text = text.replace(before, new)
    return text.replace("      volumes:\n", "      volumes:\n" + included("volumes"))


@pytest.fixture(scope="module")
def parent_folder(tmp_path_factory: pytest.TempPathFactory, chart_folder: Path) -> Path:
    """Create a vLLM chart that depends on Kneewatch, packed into charts/ as Helm does."""
    folder = tmp_path_factory.mktemp("parent") / "vllm"
    (folder / "templates").mkdir(parents=True)
    (repository,) = re.findall(r"repository: (\S+)", DEPENDENCY)
    about = DEPENDENCY.replace(repository, f"file://{chart_folder}")
    head = "apiVersion: v2\nname: vllm\nversion: 1.0.0\nicon: https://example.com/vllm.png\n"
    (folder / "Chart.yaml").write_text(head + about)
    (folder / "values.yaml").write_text("kneewatch: {enabled: false}\n")
    (folder / "templates/vllm.yaml").write_text(vllm_template())
    helm_python.dependency_update(folder)
    assert [file.suffix for file in (folder / "charts").iterdir()] == [".tgz"]
    return folder


@pytest.fixture(scope="module")
def parent(parent_folder: Path) -> Iterator[helm_python.Chart]:
    with helm_python.Chart.load(parent_folder) as loaded:
        yield loaded


def patch_of(chart: helm_python.Chart, values: Values) -> str:
    """Return the patch that the notes' own command extracts from them."""
    notes = chart.render(values, name="kneewatch", namespace="serving")["kneewatch/templates/NOTES.txt"]
    (expression,) = re.findall(r"get notes kneewatch \| sed -n '([^']+)' > sidecar.patch.yml", notes)
    done = subprocess.run(
        ["sed", "-n", expression], input=notes, capture_output=True, text=True, timeout=30, check=True
    )
    return done.stdout


def patched(kubectl: str, folder: Path, deployment: Manifest, patch: str) -> Manifest:
    """Apply the patch to the Deployment with kubectl."""
    (folder / "deployment.yml").write_text(yaml.safe_dump(deployment))
    (folder / "patch.yml").write_text(patch)
    files = ["-f", str(folder / "deployment.yml"), "--patch-file", str(folder / "patch.yml")]
    done = subprocess.run(
        [kubectl, "patch", "--local", *files, "-o", "yaml"], capture_output=True, text=True, timeout=60, check=True
    )
    found: Manifest = yaml.safe_load(done.stdout)
    return found


def server() -> Manifest:
    """Return the example's vLLM without Kneewatch."""
    found: Manifest = next(yaml.safe_load_all((FOLDER / "vllm.yaml").read_text()))
    return found


def deployment_of(manifests: list[Manifest]) -> Manifest:
    (found,) = alike(checks.of(manifests, "Deployment")).values()
    del found["metadata"]["namespace"]
    return found


def only_kneewatch(parent: helm_python.Chart, **values: Any) -> list[Manifest]:
    return rendered(parent, {"kneewatch": {"enabled": True, **values}})


@pytest.mark.kubectl
def test_a_parent_charts_deployment_is_the_kustomizations(parent: helm_python.Chart, manifests: Manifests) -> None:
    ours = deployment_of(only_kneewatch(parent, **SIDECAR))
    assert ours == deployment_of(manifests("sidecar"))


@pytest.mark.kubectl
def test_the_notes_patch_makes_the_kustomizations_deployment(
    chart: helm_python.Chart, manifests: Manifests, kubectl: str, tmp_path: Path
) -> None:
    ours = patched(kubectl, tmp_path, server(), patch_of(chart, SIDECAR))
    assert deployment_of([ours]) == deployment_of(manifests("sidecar"))
    # Applied again, it changes nothing.
    assert patched(kubectl, tmp_path, ours, patch_of(chart, SIDECAR)) == ours


@pytest.mark.kubectl
def test_the_pages_command_takes_it_out_again(chart: helm_python.Chart, kubectl: str, tmp_path: Path) -> None:
    (removal,) = re.findall(r"cat > away\.patch\.yml <<'END'\n(.*?)END\n", PAGE, flags=re.DOTALL)
    values = {**SIDECAR, "keys": {"secretName": "keys"}}  # and none for the pages
    left = patched(kubectl, tmp_path, patched(kubectl, tmp_path, server(), patch_of(chart, values)), removal)
    template = left["spec"]["template"]
    assert not template["spec"].pop("initContainers")
    assert not template["metadata"].pop("annotations")
    assert template == server()["spec"]["template"]


@pytest.mark.kubectl
def test_with_nvml_it_is_the_kustomizations_with_that_patch(
    chart: helm_python.Chart, parent: helm_python.Chart, kubectl: str, manifests: Manifests, tmp_path: Path
) -> None:
    theirs = deployment_of(
        [patched(kubectl, tmp_path, deployment_of(manifests("sidecar")), (FOLDER / "nvml.yaml").read_text())]
    )
    gpus = {**SIDECAR, "sidecar": {**SIDECAR["sidecar"], "nvml": True}}
    assert deployment_of([patched(kubectl, tmp_path, server(), patch_of(chart, gpus))]) == theirs
    # In a parent chart the class is the pod's, and so the parent's own line.
    del theirs["spec"]["template"]["spec"]["runtimeClassName"]
    assert deployment_of(only_kneewatch(parent, **gpus)) == theirs


def test_nvml_follows_the_configuration(parent: helm_python.Chart) -> None:
    for gpu, sees in (({"nvml": True}, True), ({"dcgm_urls": ["http://127.0.0.1:9400/metrics"]}, False)):
        found = only_kneewatch(parent, sidecar={"enabled": True}, config={"targets": [{**LOCAL, "gpu": gpu}]})
        ((_, pod),) = checks.pods(found)
        names = {variable["name"] for variable in pod["initContainers"][0].get("env", [])}
        assert ("NVIDIA_VISIBLE_DEVICES" in names) is sees


FULL: Values = {
    **SHAPES["sidecar"],
    "keys": {"secretName": "keys"},
    "web": {"secretName": "web", "tls": True},
    "config": {**SHAPES["sidecar"]["config"], "web_config_file": "/etc/kneewatch-web/web.yml"},
    "extraEnv": [{"name": "A", "value": "b"}],
    "extraVolumes": [{"name": "targets", "configMap": {"name": "targets"}}],
    "extraVolumeMounts": [{"name": "targets", "mountPath": "/etc/kneewatch-targets"}],
    "imagePullSecrets": [{"name": "pull"}],
}


@pytest.mark.parametrize("values", [SIDECAR, FULL], ids=["least", "full"])
def test_kubernetes_accepts_it_and_the_sidecar_is_restricted(parent: helm_python.Chart, values: Values) -> None:
    found = only_kneewatch(parent, **values)
    for manifest in found:
        checks.check(manifest)
    ((_, pod),) = checks.pods(found)
    assert checks.loose(pod) == ["vllm: runAsNonRoot"], "the example's server is its own business"
    pod["containers"][0]["securityContext"]["runAsNonRoot"] = True
    assert checks.loose(pod) == []
    (mine,) = pod["initContainers"]
    assert mine["restartPolicy"] == "Always"
    assert not {"startupProbe", "readinessProbe", "livenessProbe"} & mine.keys(), "each would count for vLLM's pod"
    assert mine["securityContext"]["readOnlyRootFilesystem"] is True
    mounted = {mount["name"] for mount in mine["volumeMounts"]}
    assert mounted <= {volume["name"] for volume in pod["volumes"]}
    assert all("sizeLimit" in v["emptyDir"] for v in pod["volumes"] if v["name"] in mounted and "emptyDir" in v)


@pytest.mark.kubectl
def test_the_patch_has_all_that_the_values_ask_for(chart: helm_python.Chart, kubectl: str, tmp_path: Path) -> None:
    without = yaml.safe_load(patch_of(chart, FULL))
    assert "metadata" not in without["spec"]["template"], "beside a PodMonitor vLLM's annotations stay"
    ours = patched(kubectl, tmp_path, server(), patch_of(chart, {**FULL, "podMonitor": {"enabled": False}}))
    checks.check(ours)
    pod = ours["spec"]["template"]["spec"]
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    assert {"kneewatch-keys", "kneewatch-web", "targets", "cache", "shm"} <= {v["name"] for v in pod["volumes"]}
    assert ours["spec"]["template"]["metadata"]["annotations"]["prometheus.io/scheme"] == "https"
    assert pod["containers"] == server()["spec"]["template"]["spec"]["containers"], "vLLM stays as it was"


def test_everything_but_the_pod_is_there(chart: helm_python.Chart, tmp_path: Path) -> None:
    found = rendered(chart, {**SHAPES["sidecar"], "dashboards": {"enabled": True}})
    kinds = {manifest["kind"] for manifest in found}
    assert kinds == {"ConfigMap", "NetworkPolicy", "PodMonitor", "PrometheusRule"}
    maps = {m["metadata"]["name"]: m["data"] for m in checks.of(found, "ConfigMap")}
    assert checks.load(maps["kneewatch"]["kneewatch.yml"], tmp_path).servers[0].base_url == LOCAL["base_url"]
    assert "kneewatch-fleet" in maps
    (monitor,) = checks.of(found, "PodMonitor")
    assert monitor["spec"]["selector"]["matchLabels"] == {"app": "vllm"}
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["path"]) == ("kneewatch", "/metrics")


def test_no_policy_blocks_vllms_clients_or_opens_its_port(chart: helm_python.Chart) -> None:
    """A pod's first policy shuts out what it does not name: so there is none, unless vLLM's pods have one already."""
    first = {**SHAPES["sidecar"], "sidecar": {**SHAPES["sidecar"]["sidecar"], "isolated": False}}
    assert not checks.of(rendered(chart, first), "NetworkPolicy")
    (policy,) = checks.of(rendered(chart, SHAPES["sidecar"]), "NetworkPolicy")
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    assert policy["spec"]["podSelector"]["matchLabels"] == {"app": "vllm"}
    rules = policy["spec"]["ingress"]
    assert len(rules) == 2, "Prometheus, and extraIngress"
    assert all(rule["ports"] == [{"port": 9876, "protocol": "TCP"}] and rule["from"] for rule in rules)


def test_two_under_aliases_get_along(tmp_path: Path, chart_folder: Path) -> None:
    folder = tmp_path / "vllm"
    (folder / "templates").mkdir(parents=True)
    lines = "".join(
        f"  - {{name: kneewatch, alias: {name}, version: 0.x, repository: 'file://{chart_folder}'}}\n"
        for name in ("a", "b")
    )
    (folder / "Chart.yaml").write_text(f"apiVersion: v2\nname: vllm\nversion: 1.0.0\ndependencies:\n{lines}")
    template = "".join(
        f"---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: monitoring}}\nspec:\n"
        f'  initContainers: {{{{- include "kneewatch.sidecar.initContainers" .Subcharts.{name} | nindent 4 }}}}\n'
        f'  volumes: {{{{- include "kneewatch.sidecar.volumes" .Subcharts.{name} | nindent 4 }}}}\n'
        for name in ("a", "b")
    )
    (folder / "templates/pods.yaml").write_text(template)
    helm_python.dependency_update(folder)
    values = {"sidecar": {"enabled": True}, "config": {"targets": [LOCAL]}}
    with helm_python.Chart.load(folder) as loaded:
        found = rendered(loaded, {"a": values, "b": values}, "models")
    names = {m["metadata"]["name"] for m in checks.of(found, "ConfigMap")}
    assert names == {"models-a", "models-b"}
    # What selectors would ask for, were they pods of their own.
    assert {m["metadata"]["labels"]["app.kubernetes.io/instance"] for m in checks.of(found, "ConfigMap")} == names
    for pod in checks.of(found, "Pod"):
        (config,) = (v["configMap"]["name"] for v in pod["spec"]["volumes"] if "configMap" in v)
        assert config == f"models-{pod['metadata']['name']}"


def test_helm_finds_no_fault_with_the_parent_and_what_it_includes(parent_folder: Path) -> None:
    values = {"kneewatch": {"enabled": True, **FULL}}
    report = helm_python.lint(parent_folder, values, strict=True, namespace="serving")
    assert (report["messages"], report["errors"]) == ([], [])


def test_a_parent_that_turns_it_off_has_nothing_of_it(parent_folder: Path) -> None:
    with helm_python.Chart.load(parent_folder) as loaded:  # of its own: Helm takes the dependency out of what is loaded
        found = rendered(loaded, {"kneewatch": {"enabled": False}})
    assert {manifest["kind"] for manifest in found} == {"Deployment", "Service"}
    ((_, pod),) = checks.pods(found)
    assert not pod.get("initContainers")
    for manifest in found:
        checks.check(manifest)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "no target of config is in the pod"),
        ({"config": {"targets": [FOUND, LOCAL]}}, "a sidecar uses vLLM's service account"),
        ({"config": {"targets": [LOCAL], "lease": {}}}, "a sidecar uses vLLM's service account"),
        ({"existingConfigMap": "mine", "rbac": {"leases": True}}, "a sidecar uses vLLM's service account"),
        ({"config": {"targets": [LOCAL]}, "replicas": 2}, "replicas and shard do not apply"),
        ({"config": {"targets": [LOCAL]}, "podMonitor": {"enabled": True}}, "sidecar.podLabels"),
        ({"config": {"targets": [LOCAL]}, "web": {"tls": True}}, "the pages would be open"),
        (
            {"config": {"targets": [LOCAL]}, "ramp": {"enabled": True, "target": "llama-8b"}},
            "a Job in its own pod cannot reach",
        ),
    ],
)
def test_the_chart_refuses_values_that_cannot_work(chart: helm_python.Chart, values: Values, says: str) -> None:
    with pytest.raises(helm_python.HelmRenderError, match=says):
        rendered(chart, {"sidecar": {"enabled": True}, **values})


@pytest.mark.parametrize(
    ("address", "within"),
    [
        ("http://127.0.0.1:8000", True),
        ("https://localhost/v1", True),
        ("http://[::1]:8000", True),
        ("http://127.0.0.2", True),
        ("http://localhost.example:8000", False),
        ("http://127.example", False),
        ("http://llama-8b:8000", False),
    ],
)
def test_an_address_in_the_pod_is_known_by_what_it_is(chart: helm_python.Chart, *, address: str, within: bool) -> None:
    values: Values = {"sidecar": {"enabled": True}, "config": {"targets": [{"name": "a", "base_url": address}]}}
    with nullcontext() if within else pytest.raises(helm_python.HelmRenderError, match="no target of config is in"):
        assert rendered(chart, values)


def test_it_says_so_where_it_is_included_wrongly(tmp_path: Path, chart_folder: Path, parent: helm_python.Chart) -> None:
    with pytest.raises(helm_python.HelmRenderError, match=r"set sidecar\.enabled"):
        only_kneewatch(parent, config={"targets": [LOCAL]})
    folder = tmp_path / "vllm"
    (folder / "templates").mkdir(parents=True)
    (folder / "Chart.yaml").write_text(
        "apiVersion: v2\nname: vllm\nversion: 1.0.0\n"
        f"dependencies: [{{name: kneewatch, version: 0.x, repository: 'file://{chart_folder}'}}]\n"
    )
    (folder / "templates/pod.yaml").write_text('{{ include "kneewatch.sidecar.volumes" . }}')
    helm_python.dependency_update(folder)
    with helm_python.Chart.load(folder) as loaded, pytest.raises(helm_python.HelmRenderError, match="Kneewatch's own"):
        rendered(loaded, {"kneewatch": {"config": {"targets": [LOCAL]}}})


def test_kubernetes_before_native_sidecars_is_refused(chart_folder: Path, tmp_path: Path) -> None:
    """Only Helm's lint takes another version of Kubernetes, and lets `fail` pass: so its words are written out."""
    copy = tmp_path / "kneewatch"
    shutil.copytree(chart_folder, copy)
    checks = copy / "templates/checks.yaml"
    before = '{{- fail (printf "sidecar.enabled: native'
    assert checks.read_text().count(before) == 1
    checks.write_text(checks.read_text().replace(before, '{{- print (printf "sidecar.enabled: native'))
    for version, refused in (("1.28.9", True), ("1.29.0", False)):
        report = helm_python.lint(copy, SHAPES["sidecar"], strict=True, kube_version=version)
        assert (report["errors"] != []) is refused, version


def test_without_a_deployment_the_notes_have_no_patch(chart: helm_python.Chart) -> None:
    values = {"sidecar": {"enabled": True}, "config": {"targets": [LOCAL]}}
    notes = chart.render(values, name="kneewatch", namespace="serving")["kneewatch/templates/NOTES.txt"]
    assert "apiVersion" not in notes
    assert "set sidecar.deployment" in notes
