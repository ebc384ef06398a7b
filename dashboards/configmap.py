"""A dashboard as a Kubernetes ConfigMap, for the sidecar of Grafana's Helm chart. Pure."""

import json

import yaml

# The sidecar looks for this label, whatever its value.
_LABELS = {"grafana_dashboard": "1", "app.kubernetes.io/name": "kneewatch"}


def configmap(uid: str, dashboard: str, namespace: str | None = None) -> str:
    """Return the manifest's YAML, with `dashboard` under the key `<uid>.json`, which is Grafana's file name.

    The JSON is on one line because `kubectl apply` keeps a copy of a manifest in an annotation of at most 256 KiB.
    """
    text = json.dumps(json.loads(dashboard), separators=(",", ":"))
    metadata: dict[str, object] = {"name": uid, "labels": _LABELS}
    if namespace is not None:
        metadata["namespace"] = namespace
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {f"{uid}.json": text}}
    return yaml.safe_dump(manifest, sort_keys=False, width=2**31, allow_unicode=True)
