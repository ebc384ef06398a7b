"""Panels on latency: what the Target dashboard shows first, and for the Server dashboard the distributions."""

from dashboards import panels
from dashboards.pieces import PlacedPanel, Query
from dashboards.queries import CANARY, buckets, objective, percentiles, quantile
from exporters import names

_NO_REQUESTS = "no canaries, and the server exports no such latency or no users are sending requests"


def latency() -> list[PlacedPanel]:
    """Return the two latencies that most objectives are of."""
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
            no_value=_NO_REQUESTS,
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
            no_value=_NO_REQUESTS,
        ),
    ]


def latency_in_detail() -> list[PlacedPanel]:
    """Return the distributions, and the latencies that few objectives are of."""
    return [*_distributions(), *_against_the_server()]


def _distributions() -> list[PlacedPanel]:
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
            no_value=_NO_REQUESTS,
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
            no_value=_NO_REQUESTS,
        ),
    ]
