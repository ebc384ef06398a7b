"""Alerts on low headroom, and on forecasts that a measurement contradicts. Pure.

Headroom is low if little is left for some time. The trend alone does not count: on many days headroom halves in a
morning, and a straight line through a morning ends below zero every day. A trend counts only if headroom is below the
previous week's minimum, and only with a week of history. A fresh capacity measurement is not a trend, and consecutive
forecasts differ too much to have one.

One run may be disturbed. Headroom that is low by last night's capacity, but not by the capacity of the night before
with the same setup, waits for the next run. A drop of 20 % is confirmed within two hours (KneewatchKneeDropped).

A forecast may be 10 % wrong and more, as its bounds say. Where no run has measured the capacity, headroom is low if it
is by the forecast's upper bound.

Users may send other requests than the workload of the capacity. A forecast for what they send decides: headroom is low
if it is by that forecast, since by its upper bound users would have to take 98 % of it first, and is not if there is
enough by its lower bound (docs/adr/0033). A target has one such ticket.

During a capacity run, user traffic cannot be separated from the run's load, and headroom keeps its last value.
"""

from alerts import inhibitions, links
from alerts.alert_labels import by, on
from alerts.rules import Alert, FaultKind, Recording
from alerts.templates import PERCENT, SPAN, TARGET, same, value_of, words
from alerts.thresholds import DEFAULTS, FORECAST_ERROR, HEADROOM, HEADROOM_FALLING, Thresholds, percent
from alerts.windows import DAY_S, HOUR_S, duration
from exporters import names
from exporters.names import PREFIX
from probe.observe.user_mix import USERS

# The defaults, which the dashboards show.
LOW, FALLING_BELOW, DISAGREES = HEADROOM.default, HEADROOM_FALLING.default, FORECAST_ERROR.default
_MEAN_S = 900.0  # user traffic comes in bursts, and headroom covers the last minutes only
_LOW_FOR_S = 1200.0
_LOW_KEEP_S = 2 * HOUR_S  # one ticket for a busy day that goes up and down
KEEP_S = 900.0  # bridges a restart of Kneewatch, or a failed scrape
_TREND_S, _AHEAD_S = HOUR_S, 2 * HOUR_S
_WEEK_S = 7 * DAY_S
_TODAY_S = 2 * HOUR_S  # today's new minimum is not compared with itself
_FALLING_PER_S = 0.01 / HOUR_S  # slower than this is flat: headroom lasts until tomorrow

_FRESH_S = DAY_S
_DISAGREES_FOR_S = 6 * HOUR_S
_DISAGREES_KEEP_S = DAY_S  # until the next run, which decides
_TWO_RUNS_S = DAY_S + 2 * HOUR_S  # last night's and the one before

_LABELS = ("target", "model", "workload")
_BY = by(*_LABELS)
# The labels of an alert on the knee, and matchers for its own values of them.
ALERT = (*TARGET, "model", "workload")
THIS = same(ALERT)
_FORECAST, _MEASURED = 'mode="forecast"', 'mode!="forecast"'
_UNSIGNED = f'{{{{ $value | {PERCENT} | reReplaceAll "^-" "" }}}}'
_WHICH = "{{ $labels.target }} ({{ $labels.model }}, workload {{ $labels.workload }})"
_HEADROOM = f"target_model_workload:{names.HEADROOM.name}:min"
_FOR_USERS, _FOR_NAMED = (f'{_FORECAST},workload{sign}"{USERS}"' for sign in ("=", "!="))
_USERS_MEASURED = f'{_HEADROOM}{{workload="{USERS}"}}'
LOAD = f"target_model_workload:{PREFIX}users_load:rps"


