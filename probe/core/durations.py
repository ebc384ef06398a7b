"""Durations as text with a unit, to seconds and back. Pure."""

import re
from decimal import Decimal

_UNITS_MS = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|w)")
DURATION_PATTERN = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d|w))+$"
_LONGEST_S = 1e11  # 3000 years: anything longer is a typing error


def parse_duration(text: object) -> float:
    """Return the seconds of a text such as `500ms`, `15s` or `1h30m`.

    Raises ValueError for anything else, including a number without a unit, which is a common mistake.
    """
    if not isinstance(text, str) or not re.fullmatch(DURATION_PATTERN.strip("^$"), text):
        raise ValueError(f"expected a duration with a unit, such as 500ms, 15s or 1h, got {text!r}")
    # In decimal, so that 51ms is the float nearest to 0.051.
    seconds = float(sum(Decimal(number) * _UNITS_MS[unit] for number, unit in _PART.findall(text)) / 1000)
    if seconds > _LONGEST_S:
        raise ValueError(f"expected a shorter duration, got {text!r}")
    return seconds


def format_duration(seconds: float) -> str:
    """Return the shortest text with one unit that `parse_duration` turns into the same number."""
    ms = Decimal(repr(seconds)) * 1000
    for unit, size in _UNITS_MS.items():
        if ms and ms % size == 0:
            return f"{int(ms / size)}{unit}"
    return f"{ms.normalize():f}ms" if ms < 1000 else f"{(ms / 1000).normalize():f}s"  # noqa: PLR2004 - one second
