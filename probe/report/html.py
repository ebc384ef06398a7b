"""The HTML report of a capacity run, one self-contained file, and the parts it shares with the monitor's pages.

Names in a result are untrusted: templates escape them, data is JSON that cannot close its script element, and the
file's Content-Security-Policy allows only its own scripts and styles, by digest.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from pydantic import ValidationError

from probe import __version__
from probe.charts import ECHARTS, data_text, digest, echarts, notice, values_script
from probe.core import latency
from probe.core import objectives as slo
from probe.core.objectives import Objectives
from probe.core.request import RequestRecord
from probe.core.result import CapacityResult
from probe.core.step import Distribution
from probe.core.token_length import stored_length
from probe.report import figures as words
from probe.report.figures import MISSING, milliseconds, number, percent, promises, when
from probe.report.knee_text import knee_line, limit_words
from probe.report.provenance_text import provenance_lines
from probe.report.result_json import objectives_of
from probe.report.result_text import capacity_words, no_capacity_words, result_lines
from probe.report.run_charts import charts, loads
from probe.report.steps import step_verdict
from probe.report.workload_text import workload_words

_HERE = Path(__file__).parent / "page"
_LONG = 60  # maximum characters of a value in a line of facts


def report(result: CapacityResult, server: str | None = None) -> str:
    """Return the run as one HTML file. `server`: its title, if the target's name says little."""
    scripts = [echarts(), charts_script()]
    policy = [
        "default-src 'none'",
        f"script-src {' '.join(map(digest, scripts))}",
        f"style-src {digest(style())}",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return (
        environment()
        .get_template("report.html")
        .render(
            run=result,
            subject=server or result.target,
            policy="; ".join(policy),
            version=__version__,
            echarts=ECHARTS,
            notice=notice(),
            style=Markup(style()),  # noqa: S704 - Kneewatch's own file
            scripts=[Markup(one) for one in scripts],  # noqa: S704 - Kneewatch's own file
            data=embedded(run_data(result)),
        )
    )


def run_data(result: CapacityResult) -> dict[str, Any]:
    """Return the data that the charts' script draws."""
    return {"charts": charts(result)}


def embedded(data: object) -> Markup:
    """Return data as text for a script element."""
    return Markup(data_text(data))  # noqa: S704 - JSON without "<"


@cache
def style() -> str:
    """Return the style sheet of all pages."""
    return _text("page.css")


@cache
def charts_script() -> str:
    """Return the script that draws a page's data. It needs the ECharts library."""
    parts = (values_script(), *map(_text, ("run.js", "waterfall.js", "draw.js")))
    return f'(() => {{\n"use strict";\n{"".join(parts)}}})();\n'


def environment(*folders: Path) -> jinja2.Environment:
    """Return a template environment with these folders and the shared templates."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader([*folders, _HERE]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters |= _filters()
    return env


@cache
def _text(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _filters() -> Mapping[str, Callable[..., object]]:
    """Return the filters for the templates."""
    return {
        "ms": milliseconds,
        "number": number,
        "percent": percent,
        "ago": ago,
        "when": when,
        "ttft": latency.ttft_s,
        "tpot": latency.tpot_s,
        "e2e": latency.e2e_s,
        "stall": latency.stall_s,
        "answered": _was_answered,
        "lag": latency.schedule_lag_s,
        "good_share": good_share,
        "limits": promises,
        "knee_line": knee_line,
        "workload_words": workload_words,
        "limit": limit_words,
        "capacity": capacity_words,
        "no_capacity": no_capacity_words,
        "lines": result_lines,
        "provenance": provenance_lines,
        "loads": loads,
        "verdict": step_verdict,
        "three": _three,
        "facts": _facts,
        "promised": _promised,
    }


def ago(wall_s: float) -> str:
    """Return the age in its largest unit, such as "3 min ago"."""
    return words.ago(wall_s, time.time())


def good_share(records: Sequence[RequestRecord], objectives: Objectives) -> float | None:
    """Return the share of requests that met every objective."""
    return slo.good_ratio(records, objectives).get(slo.ALL)


def _three(values: Distribution) -> str:
    """Return p50, p95 and p99 in milliseconds."""
    found = [values.p50, values.p95, values.p99]
    return " / ".join(MISSING if one is None else number(one * 1000) for one in found)


def _was_answered(record: RequestRecord) -> bool:
    """Return whether the server sent a correct answer."""
    return bool(record.is_up)


def _promised(objectives: Mapping[str, object]) -> str:
    """Return a run's objectives as text."""
    try:
        return promises(objectives_of(objectives))
    except ValidationError:  # written by another version
        return ", ".join(f"{key} {value}" for key, value in _facts(objectives))


def _facts(values: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return settings as pairs of text, without those that are unset."""
    found = []
    for key, value in values.items():
        if value is None or value in ((), [], {}):
            continue
        text = str(value)
        if isinstance(value, Mapping):
            length = stored_length(value)
            text = str(length) if length is not None else ", ".join(f"{k} {v}" for k, v in value.items())
        found.append((key.replace("_", " "), text if len(text) <= _LONG else f"{text[:_LONG]}..."))
    return found
