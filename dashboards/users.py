"""Panels on user requests, as the server measures them, minus probe requests: the Target and the Server dashboard."""

from alerts import sli, user_mix
from dashboards import panels
from dashboards.pieces import PlacedPanel, Query
from dashboards.queries import TARGET, buckets, largest, objective, pace, percentiles
from exporters import names

_NO_USERS = "no users are sending requests, or a capacity run hides them"


def user_requests_and_objectives() -> list[PlacedPanel]:
    """Return what becomes of user requests."""
    met = [Query(f"min({one.good_ratio('15m', TARGET)})", one.objective) for one in sli.USERS]
    judged = "|".join(one.objective for one in sli.USERS)
    ratio = f'max by (objective) ({names.OBJECTIVE_RATIO.name}{{{TARGET},objective=~"{judged}"}})'
    return [
        panels.timeseries(
            "Good user requests against the objective",
            "Share of user requests, over 15 minutes, that met each objective; latencies by the server's histogram"
            " buckets. Good: above the dashed line of the same name. Of the last hour, uncertain: the share that may"
            " be on either side, because the objective lies between two bounds, or because of canaries.",
            unit="percentunit",
            queries=[
                *met,
                Query(ratio, "objective {{objective}}"),
                Query(largest(names.USERS_UNCERTAIN, by="objective"), "uncertain {{objective}}"),
            ],
            maximum=1,
            no_value=_NO_USERS,
        ),
        panels.timeseries(
            "User requests by outcome",
            "User requests per second that ended. failed: an error of the server, or refused by it; aborted: the client"
            " left, which vLLM does not count. Good: what you expect at this hour, and none failed. Capacity runs leave"
            " a gap.",
            unit="reqps",
            queries=[Query(pace(names.USERS_REQUESTS, by="outcome"), "{{outcome}}")],
            no_value=_NO_USERS,
        ),
    ]


def users_in_detail() -> list[PlacedPanel]:
    """Return the distributions of user requests, and what users send."""
    return [*_distributions(), *_sent(), *_mix()]


def _distributions() -> list[PlacedPanel]:
    return [
        panels.heatmap(
            "User TTFT",
            "Distribution of the TTFT of user requests, as the server measures it, without probe requests. Good: most"
            " below the objective. A wide distribution is normal: prompts differ.",
            unit="s",
            query=buckets(names.USERS_TTFT),
            no_value=_NO_USERS,
        ),
        panels.heatmap(
            "User TPOT",
            "Distribution of the TPOT of user requests, as the server measures it, without probe requests. Good: one"
            " band below the objective.",
            unit="s",
            query=buckets(names.USERS_TPOT),
            no_value=_NO_USERS,
        ),
    ]


def _sent() -> list[PlacedPanel]:
    return [
        panels.timeseries(
            "What users send",
            "Prompt and output tokens of user requests that ended: median and 95th percentile, within the server's"
            " histogram buckets. Good: what you expect at this hour. Longer requests need more capacity. The capacity"
            " for the workload 'users' is for the lengths of the last day.",
            unit="short",
            queries=[
                *percentiles(names.USERS_PROMPT_TOKENS, who="prompts "),
                *percentiles(names.USERS_OUTPUT_TOKENS, who="answers "),
            ],
            no_value=_NO_USERS,
            width=8,
        ),
        panels.timeseries(
            "User tokens",
            "Tokens per second of user requests. Good: what you expect at this hour. Capacity runs leave a gap.",
            unit="short",
            queries=[Query(pace(names.USERS_TOKENS, by="kind"), "{{kind}}")],
            no_value=_NO_USERS,
        ),
    ]


def _mix() -> list[PlacedPanel]:
    return [
        panels.timeseries(
            "Histogram bounds for user objectives",
            "The server's histogram bound that is used for each objective: the lowest at or above it. Good: at the"
            " dashed objective. Far above it, slow user requests still count as good. On the right, whether the last"
            " hour certainly met it: 1 or 0; no line while that is not certain.",
            unit="s",
            queries=[
                Query(largest(names.USERS_OBJECTIVE_SECONDS, by="objective"), "{{objective}}"),
                *(objective(name, legend=f"objective {name}") for name in names.USERS_LATENCIES),
                Query(largest(names.USERS_MET, by="objective"), "met {{objective}}", is_on_right_axis=True),
            ],
            right_unit="short",
            no_value="the server has no such histogram",
        ),
        panels.timeseries(
            "Users' mix by day",
            "Mean tokens of the prompts and answers of a day, and the share of prompt tokens that the prefix cache did"
            " not have, on the right. Good: flat. A step means another mix, which has another capacity.",
            unit="short",
            queries=[
                Query(f"max by (kind) (last_over_time({user_mix.MEAN}{{{TARGET}}}[2h]))", "{{kind}}"),
                Query(
                    f"max(last_over_time({user_mix.MISSES}{{{TARGET}}}[2h]))", "prefix misses", is_on_right_axis=True
                ),
            ],
            right_unit="percentunit",
            no_value="fewer than 1000 user requests a day, or the rules are younger than a day",
        ),
    ]
