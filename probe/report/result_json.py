"""A CapacityResult to JSON and back, and a request as JSON, for the API and for `check --json`.

The records' own shape is the format of results (schema kneewatch.result/1).
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

from pydantic import AfterValidator, TypeAdapter
from typing_extensions import TypedDict

from probe.core import latency
from probe.core.errors import TargetError
from probe.core.objectives import Objectives
from probe.core.request import Outcome, RequestRecord
from probe.core.result import CapacityResult
from probe.core.step import Pattern
from probe.core.workload import Workload
from probe.report.figures import iso, percent

_ADAPTER: TypeAdapter[CapacityResult] = TypeAdapter(CapacityResult)


def _check_finite(result: CapacityResult) -> CapacityResult:
    """Raise ValueError for NaN or infinity, which no run writes: reports and pages compute with every number."""
    values: list[object] = [_ADAPTER.dump_python(result)]
    while values:
        value = values.pop()
        if isinstance(value, dict):
            values += value.values()
        elif isinstance(value, list | tuple):
            values += value
        elif isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"a number in it is {value}; expected finite numbers")
    return result


_READER: TypeAdapter[CapacityResult] = TypeAdapter(Annotated[CapacityResult, AfterValidator(_check_finite)])
_WORKLOAD: TypeAdapter[Workload] = TypeAdapter(Workload)
_OBJECTIVES: TypeAdapter[Objectives] = TypeAdapter(Objectives)


def dumps(result: CapacityResult, indent: int | None = None) -> str:
    """Return the result as JSON."""
    return _ADAPTER.dump_json(result, indent=indent).decode()


def loads(text: str | bytes) -> CapacityResult:
    """Return the result from JSON. Raises pydantic's ValidationError, also for a number that is not finite."""
    return _renamed(_READER.validate_json(text))


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
    first_visible_s: float | None
    first_answer_s: float | None
    tpot_s: float | None
    tpot_unknown: str | None
    e2e_s: float | None
    itl_max_s: float | None
    prompt_tokens: int
    output_tokens: int


def unknown_tpot(record: RequestRecord) -> str | None:
    """Return why the TPOT of an answer of several tokens is unknown; None if it is known, or there is none."""
    if record.outcome is not Outcome.OK or record.output_tokens <= 1 or latency.tpot_s(record) is not None:
        return None
    if latency.is_held_back(record):
        return f"{percent(latency.held_back_ratio(record))} of the tokens came together with the first one"
    return f"{record.output_tokens} tokens came in {len(record.events)} events, and no usage says which in which"


def record_json(record: RequestRecord) -> RecordJson:
    """Return a finished request as JSON."""
    return {
        "at": iso(record.done_wall_s),
        "outcome": record.outcome.value,
        "detail": record.detail,
        "ttft_s": latency.ttft_s(record),
        "first_visible_s": latency.first_visible_s(record),
        "first_answer_s": latency.first_answer_s(record),
        "tpot_s": latency.tpot_s(record),
        "tpot_unknown": unknown_tpot(record),
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
        "first_visible_s": None,
        "first_answer_s": None,
        "tpot_s": None,
        "tpot_unknown": None,
        "e2e_s": None,
        "itl_max_s": None,
        "prompt_tokens": 0,
        "output_tokens": 0,
    }
