"""The snapshots of several replicas behind one address, as one snapshot. Pure.

To everything that reads it, a replica is what a data-parallel engine is: a scheduler of its own with a share of the
requests. What needs each page by itself, such as the detection of a restart, finds it in `ServerSnapshot.replicas`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from probe.core.server_limits import SMALLER
from probe.core.server_values import ENGINE_VALUES, VALUES, Merge, Value, ValueKind
from probe.core.snapshot import DIFFERS, REPLICAS, EngineSnapshot, Histogram, ServerSnapshot, StepSums, as_fields
from probe.core.vllm_command import DEFAULT
from probe.scrape.metrics_parser import MAX_ENGINES, MAX_VALUES, OTHER, added


def merged(replicas: Mapping[str, ServerSnapshot]) -> ServerSnapshot:
    """Return the sum of the replicas' snapshots, by address; for the KV cache's use, the fullest replica's.

    A value that one of them does not expose is unknown. Raise ValueError if they are of different engines.
    """
    each = list(replicas.values())
    _check_one_engine(replicas)
    asked = [one.asked_ns for one in each]
    asleep = [one.is_asleep for one in each]
    return ServerSnapshot(
        at_ns=max(one.at_ns for one in each),
        wall_s=max(one.wall_s for one in each),
        asked_ns=min(asked),
        delay_s=max(one.delay_s for one in each),
        engine=each[0].engine,
        version=_values(one.version for one in each),
        started_s=_all(max, [one.started_s for one in each]),
        engines=sum(one.engines for one in each),
        by_engine=_by_engine(replicas),
        models=_names(one.models for one in each),
        is_asleep=None if None in asleep else all(asleep),
        adapters=_names(one.adapters for one in each),
        flags=_flags([one.flags for one in each]),
        step_sums=_step_sums([one.step_sums for one in each]),
        scheduler_limits=_limits([one.scheduler_limits for one in each]),
        replicas=dict(replicas),
        **as_fields({value.key: _merged(value, each) for value in VALUES}),
    )


def merged_flags(replicas: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the flags of all replicas, each with its value, or with the values in which they differ.

    A flag that only some state is at its default in the others; where one shows no flags, only those of all count.
    """
    names = dict.fromkeys(name for flags in replicas for name in flags)
    are_known = all(replicas)
    return {
        name: _values(flags.get(name, DEFAULT) for flags in replicas)
        for name in names
        if are_known or name in _shared(replicas)
    }


def _limits(of_each: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Return the scheduler's limits that all replicas have, unless one has a smaller one of the same kind."""
    same = dict(set.intersection(*(set(one.items()) for one in of_each)))
    for smaller, limit in SMALLER.items():
        if len({one.get(smaller) for one in of_each}) > 1:
            same.pop(limit, None)
    return same


def _check_one_engine(replicas: Mapping[str, ServerSnapshot]) -> None:
    (first, one), *others = replicas.items()
    for name, other in others:
        if other.engine != one.engine:
            raise ValueError(f"{first} is {one.engine} and {name} {other.engine}; expected replicas of one engine")


def _merged(value: Value, each: Sequence[ServerSnapshot]) -> Any:  # noqa: ANN401 - a value of any kind
    if value.kind is ValueKind.HISTOGRAM:
        return _histogram([one.histograms.get(value.key) for one in each])
    if value.label:
        parts: list[Mapping[str, float]] = [one.parts(value.key) for one in each]
        return _by_key(parts, keys=None if value.merge is Merge.PRESENT else _shared(parts))
    values = [one.value(value.key) for one in each]
    if value.merge is Merge.PRESENT:
        return added(*values)
    return _all(max if value.merge is Merge.LARGEST else sum, values)


def _all(of: Any, values: Sequence[float | None]) -> float | None:  # noqa: ANN401 - sum and max have many signatures
    return None if None in values else of(values)


def _shared(mappings: Iterable[Collection[str]]) -> set[str]:
    return set.intersection(*map(set, mappings))


def _by_key(mappings: Sequence[Mapping[str, float]], keys: Collection[str] | None = None) -> dict[str, float]:
    """Return sums by key: by default by every key, since a counter appears with its first event.

    As on a page, the first keys are named and the excess is "other".
    """
    found: dict[str, float] = {}
    for one in mappings:
        for key, value in one.items():
            if keys is None or key in keys:
                name = key if key in found or len(found) < MAX_VALUES else OTHER
                found[name] = found.get(name, 0.0) + value
    return found


def _values(values: Iterable[str]) -> str:
    return DIFFERS.join(sorted(set(values)))


def _names(of_each: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(sorted({name for names in of_each for name in names}))[:MAX_VALUES]


def _flags(of_each: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the flags, and how many replicas there are: with another number of them, it is another server."""
    return {**merged_flags(of_each), REPLICAS: str(len(of_each))}


def _by_engine(replicas: Mapping[str, ServerSnapshot]) -> dict[str, EngineSnapshot]:
    """Return the engines by address, with their own label where a replica has several. Empty if they are too many."""
    found: dict[str, EngineSnapshot] = {}
    for address, one in replicas.items():
        found |= {f"{address}/{engine}": values for engine, values in one.by_engine.items()} or {
            address: EngineSnapshot(**{value.key: one.value(value.key) for value in ENGINE_VALUES})
        }
    return found if len(found) <= MAX_ENGINES else {}


def _histogram(of_each: Sequence[Histogram | None]) -> Histogram | None:
    """Return the sum of a histogram that all replicas have, in the buckets that all have: the last one is."""
    every = [one for one in of_each if one is not None]
    if len(every) < len(of_each):
        return None
    counts = [dict(one.buckets) for one in every]
    bounds = sorted(set.intersection(*map(set, counts)))
    return Histogram(
        tuple((bound, sum(one[bound] for one in counts)) for bound in bounds), sum(one.sum for one in every)
    )


def _step_sums(of_each: Sequence[Mapping[str, StepSums]]) -> dict[str, StepSums]:
    found: dict[str, StepSums] = {}
    for sums in of_each:
        for size, one in sums.items():
            found[size] = _added(found[size], one) if size in found else one
    return found


def _added(one: StepSums, other: StepSums) -> StepSums:
    return StepSums(
        one.steps + other.steps,
        one.seconds + other.seconds,
        one.requests + other.requests,
        one.decode_tokens + other.decode_tokens,
        one.prefill_tokens + other.prefill_tokens,
        one.kv_tokens + other.kv_tokens,
    )
