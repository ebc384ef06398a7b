"""Annotations on the time axis: events that explain a change. Pure.

A capacity run, a restart, another version or configuration explains a step in a curve better than any panel.
"""

from collections.abc import Sequence

from dashboards.pieces import BLUE, GREEN, GREY, RED, YELLOW, Annotation
from dashboards.queries import RATE
from exporters import names
from exporters.names import Series

# A label set that existed within this time is not new: a restart of Kneewatch changes no version.
_KNOWN = "1h"


def marks(selector: str) -> list[Annotation]:
    """Return all annotations of one target."""
    return [*_runs(selector), *_server(selector), *kneewatch()]


def _server(selector: str) -> list[Annotation]:
    return [
        Annotation(
            "Server restart",
            f"1000 * max by (target) ({names.SERVER_STARTED.name}{{{selector}}})",
            "{{target}}: the server started",
            RED,
            has_timestamps=True,
        ),
        Annotation(
            "Server version",
            _new(names.SERVER_INFO, "target, engine, version", selector),
            "{{target}}: {{engine}} {{version}}",
            GREEN,
        ),
        Annotation(
            "Asleep", f"max by (target) ({names.SERVER_ASLEEP.name}{{{selector}}}) == 1", "{{target}}: asleep", GREY
        ),
    ]


def kneewatch() -> list[Annotation]:
    """Return the annotations of Kneewatch itself. Annotations of fifty servers would hide the axis."""
    return [
        Annotation("Configuration", _new(names.CONFIG_HASH, "hash"), "Kneewatch's configuration: {{hash}}", GREY),
        Annotation("Kneewatch version", _new(names.BUILD_INFO, "version"), "Kneewatch {{version}}", GREY),
    ]


def _runs(selector: str) -> list[Annotation]:
    """Return the annotations of capacity runs."""
    load = f'{selector},traffic="capacity"'
    return [
        Annotation(
            "Capacity run",
            f"sum by (target) (rate({names.REQUESTS.name}{{{load}}}[{RATE}])) > 0",
            "{{target}}: capacity run",
            BLUE,
        ),
        Annotation(
            "Guard trip",
            f"sum by (target, reason) (increase({names.GUARD_TRIPS.name}{{{selector}}}[{RATE}])) > 0",
            "{{target}}: the guard stopped the capacity run: {{reason}}",
            YELLOW,
        ),
    ]


def _new(series: Series, labels: str, selector: str = "") -> str:
    """Return the label sets that did not exist before."""
    before = f"last_over_time({series.name}{_in(selector)}[{_KNOWN}] offset {RATE})"
    return f"max by ({labels}) ({series.name}{_in(selector)})\nunless on ({labels}) max by ({labels}) ({before})"


def setups(selector: str) -> Sequence[Annotation]:
    """Return annotations where capacity refers to another model, engine, flags, workload or objectives than before."""
    changed = f"changes({names.CAPACITY_FINGERPRINT.name}{{{selector}}}[{RATE}])"
    return [
        Annotation(
            "Other setup", f"max by (target) ({changed}) > 0", "{{target}}: capacity refers to another setup", GREY
        )
    ]


def _in(selector: str) -> str:
    return f"{{{selector}}}" if selector else ""
