"""Series that compare client, server and GPU; absent while they cannot be made."""

from dataclasses import dataclass
from functools import partial

from exporters.series.declaration import TARGET, Series, declare

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
USERS_MET = _declare(
    "gauge",
    "users_objective_met",
    "1 if user requests of the last hour met the latency objective, 0 if not; absent while that is not certain",
    (*TARGET, "objective"),
)
USERS_UNCERTAIN = _declare(
    "gauge",
    "users_uncertain_ratio",
    "Share of the last hour's user requests that may be on either side of the latency objective; 1 of fewer than ten",
    (*TARGET, "objective"),
)

IMBALANCE = _declare(
    "gauge",
    "engine_imbalance_ratio",
    "Load (requests), KV cache use, mean TTFT or ITL of the replica or engine that has most, relative to the mean of"
    " the others; 1 if little is at stake",
    (*TARGET, "reason"),
)


@dataclass(frozen=True, slots=True)
class Check:
    """A cross-check: the field of CrossChecks with its value, its series, its meaning, and when it is absent.

    The last two are Markdown, for docs/cross-checks.md.
    """

    field: str
    series: Series
    meaning: str
    absent: str


CHECKS: tuple[Check, ...] = (
    Check(
        "ttft_gap_s",
        TTFT_GAP,
        "`matched`: delay by network and gateway: a canary's TTFT less the server's TTFT of the same request;"
        " median of the last 20 canaries within an hour that were alone on the server. `mean`: mean TTFT of"
        " canaries less the server's mean of all requests, over five minutes. Prompts differ: a trend, not an"
        " amount",
        "`matched`: until a canary was alone, or if the server's is the longer one. `mean`: without canaries,"
        " or if the server does not report TTFT",
    ),
    Check(
        "queue_share",
        QUEUE_SHARE,
        "mean queue time over mean queue and prefill time, five minutes. The server counts both when a"
        " request ends: at the start of an overload look at `kneewatch_server_waiting_requests`",
        "if the server does not measure them",
    ),
    Check(
        "counted",
        COUNTED_TOKENS,
        "tokens that the server counted over tokens that the client received; median of three or more"
        " canaries that were alone on the server, within an hour. If it is not 1, the metrics page is another"
        " server's, or one replica's of several",
        "if users were there at every canary",
    ),
    Check(
        "held_back_ratio",
        HELD_BACK,
        "share of a canary's tokens after the first that came in one read with it; median of five minutes",
        "before three canaries with two tokens or more",
    ),
    Check(
        "neighbour_utilization",
        GPU_NEIGHBOUR,
        "utilization of the busiest GPU less the time that canaries ran, over five minutes without user requests",
        "with users, or without GPUs",
    ),
    Check(
        "stalled_s",
        STALLED,
        "how long an engine has had requests while neither its tokens nor its KV cache changed, whatever"
        " `/health` says. One stalled data-parallel engine is enough",
        "if the server reports no progress",
    ),
    Check(
        "pressure",
        KV_PRESSURE,
        "1 for each sign of [KV cache pressure](#kv-cache-pressure) in the last minute",
        "a sign that is unknown",
    ),
    Check(
        "is_kv_cache_too_small",
        KV_TOO_SMALL,
        "1 while [the signs together](#kv-cache-pressure) show that the KV cache is too small",
        "if the server has no KV cache",
    ),
    Check(
        "imbalance",
        IMBALANCE,
        "`load`, `kv_cache`, `ttft`, `itl`: of the [replica or engine](#one-replica-has-most-of-the-load) that has"
        " most, over the mean of the others; five minutes",
        "unless two can be compared",
    ),
    Check(
        "has_multiple_backends",
        AMBIGUOUS,
        "1 if several servers answer at the target's address",
        "-",
    ),
    Check(
        "users_met",
        USERS_MET,
        "1 if users' requests of the last hour met the latency objective, 0 if not, by what is"
        " [certain](numbers.md#user-traffic)",
        "while that is not certain, or with fewer than ten requests",
    ),
    Check(
        "users_uncertain",
        USERS_UNCERTAIN,
        "share of the last hour's user requests that may be on either side of the objective: it lies between two"
        " bounds of the server's histogram, or canaries may have been among them. 1 with fewer than ten requests",
        "without user requests",
    ),
)
