"""The dashboard "Kneewatch / Target": one server, in the order in which an engineer on call asks.

In: the configuration and the links. Out: the dashboard's JSON text. Every query filters by $target and, where they
matter, $model and $workload.
"""

from alerts import sli
from alerts.headroom import LOW
from alerts.links import TARGET, Links
from dashboards import layout, marks, panels, queries
from dashboards.gpus import gpus
from dashboards.layout import Intervals
from dashboards.pieces import GREEN, GREY, NO_GPU, OVERSPENT_TEXTS, RED, YELLOW, PanelRow, PlacedPanel, Query
from dashboards.queries import (
    ASLEEP,
    CANARY,
    RATE,
    WORKLOAD,
    age,
    buckets,
    burn,
    faulty_gpus,
    largest,
    objective,
    or_asleep,
    percentiles,
    quantile,
    user_requests,
)
from dashboards.target_causes import causes
from dashboards.target_users import users
from dashboards.variables import chosen
from exporters import names

TITLE = "Kneewatch / Target"


def target_dashboard(links: Links, intervals: Intervals, *, has_gpus: bool) -> str:
    """Return the dashboard as JSON text. `has_gpus`: whether any target has GPUs that are read."""
    return layout.dashboard(
        TITLE,
        TARGET,
        "One model server: latency of users, its causes, GPUs and remaining capacity.",
        variables=chosen(),
        rows=[
            PanelRow("Is it slow or broken, for users?", health()),
            PanelRow("User traffic and latency", users()),
            PanelRow("Why?", causes()),
            PanelRow("GPUs", gpus(), is_collapsed=not has_gpus),
            PanelRow("How much more can it take?", _capacity()),
        ],
        annotations=marks.marks(queries.TARGET),
        links=links,
        intervals=intervals,
    )


def _capacity() -> list[PlacedPanel]:
    by = "mode, workload"
    return [
        panels.timeseries(
            "Capacity",
            "Requests per second that the server sustains within every objective, measured and forecast. Good: at its"
            " baseline. The Capacity dashboard has the bounds, the knee, the bottleneck and the cost.",
            unit="reqps",
            queries=[
                Query(largest(names.CAPACITY_RPS, WORKLOAD, by), "{{mode}} {{workload}}"),
                Query(user_requests(), "users now"),
            ],
            width=10,
            no_value="neither measured nor forecast",
        ),
        panels.timeseries(
            "Headroom",
            f"The share of capacity that user traffic leaves free. Good: above {LOW:.0%} at the day's peak. Below zero,"
            " user traffic exceeds the capacity.",
            unit="percentunit",
            queries=[Query(largest(names.HEADROOM, WORKLOAD, by), "{{mode}} {{workload}}")],
            width=10,
            minimum=None,
            maximum=1,
            no_value="capacity or user traffic is unknown",
        ),
        panels.stat(
            "Age",
            "Time since capacity was last measured or forecast. Good: less than the schedule's period.",
            unit="s",
            queries=[Query(age(names.CAPACITY_LAST_SUCCESS, WORKLOAD, "mode, workload"), "{{mode}} {{workload}}")],
            steps=[(None, GREEN), (2 * 86400, YELLOW), (8 * 86400, RED)],
            no_value="never",
        ),
    ]


def health() -> list[PlacedPanel]:
    return [
        *_canaries_now(),
        *_budgets_now(),
        *_good_canaries(),
        *_latency(),
        *_latency_distributions(),
        *_against_the_server(),
    ]


def _canaries_now() -> list[PlacedPanel]:
    return [
        panels.stat(
            "Last canary",
            "Good: up, which means that the last canary got all its tokens. A server may answer /health and fail here."
            " Asleep: the server sleeps and gets no canaries; the annotation Asleep shows since when.",
            unit="none",
            queries=[Query(or_asleep(largest(names.TARGET_UP), largest(names.SERVER_ASLEEP)), "up")],
            steps=[(None, RED), (1, GREEN), (ASLEEP, GREY)],
            texts={"0": ("DOWN", RED), "1": ("up", GREEN), str(ASLEEP): ("asleep", GREY)},
            width=3,
            no_value="no canaries",
        ),
        panels.stat(
            "Time since last success",
            "Good: not much more than the canary interval. Never: no canary has succeeded since Kneewatch started.",
            unit="s",
            queries=[Query(age(names.LAST_SUCCESS, CANARY), "age")],
            steps=[(None, GREEN), (60, YELLOW), (300, RED)],
            width=3,
            no_value="never",
        ),
        panels.stat(
            "GPU faults",
            "GPUs whose last XID error came from the GPU, not from a program; it stays until the driver reloads. Good:"
            " none."
            " A server may answer canaries on a faulty GPU.",
            unit="none",
            queries=[Query(faulty_gpus(queries.TARGET), "GPUs")],
            steps=[(None, GREEN), (1, RED)],
            width=3,
            no_value=NO_GPU,
        ),
    ]


