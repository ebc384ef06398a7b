"""A forecast as text: its interval, its correction by earlier forecasts, and a comparison with a measurement."""

from probe.capacity.trend.fingerprint import is_comparable
from probe.capacity.trend.track_record import is_worth_saying
from probe.core.result import Capacity, CapacityResult, Correction
from probe.core.text import one_line
from probe.report.figures import ago, number, percent
from probe.report.result_text import roofline_words
from probe.report.workload_text import workload_lines

_LINE = 500
_ALIKE = 0.005


def forecast_words(result: CapacityResult) -> str:
    """Return a forecast as text, or the reason why there is none."""
    found = result.capacity
    if found.requests_per_second is None:
        return one_line(f"No forecast: {found.reason}.", _LINE)
    low, high = found.learnt_from or (None, None)
    learnt = f" and {words}" if (words := correction_words(found.correction)) else ""
    lines = [
        (
            f"Forecast: {forecast_rate(found, 'requests/s')},"
            f" {number(found.output_tokens_per_second)} output tokens/s, workload {result.context.workload['name']}."
        ),
        f"Learned from {number(low)} to {number(high)} requests/s of live traffic{learnt}; {found.reason}.",
    ]
    lines += [f"{label}: {words}." for label, words in workload_lines(result.context.workload)]
    if found.roofline is not None:
        lines.append(f"Roofline: {roofline_words(found.roofline)}.")
    return "\n".join(one_line(line, _LINE) for line in lines)


def forecast_rate(found: Capacity, unit: str) -> str:
    """Return a forecast's requests per second, in that unit, with its interval, or as a lower bound."""
    rate = f"{number(found.requests_per_second)} {unit}"
    return f"at least {rate}" if found.is_lower_bound else f"{rate} ({number(found.lower)} to {number(found.upper)})"


def correction_words(found: Correction | None) -> str:
    """Return the correction by earlier forecasts; "" if it is below 1 %."""
    if found is None or not is_worth_saying(found):
        return ""
    error, change = ("high", "lowered") if found.ratio < 0 else ("low", "raised")
    many = "1 earlier forecast that was" if found.judged == 1 else f"{found.judged} earlier forecasts that were"
    was = number(found.uncorrected.requests_per_second)
    return f"{many} too {error} ({change} by {percent(round(abs(found.ratio), 2))} from {was} requests/s)"


def beside_measured(forecast: CapacityResult, measured: CapacityResult | None, now_s: float) -> str:
    """Compare a forecast with the last measurement of the same server and workload; "" without both."""
    predicted = forecast.capacity.requests_per_second
    found = measured.capacity.requests_per_second if measured is not None else None
    if measured is None or not predicted or not found or not is_comparable(forecast, measured):
        return ""
    ratio = predicted / found - 1
    if ratio < 0 and forecast.capacity.is_lower_bound:
        return ""
    off = f"{percent(round(abs(ratio), 2))} {'above' if ratio > 0 else 'below'}"
    least = "at least " if measured.capacity.upper is None else ""
    return (
        f"{'equal to' if abs(ratio) < _ALIKE else off} the last {measured.capacity.mode}"
        f" {least}{number(found)} ({ago(measured.ended_s, now_s)})"
    )