def headroom_rules(scale: float = 1.0, thresholds: Thresholds = DEFAULTS) -> list[Recording | Alert]:
    """Return the rules in the order of their dependencies; `scale` shortens windows and waiting times."""
    # The label `mode` is dropped: whether the last run verified a model must not end an alert.
    measured = Recording(_HEADROOM, f"min {_BY} ({names.HEADROOM.name}{{{_MEASURED}}})")
    return [measured, _low(scale, thresholds), _disagrees(scale, thresholds)]


def _low(scale: float, thresholds: Thresholds) -> Alert:
    low_at, falling_below = thresholds[HEADROOM], thresholds[HEADROOM_FALLING]
    mean, trend, week, today = (duration(s * scale) for s in (_MEAN_S, _TREND_S, _WEEK_S, _TODAY_S))
    of_target = on("target")
    low = f"avg_over_time({_HEADROOM}[{mean}]) < {low_at} unless {_enough_before(mean, scale, low_at)}"
    falling = (
        f"  avg_over_time({_HEADROOM}[{mean}]) < {falling_below}\n"
        f"  and predict_linear({_HEADROOM}[{trend}], {_AHEAD_S * scale:g}) < 0\n"
        f"  and {_HEADROOM} < min_over_time({_HEADROOM}[{week}] offset {today})\n"
        f"  and count_over_time({_HEADROOM}[{duration(DAY_S * scale)}] offset {duration(6 * DAY_S * scale)}) > 0\n"
        f"  unless {_last(_MEASURED)} > time() - {_TREND_S * scale:g}\n"
        f"  unless {_enough_before(mean, scale, low_at)}\n"
    )
    # Rounded for the text, after the comparisons.
    expr = (
        f"round(\n"
        f"({_by_forecast(_FOR_USERS, mean)} < {low_at}\n"
        f"  unless {of_target} {_USERS_MEASURED}\n"
        f")\n"
        f"or {of_target} (\n"
        f"  (({low})\n"
        f"  or (\n{falling}  ))\n"
        f"  unless {of_target} ({_share('max', _FOR_USERS, names.CAPACITY_RPS_LOWER, mean)} <= (1 - {low_at})\n"
        f"    unless {of_target} {_USERS_MEASURED})\n"
        f")\n"
        f"or {of_target} ({_low_by_forecast(_FOR_NAMED, mean, low_at)}\n"
        f"  unless {of_target} {_HEADROOM}\n"
        f"  unless {of_target} {names.HEADROOM.name}{{{_FOR_USERS}}}\n"
        f")\n"
        f", 0.01)"
    )
    load = _of_mode("{capacity} * (1 - {headroom})", before=" (", after=" of ")
    capacity = _of_mode("{capacity}", after=" requests/s)")
    return Alert(
        name="KneewatchHeadroomLow",
        command=links.FORECAST,
        expr=expr,
        for_s=_LOW_FOR_S * scale,
        keep_s=_LOW_KEEP_S * scale,
        severity="ticket",
        summary=(
            "{{ $labels.target }}: {{ if lt $value 0.0 }}users ask for"
            f" {_UNSIGNED} more than it can carry{{{{ else }}}}{_UNSIGNED} of its capacity is left{{{{ end }}}}"
            f"{load}{capacity}"
        ),
        description=(
            f"{{{{ if lt $value 0.0 }}}}Users ask for {_UNSIGNED} more than {_WHICH} can carry,"
            f" {{{{ else }}}}The headroom of {_WHICH} is {_UNSIGNED} of its capacity, {{{{ end }}}}"
            f'{{{{ if eq $labels.mode "forecast" }}}}{_now(names.CAPACITY_RPS.name, _FORECAST)} requests/s by'
            f" forecast, between {_now(names.CAPACITY_RPS_LOWER.name, _FORECAST)} and"
            f" {_now(names.CAPACITY_RPS_UPPER.name, _FORECAST)} (no run has measured it)"
            f"{{{{ else }}}}{_now(names.CAPACITY_RPS.name, _MEASURED)} requests/s"
            f" as measured{{{{ end }}}}{_pace(scale)}. Beyond capacity, requests queue and every user's latency"
            " misses the objectives."
        ),
        means=(
            f"less than {percent(HEADROOM)} of the capacity is free, or headroom is falling and below its minimum of"
            " the last week;"
            f" where only a forecast applies, less than {percent(HEADROOM)} of it for what users send, or of the upper"
            " bound for another workload"
        ),
        panels={
            links.CAPACITY: ["Headroom now", "Headroom"],
            links.FLEET: ["Low headroom", "Lowest headroom"],
            links.TARGET: ["Headroom"],
        },
        silenced_by=(inhibitions.KNEE_BELOW_PEAK,),
        follows=(FaultKind.QUEUE, FaultKind.KV, FaultKind.KNEE),
    )