def _budgets_now() -> list[PlacedPanel]:
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
            width=8,
            decimals=1,
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
            width=7,
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
            "Canaries by outcome",
            "Canaries by outcome. Good: only ok. unreachable and timeout mean a dead or stuck server, rejected a full"
            " one, wrong_answer and corrupt a broken one. Kneewatch stopped aborted ones itself; they do not count.",
            unit="reqps",
            queries=[Query(f"sum by (outcome) (rate({names.REQUESTS.name}{{{CANARY}}}[{RATE}])) > 0", "{{outcome}}")],
            stacked=True,
            no_value="no canaries",
        ),
        panels.timeseries(
            "Good requests against the objective",
            "Share of canaries, over 15 minutes, that met each objective. Good: above the dashed line of the same name."
            " Latency objectives judge successful requests only.",
            unit="percentunit",
            queries=[*good, Query(ratio, "objective {{objective}}")],
            width=16,
            maximum=1,
            no_value="no canaries",
        ),
    ]


def _latency() -> list[PlacedPanel]:
    return [
        panels.timeseries(
            "TTFT",
            "Time to first token: of canaries from the scheduled send, of users as the server measures it. Good: p95"
            " below the dashed objective. Rising TTFT with flat TPOT means queueing or long prompts."
            " After reasoning: the first token of the answer itself.",
            unit="s",
            queries=[
                *percentiles(names.TTFT, CANARY, "canary "),
                Query(quantile(0.95, names.FIRST_ANSWER, CANARY), "canary p95 after reasoning"),
                *percentiles(names.USERS_TTFT, who="users "),
                objective("ttft"),
            ],
            width=12,
        ),
        panels.timeseries(
            "TPOT",
            "Mean time per output token after the first. Good: p95 below the dashed objective. If it rises with the"
            " number of running requests, the cause is batching; if not, the GPU.",
            unit="s",
            queries=[
                *percentiles(names.TPOT, CANARY, "canary "),
                *percentiles(names.USERS_TPOT, who="users "),
                objective("tpot"),
            ],
            width=12,
        ),
    ]


def _latency_distributions() -> list[PlacedPanel]:
    return [
        panels.heatmap(
            "TTFT of canaries",
            "Distribution of the canaries' TTFT. Good: one narrow band below the objective. A second band is a second"
            " kind of request, or of replica.",
            unit="s",
            query=buckets(names.TTFT, CANARY),
            no_value="no canaries",
        ),
        panels.heatmap(
            "ITL of canaries",
            "Distribution of the inter-token latency of canaries. Good: one narrow band. Marks far above it are stalls:"
            " preemptions, or prefills of other requests.",
            unit="s",
            query=buckets(names.ITL, CANARY),
            no_value="no canaries",
        ),
    ]


def _against_the_server() -> list[PlacedPanel]:
    return [
        panels.timeseries(
            "ITL, server and client",
            "Inter-token latency of all requests as the server measures it, and of canaries. Good: p95 near p50, server"
            " and canary close together. Many servers' lowest bucket is 10 ms; below it their lines say little.",
            unit="s",
            queries=[*percentiles(names.SERVER["itl"], who="server "), *percentiles(names.ITL, CANARY, "canary ")],
            width=12,
        ),
        panels.timeseries(
            "E2E, server and client",
            "End-to-end latency, from the request to the last token, of canaries and of all requests as the server"
            " measures it, and of users where there is an objective. Good: flat, below the dashed objective. The"
            " server's varies with the length of users' requests; a canary's does not. vLLM's lowest bucket is 0.3 s;"
            " below it the server's lines say little.",
            unit="s",
            queries=[
                *percentiles(names.SERVER["e2e"], who="server "),
                *percentiles(names.E2E, CANARY, "canary "),
                Query(quantile(0.95, names.USERS_E2E), "users p95"),
                objective("e2e"),
            ],
            width=12,
        ),
    ]
