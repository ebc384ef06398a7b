"""Numbers as people read them, the same in terminal and page. Pure."""

import time

from probe.records import Objectives

MISSING = "-"


def milliseconds(seconds: float | None) -> str:
    """People read milliseconds; three digits are enough."""
    if seconds is None:
        return MISSING
    value = seconds * 1000
    return f"{value:.0f} ms" if value >= 100 else f"{value:.1f} ms"  # noqa: PLR2004 - digits that matter


def number(value: float | None) -> str:
    """Three significant digits below a thousand, whole numbers above."""
    if value is None:
        return MISSING
    return f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:.3g}"  # noqa: PLR2004


def percent(ratio: float | None) -> str:
    """A ratio as a percentage."""
    return MISSING if ratio is None else f"{ratio * 100:.3g} %"


def promises(objectives: Objectives) -> str:
    """The objectives in words."""
    parts = [f"{percent(objectives.availability)} available"] if objectives.availability is not None else []
    parts += [
        f"{percent(o.ratio)} {name.upper()} ≤ {milliseconds(o.within_s)}" for name, o in objectives.latencies().items()
    ]
    return ", ".join(parts) or "none"


def when(wall_s: float) -> str:
    """A moment in UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(wall_s))
