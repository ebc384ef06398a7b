"""A row of the Target dashboard: users' own requests, as the server measures them, less ours."""

from alerts import sli
from dashboards import panels
from dashboards.pieces import PlacedPanel, Query
from dashboards.queries import RATE, TARGET, buckets, largest, objective, pace
from exporters import names

_NO_USERS = "nobody but Kneewatch has asked it anything"
_BURNS = ("KneewatchUsersTTFTBurn", "KneewatchUsersTPOTBurn")


def users(step: str) -> list[PlacedPanel]:
    met = [Query(f"min({one.good_ratio('15m', TARGET)})", one.objective) for one in sli.USERS]
    asked = f'max by (objective) ({names.OBJECTIVE_RATIO.name}{{{TARGET},objective=~"ttft|tpot"}})'
    tokens = f"max by (kind) (rate({names.USERS_TOKENS.name}{{{TARGET}}}[{RATE}]))"
    return [
        panels.heatmap(
            "Users' TTFT",
            "How many requests of others had their first token after how long, as the server measures it, less our own."
            " Good: most below the objective. Wide is usual: users' prompts differ.",
            unit="s",
            query=buckets(names.USERS_TTFT),
            no_value=_NO_USERS,
            alerts=["KneewatchUsersTTFTBurn"],
        ),
        panels.heatmap(
            "Users' TPOT",
            "How many requests of others took how long for each output token, as the server measures it, less our own."
            " Good: one band below the objective.",
            unit="s",
            query=buckets(names.USERS_TPOT),
            no_value=_NO_USERS,
            alerts=["KneewatchUsersTPOTBurn"],
        ),
        panels.timeseries(
            "Users' good requests against the objective",
            "Share of others' requests, over 15 minutes, that met each objective, as far as the server's buckets tell."
            " Good: above the dashed line of the same name.",
            unit="percentunit",
            queries=[*met, Query(asked, "objective {{objective}}")],
            maximum=1,
            no_value=_NO_USERS,
            alerts=_BURNS,
        ),
        panels.timeseries(
            "What users are judged by",
            "The bound of the server's buckets that stands for each objective: the lowest at or above it. Good: at the"
            " dashed objective. Far above, users may be slower than promised and still count as served well.",
            unit="s",
            queries=[
                Query(largest(names.USERS_OBJECTIVE_SECONDS, by="objective"), "{{objective}}"),
                objective("ttft", legend="objective ttft"),
                objective("tpot", legend="objective tpot"),
            ],
            no_value="the server has no such histogram",
            alerts=_BURNS,
        ),
        panels.timeseries(
            "Users' traffic",
            "Requests of others on the left, their tokens per second on the right. Good: what you expect at this hour."
            " It moves some seconds late, and stands still while step-up load of ours runs.",
            unit="reqps",
            queries=[Query(pace(names.USERS_REQUESTS), "requests"), Query(tokens, "{{kind}} tokens", right=True)],
            right_unit="short",
            min_step=step,
            no_value=_NO_USERS,
        ),
    ]
