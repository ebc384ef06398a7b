"""What platform teams set in every chart: names, labels, registries, users, monitors' namespaces and relabelings."""

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import checks
import helm_python
import pytest
import yaml
from chart_values import LOCAL, MONITOR, Values, rendered

from benchmarks import release_files
from probe import __version__

ROOT = Path(__file__).parents[2]
USERS = {"runAsUser", "runAsGroup", "fsGroup"}
# All that has a name, a namespace or a label, in one release, and each beside the others.
ALL: Values = {
    "commonLabels": {"team": "ml", "app.kubernetes.io/component": "monitor", "app.kubernetes.io/instance": "other"},
    "replicas": 2,
    "shard": True,
    "serviceMonitor": MONITOR,
    "prometheusRule": {"enabled": True, "namespace": "prometheus"},
    "dashboards": {"enabled": True, "namespace": "grafana"},
    "ramp": {"enabled": True, "target": "llama-8b"},
    "config": {"lease": {}},
    "image": {"registry": "registry.example:5000", "repository": "team/kneewatch"},
    "extraArgs": ["--shard=1"],
    "revisionHistoryLimit": 2,
}


def pod_of(found: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the monitor's workload and the spec of its pods."""
    ((workload, pod),) = ((one, pod) for one, pod in checks.pods(found) if one["kind"] != "Job")
    return workload, pod


@pytest.fixture(scope="module")
def everything(chart: helm_python.Chart) -> list[dict[str, Any]]:
    return rendered(chart, ALL)


@pytest.mark.fault(
    "KU80",
    "The chart is installed as it is, with no server named",
    users_see='`helm install` ends with "config.targets: none"',
    stays="no server that nobody named is watched, and nobody is paged for it",
    area="Kubernetes",
)
def test_without_targets_it_refuses_and_watches_no_server_of_its_own(chart: helm_python.Chart) -> None:
    for values in ({}, {"config": {"targets": None}}, {"podMonitor": {"enabled": True}}):
        with pytest.raises(helm_python.HelmRenderError, match=r"config\.targets: none, .*list your servers"):
            chart.render(values, name="kneewatch", namespace="monitoring")
    # A Job that gets its server otherwise needs none.
    bench = {
        "enabled": True,
        "baseUrl": "http://a",
        "promptTokens": 1,
        "outputTokens": 1,
        "model": "m",
        "tokenizer": "m",
    }
    assert chart.render({"monitor": {"enabled": False}, "bench": bench}, name="kneewatch", namespace="monitoring")


def test_every_object_and_pod_has_the_common_labels_and_keeps_its_own(everything: list[dict[str, Any]]) -> None:
    for manifest in everything:
        assert manifest["metadata"]["labels"]["team"] == "ml", manifest["kind"]
        assert manifest["metadata"]["labels"]["app.kubernetes.io/instance"] == "kneewatch"
    for workload, _ in checks.pods(everything):
        assert workload["spec"]["template"]["metadata"]["labels"]["team"] == "ml"
    fleet = checks.named(everything, "StatefulSet")["spec"]
    assert "team" not in fleet["selector"]["matchLabels"], "a selector cannot be changed"
    assert fleet["volumeClaimTemplates"][0]["metadata"] == {"name": "store"}, "nor can these be"
    (monitor,) = checks.of(everything, "ServiceMonitor")
    chosen = [
        service["metadata"]["name"]
        for service in checks.of(everything, "Service")
        if checks.selects(monitor["spec"]["selector"]["matchLabels"], service["metadata"]["labels"])
    ]
    assert chosen == ["kneewatch"], "the Service of the pods' names would be scraped too"


def test_monitors_rules_and_dashboards_go_where_their_readers_look(everything: list[dict[str, Any]]) -> None:
    (monitor,) = checks.of(everything, "ServiceMonitor")
    assert monitor["metadata"]["namespace"] == "prometheus"
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["monitoring"]}
    (endpoint,) = monitor["spec"]["endpoints"]
    asked = {key: value for key, value in MONITOR.items() if key not in {"enabled", "namespace"}}
    assert endpoint.items() >= asked.items()
    assert {rule["metadata"]["namespace"] for rule in checks.of(everything, "PrometheusRule")} == {"prometheus"}
    maps = {m["metadata"]["name"]: m["metadata"]["namespace"] for m in checks.of(everything, "ConfigMap")}
    assert (maps["kneewatch"], maps["kneewatch-fleet"]) == ("monitoring", "grafana")


