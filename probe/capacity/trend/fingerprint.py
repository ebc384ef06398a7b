"""The fingerprint: what a capacity is valid for, as named parts and as one short digest. Pure.

In: a model's name and a RunContext. Capacities with the same fingerprint may be compared; another fingerprint starts a
new baseline. Left out are the names of workload and objectives, which change nothing, and the window of the objectives,
over which no capacity is judged.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping

from probe.core import reasons
from probe.core.result import Capacity, CapacityResult, RunContext
from probe.core.shift import UNVERIFIED, CapacitySample
from probe.core.step import StepSummary
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


def measured_mode(capacity: Capacity) -> str:
    """Return the mode of a run's capacity as series have it. There a forecast is one that no load was sent for."""
    return UNVERIFIED if capacity.mode == "forecast" else capacity.mode


def capacity_sample(result: CapacityResult) -> CapacitySample | None:
    """Return the capacity of a run as one sample of its target's history.

    Where no load held it is at most the lowest one. None if the run shows neither, was interrupted or failed: how far
    it came shows nothing about the server.
    """
    capacity = result.capacity
    if result.stopped.by in _NO_END:
        return None
    rps, lower, upper = capacity.requests_per_second, capacity.lower, capacity.upper
    if rps is None:
        rps, lower = (upper := _too_much(result)), 0.0
    elif upper is None:
        upper = _upper_of_probes(result)
    if rps is None:
        return None
    return CapacitySample(
        at_s=result.ended_s,
        requests_per_second=rps,
        lower=lower,
        upper=upper,
        mode=measured_mode(capacity),
        fingerprint=fingerprint(result.model, result.context),
        run=result.id,
        confirms=result.confirms,
        model=result.model,
    )


def bounding_steps(result: CapacityResult) -> tuple[StepSummary, ...]:
    """Return the steps that a result's sample needs: none where the capacity has an upper bound."""
    return () if result.capacity.upper is not None else tuple(s for s in result.steps if s.valid or _is_too_much(s))


def _too_much(result: CapacityResult) -> float | None:
    """Return the lowest requests/s of all traffic that were too many where no step held; None: unknown.

    Without the part of users nothing is known: they may have been the most.
    """
    judged = [step for step in result.steps if step.valid or _is_too_much(step)]
    lowest = min(judged, key=lambda step: step.plan.load, default=None)
    users_rps = lowest.users.requests_per_second if lowest is not None else None
    if lowest is None or users_rps is None or not all(_is_too_much(step) for step in judged):
        return None
    # Of a step that was cut short the measured rates say little.
    sent_rps = max(lowest.offered_rps, lowest.throughput_rps) if lowest.valid else lowest.plan.load
    return sent_rps + users_rps or None


def _is_too_much(step: StepSummary) -> bool:
    """Return whether a step broke an objective, or the guard stopped its rate because it did."""
    if step.valid:
        return bool(step.broken)
    trip = reasons.find(reasons.TRIPS, step.tripped)
    return step.plan.arrivals is not None and trip is not None and trip.kind is reasons.ReasonKind.OVERLOAD


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
