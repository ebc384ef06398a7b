"""Grafana's JSON for a heat map, which grafanalib writes only for an older one."""

from typing import Any

# Keys that grafanalib still writes for panels that Grafana replaced years ago.
OLD_KEYS = (
    "cards", "color", "dataFormat", "heatmap", "hideZeroBuckets", "highlightCards", "legend", "reverseYBuckets",
    "tooltip", "xAxis", "yAxis",
)  # fmt: skip


def options(unit: str) -> dict[str, Any]:
    return {
        "calculate": False,
        "cellGap": 1,
        "cellValues": {"unit": "short"},
        "color": {
            "exponent": 0.5, "fill": "dark-orange", "mode": "scheme", "reverse": False, "scale": "exponential",
            "scheme": "Oranges", "steps": 64,
        },
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "tooltip": {"mode": "single", "showColorScale": False, "yHistogram": True},
        "yAxis": {"axisPlacement": "left", "reverse": False, "unit": unit},
    }  # fmt: skip


def field_config(unit: str, no_value: str | None) -> dict[str, Any]:
    return {
        "defaults": {
            "unit": unit,
            "noValue": no_value,
            "custom": {"hideFrom": {"legend": False, "tooltip": False, "viz": False}},
        },
        "overrides": [],
    }
