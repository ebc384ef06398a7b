"""How one field of a panel is shown: Grafana's fieldConfig, its overrides applied. Pure.

In: a panel's JSON, and the field's name and query. Out: a plain mapping for the page, without what says nothing:
unit, min, max, decimals, thresholds, mappings, colour, and what is `custom` to the kind of panel.
"""

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# How each unit is formatted; the page implements the kinds. Any other unit is written after the number.
#   duration: seconds times `scale`, as ns to weeks        si: k, M, G for thousands, then the suffix
#   binary: Ki, Mi, Gi for 1024s                           scaled: the number times `scale`
#   moment: a date, from milliseconds                      word: the two words for 0 and for anything else
UNITS: Mapping[str, Mapping[str, Any]] = {
    "none": {"kind": "plain"},
    "short": {"kind": "si", "suffix": ""},
    "percentunit": {"kind": "scaled", "scale": 100, "suffix": " %"},
    "s": {"kind": "duration", "scale": 1},
    "reqps": {"kind": "si", "suffix": " req/s"},
    "ops": {"kind": "si", "suffix": " ops/s"},
    "bytes": {"kind": "binary", "suffix": "B"},
    "Bps": {"kind": "si", "suffix": "B/s"},
    "hertz": {"kind": "si", "suffix": "Hz"},
    "watt": {"kind": "si", "suffix": "W"},
    "flops": {"kind": "si", "suffix": "FLOP/s"},
    "celsius": {"kind": "scaled", "scale": 1, "suffix": " °C"},
    "dateTimeAsLocal": {"kind": "moment"},
}
_KEPT = (
    "unit",
    "min",
    "max",
    "decimals",
    "thresholds",
    "mappings",
    "color",
    "noValue",
    "displayName",
    "links",
    "custom",
)


@dataclass(frozen=True, slots=True)
class Named:
    """What an override may match: the field's name, its query, and the type of its values."""

    name: str
    ref: str = ""
    kind: str = "number"  # number, string or time


def field_of(panel: Mapping[str, Any], named: Named) -> dict[str, Any]:
    """Return the field's configuration, without unset values."""
    config = panel.get("fieldConfig", {})
    found = {key: copy.deepcopy(config.get("defaults", {}).get(key)) for key in _KEPT}
    for override in config.get("overrides", ()):
        if _matches(override["matcher"], named):
            for one in override["properties"]:
                _set(found, one["id"], one.get("value"))
    return {key: value for key, value in found.items() if value not in (None, [], {})}


def unit_of(name: str) -> Mapping[str, Any]:
    """Return how a unit is formatted."""
    return UNITS.get(name) or {"kind": "plain", "suffix": f" {name}" if name else ""}


def _matches(matcher: Mapping[str, Any], named: Named) -> bool:
    wanted = matcher.get("options")
    match matcher["id"]:
        case "byName":
            return bool(wanted == named.name)
        case "byRegexp":
            return _search(str(wanted), named.name)
        case "byFrameRefID":
            return bool(wanted == named.ref)
        case "byType":
            return bool(wanted == named.kind)
    return False


def _search(written: str, text: str) -> bool:
    """Match a regular expression as Grafana writes it: /pattern/flags, or a pattern for the whole text."""
    if match := re.fullmatch(r"/(.*)/([a-z]*)", written, re.DOTALL):
        return re.search(match[1], text, re.IGNORECASE if "i" in match[2] else 0) is not None
    return re.fullmatch(written, text) is not None


def _set(field: dict[str, Any], path: str, value: Any) -> None:  # noqa: ANN401 - JSON
    """Set a key. `custom.lineStyle` is a key inside `custom`, and its value may be a mapping too."""
    if path.startswith("custom."):
        custom = field["custom"] = dict(field["custom"] or {})
        custom[path.removeprefix("custom.")] = value
    else:
        field[path] = value
