"""Series of user traffic: the server's counters minus probe requests."""

from functools import partial

from exporters.series.declaration import TARGET, declare

_declare = partial(declare, "users", stability="experimental")

USERS_REQUESTS = _declare(
    "counter",
    "users_requests_total",
    "User requests that ended since Kneewatch started to watch the server, as far as it counts them: ok, failed (an"
    " error of the server, or refused by it) or aborted (the client left)",
    (*TARGET, "outcome"),
)
USERS_TOKENS = _declare("counter", "users_tokens_total", "Tokens of user requests", (*TARGET, "kind"))
USERS_TTFT = _declare("histogram", "users_ttft_seconds", "TTFT of user requests, measured by the server", TARGET)
USERS_TPOT = _declare("histogram", "users_tpot_seconds", "TPOT of user requests, measured by the server", TARGET)
USERS_E2E = _declare(
    "histogram",
    "users_e2e_seconds",
    "E2E of user requests, measured by the server; for targets with an E2E objective",
    TARGET,
)
USERS_PROMPT_TOKENS = _declare(
    "histogram", "users_prompt_tokens", "Prompt tokens of user requests, each counted when it ends", TARGET
)
USERS_OUTPUT_TOKENS = _declare(
    "histogram", "users_output_tokens", "Output tokens of user requests, each counted when it ends", TARGET
)
USERS_GOOD = _declare(
    "counter",
    "users_good_requests_total",
    "User requests that met an objective: availability, or a latency by the server's histogram bound in"
    " users_objective_seconds",
    (*TARGET, "objective"),
)
USERS_OBJECTIVE_SECONDS = _declare(
    "gauge",
    "users_objective_seconds",
    "Bound that user requests are judged by: the server's lowest histogram bound at or above the objective",
    (*TARGET, "objective"),
)
