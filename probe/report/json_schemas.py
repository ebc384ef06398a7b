"""JSON Schemas of the files that `ramp`, `plan` and `tune` write with --json, for `kneewatch config schema NAME`.

A result's is made from its records. A later version may add keys: a reader ignores what it does not know.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from typing_extensions import TypedDict

from probe.capacity.model.knobs import Knob
from probe.capacity.trend.replica_count import Demand, Replicas
from probe.core.result import CapacityResult, Cost


class PlanCapacityJson(TypedDict):
    """The capacity of one replica, in requests/s; null without one, with the `reason`."""

    mode: str
    requests_per_second: float | None
    lower: float | None
    upper: float | None
    output_tokens_per_second: float | None
    is_lower_bound: bool
    reason: str | None


class PlanCostJson(TypedDict):
    """Prices of a million good output tokens, in the currency of `gpu_hour`; null: unknown."""

    gpu_hour: float
    gpus: int
    good_share: float
    at_capacity: float | None
    at_peak: float | None


class PlanContextJson(TypedDict):
    """The conditions of the result."""

    engine: str
    version: str
    gpu: str | None
    flags: dict[str, str]
    facts: dict[str, str]
    started: Annotated[str, Field(json_schema_extra={"format": "date-time"})]


class PlanJson(TypedDict):
    """The replicas that a peak needs, by one result. `cost`: null without a price."""

    source: str
    result: str
    target: str
    model: str
    workload: dict[str, Any]
    peak: Demand
    capacity: PlanCapacityJson
    replicas: Replicas
    cost: PlanCostJson | None
    knobs: list[Knob]
    context: PlanContextJson


class PlansJson(TypedDict):
    """Replica plans, as `kneewatch plan --json` prints them."""

    schema: Literal["kneewatch.plan/1"]
    plans: list[PlanJson]


class ChangeJson(TypedDict):
    """The relative change of capacity from the base; null: unknown."""

    ratio: float | None
    lower: float | None
    upper: float | None


class TunedValueJson(TypedDict):
    """A value of a setting. `result`: the id of its result; the keys after it are there with a result only."""

    value: str
    verdict: str
    predicted: Knob | None
    reason: str | None
    result: str | None
    file: NotRequired[str | None]
    change: NotRequired[ChangeJson]
    requests_per_second: NotRequired[float | None]
    lower: NotRequired[float | None]
    upper: NotRequired[float | None]
    mode: NotRequired[str]
    limiting: NotRequired[str | None]
    bottleneck: NotRequired[str | None]
    output_tokens_per_second: NotRequired[float | None]
    kv_cache_usage_peak: NotRequired[float | None]
    preemptions: NotRequired[float | None]
    tokens_per_joule: NotRequired[float | None]
    cost: NotRequired[Cost]
    price_per_million_output_tokens: NotRequired[float | None]


class TunedSettingJson(TypedDict):
    """A setting and its values, the base first. `chosen`: null while nothing is decided."""

    name: str
    chosen: str | None
    why: str
    values: list[TunedValueJson]


class TuneJson(TypedDict):
    """The decision record of `kneewatch tune`."""

    schema: Literal["kneewatch.tune/1"]
    started: Annotated[str, Field(json_schema_extra={"format": "date-time"})]
    command: str
    tolerance: float
    settings: dict[str, str]
    ended_by: str | None
    decided: bool
    gpu_hour_price: float | None
    knobs: list[TunedSettingJson]


_TYPES: Mapping[str, TypeAdapter[Any]] = {
    "result": TypeAdapter(CapacityResult),
    "plan": TypeAdapter(PlansJson),
    "tune": TypeAdapter(TuneJson),
}


def file_schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of a result, a plan or a tune record, each in version 1 of its format."""
    found = _TYPES[name].json_schema(mode="serialization")
    word = {"const": f"kneewatch.{name}/1", "type": "string"}
    properties = {**found["properties"], "schema": word}
    head = {"$schema": GenerateJsonSchema.schema_dialect, "$id": f"urn:kneewatch:{name}:1"}
    return {**head, **found, "properties": properties, "required": sorted({*found["required"], "schema"})}
