"""The dashboard "Kneewatch / Capacity": how much a server takes, how close users are, and what finding out cost.

In: where the other dashboards and the runbooks are. Out: the dashboard's JSON text.
"""

from alerts.headroom import FALLING_BELOW, LOW
from alerts.links import CAPACITY, FLEET, PROBE, TARGET, Links
from dashboards import layout, marks, panels
from dashboards.capacity_history import cost, forecast, shifts
from dashboards.pieces import GREEN, RED, YELLOW, PanelRow, PlacedPanel, Query
from dashboards.queries import FORECAST, MEASURED, WORKLOAD, age, figure, largest, named, pace, quantile
from dashboards.queries import TARGET as ONE
from dashboards.variables import chosen
from exporters import names

TITLE = "Kneewatch / Capacity"

_NEVER = "no run has measured it"


def capacity_dashboard(links: Links) -> str:
    """The dashboard as JSON text."""
    return layout.dashboard(
        TITLE,
        CAPACITY,
        "One model server: how much it takes within its objectives, how close users are, and what limits it.",
        variables=chosen(),
        rows=[
            PanelRow("How much does it take?", [*_now(), *_figures()]),
            PanelRow("How close is it?", _close()),
            PanelRow("What limits it?", [_bottleneck()]),
            PanelRow("Has it shifted?", shifts()),
            PanelRow("Is the forecast right?", forecast()),
            PanelRow("What did measuring cost?", cost()),
        ],
        annotations=[*marks.marks(ONE), *marks.setups(ONE)],
        others=[("Fleet", FLEET), ("Target", TARGET), ("Probe", PROBE)],
        links=links,
        since="now-7d",
    )


def _interval(selector: str) -> str:
    """The figure and its bounds, each with the label `bound`."""
    parts = (
        (names.CAPACITY_RPS, "capacity"),
        (names.CAPACITY_RPS_LOWER, "lower bound"),
        (names.CAPACITY_RPS_UPPER, "upper bound"),
    )
    return "\nor ".join(named("bound", bound, figure(series, selector)) for series, bound in parts)


def _now() -> list[PlacedPanel]:
    return [
        panels.stat(
            "Capacity",
            "Requests per second that the server takes within every objective. Good: at its baseline, and well above"
            " what users ask for by day.",
            unit="reqps",
            queries=[Query(figure(names.CAPACITY_RPS, WORKLOAD), "{{mode}} {{workload}}")],
            steps=[(None, GREEN)],
            width=6,
            no_value="not known",
        ),
        panels.stat(
            "Headroom now",
            "The part of the capacity that users leave, in requests or in output tokens, whichever is less. Good:"
            f" above {FALLING_BELOW:.0%} by day. Below zero users wait.",
            unit="percentunit",
            queries=[Query(figure(names.HEADROOM, WORKLOAD), "{{mode}} {{workload}}")],
            steps=[(None, RED), (LOW, YELLOW), (FALLING_BELOW, GREEN)],
            width=6,
            no_value="not known",
            alerts=["KneewatchHeadroomLow"],
        ),
        panels.stat(
            "What limits it",
            "What a larger one of would raise the capacity most, as the last result of each mode says. Good: the"
            " resource that you pay for, memory bandwidth or the KV cache; not the front end or the host.",
            unit="none",
            queries=[
                Query(f"{largest(names.BOTTLENECK, WORKLOAD, 'mode, bottleneck')} == 1", "{{mode}}: {{bottleneck}}")
            ],
            steps=[(None, GREEN)],
            width=6,
            names=True,
            no_value="nothing stands out",
        ),
        panels.stat(
            "Age",
            "How long ago capacity was last measured, or forecast. Good: younger than the schedule's period. No data:"
            " never.",
            unit="s",
            queries=[Query(age(names.CAPACITY_LAST_SUCCESS, WORKLOAD, "mode"), "{{mode}}")],
            steps=[(None, GREEN), (2 * 86400, YELLOW), (8 * 86400, RED)],
            width=6,
            no_value="never",
            alerts=["KneewatchCapacityStale"],
        ),
    ]


