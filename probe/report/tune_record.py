"""The decision record of `kneewatch tune`: what each value of each setting was predicted to give, and gave."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from probe.capacity.model.knobs import Knob
from probe.capacity.trend.compare import change_of
from probe.capacity.trend.replica_count import gpus_of
from probe.core.result import CapacityResult
from probe.report.result_columns import GpuPrice

SCHEMA = "kneewatch.tune/1"
BASE, AGAIN, SKIPPED, FAILED, WAITING = "base", "base again", "not measured", "did not start", "to be measured"

JOINED = "+"  # between the names, and the values, of two settings that are tried together


def settings_of(name: str, value: str) -> dict[str, str]:
    """Return the settings that a value of a setting, or of two together, stands for."""
    return dict(zip(name.split(JOINED), value.split(JOINED), strict=True))


@dataclass(frozen=True, slots=True)
class TunedValue:
    """A value of a setting. `verdict`: one of compare.py's or of those above; `reason`: why there is no result.

    `predicted`: None for the base. `file`: of the result.
    """

    value: str
    verdict: str
    predicted: Knob | None = None
    result: CapacityResult | None = None
    file: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class KnobDecision:
    """The values of one setting, the base first and last. `chosen`: None while nothing is decided; `why`: words."""

    name: str
    values: tuple[TunedValue, ...]
    chosen: str | None = None
    why: str = ""

    @property
    def base(self) -> TunedValue:
        return self.values[0]

    def with_value(self, new: TunedValue) -> "KnobDecision":
        """Return the decision with what is now known of a value, in its place, or at the end."""
        places = [(one.value, one.verdict == AGAIN) for one in self.values]
        place = (new.value, new.verdict == AGAIN)
        if place not in places:
            return replace(self, values=(*self.values, new))
        at = places.index(place)
        return replace(self, values=(*self.values[:at], new, *self.values[at + 1 :]))


@dataclass(frozen=True, slots=True)
class TuneRecord:
    """A whole tuning. `settings`: those chosen so far; `ended_by`: what ended it before its end, None: nothing.

    `price`: of a GPU hour. With one, values are compared by their capacity per GPU, so by what a token costs.
    """

    started: datetime
    command: str
    tolerance: float
    settings: Mapping[str, str]
    decisions: tuple[KnobDecision, ...] = ()
    ended_by: str | None = None
    price: GpuPrice | None = None

    def token_price(self, found: CapacityResult) -> float | None:
        """Return the price of a million output tokens at the capacity, in the currency of `price`; None: unknown."""
        return None if self.price is None else self.price.of_tokens(found, found.capacity.output_tokens_per_second)

    def compared(self, found: CapacityResult) -> CapacityResult:
        """Return the result as it is compared: with a price, its capacity per GPU."""
        return found if self.price is None else per_gpu(found, self.price.gpus or gpus_of(found))

    @property
    def is_decided(self) -> bool:
        """Return whether there is an answer for each setting."""
        chosen = [each for each in self.decisions if each.chosen is not None]
        decided = [name for each in chosen for name in each.name.split(JOINED)]
        return self.ended_by is None and decided == list(self.settings)

    @property
    def results(self) -> Iterator[CapacityResult]:
        """Return the results of the record in the order of its rows."""
        return (one.result for each in self.decisions for one in each.values if one.result is not None)


def per_gpu(found: CapacityResult, gpus: int) -> CapacityResult:
    """Return the result with its capacity divided by the GPUs."""
    whole = found.capacity
    rate, lower, upper = (
        None if end is None else end / gpus for end in (whole.requests_per_second, whole.lower, whole.upper)
    )
    return replace(found, capacity=replace(whole, requests_per_second=rate, lower=lower, upper=upper))


def tune_json(record: TuneRecord) -> dict[str, Any]:
    """Return the record for JSON: rates per second, changes as ratios."""
    return {
        "schema": SCHEMA,
        "started": record.started.isoformat(),
        "command": record.command,
        "tolerance": record.tolerance,
        "settings": dict(record.settings),
        "ended_by": record.ended_by,
        "decided": record.is_decided,
        "gpu_hour_price": None if record.price is None else record.price.gpu_hour,
        "knobs": [
            {"name": each.name, "chosen": each.chosen, "why": each.why}
            | {"values": [_value_json(record, each.base.result, one) for one in each.values]}
            for each in record.decisions
        ],
    }


def _value_json(record: TuneRecord, base: CapacityResult | None, one: TunedValue) -> dict[str, Any]:
    found: dict[str, Any] = {
        "value": one.value,
        "verdict": one.verdict,
        "predicted": None if one.predicted is None else asdict(one.predicted),
        "reason": one.reason,
        "result": None,
    }
    if one.result is None:
        return found
    capacity, is_base = one.result.capacity, base is None or base is one.result
    change = (None, None, None) if base is None or is_base else change_of(base, one.result)
    return found | {
        "result": one.result.id,
        "file": one.file,
        "change": dict(zip(("ratio", "lower", "upper"), change, strict=True)),
        "requests_per_second": capacity.requests_per_second,
        "lower": capacity.lower,
        "upper": capacity.upper,
        "mode": capacity.mode,
        "limiting": capacity.limiting,
        "bottleneck": capacity.bottleneck,
        "output_tokens_per_second": capacity.output_tokens_per_second,
        "kv_cache_usage_peak": kv_peak(one.result),
        "preemptions": preemptions(one.result),
        "tokens_per_joule": tokens_per_joule(one.result),
        "cost": asdict(one.result.cost),
        "price_per_million_output_tokens": record.token_price(one.result),
    }


def kv_peak(found: CapacityResult) -> float | None:
    peaks = [step.server.kv_cache_usage_peak for step in found.steps]
    return max((peak for peak in peaks if peak is not None), default=None)


def preemptions(found: CapacityResult) -> float | None:
    counted = [step.server.preemptions for step in found.steps if step.server.preemptions is not None]
    return sum(counted) if counted else None


def tokens_per_joule(found: CapacityResult) -> float | None:
    return max((step.tokens_per_joule for step in found.steps if step.tokens_per_joule is not None), default=None)
