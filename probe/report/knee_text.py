"""The knee of a capacity result as text: where it is, whether a load level reached it, and what limits it."""

from probe.core.result import Capacity, CapacityResult
from probe.report.figures import number

_EMPIRICAL = "empirical"
_OBJECTIVES = ("availability", "ttft", "tpot")


def is_not_reached(capacity: Capacity) -> bool:
    """Return whether no load broke an objective, so that the capacity is that of the highest load."""
    return capacity.is_lower_bound and capacity.limiting not in _OBJECTIVES


def is_predicted(result: CapacityResult) -> bool:
    """Return whether only the model knows the knee: every load level of the run met the objectives."""
    if not result.steps or result.capacity.mode == _EMPIRICAL or result.stopped.by != "done":
        return False
    return not any(step.broken or step.tripped for step in result.steps)


def knee_line(result: CapacityResult) -> str:
    """Return where the knee is, or that it was not reached."""
    capacity = result.capacity
    if capacity.mode == "forecast" and capacity.is_lower_bound:
        return "unknown: it depends on max_num_seqs, which is not known"
    if is_not_reached(capacity):
        return f"not reached: no objective was broken up to {knee_words(capacity)}"
    if is_predicted(result):
        return f"not reached: the model predicts it at {knee_words(capacity)}"
    return knee_words(capacity)


def knee_words(capacity: Capacity) -> str:
    """Return the knee's load, in the unit of the steps."""
    if capacity.knee_concurrency is not None:
        return f"{capacity.knee_concurrency} request{'s' if capacity.knee_concurrency != 1 else ''} in flight"
    return f"{number(capacity.requests_per_second)} requests/s"


def limit_words(result: CapacityResult) -> str:
    """Return what limits the capacity; "" if that is unknown."""
    limiting = result.capacity.limiting or ""
    if limiting and is_predicted(result):
        return f"{limiting} (predicted by the model; no load level broke an objective)"
    return limiting
