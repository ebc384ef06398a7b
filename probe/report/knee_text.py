"""The knee of a capacity result as text: where it is, whether a step reached it, and what limits it."""

from probe.core.objectives import AVAILABILITY, LATENCIES
from probe.core.reasons import REJECTIONS
from probe.core.result import Capacity, CapacityResult
from probe.report.figures import number

_EMPIRICAL = "empirical"
_OBJECTIVES = (AVAILABILITY, *LATENCIES, REJECTIONS.word)
# vLLM's flags that limit its queue, by the words with which it refuses a request.
_QUEUE_LIMITS = (
    ("cannot accept new requests", "--max-num-queued-reqs"),
    ("token backlog", "--max-num-queued-tokens"),
)


def is_not_reached(capacity: Capacity) -> bool:
    """Return whether no load broke an objective. Then there is no knee, and the capacity is the highest load."""
    return capacity.is_lower_bound and capacity.limiting not in _OBJECTIVES


def is_predicted(result: CapacityResult) -> bool:
    """Return whether only the model knows the knee: every step of the run met the objectives."""
    if not result.steps or result.capacity.mode == _EMPIRICAL or result.stopped.by != "done":
        return False
    return not any(step.broken or step.tripped for step in result.steps)


def knee_line(result: CapacityResult) -> str:
    """Return where the knee is, or up to which load there is none."""
    capacity = result.capacity
    if capacity.mode == "forecast" and capacity.is_lower_bound:
        return "unknown: it depends on max_num_seqs, which is not known"
    if is_not_reached(capacity):
        return f"no knee up to {_highest_held(result)}"
    if is_predicted(result):
        return f"predicted at {knee_words(capacity)} (every step met the objectives)"
    return knee_words(capacity)


def knee_words(capacity: Capacity) -> str:
    """Return the knee's load, in the unit of the steps."""
    if capacity.knee_concurrency is not None:
        return _in_flight(capacity.knee_concurrency)
    return f"{number(capacity.requests_per_second)} requests/s"


def _highest_held(result: CapacityResult) -> str:
    """Return the highest load that met the objectives, in the unit of the steps."""
    held = [step.plan for step in result.steps if step.valid and not step.broken]
    if held and all(plan.arrivals is None for plan in held):
        return _in_flight(max(plan.concurrency for plan in held))
    return knee_words(result.capacity)


def _in_flight(requests: int) -> str:
    return f"{requests} request{'s' if requests != 1 else ''} in flight"


def limit_words(result: CapacityResult) -> str:
    """Return what limits the capacity; "" if that is unknown."""
    limiting = result.capacity.limiting or ""
    if limiting == REJECTIONS.word:
        said = (flag for words, flag in _QUEUE_LIMITS if words in (result.first_failure or ""))
        anyone = " or ".join(flag for _, flag in _QUEUE_LIMITS) if result.context.engine == "vllm" else ""
        flag = next(said, anyone)
        return f"the server's queue limit ({flag})" if flag else "the server's queue limit"
    if limiting and is_predicted(result):
        return f"{limiting} (predicted by the model)"
    return limiting
