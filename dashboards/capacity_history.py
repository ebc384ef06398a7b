"""Rows of the Capacity dashboard: whether it has shifted, whether the forecast is right, and what measuring cost."""

from alerts.headroom import DISAGREES
from dashboards import panels
from dashboards.pieces import GREEN, RED, YELLOW, PlacedPanel, Query
from dashboards.queries import FORECAST, MEASURED, MODEL, RATE, WORKLOAD, counted, figure, largest
from dashboards.queries import TARGET as ONE
from exporters import names
from exporters.names import Series
from probe.capacity.trend.reference import DROP_RATIO


def shifts() -> list[PlacedPanel]:
    shifted = largest(names.KNEE_SHIFTED, WORKLOAD, "mode, method")
    return [
        panels.timeseries(
            "Capacity and its baseline",
            "The last measured capacity beside the median of those before that held for the same setup. Good: on it. A"
            " baseline that begins anew follows a change of model, engine, flags, workload or objectives.",
            unit="reqps",
            queries=[
                Query(figure(names.CAPACITY_RPS, MEASURED), "capacity {{mode}} {{workload}}"),
                Query(figure(names.KNEE_BASELINE, MEASURED), "baseline {{mode}} {{workload}}"),
            ],
            no_value="no capacity has a baseline yet",
            alerts=["KneewatchKneeDropped", "KneewatchKneeDown"],
        ),
        panels.timeseries(
            "Shift",
            "The last capacity over its baseline, less 1. Good: about zero. Runs differ by a few percent; at"
            f" {-DROP_RATIO:.0%},"
            " once a second run confirms it, someone is paged.",
            unit="percentunit",
            queries=[Query(figure(names.KNEE_SHIFT, WORKLOAD), "{{mode}} {{workload}}")],
            minimum=None,
            no_value="no capacity has a baseline yet",
            alerts=["KneewatchKneeDropped", "KneewatchKneeDown"],
        ),
        panels.states(
            "Called a shift",
            "When each method said that the knee has shifted: down, but for rise. Good: none. confirmed_drop pages,"
            " median_of_3 and mann_whitney open a ticket.",
            queries=[Query(shifted, "{{mode}}: {{method}}")],
            texts={"0": ("as before", GREEN), "1": ("shifted", RED)},
            width=8,
            no_value="no capacity has a baseline yet",
            alerts=["KneewatchKneeDropped", "KneewatchKneeDown"],
        ),
        panels.stat(
            "Age of the baseline",
            "How long ago the first run of the baseline was. Good: weeks. A young one follows a change of the setup,"
            " and tells less.",
            unit="s",
            queries=[Query(f"time() - min by (mode) ({names.KNEE_BASELINE_SINCE.name}{{{WORKLOAD}}} > 0)", "{{mode}}")],
            steps=[(None, GREEN)],
            width=8,
            no_value="no baseline yet",
        ),
    ]


def forecast() -> list[PlacedPanel]:
    return [
        panels.timeseries(
            "Forecast beside what load measured",
            "Both figures for the capacity. Good: close together. A forecast costs users nothing, so where they agree"
            " it may replace most runs.",
            unit="reqps",
            queries=[
                Query(figure(names.CAPACITY_RPS, FORECAST), "forecast {{workload}}"),
                Query(figure(names.CAPACITY_RPS, MEASURED), "{{mode}} {{workload}}"),
            ],
            width=12,
            no_value="neither is known",
            alerts=["KneewatchForecastDisagrees"],
        ),
        panels.timeseries(
            "How far the forecast was off",
            "The forecast before the last run that measured capacity over what it measured, less 1. Good: within"
            f" a tenth; beyond {DISAGREES:.0%} for hours there is a ticket. Above zero it promised too much.",
            unit="percentunit",
            queries=[Query(largest(names.MODEL_RESIDUAL, WORKLOAD, "model, workload"), "{{model}} {{workload}}")],
            width=12,
            minimum=None,
            no_value="no run had a forecast before it",
            alerts=["KneewatchForecastDisagrees"],
        ),
    ]


def cost() -> list[PlacedPanel]:
    load = f'{MODEL},traffic="capacity"'
    tokens = f"sum by (kind) (increase({names.TOKENS.name}{{{load}}}[$__range])) or on() vector(0)"
    return [
        panels.stat(
            "Seconds over an objective",
            "In the time shown: seconds in which our own load had requests over an objective. This is what measuring"
            " may have cost users. Good: below the budget of a run, for each run.",
            unit="s",
            queries=[Query(counted(names.OVER_OBJECTIVE), "over objective")],
            steps=[(None, GREEN), (120, YELLOW), (1200, RED)],
            width=6,
        ),
        panels.stat(
            "Tokens of our load",
            "In the time shown: prompt and output tokens that capacity runs asked the server for. Good: below the"
            " budget of a run, for each run.",
            unit="short",
            queries=[Query(tokens, "{{kind}}")],
            steps=[(None, GREEN)],
            width=6,
        ),
        panels.stat(
            "Runs, in all",
            "In the time shown: capacity runs by how they ended. Good: done. guard and budget are ends that protect"
            " users; error is one to look into.",
            unit="none",
            queries=[Query(counted(names.CAPACITY_RUNS, by="outcome"), "{{outcome}}")],
            steps=[(None, GREEN)],
            width=12,
            alerts=["KneewatchCapacityStale"],
        ),
        panels.timeseries(
            "Runs",
            "When runs ended, and how. Good: one for each due time, done.",
            unit="short",
            queries=[Query(_events(names.CAPACITY_RUNS, "outcome"), "{{outcome}}")],
            bars=True,
            stacked=True,
            no_value="no run has ended",
            alerts=["KneewatchCapacityStale"],
        ),
        panels.timeseries(
            "Guard trips",
            "When the guard stopped our load, and why. Good: few. Now and then it is the guard at work; at every run"
            " the server has no room to measure in.",
            unit="short",
            queries=[Query(_events(names.GUARD_TRIPS, "reason"), "{{reason}}")],
            bars=True,
            stacked=True,
            no_value="the guard has not tripped",
        ),
        panels.timeseries(
            "Refusals",
            "When a scheduled run was not allowed to begin, and why. Good: few, at busy times. At every due time,"
            " choose a quieter one.",
            unit="short",
            queries=[Query(_events(names.CAPACITY_REFUSALS, "reason"), "{{reason}}")],
            bars=True,
            stacked=True,
            no_value="no run was refused",
        ),
    ]


def _events(series: Series, by: str) -> str:
    """How often, at each point; nothing where it was not."""
    return f"round(sum by ({by}) (increase({series.name}{{{ONE}}}[{RATE}]))) > 0"
