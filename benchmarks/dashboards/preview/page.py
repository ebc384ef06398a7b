"""A dashboard with its data as one HTML file that needs nothing else and lets nothing else in.

In: a `View`. Out: HTML. Names are untrusted: the template escapes them, the data are JSON that cannot end its
element, and the page's policy runs only the scripts and styles written here, known by their digests.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from benchmarks.dashboards.preview.fields import unit_of
from benchmarks.dashboards.preview.places import View
from probe import __version__
from probe.charts import ECHARTS, data_text, digest, echarts, notice, values_script

_HERE = Path(__file__).parent
_SCRIPTS = ("charts.js", "bands.js", "panels.js", "page.js")


def page(view: View, name: str, titles: Mapping[str, str], url: str) -> str:
    """Render the page `name` of the pages `titles` (file to title), with what the Prometheus at `url` answered."""
    style = _text("page.css") + _places(view)
    scripts = [echarts(), _script()]
    policy = [
        "default-src 'none'",
        f"script-src {' '.join(map(digest, scripts))}",
        f"style-src {digest(style)}",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return _template().render(
        view=view,
        name=name,
        titles=titles,
        url=url,
        policy="; ".join(policy),
        version=__version__,
        echarts=ECHARTS,
        notice=notice(),
        style=Markup(style),  # noqa: S704 - from this repository
        scripts=[Markup(one) for one in scripts],  # noqa: S704 - from this repository
        data=Markup(data_text(_data(view))),  # noqa: S704 - JSON without "<"
    )


@cache
def _script() -> str:
    return (
        '(() => {\n"use strict";\nconst data = JSON.parse(document.getElementById("data").textContent);\n'
        + values_script()
        + "".join(map(_text, _SCRIPTS))
        + "})();\n"
    )


@cache
def _text(name: str) -> str:
    return (_HERE / "page" / name).read_text(encoding="utf-8")


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "page"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["utc"] = lambda at_s: f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M:%S}"
    return environment.get_template("page.html")


def _places(view: View) -> str:
    """Return each panel's place in Grafana's grid as CSS rules, since the policy allows no style on an element."""
    rules = []
    for row in view.rows:
        for panel in row.panels:
            x, y, width, height = panel.place
            rules.append(f"#p{panel.id}{{grid-area:{y + 1}/{x + 1}/span {height}/span {width}}}")
    return "\n".join(rules) + "\n"


def _data(view: View) -> dict[str, Any]:
    panels = {f"p{panel.id}": panel.data for row in view.rows for panel in row.panels if panel.data is not None}
    units = set(_units(list(panels.values())))
    return {
        "now": view.window.end_s,
        "panels": panels,
        "events": list(view.events),
        "units": {name: dict(unit_of(name)) for name in sorted(units | {"none"})},
    }


def _units(value: object) -> Sequence[str]:
    """Return every unit named in the data."""
    if isinstance(value, Mapping):
        own = [str(value["unit"])] if isinstance(value.get("unit"), str) else []
        return own + [unit for one in value.values() for unit in _units(one)]
    if isinstance(value, list) and value and isinstance(value[0], (dict, list)):
        return [unit for one in value for unit in _units(one)]
    return []
