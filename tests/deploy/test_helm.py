"""The chart, by Helm itself, in each of its shapes: linted, accepted by Kubernetes and the operator, and confined."""

import json
import re
import tarfile
from collections.abc import Callable
from ipaddress import ip_address, ip_network
from pathlib import Path

import checks
import helm_python
import pytest
import yaml
from chart_values import FOUND, SHAPES, WEB, Values, rendered

from alerts.build import render as rules_of
from probe import __version__

Manifests = Callable[[str], list[checks.Manifest]]

# Those with a monitor in its own pod, and a NetworkPolicy for it.
MONITORS = [name for name in SHAPES if "alone" not in name and name not in {"sidecar", "bare"}]


@pytest.mark.parametrize("shape", SHAPES)
def test_helm_finds_nothing_to_say(chart_folder: Path, shape: str) -> None:
    report = helm_python.lint(chart_folder, SHAPES[shape], strict=True, namespace="monitoring")
    assert report == {"total_charts_linted": 1, "messages": [], "errors": []}


def test_the_icon_is_a_picture_that_is_there(chart_folder: Path, deploy: Path) -> None:
    icon = yaml.safe_load((chart_folder / "Chart.yaml").read_text())["icon"]
    assert (deploy.parent / icon.partition("/main/")[2]).is_file()


def test_helm_would_have_something_to_say(chart_folder: Path) -> None:
    report = helm_python.lint(chart_folder, {"replicas": 0}, strict=True)
    assert any("replicas" in message["error"] for message in report["messages"])


@pytest.mark.parametrize("shape", SHAPES)
def test_kubernetes_accepts_every_resource(shaped: Manifests, shape: str) -> None:
    found = shaped(shape)
    for manifest in found:
        assert "namespace" in manifest["metadata"]
        if not checks.is_of_the_operator(manifest):
            checks.check(manifest)
    assert len({(m["kind"], m["metadata"]["namespace"], m["metadata"]["name"]) for m in found}) == len(found)


def test_the_operator_accepts_every_resource(shaped: Manifests) -> None:
    """In one test, since the operator's types take seconds to import."""
    theirs = [manifest for shape in SHAPES for manifest in shaped(shape) if checks.is_of_the_operator(manifest)]
    assert {manifest["kind"] for manifest in theirs} == {"PodMonitor", "ServiceMonitor", "PrometheusRule"}
    for manifest in theirs:
        checks.check(manifest)
    monitor = next(manifest for manifest in theirs if manifest["kind"] == "PodMonitor")
    monitor["spec"]["podMetricsEndpointss"] = []
    with pytest.raises(AssertionError):
        checks.check(monitor)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_pod_keeps_the_restricted_standard(shaped: Manifests, shape: str) -> None:
    for _, pod in checks.pods(shaped(shape)):
        assert checks.loose(pod) == []
        assert all(c["securityContext"]["readOnlyRootFilesystem"] for c in checks.containers(pod))
        assert all("sizeLimit" in v["emptyDir"] for v in pod["volumes"] if "emptyDir" in v)
        # A file that is mounted by subPath never changes.
        assert not any("subPath" in mount for c in checks.containers(pod) for mount in c["volumeMounts"])


def test_a_loose_pod_would_have_been_noticed(chart: helm_python.Chart) -> None:
    ((_, pod),) = checks.pods(rendered(chart, {}))
    pod["hostNetwork"] = True
    del pod["securityContext"]["seccompProfile"]
    pod["containers"][0]["securityContext"]["capabilities"] = {"drop": ["NET_RAW"]}
    assert checks.loose(pod) == ["hostNetwork", "kneewatch: seccompProfile", "kneewatch: capabilities"]


@pytest.mark.parametrize("shape", SHAPES)
def test_there_is_no_secret_in_a_manifest(shaped: Manifests, shape: str) -> None:
    found = shaped(shape)
    assert not checks.of(found, "Secret")
    for _, pod in checks.pods(found):
        given = [e for c in checks.containers(pod) for e in c.get("env", []) if re.search("KEY|TOKEN|PASS", e["name"])]
        assert all("value" not in e and "secretKeyRef" in e["valueFrom"] for e in given)


