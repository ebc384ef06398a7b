"""The objects of deploy/kustomize, from the Helm chart and the values in deploy/helm/values: `make generate`.

A folder of deploy/kustomize has a kustomization.yaml, written by hand, and files that are written here: objects,
patches, and a kneewatch.yml, which is `config` of the values with its comments. The kustomization of the dashboards is
written beside them.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import helm_python
import yaml

ROOT = Path(__file__).parents[1]
KUSTOMIZE = ROOT / "deploy/kustomize"
CHART = ROOT / "deploy/helm/kneewatch"
VALUES = ROOT / "deploy/helm/values"
DASHBOARDS = ROOT / "dashboards/generated"
Manifest = dict[str, Any]
Objects = dict[tuple[str, str], Manifest]
_NAMESPACE, _SIDECAR = "monitoring", "kneewatch-sidecar"
_HELM_LABELS = {"app.kubernetes.io/managed-by", "app.kubernetes.io/version", "helm.sh/chart"}
_KEYS = {"keys": {"secretName": "kneewatch-keys"}}
_HEAD = "# Written by `make generate` from the Helm chart.\n"


def files() -> dict[Path, str]:
    """Return the content of every generated file by its path."""
    with helm_python.Chart.load(CHART) as chart:
        base, found = _objects(chart, values("services")), _objects(chart, values("discovery"))
        operator, sidecar = values("operator"), values("sidecar")
        monitor = _objects(chart, {**values("services"), **operator})["PodMonitor", "kneewatch"]
        monitor_of_pods = _objects(chart, {**operator, **sidecar}, _SIDECAR)["PodMonitor", _SIDECAR]
        deployment = base["Deployment", "kneewatch"]
        with_keys = _objects(chart, {**values("services"), **_KEYS})["Deployment", "kneewatch"]
        patch, patch_with_keys = _patch(chart, sidecar), _patch(chart, {**sidecar, **_KEYS})
        with_gpus = _patch(chart, {**sidecar, "sidecar": {**sidecar["sidecar"], "nvml": True}})
    changed = [_difference(base[key], found[key]) for key in base if base[key] != found[key]]
    return {
        KUSTOMIZE / "base/objects.yaml": _text(base.values()),
        KUSTOMIZE / "base/keys.yaml": _text([_difference(deployment, with_keys)]),
        KUSTOMIZE / "base/kneewatch.yml": configuration("services"),
        KUSTOMIZE / "discovery/roles.yaml": _text(found[key] for key in found.keys() - base.keys()),
        KUSTOMIZE / "discovery/gpus.yaml": _text(_elsewhere(found, "gpu-operator")),
        KUSTOMIZE / "discovery/patch.yaml": _text(changed),
        KUSTOMIZE / "discovery/kneewatch.yml": configuration("discovery"),
        KUSTOMIZE / "operator/podmonitor.yaml": _text([monitor]),
        KUSTOMIZE / "sidecar/sidecar.yaml": _text([patch]),
        KUSTOMIZE / "sidecar/nvml.yaml": _text([_difference(patch, with_gpus)]),
        KUSTOMIZE / "sidecar/keys.yaml": _text([_difference(patch, patch_with_keys)]),
        KUSTOMIZE / "sidecar/podmonitor.yaml": _text([monitor_of_pods]),
        KUSTOMIZE / "sidecar/kneewatch.yml": configuration("sidecar"),
        DASHBOARDS / "kustomization.yaml": _dashboards(),
    }


def _elsewhere(found: Objects, namespace: str) -> list[Manifest]:
    """Return the Role of discovery and its RoleBinding for another namespace, as the chart writes them for gpu.dcgm."""
    roles = (found[kind, "kneewatch-discovery"] for kind in ("Role", "RoleBinding"))
    return [{**role, "metadata": {**role["metadata"], "namespace": namespace}} for role in roles]


def values(name: str) -> Manifest:
    """Return the values of deploy/helm/values/NAME.yaml."""
    loaded: Manifest = yaml.safe_load((VALUES / f"{name}.yaml").read_text())
    return loaded


def configuration(name: str) -> str:
    """Return the kneewatch.yml that the chart writes with these values, with the comments of both."""
    blocks = _blocks((CHART / "values.yaml").read_text()) | _blocks((VALUES / f"{name}.yaml").read_text())
    return "# Kneewatch reloads this file when it changes, without a restart.\n" + "".join(blocks.values())


def _blocks(text: str) -> dict[str, str]:
    """Return the lines of each key of `config`, also of one in a comment, without their indentation."""
    (config,) = re.findall(r"^config:\n((?:  .*\n)*)", text, re.MULTILINE)
    lines = re.sub(r"^  ", "", config, flags=re.MULTILINE)
    return {key: block for block, key in re.findall(r"^((?:# )?(\w+):.*\n(?: .*\n)*)", lines, re.MULTILINE)}


def plain(manifest: Manifest, release: str = "kneewatch") -> Manifest:
    """Return an object of the chart without the labels that Helm and the release give it."""

    def kept(value: object) -> object:
        if isinstance(value, dict):
            return plain(value, release)
        return [kept(item) for item in value] if isinstance(value, list) else value

    return {
        key: kept(value)
        for key, value in manifest.items()
        if key not in _HELM_LABELS and (key, value) != ("app.kubernetes.io/instance", release)
    }


def _objects(chart: helm_python.Chart, values: Mapping[str, Any], name: str = "kneewatch") -> Objects:
    """Return the chart's objects by kind and name, but for its configuration, dashboards and rules.

    Those in Kneewatch's namespace leave it to kubectl.
    """
    found: Objects = {}
    for path, text in sorted(chart.render(dict(values), name=name, namespace=_NAMESPACE).items()):
        for manifest in () if path.endswith("NOTES.txt") else yaml.safe_load_all(text):
            if manifest and manifest["kind"] not in {"ConfigMap", "PrometheusRule"}:
                one = plain(manifest, name)
                if one["metadata"]["namespace"] == _NAMESPACE:
                    del one["metadata"]["namespace"]
                for subject in one.get("subjects", ()):
                    del subject["namespace"]
                found[one["kind"], one["metadata"]["name"]] = one
    return found


def _patch(chart: helm_python.Chart, values: Mapping[str, Any]) -> Manifest:
    """Return the sidecar's patch, which the chart's notes end with."""
    notes = chart.render(dict(values), name=_SIDECAR, namespace=_NAMESPACE)["kneewatch/templates/NOTES.txt"]
    patch: Manifest = yaml.safe_load(notes[notes.index("\napiVersion:") :])
    return patch


def _difference(before: Manifest, after: Manifest) -> Manifest:
    """Return a strategic merge patch that makes one object of the other, which has each of its keys."""
    head = {key: before[key] for key in ("apiVersion", "kind")} | {"metadata": {"name": before["metadata"]["name"]}}
    return head | _changed(before, after)


def _changed(before: Manifest, after: Manifest) -> Manifest:
    return {key: _new(before.get(key), value) for key, value in after.items() if before.get(key) != value}


def _new(before: object, after: object) -> object:
    """Return what a patch has for a changed value: of lists whose items have names, the changed items."""
    if isinstance(before, dict) and isinstance(after, dict):
        return _changed(before, after)
    if isinstance(before, list) and isinstance(after, list) and _have_names(before) and _have_names(after):
        old = {item["name"]: item for item in before}
        changed = [(old.get(item["name"], {}), item) for item in after if old.get(item["name"]) != item]
        return [{"name": item["name"], **_changed(former, item)} for former, item in changed]
    return after


def _have_names(items: list[Any]) -> bool:
    return all(isinstance(item, dict) and "name" in item for item in items)


def _dashboards() -> str:
    names = sorted(file.stem for file in DASHBOARDS.glob("*.json"))
    labels = {"grafana_dashboard": "1", "app.kubernetes.io/name": "kneewatch"}
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "generatorOptions": {"disableNameSuffixHash": True, "labels": labels},
        "configMapGenerator": [{"name": name, "files": [f"{name}.json"]} for name in names],
    }
    about = (
        "# The dashboards as ConfigMaps, for the sidecar of Grafana's chart. Written by `make generate`.\n#\n"
        "#   kubectl apply --server-side -n monitoring -k dashboards/generated\n"
    )
    return about + yaml.safe_dump(kustomization, sort_keys=False)


def _text(manifests: Iterable[Manifest]) -> str:
    ordered = sorted(manifests, key=lambda one: (one["kind"], one["metadata"]["name"]))
    return _HEAD + yaml.safe_dump_all(ordered, sort_keys=False, width=120)


def main() -> None:
    """Write every file."""
    for path, text in files().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
