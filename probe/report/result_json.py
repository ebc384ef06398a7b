"""CapacityResult to JSON and back. The records' own shape is the format (schema kneewatch.result/1)."""

from collections.abc import Mapping

from pydantic import TypeAdapter

from probe.core.objectives import Objectives
from probe.core.result import CapacityResult
from probe.core.workload import Workload

_ADAPTER: TypeAdapter[CapacityResult] = TypeAdapter(CapacityResult)
_WORKLOAD: TypeAdapter[Workload] = TypeAdapter(Workload)
_OBJECTIVES: TypeAdapter[Objectives] = TypeAdapter(Objectives)


def dumps(result: CapacityResult, indent: int | None = None) -> str:
    """Return the result as JSON."""
    return _ADAPTER.dump_json(result, indent=indent).decode()


def loads(text: str | bytes) -> CapacityResult:
    """Return the result from JSON. Raises pydantic's ValidationError."""
    return _ADAPTER.validate_json(text)


def workload_of(stored: Mapping[str, object]) -> Workload:
    """Return the workload of a result's context. Raises pydantic's ValidationError."""
    return _WORKLOAD.validate_python(stored)


def objectives_of(stored: Mapping[str, object]) -> Objectives:
    """Return the objectives of a result's context. Raises pydantic's ValidationError."""
    return _OBJECTIVES.validate_python(stored)
