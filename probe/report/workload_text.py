"""A workload of measured lengths as text."""

from collections.abc import Mapping

from probe.core.measured_length import MeasuredLength
from probe.report.figures import number

_SHOWN = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def length_words(values: Mapping[str, object]) -> str | None:
    """Return the mean and percentiles of a measured length, in tokens; None for another value of a context."""
    tokens, shares = values.get("tokens"), values.get("shares")
    if not isinstance(tokens, list) or not isinstance(shares, list):
        return None
    length = MeasuredLength(tuple(tokens), tuple(shares))
    quantiles = (f"{name} {number(round(length.quantile(share)))}" for name, share in _SHOWN.items())
    return f"mean {number(round(length.mean))}, {', '.join(quantiles)}"


def workload_lines(workload: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return label and text of the lengths of a workload that was learnt from users; none for another workload."""
    parts = []
    for key, name in (("prompt_tokens", "prompts"), ("output_tokens", "answers")):
        value = workload.get(key)
        words = length_words(value) if isinstance(value, Mapping) else None
        if words is None:
            return []
        parts.append(f"{name} of {words} tokens")
    return [("Workload", f"as users send: {'; '.join(parts)}")]
