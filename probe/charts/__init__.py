"""Charts on pages: the unmodified Apache ECharts library, and formatting and colours for it.

A self-contained page allows its scripts and styles by digest, and its data cannot close the script element.
"""

import base64
import hashlib
import json
import math
from functools import cache
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
ECHARTS = "6.1.0"


@cache
def echarts() -> str:
    """Return the library, with its licence at the top."""
    return (_HERE / "echarts/echarts.min.js").read_text(encoding="utf-8")


@cache
def notice() -> str:
    """Return the notice that its licence requires in copies."""
    return " ".join((_HERE / "echarts/NOTICE").read_text(encoding="utf-8").split())


@cache
def values_script() -> str:
    """Return the script for numbers, colours, elements and tooltips; it shares a scope with `data`."""
    return (_HERE / "values.js").read_text(encoding="utf-8")


def data_text(value: object) -> str:
    """Return JSON for a script element; it cannot contain the element's end or a comment."""
    return json_text(value, separators=(",", ":")).replace("<", "\\u003c")


def json_text(value: object, separators: tuple[str, str] | None = None) -> str:
    """Return JSON in ASCII; NaN and infinity become null."""
    try:
        return json.dumps(value, separators=separators, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), separators=separators, allow_nan=False)


def _finite(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def digest(text: str) -> str:
    """Return the digest of a script or style for a Content-Security-Policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