@pytest.mark.parametrize("shape", MONITORS)
def test_services_monitors_budgets_and_policies_mean_the_pod_and_its_port(shaped: Manifests, shape: str) -> None:
    found = shaped(shape)
    ((workload, pod),) = ((one, pod) for one, pod in checks.pods(found) if one["kind"] != "Job")
    labels = workload["spec"]["template"]["metadata"]["labels"]
    assert pod["containers"][0]["ports"] == [{"name": "http", "containerPort": 9876}]
    for service in checks.of(found, "Service"):
        assert checks.selects(service["spec"]["selector"], labels)
        assert {p["targetPort"] for p in service["spec"]["ports"]} == {"http"}
    for monitor in checks.of(found, "PodMonitor"):
        assert checks.selects(monitor["spec"]["selector"]["matchLabels"], labels)
        assert [e["port"] for e in monitor["spec"]["podMetricsEndpoints"]] == ["http"]
    for other in [*checks.of(found, "PodDisruptionBudget"), checks.named(found, "NetworkPolicy")]:
        selector = other["spec"].get("selector") or other["spec"]["podSelector"]
        assert checks.selects(selector["matchLabels"], labels)


@pytest.mark.parametrize("shape", [shape for shape in MONITORS if shape not in {"ingress", "placed"}])
def test_only_prometheus_and_neighbours_may_ask_and_no_cloud_metadata_may_be_asked(
    shaped: Manifests, shape: str
) -> None:
    """But for what extraIngress and extraEgress of two shapes add."""
    found = shaped(shape)
    spec = checks.named(found, "NetworkPolicy")["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    (ingress,) = spec["ingress"]
    assert ingress["ports"] == [{"port": "http"}]
    assert [set(peer) for peer in ingress["from"]] == [{"podSelector"}, {"namespaceSelector", "podSelector"}]
    assert ingress["from"][1]["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "prometheus"}
    blocks = [peer["ipBlock"] for rule in spec["egress"] for peer in rule["to"] if "ipBlock" in peer]
    assert {"cidr": "169.254.20.10/32"} in blocks, "a cache of the DNS on the node"
    assert (len(blocks) > 1) is bool(checks.rights(found)), "the API server"
    for block in blocks:
        for metadata in map(ip_address, ("169.254.169.254", "fe80::a9fe:a9fe")):
            outside = metadata not in ip_network(block["cidr"])
            assert outside or any(metadata in ip_network(e) for e in block["except"])


@pytest.mark.parametrize("shape", [shape for shape in MONITORS if shape != "placed"])
def test_several_pods_have_a_budget_and_are_spread_and_one_has_neither(shaped: Manifests, shape: str) -> None:
    found = shaped(shape)
    ((workload, pod),) = ((one, pod) for one, pod in checks.pods(found) if one["kind"] != "Job")
    several = workload["spec"]["replicas"] > 1
    assert bool(checks.of(found, "PodDisruptionBudget")) is several
    keys = [c["topologyKey"] for c in pod.get("topologySpreadConstraints", [])]
    assert keys == (["kubernetes.io/hostname", "topology.kubernetes.io/zone"] if several else [])
    # A budget of one replica would let no node be drained; two pods of one volume would not start.
    assert workload["kind"] == ("StatefulSet" if several else "Deployment")


@pytest.mark.parametrize("replicas", [3, 12])
def test_a_fleet_has_as_many_shards_as_pods_and_a_volume_for_each(chart: helm_python.Chart, replicas: int) -> None:
    found = rendered(chart, {**SHAPES["fleet"], "replicas": replicas})
    fleet = checks.named(found, "StatefulSet")["spec"]
    ours = checks.accepted(fleet["template"]["spec"]["containers"][0]["args"])
    assert ours["command"] == "run"
    assert ours["total_shards"] == fleet["replicas"] == replicas
    assert fleet["serviceName"] in [s["metadata"]["name"] for s in checks.of(found, "Service")]
    assert [claim["metadata"]["name"] for claim in fleet["volumeClaimTemplates"]] == ["store"]
    assert not checks.of(found, "PersistentVolumeClaim")
    assert "store" not in [volume["name"] for volume in fleet["template"]["spec"]["volumes"]]


def test_one_pod_has_a_volume_and_is_gone_before_the_next(chart: helm_python.Chart) -> None:
    """Two at once would add twice the load."""
    found = rendered(chart, {})
    deployment = checks.named(found, "Deployment")["spec"]
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
    volumes = {volume["name"]: volume for volume in deployment["template"]["spec"]["volumes"]}
    assert checks.named(found, "PersistentVolumeClaim", volumes["store"]["persistentVolumeClaim"]["claimName"])
    resources = deployment["template"]["spec"]["containers"][0]["resources"]
    assert resources["limits"] == {"memory": "384Mi"}, "a CPU limit would be taken for the server's delay"


def test_the_pod_is_asked_about_itself_and_found_by_the_annotations(chart: helm_python.Chart, tmp_path: Path) -> None:
    found = rendered(chart, {})
    template = checks.named(found, "Deployment")["spec"]["template"]
    (mine,) = template["spec"]["containers"]
    assert {key: mine[key]["httpGet"]["path"] for key in mine if key.endswith("Probe")} == {
        "startupProbe": "/-/healthy",
        "livenessProbe": "/-/healthy",
        "readinessProbe": "/-/ready",
    }
    annotations = {
        key: template["metadata"]["annotations"][f"prometheus.io/{key}"] for key in ("scrape", "port", "path")
    }
    assert annotations == {"scrape": "true", "port": "9876", "path": "/metrics"}
    assert mine["image"] == f"kneewatch:{__version__}"
    store = checks.configuration(found, tmp_path).store.path
    assert store is not None
    assert {"name": "store", "mountPath": str(store.parent)} in mine["volumeMounts"]
    assert template["spec"]["securityContext"]["fsGroup"] == 65532, "the volume is written to without root"


@pytest.mark.parametrize("shape", ["default", "fleet"])
def test_a_changed_configuration_replaces_no_pod(chart: helm_python.Chart, shape: str) -> None:
    """Kneewatch reloads it."""
    config = SHAPES[shape].get("config", {})
    before, after = (
        rendered(chart, {**SHAPES[shape], "config": {**config, "grafana_url": f"https://{name}.example"}})
        for name in ("one", "other")
    )
    changed = [one["kind"] for one, other in zip(before, after, strict=True) if one != other]
    assert changed == ["ConfigMap"]


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape != "bare"])
def test_a_token_is_there_only_with_rights_that_need_one(shaped: Manifests, shape: str) -> None:
    found = shaped(shape)
    needs = checks.rights(found)
    assert bool(needs) is ("lease" in SHAPES[shape].get("config", {}) or shape == "own")
    tokens = {workload["kind"]: pod["automountServiceAccountToken"] for workload, pod in checks.pods(found)}
    assert tokens.pop("Job", False) is False
    assert set(tokens.values()) == (set() if "sidecar" in shape or "alone" in shape else {bool(needs)})
    assert not any(account["automountServiceAccountToken"] for account in checks.of(found, "ServiceAccount"))
    assert not checks.of(found, "ClusterRole"), "rights in the named namespaces only"