def _of_mode(query: str, before: str = "", after: str = "") -> str:
    """Return a template of a value of the forecast or of the measured capacity, whichever the alert is by."""

    def of(mode: str) -> str:
        capacity, headroom = (f"{one.name}{{{THIS},{mode}}}" for one in (names.CAPACITY_RPS, names.HEADROOM))
        return value_of(
            f"max({query.format(capacity=capacity, headroom=headroom)})", ALERT, before=before, after=after, none=""
        )

    return f'{{{{ if eq $labels.mode "forecast" }}}}{of(_FORECAST)}{{{{ else }}}}{of(_MEASURED)}{{{{ end }}}}'


def _enough_before(mean: str, scale: float, low_at: str) -> str:
    """Return the PromQL: by the capacity of a day ago, with the same setup, headroom is not low."""
    ago = f" offset {duration(DAY_S * scale)}"
    capacity, setup = (f"{series.name}{{{_MEASURED}}}" for series in (names.CAPACITY_RPS, names.CAPACITY_FINGERPRINT))
    return (
        f"(avg_over_time({LOAD}[{mean}]) <= (1 - {low_at}) * max {_BY} ({capacity}{ago})"
        f" and max {_BY} ({setup}) == max {_BY} ({setup}{ago}))"
    )


def _low_by_forecast(which: str, mean: str, low_at: str) -> str:
    """Return the PromQL: headroom by these forecasts where it is low by their upper bound, too."""
    return f"{_by_forecast(which, mean)}\n  and {_share('min', which, names.CAPACITY_RPS_UPPER, mean)} > (1 - {low_at})"


def _by_forecast(which: str, mean: str) -> str:
    return f"min {by(*_LABELS, 'mode')} (avg_over_time({names.HEADROOM.name}{{{which}}}[{mean}]))"


def _share(merge: str, which: str, bound: names.Series, mean: str) -> str:
    """Return the PromQL: users' share of the bound of these forecasts."""
    headroom, capacity, most = (f"{series.name}{{{which}}}" for series in (names.HEADROOM, names.CAPACITY_RPS, bound))
    return f"{merge} {by(*_LABELS, 'mode')} ((1 - avg_over_time({headroom}[{mean}])) * {capacity} / {most})"


def _pace(scale: float) -> str:
    """Return a template that says when the remaining headroom runs out, by the linear trend of the last hour."""
    trend, measured = duration(_TREND_S * scale), f"{_HEADROOM}{{{THIS}}}"
    forecast = f"{names.HEADROOM.name}{{{THIS},{_FORECAST}}}"

    def end(series: str) -> str:
        # From the current value: after a jump, the fitted line is far from it.
        query = f"max(({series} > 0) / -(deriv({series}[{trend}]) < -{_FALLING_PER_S:.3g}))"
        before = f"; at the trend of the last {words(_TREND_S * scale)} it runs out in "
        return value_of(query, ALERT, shown=SPAN, before=before, none="; it is not falling now")

    return (
        f'{{{{ if ge $value 0.0 }}}}{{{{ if eq $labels.mode "forecast" }}}}{end(forecast)}'
        f"{{{{ else }}}}{end(measured)}{{{{ end }}}}{{{{ end }}}}"
    )


