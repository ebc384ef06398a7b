"""Series of the server's own metrics, under names that do not change with its version, and of user traffic."""

from collections.abc import Iterable, Mapping
from functools import partial

from exporters.series.declaration import TARGET, Series, declare
from probe.core.server_values import ENGINE_VALUES, VALUES, Value

_declare = partial(declare, "server")


def _of_values(values: Iterable[Value], *labels: str) -> Mapping[str, Series]:
    return {
        one.key: _declare(
            one.kind.value, f"server_{one.series}", one.help, (*labels, *([one.label] if one.label else []))
        )
        for one in values
        if one.series
    }


# The values of the server's page by their keys, and of each data-parallel engine where there are several. The server's
# values are of all engines together, except for the KV cache usage.
SERVER = _of_values(VALUES, *TARGET)
ENGINE = _of_values(ENGINE_VALUES, *TARGET, "engine_index")
# Of a replica or an engine, only sum and count: the buckets of 32 engines would be a thousand series.
ENGINE_LATENCIES: Mapping[str, Series] = {
    key: _declare(
        "histogram", f"server_engine_{key}_seconds", f"{key.upper()} at an engine; only sum and count",
        (*TARGET, "engine_index"),
    )
    for key in ("ttft", "itl")
}  # fmt: skip

SERVER_UP = _declare(
    "gauge", "server_scrape_up", "1 if the last scrape of the server's metrics succeeded, else 0", TARGET
)
SERVER_TARGETS = _declare(
    "gauge",
    "server_targets",
    "Targets with this server's metrics page, this target included. All have the same kneewatch_server_* and"
    " kneewatch_users_*, so divide by it before a sum over targets",
    TARGET,
)
SERVER_ROLE = _declare(
    "gauge",
    "server_role",
    "1, labelled with the part of each request that the server computes, prefill or decode; absent if it computes both",
    (*TARGET, "role"),
)
SERVER_PREEMPTIONS_PER_REQUEST = _declare(
    "histogram",
    "server_preemptions_per_request",
    "Preemptions per request; source: the server's own histogram, or its counters, which give only sum and count",
    (*TARGET, "source"),
)
SERVER_ADAPTER = _declare(
    "gauge", "server_adapter_running", "1 for each LoRA adapter with running requests", (*TARGET, "adapter")
)
SERVER_INFO = _declare(
    "gauge", "server_info", "1, labelled with the engine and its version", (*TARGET, "engine", "version")
)
SERVER_STARTED = _declare(
    "gauge", "server_started_timestamp_seconds", "Start time of the server's process, if the server exports it", TARGET
)
SERVER_ASLEEP = _declare(
    "gauge",
    "server_asleep",
    "1 while the server sleeps, or is paused by /sleep?level=0, and so gets no requests from Kneewatch; 0 while it is"
    " awake; absent if its metrics do not show it",
    TARGET,
)
SERVER_SCRAPE_ERRORS = _declare(
    "counter",
    "server_scrape_errors_total",
    "Failed scrapes of the server's metrics by reason",
    (*TARGET, "reason"),
)
SERVER_SCRAPE_SECONDS = _declare(
    "gauge", "server_scrape_duration_seconds", "Duration of the last scrape of the server's metrics", TARGET
)
SERVER_SCRAPE_BYTES = _declare("gauge", "server_scrape_page_bytes", "Size of the server's metrics page", TARGET)


_declare_users = partial(declare, "users", stability="experimental")

USERS_REQUESTS = _declare_users(
    "counter",
    "users_requests_total",
    "User requests that ended since Kneewatch began to watch the server: ok, failed (by the server's error or"
    " refusal) or aborted (the client left); an outcome that the server does not count is absent",
    (*TARGET, "outcome"),
)
USERS_TOKENS = _declare_users("counter", "users_tokens_total", "Tokens of user requests", (*TARGET, "kind"))
USERS_TTFT = _declare_users("histogram", "users_ttft_seconds", "TTFT of user requests, measured by the server", TARGET)
USERS_TPOT = _declare_users("histogram", "users_tpot_seconds", "TPOT of user requests, measured by the server", TARGET)
USERS_E2E = _declare_users(
    "histogram",
    "users_e2e_seconds",
    "E2E of user requests, measured by the server; for targets with an E2E objective",
    TARGET,
)
# By the objective that judges them. Without ITL: a server counts gaps, and does not say which was a request's longest.
USERS_LATENCIES = {"ttft": USERS_TTFT, "tpot": USERS_TPOT, "e2e": USERS_E2E}
USERS_PROMPT_TOKENS = _declare_users(
    "histogram", "users_prompt_tokens", "Prompt tokens of a user request, counted when it ends", TARGET
)
USERS_OUTPUT_TOKENS = _declare_users(
    "histogram", "users_output_tokens", "Output tokens of a user request, counted when it ends", TARGET
)
USERS_GOOD = _declare_users(
    "counter",
    "users_good_requests_total",
    "User requests that met an objective: availability, or a latency by the server's histogram bound in"
    " users_objective_seconds",
    (*TARGET, "objective"),
)
USERS_OBJECTIVE_SECONDS = _declare_users(
    "gauge",
    "users_objective_seconds",
    "Latency by which user requests are judged: the server's lowest histogram bound at or above the objective",
    (*TARGET, "objective"),
)