def test_the_rights_follow_the_configuration(chart: helm_python.Chart) -> None:
    pods, leases = {"list", "watch"}, {"get", "list", "create", "update", "delete"}
    other = {"name": "b", "discover": {"kubernetes": {"selector": "app=b", "port": 8000}}}
    again = {**FOUND, "name": "c"}
    values = {"config": {"targets": [FOUND, other, again], "lease": {}}}
    assert checks.rights(rendered(chart, values)) == {
        ("serving", "pods"): pods,
        ("monitoring", "pods"): pods,
        ("monitoring", "leases"): leases,
    }
    assert checks.rights(rendered(chart, SHAPES["own"])) == {
        ("serving", "pods"): pods,
        ("other", "pods"): pods,
        ("monitoring", "leases"): leases,
    }


@pytest.mark.parametrize("shape", ["default", "discovery", "fleet", "pair", "ramp", "ramp alone"])
def test_the_configuration_loads_and_the_command_line_takes_the_arguments(
    shaped: Manifests, shape: str, tmp_path: Path
) -> None:
    found = shaped(shape)
    (config_map,) = checks.of(found, "ConfigMap")
    assert checks.load(config_map["data"]["kneewatch.yml"], tmp_path).listen == "0.0.0.0:9876"
    for _, pod in checks.pods(found):
        checks.accepted(pod["containers"][0]["args"])


