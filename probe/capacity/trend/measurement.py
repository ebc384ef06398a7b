"""Measurements of a server in the shape in which they are compared, and how a result of Kneewatch becomes one. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from probe.capacity.trend.fingerprint import parts
from probe.core.reasons import CLIENT_BOUND
from probe.core.result import CapacityResult
from probe.core.step import Distribution, StepSummary

CAPACITY = "capacity"
HIGHER, LOWER = "higher", "lower"
RATE, TOKENS, COUNT, SECONDS, SHARE = "requests/s", "tokens/s", "requests in flight", "s", "share"


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

    @property
    def is_unanswered(self) -> bool:
        """Return whether every request failed. Then there is no latency, and a throughput of 0 is no measurement."""
        failed = self.values.get("failed")
        return failed is not None and failed.value == 1


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
    has_collapsed: bool = False  # the run could end as planned and was judged, and yet no capacity was found


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
        has_collapsed=capacity.requests_per_second is None and _was_judged(result),
    )


def _was_judged(result: CapacityResult) -> bool:
    """Return whether the run says something of the server: steps of too few requests, or of a late client, do not."""
    return result.stopped.by == "guard" or (result.stopped.by == "done" and any(step.valid for step in result.steps))


def _load_name(step: StepSummary) -> str:
    plan = step.plan
    if plan.arrivals is not None:
        return f"rate {plan.arrivals.rate_rps:g} ({plan.arrivals.pattern.value})"
    return f"concurrency {plan.concurrency}"


def _step_section(step: StepSummary) -> ComparisonSection:
    if not step.valid or step.is_late:
        return ComparisonSection(unjudged=step.reason or CLIENT_BOUND.word)
    answered, failed = step.requests.ok, step.requests.failed
    values = {
        "throughput": Value(step.throughput_rps, RATE, HIGHER),
        "goodput": Value(step.goodput_rps, RATE, HIGHER),
        "output": Value(step.output_tokens_per_second, TOKENS, HIGHER),
        "failed": Value(failed / max(1, answered + failed), SHARE, LOWER),
    }
    return ComparisonSection(values | dict(latencies_of(step)), step.broken)


def latencies_of(step: StepSummary) -> Iterator[tuple[str, Value]]:
    """Yield each known percentile of a step's latencies, by names such as "TTFT p50"."""
    for name, latency in (("TTFT", step.ttft_s), ("TPOT", step.tpot_s), ("ITL", step.itl_s), ("E2E", step.e2e_s)):
        yield from _percentiles(name, latency)


def _percentiles(name: str, latency: Distribution) -> Iterator[tuple[str, Value]]:
    # Older results have no interval for ITL, though it varies more than its count suggests: they cannot tell.
    nothing = (0.0, None) if name == "ITL" else (None, None)
    for percentile, value, interval in (
        ("p50", latency.p50, latency.p50_interval or nothing),
        ("p95", latency.p95, latency.p95_interval or nothing),
        ("p99", latency.p99, latency.p99_interval or nothing),
    ):
        if value is not None:
            yield f"{name} {percentile}", Value(value, SECONDS, LOWER, *interval)


def _lengths(result: CapacityResult) -> dict[str, float]:
    """Return the mean tokens of an answered request as the server counted them, over the valid steps.

    Older results have rates only. In a short step these tell other lengths, since prompts that began in it may end
    after it.
    """
    steps = [step for step in result.steps if step.valid and step.throughput_rps > 0]
    rate = sum(step.throughput_rps for step in steps)
    if not rate:
        return {}
    prompts, answers = 0.0, 0.0
    for step in steps:
        counted, lengths = step.tokens.counted_prompts.mean, step.tokens.counted_answers.mean
        prompts += step.prompt_tokens_per_second if counted is None else counted * step.throughput_rps
        answers += step.output_tokens_per_second if lengths is None else lengths * step.throughput_rps
    return {"prompt tokens": prompts / rate, "output tokens": answers / rate}
