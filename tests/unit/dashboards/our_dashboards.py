"""The dashboards of the first example, as JSON."""

import json
from pathlib import Path
from typing import Any

from dashboards import build
from probe.config.config_file import load_config

ROOT = Path(__file__).parents[3]
CONFIG = load_config(ROOT / "deploy/examples/kneewatch.yml")
DASHBOARDS: dict[str, dict[str, Any]] = {name: json.loads(text) for name, text in build.render(CONFIG).items()}
BY_UID = {dashboard["uid"]: dashboard for dashboard in DASHBOARDS.values()}
PANELS = [(dashboard["uid"], panel) for dashboard in DASHBOARDS.values() for panel in build.panels_of(dashboard)]


def title(value: Any) -> str:
    """Return the test id of a panel."""
    return value["title"] if isinstance(value, dict) else str(value)
