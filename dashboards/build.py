"""The dashboards of a configuration: `render` returns their text.

`panels_of`, `queries`, `annotations` and `substitute` read a dashboard, to try its queries on a Prometheus.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from alerts.links import CAPACITY, FLEET, PROBE, RUNBOOKS, SERVER, TARGET, Links
from alerts.output_options import check_config_map, check_uid_prefix
from dashboards.capacity import capacity_dashboard
from dashboards.fleet import fleet_dashboard
from dashboards.layout import SCRAPE_S, Intervals
from dashboards.probe import probe_dashboard
from dashboards.server import server_dashboard
from dashboards.target import target_dashboard
from probe.config.config import Config

# The sidecar looks for this label, whatever its value.
_CONFIG_MAP_LABELS = {"grafana_dashboard": "1", "app.kubernetes.io/name": "kneewatch"}


def render(
    config: Config,
    *,
    uid_prefix: str = "",
    configmap: bool = False,
    namespace: str | None = None,
    runbooks: str = RUNBOOKS,
    scrape_interval_s: float = SCRAPE_S,
) -> dict[str, str]:
    """Return text by file name; the same configuration gives the same text.

    JSON for Grafana's provisioning or, with `configmap`, a manifest in `namespace` for its sidecar. `uid_prefix` comes
    before each uid, so that one Grafana can have several sets. `scrape_interval_s` is the longest time between two
    scrapes of Kneewatch. Raises ConfigError.
    """
    check_config_map(uid_prefix, namespace, configmap=configmap)
    links = Links(runbooks=runbooks, uid_prefix=check_uid_prefix(uid_prefix), pages=config.web_external_url or "")
    has_gpus = any(target.gpu.is_read for target in config.targets)
    rarest_s = max(kind.canary.every for target in config.targets for kind in target.kinds)
    intervals = Intervals(scrape_interval_s, rarest_s)
    texts = {
        uid_prefix + uid: text
        for uid, text in (
            (FLEET, fleet_dashboard(links, intervals)),
            (TARGET, target_dashboard(links, intervals)),
            (SERVER, server_dashboard(links, intervals, has_gpus=has_gpus)),
            (CAPACITY, capacity_dashboard(links, intervals)),
            (PROBE, probe_dashboard(links, intervals)),
        )
    }
    if configmap:
        return {f"{uid}.configmap.yaml": config_map(uid, text, namespace) for uid, text in texts.items()}
    return {f"{uid}.json": text for uid, text in texts.items()}


def panels_of(dashboard: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield every panel, including those inside collapsed rows."""
    for panel in dashboard["panels"]:
        if panel["type"] != "row":
            yield panel
        yield from panel.get("panels", ())


def queries(dashboard: Mapping[str, Any]) -> list[str]:
    """Return the PromQL of all panels, in their order, with the dashboard's variables in it."""
    return [target["expr"] for panel in panels_of(dashboard) for target in panel["targets"]]


def annotations(dashboard: Mapping[str, Any]) -> list[str]:
    """Return the PromQL of all annotations, with the dashboard's variables in it."""
    return [one["expr"] for one in dashboard["annotations"]["list"]]


def substitute(
    query: str,
    target: str,
    workload: str = ".*",
    interval: str = "1m",
    *,
    model: str = ".*",
    span: str = "3h",
) -> str:
    """Return the query as Grafana would send it, for one choice of the variables in all clusters and groups.

    `span`: the time range.
    """
    values = {
        "$cluster": ".*",
        "$namespace": ".*",
        "$group": ".*",
        "$__rate_interval": interval,
        "$__range": span,
        "$target": target,
        "$model": model,
        "$workload": workload,
    }
    for variable, value in values.items():
        query = query.replace(variable, value)
    return query


def config_map(uid: str, dashboard: str, namespace: str | None = None) -> str:
    """Return the manifest's YAML, with `dashboard` under the key `<uid>.json`, which is Grafana's file name.

    The JSON is on one line because `kubectl apply` keeps a copy of a manifest in an annotation of at most 256 KiB.
    """
    text = json.dumps(json.loads(dashboard), separators=(",", ":"))
    metadata: dict[str, object] = {"name": uid, "labels": _CONFIG_MAP_LABELS}
    if namespace is not None:
        metadata["namespace"] = namespace
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {f"{uid}.json": text}}
    return yaml.safe_dump(manifest, sort_keys=False, width=2**31, allow_unicode=True)
