"""What a capacity run found, for people: the knee, what it rests on, what finding it cost, and what to do now."""

from collections.abc import Iterator

from probe.capacity.trend.fingerprint import alike
from probe.capacity.trend.headroom import headroom as left_of
from probe.capacity.trend.headroom import share
from probe.core.result import Capacity, CapacityResult, Roofline
from probe.core.text import one_line
from probe.report.figures import ago, milliseconds, number, percent

_LINE = 500
_EMPIRICAL, _FORECAST = "empirical", "forecast"
# Less than this is gone with one replica of a few.
_LITTLE_HEADROOM = 0.25
_ALIKE = 0.005
# What broke first, and what helps against it.
_MENDS = {
    "ttft": "to take more, shorten what requests wait for: another replica, shorter prompts, or a prefix that the cache"
    " knows",
    "tpot": "to take more, lighten each step: another replica, a lower --max-num-seqs, or quantised weights",
    "availability": "requests fail under load: look at the server's log before you give it more",
    "preemptions": "the KV cache is too small for more: raise --gpu-memory-utilization, lower --max-num-seqs, or add a"
    " replica",
    "kv_cache": "the KV cache is too small for more: raise --gpu-memory-utilization, shorten the context, or add a"
    " replica",
    "queue": "requests queue beyond it: raise --max-num-seqs where KV cache is left, else add a replica",
    "in_flight_cap": "requests come faster than they are answered: add a replica",
    "no_first_token": "requests queue beyond it: raise --max-num-seqs where KV cache is left, else add a replica",
    "users_latency": "users were the first to wait: plan with what is left below it, or add a replica",
}
# What was taken from the server for it to gain so much; of the other bottlenecks, half of their cost.
_WITHOUT = {"max_num_seqs": "without it", "kv_cache": "with twice as much of it", "front_end": "without its time"}
_BEYOND = 1.05  # of a limit, above which what was said of the model or the GPU is wrong
# What to do where nothing was found, by what ended the run.
_AGAIN = {
    "done": "measure steps that you choose, with --concurrency or --rates",
    "guard": "try again when the server is calm, or begin with less load",
    "budget": "give it more of what ran out: --max-seconds, --max-tokens, or budget in the configuration",
    "interrupt": "let a run end by itself",
    "error": "measure again; `kneewatch check` says whether the server answers",
}


def forecast_words(result: CapacityResult) -> str:
    """What live traffic says of the capacity, or why it does not."""
    found = result.capacity
    if found.requests_per_second is None:
        return one_line(f"No forecast: {found.reason}.", _LINE)
    low, high = found.learnt_from or (None, None)
    lines = [
        (
            f"Forecast: {number(found.requests_per_second)} requests/s"
            f" ({number(found.lower)} to {number(found.upper)}),"
            f" {number(found.output_tokens_per_second)} output tokens/s, of {result.context.workload['name']}."
        ),
        f"Learnt from {number(low)} to {number(high)} requests/s of live traffic; {found.reason}.",
    ]
    if found.roofline is not None:
        lines.append(f"Roofline: {roofline_words(found.roofline)}.")
    return "\n".join(one_line(line, _LINE) for line in lines)


def beside_measured(forecast: CapacityResult, measured: CapacityResult | None, now_s: float) -> str:
    """How far a forecast is from what load has measured of the same server and workload; "" without either."""
    said = forecast.capacity.requests_per_second
    found = measured.capacity.requests_per_second if measured is not None else None
    if measured is None or not said or not found or not alike(forecast, measured):
        return ""
    ratio = said / found - 1
    off = f"{percent(round(abs(ratio), 2))} {'above' if ratio > 0 else 'below'}"
    least = "at least " if measured.capacity.upper is None else ""
    return (
        f"{'the same as' if abs(ratio) < _ALIKE else off} the last {measured.capacity.mode}"
        f" {least}{number(found)} ({ago(measured.ended_s, now_s)})"
    )


def result_words(result: CapacityResult) -> str:
    """A line for each thing to know."""
    return "\n".join(f"{f'{label}:':<13}{one_line(words, _LINE)}" for label, words in result_lines(result))


def result_lines(result: CapacityResult) -> list[tuple[str, str]]:
    """Each thing to know: what it is called, and its words."""
    found = [("Ended by", _ended(result)), ("Cost", _cost(result)), ("Advice", advice(result))]
    return [*_capacity(result.capacity), *_beside(result), *found]


def capacity_words(capacity: Capacity) -> str:
    """The figure with its bounds; "" without one."""
    rate = number(capacity.requests_per_second)
    if capacity.requests_per_second is None:
        return ""
    if capacity.lower is None or capacity.upper is None:
        return f"at least {rate} requests/s" if capacity.lower is not None else f"about {rate} requests/s"
    ends = f"{number(capacity.lower)} to {number(capacity.upper)}"
    return f"{rate} requests/s ({ends if capacity.mode == _EMPIRICAL else f'90 % interval {ends}'})"


