"""Compare two measurements of a server metric by metric: better, worse or the same. Pure.

In: two Measurements, from results of Kneewatch or of `vllm bench serve` (probe/report/measured_file.py). Out: a
Comparison.

A row is worse or better when it has changed by more than the tolerance and, where both sides have an interval, the
intervals do not overlap. Both conditions are needed: of fifty rows one or two do not overlap by chance, and a real
change may be too small to matter. With a tolerance of 0 the intervals alone decide. Steps at which the base had already
broken an objective are shown but not judged: beyond the knee latencies are those of a growing queue, and differ from
run to run.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from probe.capacity.trend.fingerprint import parts
from probe.core.result import CapacityResult
from probe.core.step import Distribution, StepSummary

CAPACITY = "capacity"
HIGHER, LOWER = "higher", "lower"
RATE, TOKENS, COUNT, SECONDS, SHARE = "requests/s", "tokens/s", "requests in flight", "s", "share"
# Mean lengths of the same workload differ by a little when answers end early or templates add tokens.
_SAME_LENGTH = 0.02
_PARTS_THAT_DECIDE = ("workload.", "objectives.")


@dataclass(frozen=True, slots=True)
class Value:
    """A number with its interval, if there is one. `better`: HIGHER, LOWER, or None if neither is."""

    value: float
    unit: str
    better: str | None
    lower: float | None = None
    upper: float | None = None


@dataclass(frozen=True, slots=True)
class ComparisonSection:
    """The values of one step, or of the capacity. `unjudged`: why they are not compared, as of a void step."""

    values: Mapping[str, Value] = field(default_factory=dict)
    broken: tuple[str, ...] = ()
    unjudged: str | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """One side of a comparison. `lengths`: mean prompt and output tokens; unknown parts and lengths are absent."""

    name: str
    kind: str  # the program that wrote it
    parts: Mapping[str, str]
    sections: Mapping[str, ComparisonSection]
    lengths: Mapping[str, float] = field(default_factory=dict)
    is_forecast: bool = False
    no_capacity: str | None = None  # why none was found, if one was looked for
    has_collapsed: bool = False  # the run could end as planned, and yet no capacity was found


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One metric on both sides. `change`: new / base - 1, None if the base is zero.

    `verdict`: "better", "worse", "same", or "-" if it is not judged.
    """

    section: str
    metric: str
    base: Value | None
    new: Value | None
    change: float | None
    verdict: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """The whole comparison. `problems`: why the two cannot be compared; `notes`: what could not be judged."""

    rows: tuple[ComparisonRow, ...]
    differs: Mapping[str, tuple[str | None, str | None]]
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def has_regressed(self) -> bool:
        return any(row.verdict == "worse" for row in self.rows)


def of_result(name: str, result: CapacityResult) -> Measurement:
    """Return a capacity run as one side of a comparison."""
    capacity = result.capacity
    sections = {_load_name(step): _step_section(step) for step in result.steps}
    if capacity.requests_per_second is not None:
        rate = Value(capacity.requests_per_second, RATE, HIGHER, capacity.lower, capacity.upper)
        tokens, knee = capacity.output_tokens_per_second, capacity.knee_concurrency
        found = {"capacity": rate}
        found |= {"output": Value(tokens, TOKENS, HIGHER)} if tokens is not None else {}
        found |= {"knee": Value(knee, COUNT, None)} if knee is not None else {}
        sections = {CAPACITY: ComparisonSection(found), **sections}
    return Measurement(
        name=name,
        kind="kneewatch",
        parts=parts(result.model, result.context),
        sections=sections,
        lengths=_lengths(result),
        is_forecast=capacity.mode == "forecast",
        no_capacity=None if capacity.requests_per_second is not None else f"{capacity.reason}",
        has_collapsed=capacity.requests_per_second is None and result.stopped.by in ("done", "guard"),
    )


def compare(base: Measurement, new: Measurement, tolerance: float) -> Comparison:
    """Compare `new` with `base`; `tolerance`: the relative change that is too small to matter, 0.05 for 5 %."""
    shared = [name for name in base.sections if name in new.sections]
    rows = [row for name in shared for row in _rows(name, base.sections[name], new.sections[name], tolerance)]
    if CAPACITY in base.sections and new.has_collapsed:
        lost = base.sections[CAPACITY].values["capacity"]
        rows.insert(0, ComparisonRow(CAPACITY, "capacity", lost, None, None, "worse"))
    names = sorted({*base.parts, *new.parts}) if base.kind == new.kind else sorted({*base.parts} & {*new.parts})
    pairs = {name: (base.parts.get(name), new.parts.get(name)) for name in names}
    return Comparison(
        rows=tuple(rows),
        differs={name: (one, other) for name, (one, other) in pairs.items() if one != other},
        problems=tuple(_problems(base, new, pairs, empty=not rows)),
        notes=tuple(_notes(base, new, shared)),
    )


