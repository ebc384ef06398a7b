"""A dashboard's variables: which value each has, and queries, titles and links with the values in them.

In: the dashboard's JSON, and what was chosen. Out: a `Choice` for each, and text without variables.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.dashboards.preview.asking import Asker, QueryError
from benchmarks.dashboards.preview.intervals import Window

# $name, ${name}, ${name:format} and [[name]].
_VARIABLE = re.compile(r"\$\{(\w+)(?::(\w+))?\}|\$(\w+)|\[\[(\w+)\]\]")
_LABEL_VALUES = re.compile(r"label_values\(\s*(?:(.*)\s*,)?\s*(\w+)\s*\)", re.DOTALL)
_REGEX = re.compile(r"[\\^$*+?.()|{}\[\]]")
_ALL = "$__all"


@dataclass(frozen=True, slots=True)
class Choice:
    """A variable: the value a reader sees, and the value in a query (inside double quotes, so already escaped)."""

    name: str
    label: str
    text: str
    query: str


async def choose(dashboard: Mapping[str, Any], given: Mapping[str, str], asker: Asker, window: Window) -> list[Choice]:
    """Return a choice for each variable, in order: the given one, else all, else the first value.

    A drop-down that cannot be filled is empty, as in Grafana.
    """
    chosen: list[Choice] = []
    for variable in dashboard.get("templating", {}).get("list", ()):
        if variable["type"] == "datasource":
            continue
        chosen.append(await _choice(variable, given, chosen, asker, window))
    return chosen


async def _choice(
    variable: Mapping[str, Any], given: Mapping[str, str], before: Sequence[Choice], asker: Asker, window: Window
) -> Choice:
    name = str(variable["name"])
    label = str(variable.get("label") or name)
    # Grafana escapes a value for a regular expression where there may be several of them.
    several = bool(variable.get("multi") or variable.get("includeAll"))
    value = given.get(name)
    if value is None and variable.get("includeAll"):
        return Choice(name, label, "all", str(variable.get("allValue") or ".*"))
    if value is None and variable["type"] == "query":
        value = next(iter(await _values(variable, before, asker, window)), "")
    if value is None:
        value = _fixed(variable)
    return Choice(name, label, value, _quoted(_REGEX.sub(r"\\\g<0>", value) if several else value))


async def _values(variable: Mapping[str, Any], before: Sequence[Choice], asker: Asker, window: Window) -> Sequence[str]:
    query = variable["query"]
    text = str(query.get("query", "") if isinstance(query, dict) else query)
    if not (match := _LABEL_VALUES.fullmatch(filled(text, queried(before)).strip())):
        return []
    try:
        return await asker.label_values(match[2], match[1] or '{__name__!=""}', window.start_s, window.end_s)
    except QueryError:
        return []


def _fixed(variable: Mapping[str, Any]) -> str:
    """Return the value of a constant, a text box, or a list defined in the dashboard."""
    current = variable.get("current") or {}
    value = current.get("value")
    if isinstance(value, str) and value != _ALL:
        return value
    return str(variable.get("query") or "").partition(",")[0].strip()


def _quoted(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)[1:-1]


def queried(choices: Sequence[Choice]) -> dict[str, str]:
    """Return the values as used in queries, by the variable's name."""
    return {choice.name: choice.query for choice in choices}


def shown(choices: Sequence[Choice]) -> dict[str, str]:
    """Return the values as used in titles and links, by the variable's name."""
    return {choice.name: choice.text for choice in choices}


def filled(text: str, values: Mapping[str, str]) -> str:
    """Fill in the variables' values; an unknown variable stays as written."""

    def value(match: re.Match[str]) -> str:
        return values.get(match[1] or match[3] or match[4], match[0])

    return _VARIABLE.sub(value, text)


def time_values(window: Window, step_s: float, rate_s: float) -> dict[str, str]:
    """Return Grafana's own variables of a query: $__interval, $__rate_interval, $__range and the like."""
    return {
        "__interval": _duration(step_s),
        "__interval_ms": str(round(step_s * 1000)),
        "__rate_interval": _duration(rate_s),
        "__range": f"{round(window.seconds)}s",
        "__range_s": str(round(window.seconds)),
        "__range_ms": str(round(window.seconds * 1000)),
        "__from": str(round(window.start_s * 1000)),
        "__to": str(round(window.end_s * 1000)),
    }


def _duration(seconds: float) -> str:
    return f"{round(seconds)}s" if seconds == round(seconds) else f"{round(seconds * 1000)}ms"
