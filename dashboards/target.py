"""The dashboard "Kneewatch / Target": one server, in the order in which an engineer on call asks.

In: the links. Out: the dashboard's JSON text. Every query filters by $target and, where they matter, $model and
$workload. It has what is looked at first; the Server dashboard has the details, and the Capacity dashboard the runs.
"""

from alerts import sli
from alerts.headroom import FALLING_BELOW, LOW
from alerts.links import TARGET, Links
from dashboards import layout, marks, panels, queries
from dashboards.causes import causes
from dashboards.latency import latency
from dashboards.layout import Intervals
from dashboards.pieces import GREEN, GREY, OVERSPENT_TEXTS, RED, YELLOW, PanelRow, PlacedPanel, Query
from dashboards.queries import (
    ASLEEP,
    CANARY,
    RATE,
    WORKLOAD,
    burn,
    capacity,
    largest,
    lowest_headroom,
    no_alert,
    of_alerts,
    or_asleep,
    user_requests,
)
from dashboards.users import user_requests_and_objectives
from dashboards.variables import chosen
from exporters import names

TITLE = "Kneewatch / Target"


def target_dashboard(links: Links, intervals: Intervals) -> str:
    """Return the dashboard as JSON text."""
    return layout.dashboard(
        TITLE,
        TARGET,
        "One model server: latency of canaries and users, its causes and the remaining capacity.",
        variables=chosen(),
        rows=[
            PanelRow("Is it slow or broken, for users, and how much more can it take?", now()),
            PanelRow("Since when, and for whom?", [*latency(), *_good_canaries(), *user_requests_and_objectives()]),
            PanelRow("Why?", causes()),
        ],
        annotations=marks.marks(queries.TARGET),
        links=links,
        intervals=intervals,
    )


def now() -> list[PlacedPanel]:
    """Return the first row: the state, the alerts, the budgets and the headroom."""
    return [_last_canary(), _firing(), _headroom(), *_budgets()]


def _last_canary() -> PlacedPanel:
    return panels.stat(
        "Last canary",
        "Good: up, which means that the last canary got all its tokens. A server may answer /health and fail here."
        " Asleep: the server sleeps and gets no canaries; the annotation Asleep shows since when.",
        unit="none",
        queries=[Query(or_asleep(largest(names.TARGET_UP), largest(names.SERVER_ASLEEP)), "up")],
        steps=[(None, RED), (1, GREEN), (ASLEEP, GREY)],
        texts={"0": ("DOWN", RED), "1": ("up", GREEN), str(ASLEEP): ("asleep", GREY)},
        width=3,
        no_value="no canaries: the target is passive, or Kneewatch is down",
    )


def _firing() -> PlacedPanel:
    return panels.stat(
        "Firing alerts",
        "Alerts of this target that fire in this Prometheus: red ones page, orange ones open a ticket. Good: none.",
        unit="none",
        queries=[
            Query(of_alerts(queries.TARGET, "alertname"), "{{alertname}}"),
            Query(no_alert(queries.TARGET), "none"),
        ],
        steps=[(None, GREEN), (1, YELLOW), (2, RED)],
        width=6,
        only_names=True,
        no_value="not known: Kneewatch's rules are not loaded in this Prometheus",
    )


def _headroom() -> PlacedPanel:
    return panels.stat(
        "Headroom",
        "The share of capacity that user traffic leaves free, by requests or by output tokens, whichever is less."
        f" Good: above {FALLING_BELOW:.0%} by day. Below zero, users wait.",
        unit="percentunit",
        queries=[Query(lowest_headroom(), "{{mode}} {{workload}}")],
        steps=[(None, RED), (LOW, YELLOW), (FALLING_BELOW, GREEN)],
        width=5,
        decimals=0,
        no_value="not known: no capacity run or forecast so far, or user traffic is unknown",
    )


def _budgets() -> list[PlacedPanel]:
    of_canaries = "|".join(one.budget_record for one in sli.ALL)
    of_users = "|".join(one.budget_record for one in sli.USERS)
    burns = [Query(burn(one, WORKLOAD), one.objective) for one in sli.ALL]
    burns += [Query(burn(one, queries.TARGET), f"users' {one.objective}") for one in sli.USERS]
    return [
        panels.stat(
            "Burn rate, last hour",
            "How many times faster than allowed each error budget is spent. Good: below 1. At 14.4 an alert pages.",
            unit="short",
            queries=burns,
            steps=[(None, GREEN), (1, YELLOW), (6, RED)],
            width=5,
            decimals=1,
            no_value="no canaries or users for an hour",
        ),
        panels.stat(
            "Error budget left",
            "The share of each error budget left in the objective's window. Good: more than the share of the window"
            " that is left. Below zero the objective is missed.",
            unit="percentunit",
            queries=[
                Query(_left(of_canaries), "{{objective}}"),
                Query(_left(of_users), "users' {{objective}}"),
            ],
            steps=[(None, RED), (0, YELLOW), (0.25, GREEN)],
            texts=OVERSPENT_TEXTS,
            width=5,
            decimals=1,
            no_value="none yet: it takes the recording rules 40 minutes",
        ),
    ]


def _left(records: str) -> str:
    """Return the remaining budgets, with a label `objective` taken from the record's name."""
    of_target = f'{{__name__=~"{records}",{queries.TARGET}}}'
    name = '"objective", "$1", "__name__", ".*_([a-z0-9]+)_budget:.*"'
    return f"min by (objective) (\n  label_replace({of_target}, {name})\n)"


def _good_canaries() -> list[PlacedPanel]:
    ratio = f"max by (objective) ({names.OBJECTIVE_RATIO.name}{{{queries.TARGET}}})"
    good = [Query(f"min({one.good_ratio('15m', WORKLOAD)})", one.objective) for one in sli.ALL]
    return [
        panels.timeseries(
            "Good requests against the objective",
            "Share of canaries, over 15 minutes, that met each objective. Good: above the dashed line of the same name."
            " Latency objectives judge successful requests only.",
            unit="percentunit",
            queries=[*good, Query(ratio, "objective {{objective}}")],
            width=12,
            maximum=1,
            no_value="no canaries",
        ),
        panels.timeseries(
            "Canaries by outcome",
            "Canaries by outcome. Good: only ok. unreachable and timeout mean a dead or stuck server, rejected a full"
            " one, wrong_answer and corrupt a broken one. Kneewatch stopped aborted ones itself; they do not count.",
            unit="reqps",
            queries=[Query(f"sum by (outcome) (rate({names.REQUESTS.name}{{{CANARY}}}[{RATE}])) > 0", "{{outcome}}")],
            width=12,
            stacked=True,
            no_value="no canaries",
        ),
        panels.timeseries(
            "Users against capacity",
            "User requests per second, and the capacity, measured and forecast. Good: well below it at the day's peak."
            " The Capacity dashboard has the bounds, the knee, the bottleneck and the cost.",
            unit="reqps",
            queries=[
                Query(user_requests(), "users now"),
                Query(capacity(names.CAPACITY_RPS, WORKLOAD), "capacity {{mode}} {{workload}}"),
            ],
            no_value="no users, and no capacity run or forecast so far",
        ),
    ]
