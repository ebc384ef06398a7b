"""The column "Cause" of the Fleet dashboard: the strongest sign of why a target is, or soon will be, slow. Pure.

As on Kneewatch's own pages (probe/web/row_text.py). A sign is the value of a query, shown as a word.
"""

from alerts import trends
from dashboards.pieces import GREEN, YELLOW, Texts
from dashboards.queries import named
from exporters import names
from exporters.names import Series
from probe.core.request import Outcome
from probe.report.cross_check_text import STALLED_S

_MUCH = 0.5  # of an objective, or of a time
_UNJUDGED = 0.15  # of the canaries: three of the last twenty
_NOW = "15m"


def strongest() -> str:
    """Return by target the place of its strongest sign in _SIGNS, from 1 on; 0 without one."""
    each = "\n  or ".join(named("sign", text, f"({i} * ({expr}))") for i, (text, expr) in enumerate(_SIGNS, 1))
    return f"max by (target) (\n  {each}\n)\nor on (target) 0 * {trends.up()}"


def _of_target(series: Series, selector: str = "") -> str:
    return f"max by (target) ({series.name}{{{selector}}})" if selector else f"max by (target) ({series.name})"


def _network() -> str:
    """Return whether network and gateway take much of the TTFT that an objective allows."""
    gap, limit = _of_target(names.TTFT_GAP, 'method="matched"'), _of_target(names.OBJECTIVE_SECONDS, 'objective="ttft"')
    return f"{gap} >= bool on (target) {_MUCH:g} * {limit}"


def _queue() -> str:
    """Return whether requests queue now, and for much of their TTFT."""
    return f"({_of_target(names.QUEUE_SHARE)} >= bool {_MUCH:g}) * on (target) ({trends.waiting()} > bool 0)"


def _unjudged() -> str:
    """Return whether Kneewatch was too late to judge a clear share of the canaries."""
    late, each = (
        f"sum by (target) (rate({names.REQUESTS.name}{{{selector}}}[{_NOW}]))"
        for selector in (f'traffic="canary",outcome="{Outcome.CLIENT_BOUND.value}"', 'traffic="canary"')
    )
    return f"{late} / ({each} > 0) >= bool {_UNJUDGED:g}"


# The weakest first: what is shown, and PromQL that is 1 where there is the sign.
_SIGNS = (
    ("proxy buffers", f"{_of_target(names.HELD_BACK)} >= bool {_MUCH:g}"),
    ("network", _network()),
    ("queue", _queue()),
    ("KV cache full", _of_target(names.KV_TOO_SMALL)),
    ("engine stalled", f"{_of_target(names.STALLED)} >= bool {STALLED_S:g}"),
    ("Kneewatch is late", _unjudged()),
)
TEXTS: Texts = {"0": ("none seen", GREEN)} | {str(i): (text, YELLOW) for i, (text, _) in enumerate(_SIGNS, 1)}
