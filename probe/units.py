"""Text with a unit, as people write it, to seconds and back. Pure."""

import re

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
DURATION_PATTERN = r"^(\d+(\.\d+)?(ms|s|m|h|d|w))+$"


def parse_duration(text: object) -> float:
    """Seconds of a text such as `500ms`, `15s` or `1h30m`.

    Raises ValueError for anything else, a bare number included: a number without a unit is the
    mistake this guards against.
    """
    if isinstance(text, str) and re.match(DURATION_PATTERN, text):
        return sum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(text))
    raise ValueError(f"expected a duration with its unit, such as 500ms, 15s or 1h, got {text!r}")


def format_duration(seconds: float) -> str:
    """The shortest single-unit text that `parse_duration` reads back as the same number."""
    for unit in ("w", "d", "h", "m", "s"):
        amount = seconds / _UNITS_S[unit]
        if amount >= 1 and amount == int(amount):
            return f"{int(amount)}{unit}"
    return f"{seconds * 1000:.10g}ms" if seconds < 1 else f"{seconds:.10g}s"
