"""Charts on pages: Apache ECharts as published, and how its charts look here.

Two kinds of page use it: the dashboards without Grafana, and the monitor's own with its reports. A file that holds
all of it lets nothing else in: its policy knows each script and style by its digest, and its data cannot end the
element they are in.
"""

import base64
import hashlib
import json
from functools import cache
from pathlib import Path

_HERE = Path(__file__).parent
ECHARTS = "6.1.0"


@cache
def echarts() -> str:
    """The library, its licence at its head."""
    return (_HERE / "echarts/echarts.min.js").read_text(encoding="utf-8")


@cache
def notice() -> str:
    """What its licence wants said wherever it goes."""
    return " ".join((_HERE / "echarts/NOTICE").read_text(encoding="utf-8").split())


@cache
def values_script() -> str:
    """Numbers, colours, elements and tooltips, for scripts that share a scope with `data`."""
    return (_HERE / "values.js").read_text(encoding="utf-8")


def data_text(value: object) -> str:
    """JSON for a script element: nothing in it looks like the element's end, or like a comment."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=True).replace("<", "\\u003c")


def digest(text: str) -> str:
    """A script or style, as a page's policy names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