def _problems(
    base: Measurement, new: Measurement, pairs: Mapping[str, tuple[str | None, str | None]], *, empty: bool
) -> Iterator[str]:
    for name, (one, other) in pairs.items():
        if one != other and name.startswith(_PARTS_THAT_DECIDE):
            yield f"{name} is {one or 'not set'} in {base.name} and {other or 'not set'} in {new.name}"
    if base.kind != new.kind or not any(name.startswith("workload.") for name in pairs):
        for name, before in base.lengths.items():
            after = new.lengths.get(name, before)
            if abs(after - before) > _SAME_LENGTH * max(before, after):
                yield f"{name} are {before:.4g} on average in {base.name} and {after:.4g} in {new.name}"
    if base.is_forecast != new.is_forecast:
        forecast, measured = (base, new) if base.is_forecast else (new, base)
        yield f"{forecast.name} is a forecast and {measured.name} was measured"
    if CAPACITY in base.sections and new.no_capacity is not None and not new.has_collapsed:
        yield f"{new.name} was ended before it found a capacity"
    if empty:
        loads = " and ".join(f"{side.name} has {', '.join(side.sections) or 'no step'}" for side in (base, new))
        yield f"nothing is in both: {loads}"


def _notes(base: Measurement, new: Measurement, shared: list[str]) -> Iterator[str]:
    for side, other in ((base, new), (new, base)):
        if side.no_capacity is not None:
            yield f"{side.name} found no capacity: {side.no_capacity}"
        if unmatched := [name for name in side.sections if name not in other.sections and name != CAPACITY]:
            yield f"only in {side.name}: {', '.join(unmatched)}"
        for name in shared:
            if (why := side.sections[name].unjudged) is not None:
                yield f"{name} is void in {side.name} ({why})"
    for name in shared:
        if base.sections[name].broken:
            yield f"{name} judges nothing: {base.name} broke {', '.join(base.sections[name].broken)} there already"


def _rows(name: str, base: ComparisonSection, new: ComparisonSection, tolerance: float) -> Iterator[ComparisonRow]:
    if base.unjudged is not None or new.unjudged is not None:
        return
    for metric, before in base.values.items():
        after = new.values.get(metric)
        if after is None:
            continue
        verdict = "-" if base.broken else _verdict(before, after, tolerance)
        yield ComparisonRow(
            name, metric, before, after, after.value / before.value - 1 if before.value else None, verdict
        )


def _verdict(before: Value, after: Value, tolerance: float) -> str:
    if before.better is None:
        return "-"
    # A share that was zero has no relative change; the tolerance then applies to the share itself.
    scale = abs(before.value) or (1.0 if before.unit == SHARE else 0.0)
    if abs(after.value - before.value) <= tolerance * scale or _do_overlap(before, after):
        return "same"
    direction = HIGHER if after.value > before.value else LOWER
    return "better" if direction == before.better else "worse"


def _do_overlap(before: Value, after: Value) -> bool:
    """Return whether both have an interval and these overlap; an interval without a bound reaches to infinity."""
    if any(value.lower is None and value.upper is None for value in (before, after)):
        return False
    low, high = (before, after) if before.value <= after.value else (after, before)
    return low.upper is None or high.lower is None or low.upper >= high.lower


def _load_name(step: StepSummary) -> str:
    plan = step.plan
    if plan.arrivals is not None:
        return f"rate {plan.arrivals.rate_rps:g} ({plan.arrivals.pattern.value})"
    return f"concurrency {plan.concurrency}"


def _step_section(step: StepSummary) -> ComparisonSection:
    if not step.valid:
        return ComparisonSection(unjudged=step.reason or "invalid")
    answered, failed = step.requests.ok, step.requests.failed
    values = {
        "throughput": Value(step.throughput_rps, RATE, HIGHER),
        "goodput": Value(step.goodput_rps, RATE, HIGHER),
        "output": Value(step.output_tokens_per_second, TOKENS, HIGHER),
        "failed": Value(failed / max(1, answered + failed), SHARE, LOWER),
    }
    for name, latency in (("TTFT", step.ttft_s), ("TPOT", step.tpot_s), ("ITL", step.itl_s), ("E2E", step.e2e_s)):
        values |= _percentiles(name, latency)
    return ComparisonSection(values, step.broken)


def _percentiles(name: str, latency: Distribution) -> Iterator[tuple[str, Value]]:
    nothing = (None, None)
    for percentile, value, interval in (
        ("p50", latency.p50, nothing),
        ("p95", latency.p95, latency.p95_interval or nothing),
        ("p99", latency.p99, latency.p99_interval or nothing),
    ):
        if value is not None:
            yield f"{name} {percentile}", Value(value, SECONDS, LOWER, *interval)


def _lengths(result: CapacityResult) -> dict[str, float]:
    """Return the mean tokens of a request as the server counted them, over the valid steps."""
    steps = [step for step in result.steps if step.valid and step.throughput_rps > 0]
    rate = sum(step.throughput_rps for step in steps)
    if not rate:
        return {}
    return {
        "prompt tokens": sum(step.prompt_tokens_per_second for step in steps) / rate,
        "output tokens": sum(step.output_tokens_per_second for step in steps) / rate,
    }
