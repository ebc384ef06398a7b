"""Grafana's overrides for the lines of a chart: dashed limits and bounds, and the right axis."""

from collections.abc import Sequence
from typing import Any

from dashboards import tables
from dashboards.pieces import RED, Query

_LIMIT = {
    "matcher": {"id": "byRegexp", "options": "/^objective/"},
    "properties": [
        {"id": "color", "value": {"mode": "fixed", "fixedColor": RED}},
        {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 8]}},
        {"id": "custom.fillOpacity", "value": 0},
        {"id": "custom.stacking", "value": {"mode": "none"}},
    ],
}
_BOUND = {
    "matcher": {"id": "byRegexp", "options": "/ bound/"},
    "properties": [
        {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [2, 6]}},
        {"id": "custom.fillOpacity", "value": 0},
    ],
}


def overrides(queries: Sequence[Query], right_unit: str | None) -> list[dict[str, Any]]:
    """Return the overrides of the lines, by their legends and by the axis that their query names."""
    return [
        *([_LIMIT] if any(query.legend.startswith("objective") for query in queries) else []),
        *([_BOUND] if any("bound" in query.legend for query in queries) else []),
        *(
            _right_axis(tables.reference(i), right_unit)
            for i, query in enumerate(queries)
            if query.is_on_right_axis and right_unit
        ),
    ]


def _right_axis(reference: str, unit: str) -> dict[str, Any]:
    return {
        "matcher": {"id": "byFrameRefID", "options": reference},
        "properties": [{"id": "custom.axisPlacement", "value": "right"}, {"id": "unit", "value": unit}],
    }