def _figures() -> list[PlacedPanel]:
    return [
        panels.timeseries(
            "Capacity as load measured it",
            "Requests per second within every objective, by runs of step-up load, with bounds. Good: flat, with bounds"
            " close by. Without an upper bound no load broke an objective: the server takes at least this much.",
            unit="reqps",
            queries=[Query(_interval(MEASURED), "{{bound}} {{mode}} {{workload}}")],
            width=12,
            no_value=_NEVER,
            alerts=["KneewatchKneeDropped", "KneewatchKneeDown"],
        ),
        panels.timeseries(
            "Capacity as it is forecast",
            "The same without any load of ours, learned from live traffic. Good: near what load measured. It is never"
            " shown as measured, and says less the less traffic there is.",
            unit="reqps",
            queries=[Query(_interval(FORECAST), "{{bound}} {{mode}} {{workload}}")],
            width=12,
            no_value="there is no forecast: too little traffic so far",
        ),
        panels.timeseries(
            "Knee",
            "Requests in flight at the knee, where the steps were of a closed loop; no data where they were rates."
            " Good: as last week, and well above what runs by day.",
            unit="short",
            queries=[
                Query(figure(names.KNEE_CONCURRENCY, WORKLOAD), "{{mode}} {{workload}}"),
                Query(largest(names.SERVER_RUNNING), "running now"),
            ],
            width=12,
        ),
        panels.timeseries(
            "Output tokens at the knee",
            "Output tokens per second at the capacity, beside what the server gives now. Good: the distance between"
            " them. Long answers reach this limit before that of requests.",
            unit="short",
            queries=[
                Query(figure(names.CAPACITY_TOKENS, WORKLOAD), "{{mode}} {{workload}}"),
                Query(pace(names.SERVER_GENERATION_TOKENS), "the server now"),
            ],
            width=12,
        ),
    ]


def _close() -> list[PlacedPanel]:
    low = Query(f"vector({LOW:g})", f"objective: {LOW:.0%}")
    return [
        panels.timeseries(
            "Headroom",
            "1 less users' share of the capacity. Good: above the dashed line at the day's peak. Below zero users ask"
            " for more than the server takes within its objectives.",
            unit="percentunit",
            queries=[Query(figure(names.HEADROOM, WORKLOAD), "{{mode}} {{workload}}"), low],
            width=12,
            minimum=None,
            maximum=1,
            no_value="neither capacity nor users are known",
            alerts=["KneewatchHeadroomLow"],
        ),
        panels.timeseries(
            "Users' requests against capacity",
            "Requests per second of others, beside what the server takes. Good: well below at the day's peak. Users'"
            " requests are the server's count less our own, some seconds late.",
            unit="reqps",
            queries=[
                Query(pace(names.USERS_REQUESTS), "users"),
                Query(figure(names.CAPACITY_RPS, WORKLOAD), "capacity {{mode}} {{workload}}"),
            ],
            width=12,
        ),
        panels.timeseries(
            "Throughput against latency",
            "The server's output tokens per second, on the left, and what users waited meanwhile, on the right. Good:"
            " latency stays flat while throughput rises. Where latency climbs and throughput does not, the knee is"
            " passed.",
            unit="short",
            queries=[
                Query(pace(names.SERVER_GENERATION_TOKENS), "output tokens/s"),
                Query(quantile(0.95, names.USERS_TTFT, ONE), "users' TTFT p95", right=True),
                Query(quantile(0.95, names.USERS_TPOT, ONE), "users' TPOT p95", right=True),
            ],
            width=24,
            right_unit="s",
        ),
    ]


def _bottleneck() -> PlacedPanel:
    limits = largest(names.BOTTLENECK, WORKLOAD, "mode, bottleneck")
    return panels.states(
        "Bottleneck",
        "What limits the server, as results said over time. Good: the same for weeks. A change without a change of the"
        " server's flags means that users ask for something else. Empty: no result has named one.",
        queries=[Query(f"{limits} > 0", "{{mode}}: {{bottleneck}}")],
        texts={"1": ("limits", YELLOW)},
        width=24,
        height=6,
        no_value="no result has named a bottleneck",
    )
