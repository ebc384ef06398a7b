"""Series of Kneewatch's own requests: what a user of the server would see."""

from functools import partial

from exporters.series.declaration import OBJECTIVES, declare

# From 1 ms to 1 minute in factors of about 1.5 to 2.5; the objectives' thresholds are added (with_bounds).
_LATENCY_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.4, 0.6, 1.0, 1.5, 2.5, 4.0, 6.0, 10.0,
    20.0, 60.0,
)  # fmt: skip
# No objective is judged by these.
_COARSE_BUCKETS = (0.01, 0.03, 0.075, 0.15, 0.4, 1.0, 2.5, 6.0, 20.0, 60.0)
# Gaps between tokens are shorter. vLLM's own histogram starts at 10 ms, which all samples of a fast server are below.
_TOKEN_BUCKETS = (
    0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0,
    2.5, 10.0,
)  # fmt: skip
_LAG_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 1.0)
_REQUEST = ("target", "model", "workload", "traffic")
_declare = partial(declare, "client")

REQUESTS = _declare(
    "counter", "requests_total", "Kneewatch's own requests that finished, by outcome", (*_REQUEST, "outcome")
)
GOOD_REQUESTS = _declare(
    "counter",
    "good_requests_total",
    f"Kneewatch's own requests that met an objective: {OBJECTIVES}",
    (*_REQUEST, "objective"),
)
TTFT = _declare(
    "histogram",
    "ttft_seconds",
    "Time to first token (TTFT) of Kneewatch's own requests, from the scheduled send",
    _REQUEST,
    _LATENCY_BUCKETS,
)
FIRST_ANSWER = _declare(
    "histogram",
    "first_answer_seconds",
    "Time from the scheduled send to the first token of the answer, of streams that begin with reasoning",
    _REQUEST,
    _COARSE_BUCKETS,
)
FIRST_VISIBLE = _declare(
    "histogram",
    "first_visible_seconds",
    "Time from the scheduled send to the first token with text, of streams that begin with tokens without",
    _REQUEST,
    _COARSE_BUCKETS,
)
ITL = _declare(
    "histogram",
    "itl_seconds",
    "Inter-token latency (ITL) of Kneewatch's own requests: gap between successive token events of a stream",
    _REQUEST,
    _TOKEN_BUCKETS,
)
TPOT = _declare(
    "histogram",
    "tpot_seconds",
    "Time per output token (TPOT) of Kneewatch's own requests: mean after the first token, one sample per request",
    _REQUEST,
    _TOKEN_BUCKETS,
)
E2E = _declare(
    "histogram",
    "e2e_seconds",
    "End-to-end latency (E2E) of Kneewatch's own requests, from the scheduled send to the last token",
    _REQUEST,
    _LATENCY_BUCKETS,
)
SCHEDULE_LAG = _declare(
    "histogram",
    "schedule_lag_seconds",
    "How much later than scheduled Kneewatch sent a request",
    _REQUEST,
    _LAG_BUCKETS,
)
TOKENS = _declare(
    "counter",
    "tokens_total",
    "Tokens of Kneewatch's own requests; cancelled requests count in full",
    ("target", "model", "traffic", "kind"),
)
LAST_SUCCESS = _declare(
    "gauge", "last_success_timestamp_seconds", "Time of Kneewatch's last successful request", _REQUEST
)
TARGET_UP = _declare(
    "gauge",
    "target_up",
    "1 if the last canary of each kind received all requested tokens, else 0; absent while the server sleeps, and"
    " when no canary has shown up or down for three intervals and two timeouts",
    ("target",),
)
OBJECTIVE_RATIO = _declare(
    "gauge", "objective_ratio", "Share of requests that must meet the objective", ("target", "objective")
)
OBJECTIVE_WINDOW = _declare(
    "gauge",
    "objective_window_seconds",
    "Window of the target's objectives, labelled with their name in the configuration",
    ("target", "slo"),
)
OBJECTIVE_SECONDS = _declare(
    "gauge", "objective_seconds", "Latency threshold of the objective", ("target", "objective")
)
