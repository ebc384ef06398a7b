"""The alerts on what users leave of a capacity, and on forecasts that measurement contradicts. Pure.

Headroom is low where little of it is left, and that stays so. How fast it goes is not asked alone: on many days it
falls by half in a morning, and a straight line through a morning ends below zero every day. So a trend counts only
where it leads below anything the week before has seen, and not without such a week. A capacity that was just measured
anew is no trend, and forecasts differ too much from one to the next to have one.

While step-up load of ours runs, users are not told from it, and headroom stays as it was.
"""

from alerts.links import CAPACITY
from alerts.rules import Alert, Recording
from alerts.templates import asked
from alerts.windows import DAY_S, HOUR_S, duration
from exporters import names

LOW = 0.15
FALLING_BELOW = 0.3
_MEAN_S = 900.0  # users come in bursts, and headroom is as of the last minutes
_LOW_FOR_S = 1200.0
_LOW_KEEP_S = 2 * HOUR_S  # a busy day goes up and down, and is one ticket
KEEP_S = 900.0  # what a run has found holds on over a restart of Kneewatch, or a scrape that failed
_TREND_S, _AHEAD_S = HOUR_S, 2 * HOUR_S
_WEEK_S = 7 * DAY_S
_TODAY_S = 2 * HOUR_S  # today's new low is not compared with itself
_FALLING_PER_S = 0.01 / HOUR_S  # less is flat: at that pace it lasts until tomorrow

# Verified capacity is within 8 % of the truth, and a forecast that is good for planning within 20: the rest is neither.
DISAGREES = 0.3
_FRESH_S = DAY_S
_DISAGREES_FOR_S = 6 * HOUR_S
_TWO_RUNS_S = DAY_S + 2 * HOUR_S  # last night's and the one before

_LABELS = ("target", "model", "workload")
_BY = ", ".join(_LABELS)
_THIS = "target=%[1]q,model=%[2]q,workload=%[3]q"
_FORECAST, _MEASURED = 'mode="forecast"', 'mode!="forecast"'
_HEADROOM = f"target_model_workload:{names.HEADROOM.name}:min"


def headroom_rules(scale: float = 1.0) -> list[Recording | Alert]:
    """The rules, in the order that they need; `scale` shortens windows and waiting times."""
    # The label `mode` goes: whether the last run verified a model or not must not end an alert.
    measured = Recording(_HEADROOM, f"min by ({_BY}) ({names.HEADROOM.name}{{{_MEASURED}}})")
    return [measured, _low(scale), _disagrees(scale)]


def _low(scale: float) -> Alert:
    mean, trend, week, today = (duration(s * scale) for s in (_MEAN_S, _TREND_S, _WEEK_S, _TODAY_S))
    expr = (
        f"avg_over_time({_HEADROOM}[{mean}]) < {LOW:g}\n"
        f"or (\n"
        f"  avg_over_time({_HEADROOM}[{mean}]) < {FALLING_BELOW:g}\n"
        f"  and predict_linear({_HEADROOM}[{trend}], {_AHEAD_S * scale:g}) < 0\n"
        f"  and {_HEADROOM} < min_over_time({_HEADROOM}[{week}] offset {today})\n"
        f"  and count_over_time({_HEADROOM}[{duration(DAY_S * scale)}] offset {duration(6 * DAY_S * scale)}) > 0\n"
        f"  unless {_last(_MEASURED)} > time() - {_TREND_S * scale:g}\n"
        f")\n"
        f"or (\n"
        f"  min by ({_BY}, mode) (avg_over_time({names.HEADROOM.name}{{{_FORECAST}}}[{mean}])) < {LOW:g}\n"
        f"  unless on (target) {_HEADROOM}\n"
        f")"
    )
    return Alert(
        name="KneewatchHeadroomLow",
        expr=expr,
        for_s=_LOW_FOR_S * scale,
        keep_s=_LOW_KEEP_S * scale,
        severity="ticket",
        dashboard=CAPACITY,
        summary="{{ $labels.target }}: {{ $value | humanizePercentage }} of its capacity is left",
        description=(
            "Users leave {{ $value | humanizePercentage }} of what {{ $labels.target }} ({{ $labels.model }}, workload"
            " {{ $labels.workload }}) takes within its objectives. That is"
            f' {{{{ if eq $labels.mode "forecast" }}}}{_now(names.CAPACITY_RPS.name, _FORECAST)} requests/s by a'
            f" forecast, which no run has measured{{{{ else }}}}{_now(names.CAPACITY_RPS.name, _MEASURED)} requests/s,"
            f" as measured{{{{ end }}}}; {_pace(trend)}. Beyond it requests queue, and objectives break for everybody."
        ),
    )