def test_image_arguments_and_revisions_are_those_asked_for(everything: list[dict[str, Any]]) -> None:
    workload, pod = pod_of(everything)
    assert workload["spec"]["revisionHistoryLimit"] == 2
    images = {c["image"] for _, each in checks.pods(everything) for c in each["containers"]}
    assert images == {f"registry.example:5000/team/kneewatch:{__version__}"}
    assert checks.accepted(pod["containers"][0]["args"])["shard"] == 1


def test_a_parents_registry_and_pull_secrets_are_this_charts_too(chart: helm_python.Chart) -> None:
    mirror = {"imageRegistry": "mirror.example", "imagePullSecrets": [{"name": "pull"}]}
    values = {"global": mirror, "image": {"registry": "other.example"}, "imagePullSecrets": [{"name": "pull"}]}
    _, pod = pod_of(rendered(chart, values))
    assert pod["containers"][0]["image"] == f"mirror.example/kneewatch:{__version__}"
    assert pod["imagePullSecrets"] == [{"name": "pull"}]


def test_scrapes_are_not_doubled_nor_longer_than_their_interval(chart: helm_python.Chart) -> None:
    for monitor in ("podMonitor", "serviceMonitor"):
        workload, _ = pod_of(rendered(chart, {monitor: {"enabled": True}}))
        assert "annotations" not in workload["spec"]["template"]["metadata"]
        with pytest.raises(helm_python.HelmRenderError, match=rf"{monitor}\.scrapeTimeout: 1m is longer than"):
            rendered(chart, {monitor: {"enabled": True, "scrapeTimeout": "1m"}})
        (found,) = (
            one
            for one in rendered(chart, {monitor: {"enabled": True, "scrapeTimeout": "30000ms"}})
            if one["kind"].lower() == monitor.lower()
        )
        assert "namespaceSelector" not in found["spec"]


@pytest.mark.parametrize(
    ("values", "release", "name", "label"),
    [
        ({"nameOverride": "watch"}, "llm", "llm-watch", "watch"),
        ({"nameOverride": "watch"}, "watch", "watch", "watch"),
        ({"fullnameOverride": "kw"}, "llm", "kw", "kneewatch"),
        ({"fullnameOverride": "kw", "nameOverride": "7"}, "llm", "kw", "7"),
    ],
)
def test_names_are_those_asked_for(
    chart: helm_python.Chart, values: Values, release: str, name: str, label: str
) -> None:
    values = {**values, "replicas": 2, "config": {"lease": {}}, "dashboards": {"enabled": True}}
    found = rendered(chart, values, release)
    names = {manifest["metadata"]["name"] for manifest in found}
    assert name in names
    assert {one for one in names if one != name and not one.startswith(f"{name}-")} == set()
    workload, pod = pod_of(found)
    assert workload["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"] == label
    assert {s["name"] for s in checks.of(found, "RoleBinding")[0]["subjects"]} == {pod["serviceAccountName"]} == {name}
    for service in checks.of(found, "Service"):
        assert checks.selects(service["spec"]["selector"], workload["spec"]["template"]["metadata"]["labels"])


def test_a_name_too_long_for_its_endings_is_refused_and_not_cut(chart: helm_python.Chart) -> None:
    rendered(chart, {"fullnameOverride": "a" * 50})
    with pytest.raises(helm_python.HelmValuesError, match="fullnameOverride"):
        rendered(chart, {"fullnameOverride": "a" * 51})


