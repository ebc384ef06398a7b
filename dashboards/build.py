"""The dashboards of a configuration: `render` gives their JSON text, `write` puts them into a folder.

`queries` and `substitute` take a dashboard apart again, to try its queries on a Prometheus.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dashboards.target import UID, target_dashboard
from probe.config import Config
from probe.report.files import write_files


def render(config: Config) -> dict[str, str]:
    """File name to JSON text; the same configuration gives the same text."""
    return {f"{UID}.json": target_dashboard(config)}


def write(config: Config, out: Path) -> list[Path]:
    """Writes the files into the folder `out`, made where it is missing. Raises ConfigError."""
    return write_files(render(config), out)


def panels_of(dashboard: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Every panel that shows something, those inside collapsed rows included."""
    for panel in dashboard["panels"]:
        if panel["type"] != "row":
            yield panel
        yield from panel.get("panels", ())


def queries(dashboard: Mapping[str, Any]) -> list[str]:
    """The PromQL of each panel, in their order, with the dashboard's variables in it."""
    return [target["expr"] for panel in panels_of(dashboard) for target in panel["targets"]]


def substitute(query: str, target: str, workload: str = ".*", interval: str = "1m") -> str:
    """The query as Grafana would send it, for one choice of the variables."""
    values = {"$__rate_interval": interval, "$target": target, "$workload": workload}
    for variable, value in values.items():
        query = query.replace(variable, value)
    return query
