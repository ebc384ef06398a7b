"""The plan of replicas for a peak, as text and as JSON. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from probe.capacity.model.knobs import TIMES, Knob
from probe.capacity.trend.replica_count import Demand, Price, Replicas, good_share, lower_end
from probe.core.objectives import Objectives
from probe.core.result import Capacity, CapacityResult
from probe.core.text import one_line
from probe.report.figures import cell, number, percent, promises, table
from probe.report.provenance_text import provenance_lines
from probe.report.result_text import capacity_words
from probe.report.workload_text import workload_lines, workload_words

_LINE = 500
_KNOB_WIDTH = 40
_NO_GAIN = 0.03  # a change of capacity that a setting is not worth
_UNRECORDED = "image, driver and commit: the result is from a version that did not record them; measure again"
# Names and units of settings that are no flags of vLLM.
_NAMES = {"kv_cache": ("KV cache", " tokens"), "memory_bandwidth": ("memory bandwidth", "")}


@dataclass(frozen=True, slots=True)
class ReplicaPlan:
    """The number of replicas that a peak needs, if each is like the server of a result.

    `source`: the result's file or target; `peak`: in words; `objectives`: None if the result has none.
    """

    source: str
    result: CapacityResult
    objectives: Objectives | None
    peak: str
    demand: Demand
    replicas: Replicas
    knobs: Sequence[Knob]
    price: Price | None = None

    @property
    def good_share(self) -> float:
        """Return the share of the output tokens that count as good, at the knee and below it."""
        return good_share(self.objectives) if self.objectives is not None else 1.0

    @property
    def knee_price(self) -> float | None:
        """Return the price of a million good output tokens of a replica at its capacity; None if it is unknown."""
        tokens = self.result.capacity.output_tokens_per_second
        return self.price.of_tokens(1, tokens, self.good_share) if self.price is not None and tokens else None

    @property
    def peak_price(self) -> float | None:
        """Return the price of a million good output tokens of all replicas at the peak; None if it is unknown."""
        capacity = self.result.capacity
        if self.price is None or not capacity.output_tokens_per_second or not capacity.requests_per_second:
            return None
        tokens = self.demand.requests_per_second * capacity.output_tokens_per_second / capacity.requests_per_second
        return self.price.of_tokens(self.replicas.count, tokens, self.good_share)


def plan_words(plan: ReplicaPlan) -> str:
    """Return the plan as labelled lines, and the knobs as lines below them."""
    lines = [f"{f'{label}:':<13}{one_line(words, _LINE)}" for label, words in plan_lines(plan)]
    return "\n".join([*lines, "", *_knob_lines(plan.knobs)])


def _knob_lines(knobs: Sequence[Knob]) -> list[str]:
    reasons = {knob.reason for knob in knobs}
    if None not in reasons and len(reasons) == 1:
        return [one_line(f"The effect of other settings is unknown: {knobs[0].reason}.", _LINE)]
    words = [f"  {knob_setting(knob):<{_KNOB_WIDTH}} {one_line(gain_words(knob), _LINE)}" for knob in knobs]
    return [f"Capacity with a setting {TIMES} times as large, by the simulated copy of the server:", *words]


def plan_lines(plan: ReplicaPlan) -> Iterator[tuple[str, str]]:
    """Yield label and text of what the plan says."""
    capacity, workload = plan.result.capacity, plan.result.context.workload
    tokens = capacity.output_tokens_per_second
    yield "Peak", plan.peak
    yield "Replicas", replica_words(plan)
    yield "At the peak", _utilization_words(plan)
    if plan.price is not None:
        yield "Cost", _cost_words(plan)
    more = f", {number(tokens)} output tokens/s" if tokens is not None else ""
    yield "One replica", f"{capacity_words(capacity)}{more}; {trust_words(capacity)}"
    if capacity.reason:
        yield "Note", f"{capacity.reason}."
    yield "Valid for", f"{workload_words(workload)} only"
    yield from workload_lines(workload)
    if plan.objectives is not None:
        yield "Objectives", promises(plan.objectives)
    yield from condition_lines(plan)


def condition_lines(plan: ReplicaPlan) -> Iterator[tuple[str, str]]:
    """Yield label and text of each condition of the capacity that the result states."""
    result, context = plan.result, plan.result.context
    yield "Server", f"{result.target}, model {result.model}, {context.engine} {context.version}"
    if context.gpu:
        yield "GPU", context.gpu
    flags = ", ".join(
        f"{name}={value} ({context.flag_sources.get(name, 'unknown source')})" for name, value in context.flags.items()
    )
    yield "Flags", flags or "none known"
    yield "Result", f"{result.id} of {result.started:%Y-%m-%d %H:%M} UTC, from {plan.source}"
    yield from provenance_lines(result) or [("Not known", _UNRECORDED)]


def replica_words(plan: ReplicaPlan) -> str:
    """Return how many replicas the peak needs, and why."""
    found, demand = plan.replicas, plan.demand
    count = f"{found.count}" + (f" ({found.count - demand.spare} + {demand.spare} spare)" if demand.spare else "")
    free = f" with {percent(demand.margin)} of it free" if demand.margin else ""
    if found.is_at_most:
        return f"at most {count}: the capacity{free} is a lower bound, so fewer may do"
    end = "lower end of the capacity" if plan.result.capacity.lower is not None else "capacity"
    fewer = f"; {found.fewest} for its upper end" if found.fewest is not None and found.fewest < found.count else ""
    return f"{count}, for the {end}{free}{fewer}"


def trust_words(capacity: Capacity) -> str:
    """Return how a capacity is known."""
    how = {
        "verified": "verified: load and model agree",
        "empirical": "empirical: from load alone, without a model",
        "forecast": "forecast: no load has verified it",
    }.get(capacity.mode, capacity.mode)
    return f"lower bound, {how}" if capacity.is_lower_bound else how


def knob_setting(knob: Knob) -> str:
    """Return a knob's setting before and after the change."""
    name, unit = _NAMES.get(knob.name, (knob.name, ""))
    return f"{name} x{TIMES}" if knob.before is None else f"{name} {number(knob.before)} -> {number(knob.after)}{unit}"


