"""Every series Kneewatch exports, once: name, kind, help, labels, buckets, stability.

Exporters, dashboards, rules and tests take names from here, so a renamed series is an error in the
type check and not an empty panel. The folder series/ declares them, in a file for each source. `stability` is a
promise: "stable" changes only with a major version and a deprecation; "experimental" may change.
"""
# ruff: noqa: F403, F405 - a list of 130 names would have to repeat the files

from exporters.series.capacity import *
from exporters.series.client import *
from exporters.series.cross_checks import *
from exporters.series.declaration import *
from exporters.series.gpu import *
from exporters.series.monitor import *
from exporters.series.server import *

_OWN = dict.fromkeys(
    [
        *(value for value in list(globals().values()) if isinstance(value, Series)),
        *SERVER.values(),
        *ENGINE.values(),
        *ENGINE_LATENCIES.values(),
    ]
)
ALL: tuple[Series, ...] = (
    *(series for source in SOURCES for series in (*_OWN, *STANDARD_PROCESS) if series.source == source),
    *GPU,
)
