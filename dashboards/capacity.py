"""The dashboard "Kneewatch / Capacity": a server's capacity, how close users are to it, and the cost of measuring.

In: the links. Out: the dashboard's JSON text.
"""

from alerts import user_mix
from alerts.headroom import DISAGREES, FALLING_BELOW, LOW
from alerts.links import CAPACITY, Links
from dashboards import layout, marks, panels
from dashboards.layout import Intervals
from dashboards.pieces import GREEN, RED, YELLOW, PanelRow, PlacedPanel, Query
from dashboards.queries import (
    FORECAST,
    MEASURED,
    MODEL,
    RATE,
    WORKLOAD,
    age,
    at_capacity,
    capacity,
    capacity_over_time,
    counted,
    largest,
    pace,
    quantile,
    user_requests,
)
from dashboards.queries import TARGET as ONE
from dashboards.variables import chosen
from exporters import names
from exporters.names import Series
from probe.capacity.trend.reference import DROP_RATIO

TITLE = "Kneewatch / Capacity"

_BY_HOUR = f'{user_mix.REQUESTS}{{{ONE},kind="prompts",le="+Inf"}}'
_NEVER = "no run has measured it"


def capacity_dashboard(links: Links, intervals: Intervals) -> str:
    """Return the dashboard as JSON text."""
    return layout.dashboard(
        TITLE,
        CAPACITY,
        "One model server: its capacity within its objectives, how close user traffic is, and what limits it.",
        variables=chosen(),
        rows=[
            PanelRow("How much can it serve?", [*_capacity_now(), *_limit_and_age(), *_capacity_over_time(), *_knee()]),
            PanelRow("How close is user traffic?", _headroom()),
            PanelRow("What limits it?", [_bottleneck()]),
            PanelRow("Has it shifted?", shifts()),
            PanelRow("Is the forecast right?", forecast()),
            PanelRow("What did measuring cost?", cost()),
        ],
        annotations=[*marks.marks(ONE), *marks.setups(ONE)],
        links=links,
        intervals=intervals,
        since="now-7d",
    )


def _capacity_now() -> list[PlacedPanel]:
    return [
        panels.stat(
            "Capacity",
            "Requests per second that the server sustains within every objective. Good: at its baseline, and well above"
            " the peak of user traffic. 'At least' means that no load missed an objective.",
            unit="reqps",
            queries=at_capacity(names.CAPACITY_RPS),
            steps=[(None, GREEN)],
            width=6,
            no_value="unknown",
        ),
        panels.stat(
            "Headroom now",
            "The share of capacity that user traffic leaves free, by requests or by output tokens, whichever is less."
            f" Good: above {FALLING_BELOW:.0%} by day. Below zero, users wait.",
            unit="percentunit",
            queries=[Query(capacity(names.HEADROOM, WORKLOAD), "{{mode}} {{workload}}")],
            steps=[(None, RED), (LOW, YELLOW), (FALLING_BELOW, GREEN)],
            width=6,
            no_value="unknown",
        ),
    ]


def _limit_and_age() -> list[PlacedPanel]:
    return [
        panels.stat(
            "What limits it",
            "The resource that limits capacity, by the last result of each mode. Good: the resource you pay for, memory"
            " bandwidth or the KV cache; not the front end or the host.",
            unit="none",
            queries=[
                Query(
                    f"{largest(names.BOTTLENECK, WORKLOAD, 'mode, workload, bottleneck')} == 1",
                    "{{mode}} {{workload}}: {{bottleneck}}",
                )
            ],
            steps=[(None, GREEN)],
            width=6,
            only_names=True,
            no_value="no single limit",
        ),
        panels.stat(
            "Age",
            "Time since capacity was last measured or forecast. Good: less than the schedule's period.",
            unit="s",
            queries=[Query(age(names.CAPACITY_LAST_SUCCESS, WORKLOAD, "mode, workload"), "{{mode}} {{workload}}")],
            steps=[(None, GREEN), (2 * 86400, YELLOW), (8 * 86400, RED)],
            width=6,
            no_value="never",
        ),
    ]


def _capacity_over_time() -> list[PlacedPanel]:
    return [
        panels.timeseries(
            "Measured capacity",
            "Requests per second within every objective, measured by capacity runs, with bounds. Good: flat, with close"
            " bounds. Without an upper bound, no load missed an objective: the value is a lower bound.",
            unit="reqps",
            queries=capacity_over_time(MEASURED),
            width=12,
            no_value=_NEVER,
        ),
        panels.timeseries(
            "Forecast capacity",
            "Requests per second within every objective, forecast from user traffic without any probe load. Good: near"
            " the measured capacity. The less traffic there is, the less certain the forecast.",
            unit="reqps",
            queries=capacity_over_time(FORECAST),
            width=12,
            no_value="no forecast: too little traffic so far",
        ),
    ]


