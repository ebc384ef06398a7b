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
_NO_BASELINE = "no baseline yet: it takes three capacity runs with close bounds and one setup"


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
            PanelRow("Has it shifted, and is the forecast right?", shifts()),
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
            width=5,
            no_value="no capacity run or forecast so far",
        ),
        panels.stat(
            "Headroom now",
            "The share of capacity that user traffic leaves free, by requests or by output tokens, whichever is less."
            f" Good: above {FALLING_BELOW:.0%} by day. Below zero, users wait.",
            unit="percentunit",
            queries=[Query(capacity(names.HEADROOM, WORKLOAD), "{{mode}} {{workload}}")],
            steps=[(None, RED), (LOW, YELLOW), (FALLING_BELOW, GREEN)],
            width=5,
            no_value="not known: it takes user traffic, and a capacity run or a forecast",
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
            width=5,
            only_names=True,
            no_value="no single limit, or no result so far",
        ),
        panels.stat(
            "Age",
            "Time since capacity was last measured or forecast. Good: less than the schedule's period.",
            unit="s",
            queries=[Query(age(names.CAPACITY_LAST_SUCCESS, WORKLOAD, "mode, workload"), "{{mode}} {{workload}}")],
            steps=[(None, GREEN), (2 * 86400, YELLOW), (8 * 86400, RED)],
            width=5,
            no_value="never: no capacity run or forecast so far",
        ),
        panels.stat(
            "Age of the baseline",
            "Time since the first run of the baseline. Good: weeks. A recent one follows a change of the setup, and is"
            " less certain.",
            unit="s",
            queries=[Query(f"time() - min by (mode) ({names.KNEE_BASELINE_SINCE.name}{{{WORKLOAD}}} > 0)", "{{mode}}")],
            steps=[(None, GREEN)],
            width=4,
            no_value="no baseline yet",
        ),
    ]


def _capacity_over_time() -> list[PlacedPanel]:
    return [
        panels.timeseries(
            "Capacity and users",
            "Requests per second within every objective: measured by capacity runs and forecast from user traffic, with"
            " bounds; the median of earlier runs with the same setup (baseline); the most that the last run allows; and"
            " user requests, some seconds late. Good: users well below it at the day's peak, a flat capacity on its"
            " baseline with close bounds, and forecasts near it. Without an upper bound no load missed an objective:"
            " the value is a lower bound.",
            unit="reqps",
            queries=[
                *capacity_over_time(WORKLOAD),
                Query(capacity(names.KNEE_BASELINE, MEASURED), "baseline {{mode}} {{workload}}"),
                Query(capacity(names.KNEE_UPPER, MEASURED), "at most {{mode}} {{workload}}"),
                Query(user_requests(), "users"),
            ],
            width=24,
            no_value="no run has measured it, there is too little traffic for a forecast, and there are no users",
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
            no_value="no run by requests in flight (capacity.concurrency) has found a knee",
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
            no_value="no capacity run or forecast, and the server exports no output tokens",
        ),
        panels.timeseries(
            "Prefill rate",
            "Prompt tokens per second of one engine in steps full of prompts, by the step cost model. Good: as last"
            " week; less means slower prompts. No data while the model does not know it.",
            unit="short",
            queries=[Query(capacity(names.PREFILL_TOKENS, WORKLOAD), "{{mode}} {{workload}}")],
            width=8,
            no_value="not known: it takes a forecast or a search with full prompts",
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
            width=8,
            minimum=None,
            maximum=1,
            no_value="not known: it takes user traffic, and a capacity run or a forecast",
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
            width=8,
            no_value="recorded an hour after the rules are installed",
        ),
        panels.xychart(
            "Throughput against latency",
            "Each point is a moment: the server's output tokens per second, and users' latency then. Good: flat. Where"
            " latency climbs and throughput does not, the load is past the knee.",
            unit="s",
            x=Query(pace(names.SERVER["generation_tokens"]), "output tokens/s"),
            y=[
                Query(quantile(0.95, names.USERS_TTFT, ONE), "users' TTFT p95"),
                Query(quantile(0.95, names.USERS_TPOT, ONE), "users' TPOT p95", is_on_right_axis=True),
            ],
            width=8,
            no_value="no users are sending requests, or the server has no such histogram",
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
        no_value="no capacity run or forecast has named a bottleneck",
    )


def shifts() -> list[PlacedPanel]:
    """Return what has changed: the capacity against its baseline, and the forecast against the capacity."""
    shifted = largest(names.KNEE_SHIFTED, WORKLOAD, "mode, method")
    return [
        panels.timeseries(
            "Shift",
            "The last capacity relative to its baseline, minus 1. Good: about zero. Runs differ by a few percent; at"
            f" {-DROP_RATIO:.0%}, confirmed by two more runs, an alert pages. A new baseline follows a change of model,"
            " engine, flags, workload or objectives.",
            unit="percentunit",
            queries=[Query(capacity(names.KNEE_SHIFT, WORKLOAD), "{{mode}} {{workload}}")],
            minimum=None,
            no_value=_NO_BASELINE,
        ),
        panels.states(
            "Detected shifts",
            "When each method detected a shift of the knee: all but rise are drops. Good: none. confirmed_drop pages;"
            " median_of_3 and mann_whitney open a ticket.",
            queries=[Query(shifted, "{{mode}}: {{method}}")],
            texts={"0": ("as before", GREEN), "1": ("shifted", RED)},
            width=8,
            no_value=_NO_BASELINE,
        ),
        panels.timeseries(
            "Forecast error",
            "The forecast just before the last measuring run, relative to its result, minus 1. Good: within a tenth,"
            " then a forecast can replace most runs;"
            f" beyond {DISAGREES:.0%} for hours an alert opens a ticket. Above zero, the forecast was too high.",
            unit="percentunit",
            queries=[Query(largest(names.MODEL_RESIDUAL, WORKLOAD, "model, workload"), "{{model}} {{workload}}")],
            minimum=None,
            no_value="no run has followed a forecast: it takes a forecast, and then a capacity run",
        ),
    ]


def cost() -> list[PlacedPanel]:
    return [*_totals(), _events_over_time()]


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


def _events_over_time() -> PlacedPanel:
    return panels.timeseries(
        "Runs, guard trips and refusals",
        "When capacity runs ended, by outcome; when the guard stopped one, and when one was refused, by reason. Good:"
        " one run at each due time, done. If the guard stops every run, the server has no spare capacity to measure; if"
        " every run is refused, schedule them at a quieter time.",
        unit="short",
        queries=[
            Query(_events(names.CAPACITY_RUNS, "outcome"), "run: {{outcome}}"),
            Query(_events(names.GUARD_TRIPS, "reason"), "guard: {{reason}}"),
            Query(_events(names.CAPACITY_REFUSALS, "reason"), "refused: {{reason}}"),
        ],
        width=24,
        bars=True,
        stacked=True,
        no_value="no run has ended or was refused in this time; capacity.schedule says when the next is due",
    )


def _events(series: Series, by: str) -> str:
    """Return the number of events at each point, without points that have none."""
    return f"round(sum by ({by}) (increase({series.name}{{{ONE}}}[{RATE}]))) > 0"
