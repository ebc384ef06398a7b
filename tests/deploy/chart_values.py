"""The chart as Helm renders it, values for its tests, and kustomizations as kubectl renders them."""

import subprocess
from pathlib import Path
from typing import Any

import helm_python
import yaml

from benchmarks.kustomizations import plain, values

Values = dict[str, Any]
FOUND = {
    "name": "vllm",
    "discover": {"kubernetes": {"namespace": "serving", "selector": "app.kubernetes.io/name=vllm", "port": 8000}},
}
SLICES = {
    "name": "outside",
    "discover": {"kubernetes": {"namespace": "serving", "endpoints": "qwen", "port": "http"}},
}
# A server in the same pod.
LOCAL = {"name": "llama-8b", "base_url": "http://127.0.0.1:8000"}
LEASE = {"namespace": "monitoring"}
WEB = "/etc/kneewatch-web/web.yml"
MONITOR: Values = {
    "enabled": True,
    "namespace": "prometheus",
    "scrapeTimeout": "10s",
    "relabelings": [{"action": "replace", "targetLabel": "cluster", "replacement": "a"}],
    "metricRelabelings": [{"action": "drop", "sourceLabels": ["le"], "regex": "0.1"}],
}
# Every feature at least once, each beside those it could disturb.
SHAPES: dict[str, Values] = {
    "default": {},
    "discovery": values("discovery"),
    "fleet": {**values("discovery"), **values("fleet")},
    "pair": {"replicas": 2, "config": {"lease": {}}, "persistence": {"enabled": False}},
    "operator": values("operator"),
    "credentials": values("prometheus"),
    "ingress": {
        "externalUrl": "https://kneewatch.example.org",
        "ingress": {
            "enabled": True,
            "className": "nginx",
            "annotations": {"cert-manager.io/cluster-issuer": "letsencrypt"},
            "tlsSecretName": "kneewatch-tls",
        },
        "config": {"web_config_file": WEB},
        "web": {"secretName": "web"},
        "networkPolicy": {"extraIngress": [{"from": [{"namespaceSelector": {}}]}]},
        "serviceMonitor": {"enabled": True, "labels": {"release": "r"}},
    },
    "gateway": {
        "externalUrl": "https://kneewatch.example.org",
        "externalAuthentication": True,
        "httpRoute": {"enabled": True, "parentRefs": [{"name": "public", "namespace": "gateways"}]},
        "service": {"port": 80},
        "replicas": 2,
        "shard": True,
        "serviceMonitor": {"enabled": True},
    },
    "secrets": {
        "keys": {"secretName": "keys"},
        "config": {"web_config_file": WEB},
        "web": {"secretName": "web", "tls": True},
        "image": {"repository": "registry.example/kneewatch", "digest": "sha256:" + "0" * 64},
        "imagePullSecrets": [{"name": "pull"}],
        "podMonitor": MONITOR,
    },
    "ramp": {"ramp": {"enabled": True, "target": "llama-8b", "extraArgs": ["--concurrency", "1,2"]}},
    "bench": {"bench": values("bench")["bench"]},
    "ramp alone": values("ramp"),
    "bench alone": values("bench"),
    "sidecar alone": values("sidecar"),
    "sidecar": {
        "config": {"targets": [LOCAL]},
        "sidecar": {"enabled": True, "deployment": "llama-8b", "podLabels": {"app": "vllm"}, "isolated": True},
        "networkPolicy": {"extraIngress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}]},
        "podMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True, "rules": "groups: [{name: g, rules: []}]"},
    },
    "own": {"existingConfigMap": "mine", "rbac": {"namespaces": ["serving", "other"], "leases": True}},
    "placed": {
        "nodeSelector": {"pool": "cpu"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "high",
        "podLabels": {"team": "serving"},
        "podAnnotations": {"a": "b"},
        "serviceAccount": {"annotations": {"a": "b"}},
        "dashboards": {"enabled": True, "annotations": {"grafana_folder": "vLLM"}},
        "config": {"web_config_file": WEB},
        "service": {"type": "NodePort", "annotations": {"a": "b"}},
        "extraEnv": [{"name": "A", "value": "b"}],
        "extraVolumes": [{"name": "targets", "configMap": {"name": "targets"}}],
        "extraVolumeMounts": [{"name": "targets", "mountPath": "/etc/kneewatch-targets"}],
        "networkPolicy": {
            "extraIngress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}],
            "extraEgress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}],
        },
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"},
        ],
    },
    "bare": {
        "serviceAccount": {"create": False, "name": "default"},
        "rbac": {"create": False},
        "networkPolicy": {"enabled": False},
        "scrapeAnnotations": False,
        "persistence": {"existingClaim": "old"},
    },
}


def complete(given: Values) -> Values:
    """Return the values with the example's targets where they name none, which the chart refuses."""
    config = given.get("config", {})
    if "targets" in config or "existingConfigMap" in given:
        return given
    return {**given, "config": {**config, **values("services")["config"]}}


def rendered(chart: helm_python.Chart, values: Values, name: str = "kneewatch") -> list[dict[str, Any]]:
    """Return what `helm install` would send, as one list, with the example's targets where the values have none."""
    files = chart.render(complete(values), name=name, namespace="monitoring")
    texts = [text for path, text in files.items() if not path.endswith("NOTES.txt")]
    return [manifest for text in texts for manifest in yaml.load_all(text, yaml.CSafeLoader) if manifest]


def kustomized(kubectl: str, folder: Path) -> list[dict[str, Any]]:
    """Return what `kubectl apply -k` would send."""
    done = subprocess.run([kubectl, "kustomize", str(folder)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return list(yaml.load_all(done.stdout, yaml.CSafeLoader))


def alike(manifests: list[dict[str, Any]]) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Return objects by kind, namespace and name, without Helm's labels, and a configuration as what it says."""
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for manifest in manifests:
        one: dict[str, Any] = plain(manifest)
        if "kneewatch.yml" in one.get("data", {}):
            one["data"] = yaml.safe_load(one["data"]["kneewatch.yml"])
        metadata = one["metadata"]
        for subject in one.get("subjects", ()):
            subject.setdefault("namespace", "monitoring")
        found[one["kind"], metadata.setdefault("namespace", "monitoring"), metadata["name"]] = one
    return found