def gain_words(knob: Knob) -> str:
    """Return by how much a change of a knob changes capacity, or why that is not known."""
    if knob.gain is None or knob.lower is None or knob.upper is None:
        return f"unknown: {knob.reason}"
    gain = "no change" if abs(knob.gain) < _NO_GAIN else f"{_signed(knob.gain)} %"
    return f"{gain} ({_signed(knob.lower)} to {_signed(knob.upper)} %)"


def plan_json(plan: ReplicaPlan) -> dict[str, Any]:
    """Return the plan for JSON: rates per second, shares from 0 to 1, prices of a million good output tokens."""
    result, capacity = plan.result, plan.result.capacity
    return {
        "source": plan.source,
        "result": result.id,
        "target": result.target,
        "model": result.model,
        "workload": dict(result.context.workload),
        "peak": asdict(plan.demand),
        "capacity": {
            "mode": capacity.mode,
            "requests_per_second": capacity.requests_per_second,
            "lower": lower_end(capacity),
            "upper": capacity.upper,
            "output_tokens_per_second": capacity.output_tokens_per_second,
            "is_lower_bound": capacity.is_lower_bound,
            "reason": capacity.reason,
        },
        "replicas": asdict(plan.replicas),
        "cost": {
            "gpu_hour": plan.price.gpu_hour,
            "gpus": plan.price.gpus,
            "good_share": plan.good_share,
            "at_capacity": plan.knee_price,
            "at_peak": plan.peak_price,
        }
        if plan.price is not None
        else None,
        "knobs": [asdict(knob) for knob in plan.knobs],
        "context": {
            "engine": result.context.engine,
            "version": result.context.version,
            "gpu": result.context.gpu,
            "flags": dict(result.context.flags),
            "facts": dict(result.provenance.facts) if result.provenance is not None else {},
            "started": result.started.isoformat(),
        },
    }


def _utilization_words(plan: ReplicaPlan) -> str:
    found, demand = plan.replicas, plan.demand
    most = f"{percent(found.most_utilization)} of its lower end" if plan.result.capacity.lower is not None else ""
    words = f"{percent(found.utilization)} of the capacity in use"
    if demand.spare:
        words += f"; {percent(found.utilization_without_spare)} with {demand.spare} lost"
    return f"{words} ({most})" if most else words


def _cost_words(plan: ReplicaPlan) -> str:
    if plan.price is None or plan.knee_price is None or plan.peak_price is None:
        return "unknown: the result has no output tokens/s"
    gpus = f"{plan.price.gpus} GPU{'s' if plan.price.gpus != 1 else ''} a replica"
    good = f"counting {percent(plan.good_share)} of the tokens as good, the least that the objectives allow"
    return (
        f"{plan.knee_price:.3g} per million good output tokens at the knee, {plan.peak_price:.3g} at the peak"
        f" ({gpus} at {plan.price.gpu_hour:g} an hour, {good})"
    )


def _signed(ratio: float) -> str:
    return f"{ratio * 100:+.0f}"


def plan_markdown(plan: ReplicaPlan) -> str:
    """Return the decision record of one plan."""
    rate = number(plan.demand.requests_per_second)
    conditions = list(condition_lines(plan))
    decision = [line for line in plan_lines(plan) if line not in conditions]
    return "\n".join(
        [
            f"# Replicas of {cell(plan.result.model)} for {rate} requests/s",
            "",
            f"**{cell(replica_words(plan))}.**",
            "",
            *table(("", "value"), decision),
            "",
            f"## A setting {TIMES} times as large",
            "",
            "By the simulated copy of the server; intervals hold in nine cases of ten.",
            "",
            *table(("setting", "capacity"), [(knob_setting(knob), gain_words(knob)) for knob in plan.knobs]),
            "",
            "## Conditions",
            "",
            *table(("", "value"), conditions),
            "",
        ]
    )
