"""A CapacityResult to JSON and back, and a request as JSON, for the API and for `check --json`.

The records' own shape is the format of results (schema kneewatch.result/1).
"""

from collections.abc import Mapping
from dataclasses import replace

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from probe.core import latency
from probe.core.errors import TargetError
from probe.core.objectives import Objectives
from probe.core.request import RequestRecord
from probe.core.result import CapacityResult
from probe.core.step import Pattern
from probe.core.workload import Workload
from probe.report.figures import iso

_ADAPTER: TypeAdapter[CapacityResult] = TypeAdapter(CapacityResult)
_WORKLOAD: TypeAdapter[Workload] = TypeAdapter(Workload)
_OBJECTIVES: TypeAdapter[Objectives] = TypeAdapter(Objectives)


def dumps(result: CapacityResult, indent: int | None = None) -> str:
    """Return the result as JSON."""
    return _ADAPTER.dump_json(result, indent=indent).decode()


def loads(text: str | bytes) -> CapacityResult:
    """Return the result from JSON. Raises pydantic's ValidationError."""
    return _renamed(_ADAPTER.validate_json(text))


def _renamed(result: CapacityResult) -> CapacityResult:
    """Return the result with today's name of rising arrivals: under another name a condition begins a new baseline."""
    if result.context.workload.get("arrivals") != "ramp":
        return result
    workload = {**result.context.workload, "arrivals": Pattern("ramp").value}
    return replace(result, context=replace(result.context, workload=workload))


def workload_of(stored: Mapping[str, object]) -> Workload:
    """Return the workload of a result's context. Raises pydantic's ValidationError."""
    return _WORKLOAD.validate_python(stored)


def objectives_of(stored: Mapping[str, object]) -> Objectives:
    """Return the objectives of a result's context. Raises pydantic's ValidationError."""
    return _OBJECTIVES.validate_python(stored)


class RecordJson(TypedDict):
    """A request without its prompt. Latencies in seconds, `at` in ISO 8601."""

    at: str
    outcome: str
    detail: str | None
    ttft_s: float | None
    first_answer_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    itl_max_s: float | None
    prompt_tokens: int
    output_tokens: int


def record_json(record: RequestRecord) -> RecordJson:
    """Return a finished request as JSON."""
    return {
        "at": iso(record.done_wall_s),
        "outcome": record.outcome.value,
        "detail": record.detail,
        "ttft_s": latency.ttft_s(record),
        "first_answer_s": latency.first_answer_s(record),
        "tpot_s": latency.tpot_s(record),
        "e2e_s": latency.e2e_s(record),
        "itl_max_s": latency.stall_s(record),
        "prompt_tokens": record.prompt_tokens,
        "output_tokens": record.output_tokens,
    }


def unmeasured_json(error: TargetError, wall_s: float) -> RecordJson:
    """Return the JSON for a target that could not be probed at `wall_s`."""
    return {
        "at": iso(wall_s),
        "outcome": error.outcome.value,
        "detail": str(error),
        "ttft_s": None,
        "first_answer_s": None,
        "tpot_s": None,
        "e2e_s": None,
        "itl_max_s": None,
        "prompt_tokens": 0,
        "output_tokens": 0,
    }
