"""The alert on a knee that went down. Pure."""

from alerts.rules import Alert, Group, now
from alerts.windows import DAY_S, duration
from exporters import names

# Repeated runs on an unchanged server differ by a few percent; a fall of 15 % is more than that.
_LEFT = 0.85
_BY = "target, model, workload, mode"


def capacity_group(scale: float = 1.0) -> Group:
    """Compares capacity with the average over a day a week ago: the same hour and day, smoothed."""
    day, week = duration(DAY_S * scale), duration(7 * DAY_S * scale)
    rps = names.CAPACITY_RPS.name
    # Without an upper bound no load broke an objective: then the figure says "at least", and a
    # lower "at least" is no sign of a lower knee.
    expr = (
        f"avg by ({_BY}) ({rps})\n"
        f"  / avg by ({_BY}) (avg_over_time({rps}[{day}] offset {week})) < {_LEFT:g}\n"
        f"and avg by ({_BY}) ({names.CAPACITY_RPS_UPPER.name})"
    )
    current = now(f"avg({rps}{{target=%q}})")
    down = Alert(
        name="KneewatchKneeDown",
        expr=expr,
        for_s=600 * scale,
        severity="ticket",
        summary="{{ $labels.target }}: capacity is {{ $value | humanizePercentage }} of last week's",
        description=(
            "{{ $labels.target }} ({{ $labels.model }}, workload {{ $labels.workload }}, {{ $labels.mode }}) takes"
            f" {current} requests/s within its objectives: {{{{ $value | humanizePercentage }}}} of the average over"
            f" {day} a week ago. Below {_LEFT:.0%} the server, its settings or its hardware changed, not the load."
        ),
    )
    return Group("kneewatch-capacity", max(1.0, 60 * scale), [down])