def _disagrees(scale: float, thresholds: Thresholds) -> Alert:
    residual = names.MODEL_RESIDUAL.name
    lead = "; before the last run it was off by "
    before = value_of(f"max({residual}{{{THIS}}})", ALERT, shown=PERCENT, before=lead, none="")
    return Alert(
        name="KneewatchForecastDisagrees",
        command=links.FORECAST,
        expr=_disagreement(scale, thresholds[FORECAST_ERROR]),
        for_s=_DISAGREES_FOR_S * scale,
        keep_s=_DISAGREES_KEEP_S * scale,
        severity="ticket",
        summary=(
            f"{{{{ $labels.target }}}}: the forecast of its capacity is {_UNSIGNED} too"
            " {{ if lt $value 0.0 }}low{{ else }}high{{ end }}:"
            f" {_now(names.CAPACITY_RPS.name, _FORECAST)} requests/s, {_now(names.CAPACITY_RPS.name, _MEASURED)}"
            f" measured"
        ),
        description=(
            "The forecast for {{ $labels.target }} ({{ $labels.model }}, workload {{ $labels.workload }}) is"
            f" {_now(names.CAPACITY_RPS.name, _FORECAST)} requests/s; the last run measured"
            f" {_now(names.CAPACITY_RPS.name, _MEASURED)} (lower bound"
            f" {_now(names.CAPACITY_RPS_LOWER.name, _MEASURED)}, upper bound"
            f" {_now(names.CAPACITY_RPS_UPPER.name, _MEASURED)})"
            f"{before}. One of the two is wrong: either the model misses what limits the server, or the run met a"
            " condition that user traffic does not."
        ),
        means=f"forecast and measured capacity differ by {percent(FORECAST_ERROR)} or more",
        panels={links.CAPACITY: ["Capacity and users", "Forecast error"]},
        follows=(FaultKind.KNEE, FaultKind.SLOW),
    )


def _disagreement(scale: float, most: str) -> str:
    """Return the PromQL: the forecast is outside the measured bounds now, or was wrong before each of two runs."""

    def knee(series: names.Series, mode: str) -> str:
        return f"max {_BY} ({series.name}{{{mode}}})"

    forecast, measured = knee(names.CAPACITY_RPS, _FORECAST), knee(names.CAPACITY_RPS, _MEASURED)
    lower, upper = knee(names.CAPACITY_RPS_LOWER, _MEASURED), knee(names.CAPACITY_RPS_UPPER, _MEASURED)
    bounded = knee(names.CAPACITY_RPS_UPPER, _FORECAST)
    fresh_s, runs = _FRESH_S * scale, duration(_TWO_RUNS_S * scale)
    residual = names.MODEL_RESIDUAL.name
    return (
        f"round(\n(\n"
        # A measured capacity or a forecast without an upper bound is a lower bound: the capacity may be higher.
        f"  ({forecast} / {measured} - 1 > {most} and {forecast} > {upper}\n"
        f"   or {forecast} / {measured} - 1 < -{most} and {bounded} unless {forecast} >= {lower})\n"
        f"  and {_last(_FORECAST)} > time() - {fresh_s:g}\n"
        f"  and abs({_last(_FORECAST)} - {_last(_MEASURED)}) < {fresh_s:g}\n"
        f")\n"
        f"or max {_BY} (\n"
        f"  (min_over_time({residual}[{runs}]) > {most} or max_over_time({residual}[{runs}]) < -{most})\n"
        f"  and changes({residual}[{runs}]) >= 1\n"
        f")\n, 0.01)"
    )


def _last(mode: str) -> str:
    return f"max {_BY} ({names.CAPACITY_LAST_SUCCESS.name}{{{mode}}})"


def _now(series: str, mode: str) -> str:
    return value_of(f"max({series}{{{THIS},{mode}}})", ALERT)