@pytest.mark.fault(
    "KU81",
    "OpenShift: its constraints refuse user 65532, and its DNS listens at port 5353 of pods with other labels",
    users_see="with `openshift: true` the namespace's range gives user and groups; the NetworkPolicy allows its DNS",
    stays="pods start, confined as before",
    area="Kubernetes",
)
def test_openshift_chooses_the_user_and_its_dns_is_reached(chart: helm_python.Chart) -> None:
    found = rendered(chart, {"openshift": True, "ramp": {"enabled": True, "target": "llama-8b"}})
    for _, pod in checks.pods(found):
        assert not USERS & pod["securityContext"].keys()
        assert checks.loose(pod) == []
    for policy in checks.of(found, "NetworkPolicy"):
        (dns,) = (rule for rule in policy["spec"]["egress"] if {"port": 5353, "protocol": "UDP"} in rule["ports"])
        (peer,) = dns["to"]
        assert peer == {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "openshift-dns"}}}
    notes = chart.render(
        {"openshift": True, "sidecar": {"enabled": True, "deployment": "d"}, "config": {"targets": [LOCAL]}},
        name="kneewatch",
        namespace="serving",
    )["kneewatch/templates/NOTES.txt"]
    assert "runAsNonRoot: true" in notes
    assert not any(user in notes for user in USERS)


def test_security_contexts_are_changed_key_by_key(chart: helm_python.Chart) -> None:
    values = {"podSecurityContext": {"runAsUser": 1234, "fsGroup": None}, "securityContext": {"capabilities": None}}
    _, pod = pod_of(rendered(chart, values))
    assert pod["securityContext"]["runAsUser"] == 1234
    assert pod["securityContext"]["runAsGroup"] == 65532
    assert "fsGroup" not in pod["securityContext"]
    assert pod["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
    }


@pytest.mark.fault(
    "KU82",
    "An upgrade to a new version of the chart, with the same image and values",
    users_see="new labels of the objects",
    stays="the pods, whose labels name no version",
    area="Kubernetes",
)
def test_a_new_version_of_the_chart_alone_replaces_no_pod(chart_folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "kneewatch"
    shutil.copytree(chart_folder, copy)
    about = copy / "Chart.yaml"
    about.write_text(about.read_text().replace(f"\nversion: {__version__}", "\nversion: 9.9.9"))
    with helm_python.Chart.load(chart_folder) as old, helm_python.Chart.load(copy) as new:
        before, after = (rendered(each, {"podMonitor": {"enabled": True}}) for each in (old, new))
    assert before != after
    (old_workload, _), (new_workload, _) = pod_of(before), pod_of(after)
    assert old_workload["spec"] == new_workload["spec"]


def test_a_release_names_the_image_that_its_workflow_pushes(tmp_path: Path) -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    image = "ghcr.io/${GITHUB_REPOSITORY,,}"
    assert f'--tag "{image}:$version" --push' in workflow["image"]["steps"][-1]["run"]
    made = [step["run"] for job in ("chart", "github") for step in workflow[job]["steps"] if "make dist" in str(step)]
    assert len(made) == 2
    assert all(f'IMAGE="{image}"' in run for run in made)

    release_files.write(tmp_path, __version__, "ghcr.io/kneewatch/kneewatch")
    with helm_python.Chart.load(tmp_path / f"kneewatch-{__version__}.tgz") as chart:
        _, pod = pod_of(rendered(chart, {}))
        assert pod["containers"][0]["image"] == f"ghcr.io/kneewatch/kneewatch:{__version__}"
        _, pod = pod_of(rendered(chart, {"image": {"registry": "mirror.example"}}))
        assert pod["containers"][0]["image"] == f"mirror.example/kneewatch/kneewatch:{__version__}"
    with tarfile.open(tmp_path / f"kneewatch-{__version__}.tgz") as packed:
        page = packed.extractfile("kneewatch/README.md")
        assert page is not None
        assert f"| `image.registry` | text | `{json.dumps('ghcr.io')}` |" in page.read().decode()
    with tarfile.open(tmp_path / f"kneewatch-kustomize-{__version__}.tar.gz") as packed:
        for name in ("base", "sidecar"):
            file = packed.extractfile(f"deploy/kustomize/{name}/kustomization.yaml")
            assert file is not None
            (named,) = yaml.safe_load(file.read())["images"]
            assert named == {"name": "kneewatch", "newName": "ghcr.io/kneewatch/kneewatch", "newTag": __version__}
        assert packed.getmember("dashboards/generated/kneewatch-fleet.json").isfile()
