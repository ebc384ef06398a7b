"""Charts of a capacity run over load, as data for the page's script (page/run.js). No I/O.

Each chart has points of (load, value, valid), the objective as a limit if there is one, and the knee.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from probe.core import objectives as slo
from probe.core.result import CapacityResult
from probe.core.step import Distribution, StepSummary
from probe.report.figures import number
from probe.report.knee_text import is_not_reached, is_predicted

Json = dict[str, Any]
_SECONDS, _RATE, _SHARE, _COUNT = "s", "req/s", "share", "count"
_DIGITS = 6
_NAMES = {slo.AVAILABILITY: "available", **{name: row.title for name, row in slo.LATENCIES.items()}}


def charts(result: CapacityResult) -> list[Json]:
    """Return the charts of a run; empty if it has no steps."""
    steps = sorted(result.steps, key=lambda step: _load(step, closed=_is_closed_loop(result)))
    found = [_rates(result, steps), *_latencies(result, steps), _kept(result, steps), *_server(result, steps)]
    return [chart for chart in found if any(one["points"] for one in chart["series"])]


def loads(steps: Sequence[StepSummary]) -> list[str]:
    """Return the load of each step as text, in the order of the steps."""
    closed = _is_closed(steps)
    unit = " in flight" if closed else " req/s"
    return [number(_load(step, closed=closed)) + unit for step in steps]


def _is_closed_loop(result: CapacityResult) -> bool:
    return _is_closed(result.steps)


def _is_closed(steps: Sequence[StepSummary]) -> bool:
    return all(step.plan.arrivals is None for step in steps)


def _load(step: StepSummary, *, closed: bool) -> float:
    """Return the requests in flight if all steps are closed loop; else the total rate, user and probe traffic."""
    if closed:
        return float(step.plan.concurrency)
    arrivals = step.plan.arrivals
    return (arrivals.rate_rps if arrivals is not None else step.offered_rps) + _users_rps(step)


def _users_rps(step: StepSummary) -> float:
    return step.users.requests_per_second or 0.0


def _chart(result: CapacityResult, title: str, unit: str, series: Sequence[Json], **more: object) -> Json:
    closed, found = _is_closed_loop(result), result.capacity
    return {
        "title": title,
        "unit": unit,
        "load": "requests in flight" if closed else "requests/s",
        "series": list(series),
        # No line where no objective was broken: the highest load is not a knee.
        "knee": None if is_not_reached(found) else found.knee_concurrency if closed else found.requests_per_second,
        "kneeName": "predicted knee" if is_predicted(result) else "knee",
        # The bounds are rates, so they fit only an axis of rates.
        "bounds": None if closed or found.lower is None else [found.lower, found.upper],
        **more,
    }


def _line(
    result: CapacityResult, name: str, steps: Sequence[StepSummary], value: Callable[[StepSummary], float | None]
) -> Json:
    closed = _is_closed_loop(result)
    points = [
        [_round(_load(step, closed=closed)), _round(found), step.valid]
        for step in steps
        if (found := value(step)) is not None
    ]
    return {"name": name, "points": points}


def _rates(result: CapacityResult, steps: Sequence[StepSummary]) -> Json:
    among = any(_users_rps(step) for step in steps)
    found = result.capacity

    def good(step: StepSummary) -> float:
        if not among or not step.throughput_rps:
            return step.goodput_rps
        # Only probe requests are judged; assume the same share of good requests for users.
        return (step.throughput_rps + _users_rps(step)) * step.goodput_rps / step.throughput_rps

    lines = [
        _line(result, "answered", steps, lambda step: step.throughput_rps + _users_rps(step)),
        _line(result, "within every objective", steps, good),
    ]
    title = "Requests/s, including user traffic" if among else "Requests/s"
    name = "capacity, at least" if found.is_lower_bound else "capacity"
    limit = None if found.requests_per_second is None else {"name": name, "value": found.requests_per_second}
    return _chart(result, title, _RATE, lines, limit=limit)


def _latencies(result: CapacityResult, steps: Sequence[StepSummary]) -> Iterator[Json]:
    for name, row in slo.LATENCIES.items():
        if not row.usual and _promise(result, name) is None:
            continue
        yield _chart(
            result,
            f"{row.title}, {row.which} of a request" if row.which else row.title,
            _SECONDS,
            [_percentile(result, steps, row.of_step, percentile) for percentile in ("p50", "p95", "p99")],
            limit=_limit(result, name, "within_s"),
        )


def _percentile(
    result: CapacityResult,
    steps: Sequence[StepSummary],
    of: Callable[[StepSummary], Distribution],
    percentile: str,
) -> Json:
    return _line(result, percentile, steps, lambda step: getattr(of(step), percentile))


def _kept(result: CapacityResult, steps: Sequence[StepSummary]) -> Json:
    lines = [
        _line(result, words, steps, lambda step, name=name: step.good_ratio.get(name))  # type: ignore[misc]
        for name, words in _NAMES.items()
        if _promise(result, name) is not None
    ]
    limits = {_promised_ratio(result, name) for name in slo.LATENCIES} - {None}
    shared = limits.pop() if len(limits) == 1 else None
    limit = None if shared is None else {"name": "objective", "value": shared}
    return _chart(result, "Requests within each objective", _SHARE, lines, limit=limit)


def _server(result: CapacityResult, steps: Sequence[StepSummary]) -> Iterator[Json]:
    full = [
        _line(result, "KV cache, peak", steps, lambda step: step.server.kv_cache_usage_peak),
        _line(result, "GPU busy", steps, lambda step: step.gpu.utilization),
    ]
    yield _chart(result, "Server utilization", _SHARE, [one for one in full if one["points"]], limit=None)
    waiting = [
        _line(result, "running, peak", steps, lambda step: step.server.running_peak),
        _line(result, "waiting, peak", steps, lambda step: step.server.waiting_peak),
        _line(result, "preemptions", steps, lambda step: step.server.preemptions),
    ]
    yield _chart(result, "Requests on the server", _COUNT, [one for one in waiting if one["points"]], limit=None)


def _promise(result: CapacityResult, name: str) -> object:
    return result.context.objectives.get(name)


def _promised_ratio(result: CapacityResult, name: str) -> float | None:
    promise = _promise(result, name)
    ratio = promise.get("ratio") if isinstance(promise, Mapping) else None
    return float(ratio) if isinstance(ratio, int | float) else None


def _limit(result: CapacityResult, name: str, key: str) -> Json | None:
    promise = _promise(result, name)
    value = promise.get(key) if isinstance(promise, Mapping) else None
    return {"name": "objective", "value": float(value)} if isinstance(value, int | float) else None


def _round(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