def _pace(trend: str) -> str:
    """When it will be used up, as a template; by the slope of the straight line through the last hour."""
    measured = f"{_HEADROOM}{{{_THIS}}}"
    forecast = f"{names.HEADROOM.name}{{{_THIS},{_FORECAST}}}"

    def end(series: str) -> str:
        # From where it is now: after a leap, the line itself is far from there.
        query = f"max({series} / -(deriv({series}[{trend}]) < -{_FALLING_PER_S:.3g}))"
        before = f"at the pace of the last {trend} it is used up in "
        return asked(query, _LABELS, shown="humanizeDuration", before=before, none="it is not falling now")

    return (
        "{{ if lt $value 0.0 }}it is used up already"
        f'{{{{ else if eq $labels.mode "forecast" }}}}{end(forecast)}{{{{ else }}}}{end(measured)}{{{{ end }}}}'
    )


def _disagrees(scale: float) -> Alert:
    def knee(series: names.Series, mode: str) -> str:
        return f"max by ({_BY}) ({series.name}{{{mode}}})"

    forecast, found = knee(names.CAPACITY_RPS, _FORECAST), knee(names.CAPACITY_RPS, _MEASURED)
    lower, upper = knee(names.CAPACITY_RPS_LOWER, _MEASURED), knee(names.CAPACITY_RPS_UPPER, _MEASURED)
    fresh_s, runs = _FRESH_S * scale, duration(_TWO_RUNS_S * scale)
    residual = names.MODEL_RESIDUAL.name
    expr = (
        f"(\n"
        # Without an upper bound no load broke anything, and more may well be true.
        f"  ({forecast} / {found} - 1 > {DISAGREES:g} and {forecast} > {upper}\n"
        f"   or {forecast} / {found} - 1 < -{DISAGREES:g} unless {forecast} >= {lower})\n"
        f"  and {_last(_FORECAST)} > time() - {fresh_s:g}\n"
        f"  and abs({_last(_FORECAST)} - {_last(_MEASURED)}) < {fresh_s:g}\n"
        f")\n"
        f"or max by ({_BY}) (\n"
        f"  (min_over_time({residual}[{runs}]) > {DISAGREES:g} or max_over_time({residual}[{runs}]) < -{DISAGREES:g})\n"
        f"  and changes({residual}[{runs}]) >= 1\n"
        f")"
    )
    said = "; before the last run it was off by "
    before = asked(f"max({residual}{{{_THIS}}})", _LABELS, shown="humanizePercentage", before=said, none="")
    return Alert(
        name="KneewatchForecastDisagrees",
        expr=expr,
        for_s=_DISAGREES_FOR_S * scale,
        keep_s=KEEP_S * scale,
        severity="ticket",
        dashboard=CAPACITY,
        summary="{{ $labels.target }}: the forecast of its capacity is off by {{ $value | humanizePercentage }}",
        description=(
            "By forecast {{ $labels.target }} ({{ $labels.model }}, workload {{ $labels.workload }}) takes"
            f" {_now(names.CAPACITY_RPS.name, _FORECAST)} requests/s; load has measured"
            f" {_now(names.CAPACITY_RPS.name, _MEASURED)} (lower bound"
            f" {_now(names.CAPACITY_RPS_LOWER.name, _MEASURED)}, upper bound"
            f" {_now(names.CAPACITY_RPS_UPPER.name, _MEASURED)})"
            f"{before}. One of the two is wrong: either the model does"
            " not know what limits the server, or the run met something that live traffic does not."
        ),
    )


def _last(mode: str) -> str:
    return f"max by ({_BY}) ({names.CAPACITY_LAST_SUCCESS.name}{{{mode}}})"


def _now(series: str, mode: str) -> str:
    return asked(f"max({series}{{{_THIS},{mode}}})", _LABELS)
