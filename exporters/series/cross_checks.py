"""Series that compare client, server and GPU; absent while they cannot be made."""

from functools import partial

from exporters.series.declaration import TARGET, declare

_declare = partial(declare, "joined", stability="experimental")

TTFT_GAP = _declare(
    "gauge",
    "ttft_gap_seconds",
    "Canaries' TTFT minus the server's own, the delay by network and gateway: of canaries alone on the server"
    " (matched), or of means over five minutes (mean)",
    (*TARGET, "method"),
)
QUEUE_SHARE = _declare(
    "gauge",
    "server_queue_share_ratio",
    "Queue time divided by queue and prefill time, means over five minutes",
    TARGET,
)
COUNTED_TOKENS = _declare(
    "gauge",
    "server_counted_tokens_ratio",
    "Tokens that the server counted divided by those the client received, for canaries alone on the server; other"
    " than 1 means another server's metrics",
    (*TARGET, "kind"),
)
HELD_BACK = _declare(
    "gauge",
    "canary_held_back_ratio",
    "Share of a canary's tokens that came together with the first one, median; above 0.5 its TPOT is unknown",
    TARGET,
)
GPU_NEIGHBOUR = _declare(
    "gauge",
    "gpu_neighbour_utilization_ratio",
    "GPU load beyond canaries in five minutes without user traffic: work of other processes",
    TARGET,
)
STALLED = _declare(
    "gauge", "server_stalled_seconds", "Time that an engine has had requests without making progress", TARGET
)
AMBIGUOUS = _declare(
    "gauge",
    "server_ambiguous",
    "1 if several servers answer at the address: counters are mixed, so user traffic and cross-checks are not computed",
    TARGET,
)
KV_PRESSURE = _declare(
    "gauge",
    "kv_pressure",
    "1 if this sign of KV cache pressure showed in the last minute; late: an objective is missed or will be",
    (*TARGET, "sign"),
)
KV_TOO_SMALL = _declare(
    "gauge",
    "kv_cache_too_small",
    "1 while requests lack room in the KV cache (preempted, or waiting with free batch slots) and are late or rejected",
    TARGET,
)