def test_large_numbers_of_a_configuration_stay_numbers(chart: helm_python.Chart, tmp_path: Path) -> None:
    """Helm has been known to write a million as 1e+06, which is a text to YAML."""
    text = "config: {targets: [{name: a, base_url: 'http://a:8000', capacity: {budget: {tokens_per_run: 2_000_000}}}]}"
    values = helm_python.values_from_yaml(text)
    (config_map,) = checks.of(rendered(chart, values), "ConfigMap")
    config = checks.load(config_map["data"]["kneewatch.yml"], tmp_path)
    assert config.targets[0].capacity.budget.tokens_per_run == 2_000_000


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"replicaCount": 2}, "replicaCount"),
        ({"replicas": 0}, "replicas"),
        ({"config": {"listen": "127.0.0.1:9876"}}, "listen"),
        ({"config": {"targets": [{"name": "a"}]}}, "targets"),
        ({"config": {"targets": [{"name": "a", "base_url": "http://a", "api_key": "sk-123"}]}}, "api_key"),
        ({"config": {"prometheus": {"url": "http://p", "token": "sk-123"}}}, "token"),
        ({"config": {"prometheus": {"basic_auth": {"username": "a", "password": "sk-123"}}}}, "password"),
        ({"config": {"prometheus": {"headers": {"X-Key": {"secret": "sk-123"}}}}}, "secret"),
        ({"image": {"digest": "latest"}}, "digest"),
        ({"networkPolicy": {"prometheusLabels": {"app.kubernetes.io/name": None}}}, "prometheusLabels"),
    ],
)
def test_the_schema_refuses(chart: helm_python.Chart, values: Values, says: str) -> None:
    with pytest.raises(helm_python.HelmValuesError, match=says):
        chart.validate_schema(values)


def test_a_key_by_the_environment_is_no_key_in_the_values(chart: helm_python.Chart) -> None:
    chart.validate_schema({"config": {"targets": [{"name": "a", "base_url": "http://a", "api_key": "${KEY}"}]}})


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"config": {"targets": []}}, r"config\.targets: none"),
        ({"replicas": 2}, "config.lease"),
        ({"replicas": 2, "shard": True, "persistence": {"existingClaim": "a"}}, "each get their own claim"),
        ({"ramp": {"enabled": True}}, "ramp.target"),
        ({"monitor": {"enabled": False}}, "there is nothing to run"),
        ({**SHAPES["ramp alone"], "podMonitor": {"enabled": True}}, "need the monitor"),
    ],
)
def test_the_chart_refuses_values_that_cannot_work(chart: helm_python.Chart, values: Values, says: str) -> None:
    with pytest.raises(helm_python.HelmRenderError, match=says):
        rendered(chart, values)


@pytest.mark.parametrize("values", [{}, {"rules": "groups: [{name: own, rules: []}]"}])
def test_the_rules_are_the_generated_ones_or_those_that_are_passed(chart: helm_python.Chart, values: Values) -> None:
    """Their annotations are templates too, of Prometheus."""
    (text,) = rules_of().values()
    found = rendered(chart, {"prometheusRule": {"enabled": True, **values}})
    groups = [group for rule in checks.of(found, "PrometheusRule") for group in rule["spec"]["groups"]]
    assert groups == yaml.safe_load(values.get("rules", text))["groups"]


