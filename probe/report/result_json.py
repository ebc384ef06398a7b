"""CapacityResult to JSON and back. The records' own shape is the format (schema kneewatch.result/1)."""

from pydantic import TypeAdapter

from probe.core.result import CapacityResult

_ADAPTER: TypeAdapter[CapacityResult] = TypeAdapter(CapacityResult)


def dumps(result: CapacityResult, indent: int | None = None) -> str:
    """Return the result as JSON."""
    return _ADAPTER.dump_json(result, indent=indent).decode()


def loads(text: str | bytes) -> CapacityResult:
    """Return the result from JSON. Raises pydantic's ValidationError."""
    return _ADAPTER.validate_json(text)
