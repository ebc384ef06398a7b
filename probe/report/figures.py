"""Numbers and tables formatted for people, the same in terminal, pages and Markdown. Pure."""

import math
import time
from collections.abc import Iterable, Sequence

from probe.core.objectives import Objectives
from probe.core.snapshot import ServerSnapshot
from probe.core.text import one_line

MISSING = "-"


def milliseconds(seconds: float | None) -> str:
    """Format seconds as milliseconds, with three digits."""
    if seconds is None:
        return MISSING
    value = seconds * 1000
    return f"{value:.0f} ms" if value >= 100 else f"{value:.1f} ms"  # noqa: PLR2004 - digits that matter


def short(seconds: float | None) -> str:
    """Format a latency as it is read: in milliseconds below a second, with three digits at most."""
    if seconds is None:
        return MISSING
    if seconds >= 0.9995:  # noqa: PLR2004 - what is less is no whole second
        return f"{number(seconds)} s"
    value = seconds * 1000
    return f"{value:.0f} ms" if value >= 99.95 else f"{value:.1f}".removesuffix(".0") + " ms"  # noqa: PLR2004


def number(value: float | None) -> str:
    """Format a number: three significant digits below a thousand, whole numbers above."""
    if value is None:
        return MISSING
    whole = math.isfinite(value) and (abs(value) >= 999.5 or value == int(value))  # noqa: PLR2004 - .3g: 1e+03
    return f"{value:,.0f}" if whole else f"{value:.3g}"


_GIB = 1 << 30


def kv_size(server: ServerSnapshot) -> str:
    """Return the size of a server's KV cache: in tokens, and in GiB if that is known too."""
    size, gpu_bytes = server.kv_cache_tokens, server.value("kv_cache_bytes")
    if size is None:
        return "size unknown"
    return f"{number(size)} tokens" + ("" if gpu_bytes is None else f", {number(gpu_bytes / _GIB)} GiB on each GPU")


def percent(ratio: float | None) -> str:
    """Format a ratio as a percentage. Near 1, keep two digits of the rest: 0.9999 is not 100 %."""
    if ratio is None:
        return MISSING
    if 0.99 < ratio < 1:  # noqa: PLR2004
        decimals = 1 - math.floor(math.log10((1 - ratio) * 100))
        return f"{ratio * 100:.{decimals}f}".rstrip("0") + " %"
    return f"{number(ratio * 100)} %" if abs(ratio) >= 10 else f"{ratio * 100:.3g} %"  # noqa: PLR2004 - .3g: 1e+03


def promises(objectives: Objectives) -> str:
    """Return the objectives as text."""
    parts = [f"availability {percent(objectives.availability)}"] if objectives.availability is not None else []
    parts += [
        f"{'longest ' if name == 'itl' else ''}{name.upper()} ≤ {short(o.within_s)} for {percent(o.ratio)}"
        for name, o in objectives.latencies().items()
    ]
    return ", ".join(parts) or "none"


def when(wall_s: float) -> str:
    """Format a wall time in UTC. A server may report an impossible start time."""
    return _moment("%Y-%m-%d %H:%M:%S UTC", wall_s)


def moment(wall_s: float, now_s: float) -> str:
    """Format a wall time in UTC as briefly as it is clear: with seconds within an hour, with the day before today."""
    age_s = abs(now_s - wall_s)
    if when(wall_s)[:_DATE] == when(now_s)[:_DATE]:
        return _moment("%H:%M:%S UTC" if age_s < _HOUR_S else "%H:%M UTC", wall_s)
    return _moment("%d %b %H:%M UTC", wall_s).removeprefix("0") if age_s < _YEAR_S else when(wall_s)[:_DATE]


def ago(wall_s: float, now_s: float) -> str:
    """Format an age in its largest unit, such as "3 min ago"."""
    seconds = max(now_s - wall_s, 0.0)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def iso(wall_s: float) -> str:
    """Format a wall time in UTC as ISO 8601."""
    return _moment("%Y-%m-%dT%H:%M:%SZ", wall_s)


def _moment(form: str, wall_s: float) -> str:
    try:
        return time.strftime(form, time.gmtime(wall_s))
    except (OverflowError, ValueError, OSError):  # out of range for a calendar
        return MISSING


_CELL = 500
_DATE = len("2026-11-23")
_HOUR_S, _YEAR_S = 3600.0, 300 * 86400.0  # of two days in different years nobody has to guess which


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    lines = [head, ["---"] * len(head), *([cell(each) for each in row] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def cell(text: str) -> str:
    """Return text for a cell: on one line, without what would be markup, a link or an image."""
    text = one_line(text, _CELL).replace("\\", "\\\\").replace("|", "\\|").replace("[", "\\[")
    return text.replace("<", "&lt;") or MISSING
