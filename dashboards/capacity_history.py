"""Rows of the Capacity dashboard: shifts, the forecast's accuracy, and the cost of measuring."""

from alerts.headroom import DISAGREES
from dashboards import panels
from dashboards.pieces import GREEN, RED, YELLOW, PlacedPanel, Query
from dashboards.queries import FORECAST, MEASURED, MODEL, RATE, WORKLOAD, capacity, counted, largest
from dashboards.queries import TARGET as ONE
from exporters import names
from exporters.names import Series
from probe.capacity.trend.reference import DROP_RATIO


def shifts() -> list[PlacedPanel]:
    return [*_baseline(), *_detected_shifts()]


def _baseline() -> list[PlacedPanel]:
    return [
        panels.timeseries(
            "Capacity and its baseline",
            "The last measured capacity, and the median of earlier ones with the same setup. Good: on the baseline. A"
            " new baseline follows a change of model, engine, flags, workload or objectives.",
            unit="reqps",
            queries=[
                Query(capacity(names.CAPACITY_RPS, MEASURED), "capacity {{mode}} {{workload}}"),
                Query(capacity(names.KNEE_BASELINE, MEASURED), "baseline {{mode}} {{workload}}"),
            ],
            width=12,
            no_value="no capacity has a baseline yet",
        ),
        panels.timeseries(
            "Shift",
            "The last capacity relative to its baseline, minus 1. Good: about zero. Runs differ by a few percent; at"
            f" {-DROP_RATIO:.0%}, confirmed by two more runs, an alert pages.",
            unit="percentunit",
            queries=[Query(capacity(names.KNEE_SHIFT, WORKLOAD), "{{mode}} {{workload}}")],
            width=12,
            minimum=None,
            no_value="no capacity has a baseline yet",
        ),
    ]


def _detected_shifts() -> list[PlacedPanel]:
    shifted = largest(names.KNEE_SHIFTED, WORKLOAD, "mode, method")
    return [
        panels.states(
            "Detected shifts",
            "When each method detected a shift of the knee: all but rise are drops. Good: none. confirmed_drop pages;"
            " median_of_3 and mann_whitney open a ticket.",
            queries=[Query(shifted, "{{mode}}: {{method}}")],
            texts={"0": ("as before", GREEN), "1": ("shifted", RED)},
            width=18,
            no_value="no capacity has a baseline yet",
        ),
        panels.stat(
            "Age of the baseline",
            "Time since the first run of the baseline. Good: weeks. A recent one follows a change of the setup, and is"
            " less certain.",
            unit="s",
            queries=[Query(f"time() - min by (mode) ({names.KNEE_BASELINE_SINCE.name}{{{WORKLOAD}}} > 0)", "{{mode}}")],
            steps=[(None, GREEN)],
            width=6,
            no_value="no baseline yet",
        ),
    ]


def forecast() -> list[PlacedPanel]:
    return [
        panels.timeseries(
            "Forecast and measured capacity",
            "Capacity by forecast and by measurement. Good: close together. A forecast adds no load, so if they agree,"
            " it can replace most runs.",
            unit="reqps",
            queries=[
                Query(capacity(names.CAPACITY_RPS, FORECAST), "forecast {{workload}}"),
                Query(capacity(names.CAPACITY_RPS, MEASURED), "{{mode}} {{workload}}"),
            ],
            width=12,
            no_value="both are unknown",
        ),
        panels.timeseries(
            "Forecast error",
            "The forecast just before the last measuring run, relative to its result, minus 1. Good: within a tenth;"
            f" beyond {DISAGREES:.0%} for hours an alert opens a ticket. Above zero, the forecast was too high.",
            unit="percentunit",
            queries=[Query(largest(names.MODEL_RESIDUAL, WORKLOAD, "model, workload"), "{{model}} {{workload}}")],
            width=12,
            minimum=None,
            no_value="no run had a forecast before it",
        ),
    ]


def cost() -> list[PlacedPanel]:
    return [*_totals(), *_events_over_time()]


def _totals() -> list[PlacedPanel]:
    load = f'{MODEL},traffic="capacity"'
    tokens = f"sum by (kind) (increase({names.TOKENS.name}{{{load}}}[$__range])) or on() vector(0)"
    return [
        panels.stat(
            "Seconds over an objective",
            "In the time range: seconds in which a capacity run's requests missed an objective. This is what measuring"
            " may have cost users. Good: below the budget of a run, for each run.",
            unit="s",
            queries=[Query(counted(names.OVER_OBJECTIVE), "over objective")],
            steps=[(None, GREEN), (120, YELLOW), (1200, RED)],
            width=6,
        ),
        panels.stat(
            "Tokens of capacity runs",
            "In the time range: prompt and output tokens of capacity runs. Good: below the budget of a run, for each"
            " run.",
            unit="short",
            queries=[Query(tokens, "{{kind}}")],
            steps=[(None, GREEN)],
            width=6,
        ),
        panels.stat(
            "Runs by outcome",
            "In the time range: capacity runs by outcome. Good: done. guard and budget ended a run to protect users;"
            " investigate error.",
            unit="none",
            queries=[Query(counted(names.CAPACITY_RUNS, by="outcome"), "{{outcome}}")],
            steps=[(None, GREEN)],
            width=12,
        ),
    ]


def _events_over_time() -> list[PlacedPanel]:
    return [
        panels.timeseries(
            "Runs",
            "When capacity runs ended, by outcome. Good: one at each due time, done.",
            unit="short",
            queries=[Query(_events(names.CAPACITY_RUNS, "outcome"), "{{outcome}}")],
            bars=True,
            stacked=True,
            no_value="no run has ended",
        ),
        panels.timeseries(
            "Guard trips",
            "When the guard stopped a capacity run, by reason. Good: few. If it stops every run, the server has no"
            " spare capacity to measure.",
            unit="short",
            queries=[Query(_events(names.GUARD_TRIPS, "reason"), "{{reason}}")],
            bars=True,
            stacked=True,
            no_value="the guard has not tripped",
        ),
        panels.timeseries(
            "Refusals",
            "When a scheduled run was refused, by reason. Good: few, at busy times. If every run is refused, schedule"
            " them at a quieter time.",
            unit="short",
            queries=[Query(_events(names.CAPACITY_REFUSALS, "reason"), "{{reason}}")],
            bars=True,
            stacked=True,
            no_value="no run was refused",
        ),
    ]


def _events(series: Series, by: str) -> str:
    """Return the number of events at each point, without points that have none."""
    return f"round(sum by ({by}) (increase({series.name}{{{ONE}}}[{RATE}]))) > 0"