def test_dashboards_are_the_generated_ones(chart: helm_python.Chart, deploy: Path) -> None:
    found = checks.of(rendered(chart, {"dashboards": {"enabled": True}}), "ConfigMap")
    maps = {m["metadata"]["name"]: m for m in found if "grafana_dashboard" in m["metadata"]["labels"]}
    generated = {
        file.name: json.loads(file.read_text()) for file in (deploy.parent / "dashboards/generated").glob("*.json")
    }
    assert {name: json.loads(text) for m in maps.values() for name, text in m["data"].items()} == generated
    assert maps.keys() == {name.removesuffix(".json") for name in generated}


def test_two_releases_do_not_mean_each_others_pods(chart: helm_python.Chart) -> None:
    one, two = rendered(chart, {}, "kneewatch"), rendered(chart, {}, "second")
    ((workload, _),) = checks.pods(two)
    for manifest in one:
        spec = manifest.get("spec", {})
        selector = spec.get("selector", spec.get("podSelector"))
        if selector is not None:
            labels = workload["spec"]["template"]["metadata"]["labels"]
            assert not checks.selects(selector.get("matchLabels", selector), labels)
    assert {m["metadata"]["name"] for m in two} == {"second-kneewatch"}


def test_tls_is_spoken_by_probes_and_prometheus(chart: helm_python.Chart) -> None:
    found = rendered(chart, SHAPES["secrets"])
    ((_, pod),) = checks.pods(found)
    probes = [pod["containers"][0][key]["httpGet"] for key in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert {probe["scheme"] for probe in probes} == {"HTTPS"}
    (monitor,) = checks.of(found, "PodMonitor")
    assert monitor["spec"]["podMetricsEndpoints"][0]["scheme"] == "https"
    assert pod["containers"][0]["image"] == "registry.example/kneewatch@sha256:" + "0" * 64


def test_probes_need_no_password_where_every_page_wants_one(chart: helm_python.Chart) -> None:
    basic = {"username": {"name": "web", "key": "user"}, "password": {"name": "web", "key": "password"}}
    values = {
        "config": {"web_config_file": WEB},
        "web": {"secretName": "web", "tls": True, "auth": True},
        "podMonitor": {"enabled": True, "endpoint": {"basicAuth": basic}},
    }
    found = rendered(chart, values)
    ((_, pod),) = checks.pods(found)
    for key in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert pod["containers"][0][key]["tcpSocket"] == {"port": "http"}
        assert "httpGet" not in pod["containers"][0][key]
    (monitor,) = checks.of(found, "PodMonitor")
    assert monitor["spec"]["podMetricsEndpoints"][0]["basicAuth"] == basic
    for manifest in found:
        checks.check(manifest)


def test_the_version_is_this_one_and_the_package_is_whole(chart_folder: Path, tmp_path: Path) -> None:
    archive = helm_python.package(chart_folder, destination=tmp_path)
    with tarfile.open(archive) as packed:
        members = packed.getmembers()
    names = {member.name for member in members}
    assert archive.endswith(f"kneewatch-{__version__}.tgz")
    assert {"kneewatch/values.schema.json", "kneewatch/dashboards/kneewatch-fleet.json"} <= names
    assert "kneewatch/dashboards/kustomization.yaml" not in names
    assert all(member.isfile() for member in members), "a link would lead nowhere"
    with helm_python.Chart.load(archive) as chart:
        assert chart.metadata["appVersion"] == __version__
        assert rendered(chart, {"dashboards": {"enabled": True}})


def test_every_value_is_in_the_schema_and_no_other(chart: helm_python.Chart) -> None:
    schema = chart.schema
    assert schema is not None
    assert schema["properties"].keys() - {"global", "enabled"} == chart.values.keys()
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"web": {"secretName": "web", "auth": True}}, "the pages would be open"),
        ({"web": {"tls": True}}, "the pages would be open"),
        ({"service": {"type": "LoadBalancer"}}, "reachable from outside"),
        ({"networkPolicy": {"prometheusLabels": None}}, "prometheusLabels"),
    ],
)
def test_pages_are_not_opened_by_what_is_left_out(chart: helm_python.Chart, values: Values, words: str) -> None:
    with pytest.raises(Exception, match=words):
        rendered(chart, values)