def _knee() -> list[PlacedPanel]:
    return [
        panels.timeseries(
            "Requests in flight at capacity",
            "The knee in requests in flight, for runs in a closed loop; no data for runs at request rates, and"
            " where no load missed an objective. Good: as last week, and well above the number running by day.",
            unit="short",
            queries=[*at_capacity(names.KNEE_CONCURRENCY), Query(largest(names.SERVER["running"]), "running now")],
            width=8,
            no_value=f"{_NEVER} in a closed loop",
        ),
        panels.timeseries(
            "Output tokens at capacity",
            "Output tokens per second at capacity, and now. Good: a wide distance between them. With long answers, this"
            " limit comes before the limit of requests. 'At least' means that no load missed an objective.",
            unit="short",
            queries=[
                *at_capacity(names.CAPACITY_TOKENS),
                Query(pace(names.SERVER["generation_tokens"]), "the server now"),
            ],
            width=8,
        ),
        panels.timeseries(
            "Prefill rate",
            "Prompt tokens per second of one engine in steps full of prompts, by the step cost model. Good: as last"
            " week; less means slower prompts. No data while the model does not know it.",
            unit="short",
            queries=[Query(capacity(names.PREFILL_TOKENS, WORKLOAD), "{{mode}} {{workload}}")],
            width=8,
            no_value="the step cost model does not know it",
        ),
    ]


def _headroom() -> list[PlacedPanel]:
    low = Query(f"vector({LOW:g})", f"objective: {LOW:.0%}")
    return [
        panels.timeseries(
            "Headroom",
            "The share of capacity that user traffic leaves free. Good: above the dashed line at the day's peak. Below"
            " zero, user traffic exceeds the capacity.",
            unit="percentunit",
            queries=[Query(capacity(names.HEADROOM, WORKLOAD), "{{mode}} {{workload}}"), low],
            width=12,
            minimum=None,
            maximum=1,
            no_value="capacity or user traffic is unknown",
        ),
        panels.timeseries(
            "User requests against capacity",
            "User requests per second, and the capacity. Good: well below it at the day's peak. User requests are the"
            " server's count minus probe requests, some seconds late.",
            unit="reqps",
            queries=[
                Query(user_requests(), "users"),
                Query(capacity(names.CAPACITY_RPS, WORKLOAD), "capacity {{mode}} {{workload}}"),
            ],
            width=12,
        ),
        panels.timeseries(
            "User requests by hour",
            "User requests that ended within an hour, and those of a week earlier, as recorded once an hour. Good: a"
            " rhythm like last week's. The highest hour is the peak to plan for.",
            unit="short",
            queries=[
                Query(f"max(last_over_time({_BY_HOUR}[2h]))", "an hour"),
                Query(f"max(last_over_time({_BY_HOUR}[2h] offset 1w))", "a week earlier"),
            ],
            width=24,
            no_value="recorded an hour after the rules are installed",
        ),
        panels.timeseries(
            "Throughput against latency",
            "The server's output tokens per second on the left, and user latency on the right. Good: latency stays flat"
            " while throughput rises. If latency climbs and throughput does not, the load is past the knee.",
            unit="short",
            queries=[
                Query(pace(names.SERVER["generation_tokens"]), "output tokens/s"),
                Query(quantile(0.95, names.USERS_TTFT, ONE), "users' TTFT p95", is_on_right_axis=True),
                Query(quantile(0.95, names.USERS_TPOT, ONE), "users' TPOT p95", is_on_right_axis=True),
            ],
            width=24,
            right_unit="s",
        ),
    ]


def _bottleneck() -> PlacedPanel:
    limits = largest(names.BOTTLENECK, WORKLOAD, "mode, workload, bottleneck")
    return panels.states(
        "Bottleneck",
        "The resource that limits capacity, by each result over time. Good: the same for weeks. A change without a"
        " change of the server's flags means that user traffic has changed.",
        queries=[Query(f"{limits} > 0", "{{mode}} {{workload}}: {{bottleneck}}")],
        texts={"1": ("limits", YELLOW)},
        width=24,
        height=6,
        no_value="no result has named a bottleneck",
    )


def shifts() -> list[PlacedPanel]:
    return [*_baseline(), *_detected_shifts()]


def _baseline() -> list[PlacedPanel]:
    return [
        panels.timeseries(
            "Capacity and its baseline",
            "The last measured capacity, the most that it may be, and the median of earlier ones with the same setup."
            " Good: on the baseline; where it is at most well below, capacity was lost. A new baseline follows a change"
            " of model, engine, flags, workload or objectives.",
            unit="reqps",
            queries=[
                Query(capacity(names.CAPACITY_RPS, MEASURED), "capacity {{mode}} {{workload}}"),
                Query(capacity(names.KNEE_UPPER, MEASURED), "at most {{mode}} {{workload}}"),
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