def roofline_words(found: Roofline) -> str:
    """How near the server comes to what its GPUs can, and how far that is to be believed."""
    parts = []
    most = max(found.decode_ratio or 0.0, found.prefill_ratio or 0.0)
    if most > _BEYOND:
        parts.append(
            f"{most:.1f} times as fast as it can be: gpu, gpus, parameters or weight_bits is not what was said"
        )
    elif found.decode_ratio is not None:
        parts.append(
            f"decode at {percent(found.decode_ratio)} of its memory bandwidth (a step takes"
            f" {milliseconds(found.step_s)} at least, reading the weights {milliseconds(found.floor_s)})"
        )
    if found.prefill_ratio is not None and most <= _BEYOND:
        parts.append(f"prefill at {percent(found.prefill_ratio)} of its FLOP/s")
    if found.bandwidth_ratio is not None:
        parts.append(
            f"by vLLM's estimates up to {percent(found.bandwidth_ratio)} of its bandwidth and"
            f" {percent(found.flops_ratio)} of its FLOP/s were in use"
        )
    if not found.sure:
        parts.append("these limits of it are not confirmed by its maker")
    return f"{found.gpu}: {'; '.join(parts)}"


def knee_words(capacity: Capacity) -> str:
    """Where the knee is, as the loads of the steps are named."""
    if capacity.knee_concurrency is not None:
        return f"{capacity.knee_concurrency} request{'s' if capacity.knee_concurrency != 1 else ''} in flight"
    return f"{number(capacity.requests_per_second)} requests/s"


def headroom(result: CapacityResult) -> float | None:
    """1 - live load / capacity, at least, where the capacity is a lower bound; None where one of them is not known."""
    return left_of(result.users, result.capacity)


def advice(result: CapacityResult) -> str:
    """One sentence: what to do now."""
    capacity = result.capacity
    if capacity.requests_per_second is None:
        return f"{_AGAIN.get(result.stopped.by, _AGAIN['done'])}."
    if result.stopped.by in ("interrupt", "error"):
        return "let a run end by itself before you plan with this."
    if capacity.mode == _FORECAST:
        return "a forecast is no measurement: let a run verify it before you plan with it."
    left = headroom(result)
    if left is not None and left < _LITTLE_HEADROOM:
        return f"users leave {percent(max(left, 0.0))} of it: add a replica before the next peak."
    if capacity.lower is not None and capacity.upper is None:
        return "nothing broke: run it again with more load, until something does."
    mend = capacity.advice or _MENDS.get(capacity.limiting or "")
    return (
        f"{mend}."
        if mend
        else f"plan with at most {number(capacity.lower or capacity.requests_per_second)} requests/s."
    )


def _capacity(capacity: Capacity) -> Iterator[tuple[str, str]]:
    if capacity.requests_per_second is None:
        yield "No knee", f"{capacity.reason}."
    else:
        tokens = capacity.output_tokens_per_second
        more = f", {number(tokens)} output tokens/s" if tokens is not None else ""
        yield "Knee", knee_words(capacity)
        yield "Capacity", f"{capacity_words(capacity)}{more}; {capacity.mode}"
        if capacity.reason:
            yield "Note", f"{capacity.reason}."
    if capacity.limiting:
        yield "Broke first", capacity.limiting
    if capacity.bottleneck:
        gain = ""
        if capacity.bottleneck_gain is not None:
            without = _WITHOUT.get(capacity.bottleneck, "at half of its cost")
            gain = f": {without} capacity would be {percent(capacity.bottleneck_gain)} higher"
        yield "Bottleneck", f"{capacity.bottleneck}{gain}"
    if capacity.roofline is not None:
        yield "Roofline", roofline_words(capacity.roofline)


def _beside(result: CapacityResult) -> Iterator[tuple[str, str]]:
    used = share(result.users, result.capacity)
    if used is not None:
        least = "at least " if result.capacity.upper is None else ""
        asked = f"{least}{percent(max(1 - used.ratio, 0.0))}: users ask for {number(used.live)} {used.unit}"
        yield "Headroom", asked if used.live else "all of it: nobody else asks for anything"
    elif result.capacity.requests_per_second is not None:
        yield "Headroom", "not known: the server does not say what users ask for"
    bounds = [step.error_bound_s for step in result.steps if step.valid]
    if bounds:
        ttft, itl = max(bound.ttft for bound in bounds), max(bound.itl for bound in bounds)
        yield "Own error", f"at most {ttft * 1000:.1f} ms in TTFT, {itl * 1000:.1f} ms in ITL"


def _ended(result: CapacityResult) -> str:
    reason = f" ({result.stopped.reason})" if result.stopped.reason else ""
    return f"{result.stopped.by}{reason}"


def _cost(result: CapacityResult) -> str:
    cost = result.cost
    return (
        f"{cost.requests} requests, {cost.tokens:,} tokens, {cost.seconds:.1f} s,"
        f" {cost.over_objective_seconds:.1f} s over an objective"
    )
