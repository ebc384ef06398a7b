"""The fingerprint: what a capacity is valid for, as named parts and as one short digest. Pure.

In: a model's name and a RunContext. Capacities with the same fingerprint may be compared; another fingerprint starts a
new baseline. Left out are the names of workload and objectives, which change nothing, and the window of the objectives,
over which no capacity is judged.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping

from probe.core.result import CapacityResult, RunContext
from probe.core.shift import CapacitySample
from probe.core.token_length import stored_length

_DIGITS = 12  # 48 bits: a number that a Prometheus sample holds without loss
_NO_END = ("interrupt", "error")
_LEFT_OUT = ("workload.name", "objectives.name", "objectives.window_s")


def parts(model: str, context: RunContext) -> dict[str, str]:
    """Return each part by its name, such as "version" or "workload.prompt_tokens"; unknown ones are absent."""
    whole = {
        "model": model,
        "engine": context.engine,
        "version": context.version,
        "gpu": context.gpu,
        "flags": context.flags,
        "workload": context.workload,
        "objectives": context.objectives,
    }
    return {name: text for name, text in _flat("", whole) if name not in _LEFT_OUT}


def fingerprint(model: str, context: RunContext) -> str:
    """Return twelve hexadecimal digits, the same for the same parts in every process and version."""
    text = json.dumps(parts(model, context), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def is_comparable(one: CapacityResult, other: CapacityResult) -> bool:
    """Return whether both have the same fingerprint, so that their capacities may be compared."""
    return fingerprint(one.model, one.context) == fingerprint(other.model, other.context)


def as_number(digest: str) -> float:
    """Return the fingerprint as the value of a series."""
    return float(int(digest, 16))


def from_number(value: float) -> str:
    """Return the fingerprint of a series' value. ValueError if the value cannot be one."""
    if not (0 <= value < 16**_DIGITS and value == int(value)):
        raise ValueError(f"{value} is no fingerprint")
    return f"{int(value):0{_DIGITS}x}"


def capacity_sample(result: CapacityResult) -> CapacitySample | None:
    """Return the capacity of a result as one sample of its target's history.

    None if the run found none, was interrupted or failed: how far it came shows nothing about the server.
    """
    capacity = result.capacity
    if capacity.requests_per_second is None or result.stopped.by in _NO_END:
        return None
    return CapacitySample(
        at_s=result.started.timestamp(),
        requests_per_second=capacity.requests_per_second,
        lower=capacity.lower,
        upper=capacity.upper if capacity.upper is not None else _upper_of_probes(result),
        mode=capacity.mode,
        fingerprint=fingerprint(result.model, result.context),
        confirms=result.confirms is not None,
    )


def _upper_of_probes(result: CapacityResult) -> float | None:
    """Return the most that the probe traffic's knee may be, where fixed steps broke but the load of users is unknown.

    Throughput grows no faster than the load, so the lowest load above the one that held bounds it. Runs of such a
    server are compared with each other: without a bound none of its knees could ever be a drop.
    """
    capacity = result.capacity
    held = [step.load for step in result.steps if step.valid and step.certain_rps == capacity.lower]
    above = [step.plan.load for step in result.steps if held and step.plan.load > max(held)]
    if capacity.lower is None or capacity.limiting is None or not above:
        return None
    return capacity.lower * min(above) / max(held)


def _flat(prefix: str, value: object) -> Iterator[tuple[str, str]]:
    """Yield the leaves with their paths, as text that is the same before and after a round trip through JSON."""
    if value is None:
        return
    if isinstance(value, Mapping) and (length := stored_length(value)) is not None:
        yield prefix, str(length)
    elif isinstance(value, Mapping):
        for key in value:
            yield from _flat(f"{prefix}.{key}" if prefix else str(key), value[key])
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield prefix, f"{value:.12g}"
    else:
        yield prefix, str(value)
