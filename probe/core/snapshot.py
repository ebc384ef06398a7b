"""Snapshots of a server's and its GPUs' metrics, and values derived from several of them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from probe.core.server_values import BY_KEY, ValueKind

# In the flags of several replicas that are read together: how many there are, and what is between their values where
# they differ.
REPLICAS = "replicas"
DIFFERS = " | "
# How many are read together at most.
MAX_REPLICAS = 32
_NAMED = 3  # replicas that a line names
# What is known of the KV cache beside `kv_cache_tokens`.
KV_SIZES = ("kv_block_tokens", "kv_longest_requests", "kv_cache_bytes")


@dataclass(frozen=True, slots=True)
class Histogram:
    """A histogram of the server: cumulative counts by upper bound (inf last), sum and count."""

    buckets: tuple[tuple[float, float], ...]
    sum: float

    @property
    def count(self) -> float:
        """Return the number of observations: the count of the last (infinite) bucket."""
        return self.buckets[-1][1] if self.buckets else 0.0


@dataclass(frozen=True, slots=True)
class StepSums:
    """Sums over engine steps, as Kneewatch's plugin for vLLM exports them.

    `requests` in them, tokens computed for decoding requests and for prompts, and tokens in the KV cache before.
    """

    steps: float
    seconds: float
    requests: float
    decode_tokens: float
    prefill_tokens: float
    kv_tokens: float


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """Metrics of one data-parallel engine of a server. None: not exposed per engine."""

    running: float | None = None
    waiting: float | None = None
    kv_cache_usage: float | None = None
    preemptions: float | None = None
    generation_tokens: float | None = None


@dataclass(frozen=True, slots=True)
class ServerSnapshot:
    """One scrape of a server's metrics, summed over its engines (KV cache usage: the fullest engine).

    None means that the server does not expose the value, which differs from zero. The values have rows in
    server_values.VALUES: what arithmetic reads is a field; the rest is in `others`, or in `other_parts` if it has
    several parts. `value` and `parts` return either.
    `replicas`: the snapshots that this one is the sum of, by address, if several servers are read together.
    """

    at_ns: int
    wall_s: float
    engine: str = "unknown"
    version: str = "unknown"
    delay_s: float = 0.0  # by how much the values may be older than that: some pages are renewed every few seconds
    asked_ns: int = 0  # when the scrape was sent; 0: unknown. The values are from between then and `at_ns`
    started_s: float | None = None  # wall time of the process start
    running: float | None = None
    waiting: float | None = None
    waiting_by_reason: Mapping[str, float] = field(default_factory=dict)
    kv_cache_usage: float | None = None
    kv_cache_tokens: float | None = None  # of all engines together
    preemptions: float | None = None
    rejections: float | None = None
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    progress: float | None = None  # tokens or steps: grows with each step while there is work
    finished: Mapping[str, float] = field(default_factory=dict)  # requests by finish reason
    # Requests by what became of them: ok, failed (by the server's fault) and aborted (the client left).
    # Absent: the engine does not count it.
    outcomes: Mapping[str, float] = field(default_factory=dict)
    http_errors: float | None = None  # answers with status 5xx; some of them are among the failed, too
    prefix_cache_queries: float | None = None
    prefix_cache_hits: float | None = None
    external_cache_hits: float | None = None  # prompt tokens found elsewhere: their KV cache is fetched, not computed
    estimated_flops: float | None = None  # of one GPU of each engine, if vLLM is configured to estimate it
    estimated_read_bytes: float | None = None  # from that GPU's memory
    estimated_write_bytes: float | None = None
    histograms: Mapping[str, Histogram] = field(default_factory=dict)  # ttft, itl, tpot, e2e, ...
    others: Mapping[str, float] = field(default_factory=dict)
    other_parts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    engines: int = 1
    by_engine: Mapping[str, EngineSnapshot] = field(
        default_factory=dict
    )  # by engine label, in order, if there are 2 to 32 engines
    models: tuple[str, ...] = ()  # names of the served models
    is_asleep: bool | None = None  # all engines sleep, or are paused: they take requests and run none
    adapters: tuple[str, ...] = ()  # LoRA adapters in use
    flags: Mapping[str, str] = field(default_factory=dict)  # startup flags that its metrics show
    # From Kneewatch's plugin for vLLM: its steps by the most tokens that they computed, and the scheduler's flags.
    step_sums: Mapping[str, StepSums] = field(default_factory=dict)
    scheduler_limits: Mapping[str, int] = field(default_factory=dict)
    replicas: Mapping[str, "ServerSnapshot"] = field(default_factory=dict)
    # The counters and histograms of each engine by its label, and of all that has no such label as "", if the page has
    # several engines: one may restart or go while the others count on.
    counted_apart: Mapping[str, "ServerSnapshot"] = field(default_factory=dict)

    def value(self, key: str) -> float | None:
        """Return the value of server_values.VALUES with this key, which is one number."""
        return getattr(self, key) if key in TYPED else self.others.get(key)

    def parts(self, key: str) -> Mapping[str, float]:
        """Return the value of server_values.VALUES with this key, which has several parts; empty if it is unknown."""
        found: Mapping[str, float] = getattr(self, key) if key in TYPED else self.other_parts.get(key, {})
        return found


def with_kv_cache_tokens(server: ServerSnapshot, tokens: float | None) -> ServerSnapshot:
    """Return the snapshot with this size of the KV cache instead of all that its page says of it; None: as it is."""
    if tokens is None:
        return server
    others = {key: value for key, value in server.others.items() if key not in KV_SIZES}
    return replace(server, kv_cache_tokens=tokens, others=others)


# The values that are fields.
TYPED = frozenset(each.name for each in fields(ServerSnapshot)) & BY_KEY.keys()


def as_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by their keys, some of them None, as arguments of ServerSnapshot."""
    known = {key: value for key, value in values.items() if value is not None}
    found: dict[str, Any] = {key: known.pop(key) for key in TYPED & known.keys()}
    histograms = {key: known.pop(key) for key in [*known] if BY_KEY[key].kind is ValueKind.HISTOGRAM}
    parts = {key: known.pop(key) for key in [*known] if BY_KEY[key].label}
    return found | {"histograms": histograms, "other_parts": parts, "others": known}


@dataclass(frozen=True, slots=True)
class UserLoad:
    """User traffic: the load that Kneewatch did not send. None: the server does not count it."""

    requests_per_second: float | None = None
    output_tokens_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class UserTotals:
    """Totals of user traffic since monitoring began: the server's counters less probe traffic.

    None: the server does not count it. `histograms`: ttft, tpot, e2e, prompt_length and output_length, if the server
    has them, in its buckets. `outcomes`: requests that have ended, as ok, failed or aborted; an absent one is unknown.
    `doubts`: of each histogram, for each bound, how many of those that count as above it may have been below.
    """

    requests: float | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    outcomes: Mapping[str, float] = field(default_factory=dict)
    doubts: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CountedTraffic:
    """Probe traffic that ended between two snapshots, and the server's own counts between them (`server_*`).

    None: not counted by the server. TTFT in seconds, summed over requests.
    """

    requests: int
    prompt_tokens: int
    output_tokens: int
    ttft_s: float
    server_requests: float
    server_prompt_tokens: float | None
    server_output_tokens: float | None
    server_ttft_s: float | None


@dataclass(frozen=True, slots=True)
class Imbalance:
    """The engine whose value is farthest above the mean of the others, and the ratio: 1 if little is at stake."""

    engine: str
    value: float
    others: float
    ratio: float

    def __float__(self) -> float:
        return self.ratio


@dataclass(frozen=True, slots=True)
class UserLatency:
    """Users' requests of the last minutes by one latency objective.

    `late`: how many certainly missed it. `is_met`: None if that is not certain, or of fewer than ten. `p95_s`: between
    which bounds of the server's histogram 95 % end; the upper one is None above its last.
    """

    requests: float
    late: float
    is_met: bool | None
    p95_s: tuple[float, float | None] | None = None


@dataclass(frozen=True, slots=True)
class UserMinutes:
    """What became of users' requests in the last minutes. None: the server does not count it."""

    seconds: float
    ended: float | None = None
    failed: float | None = None  # by the server's fault
    latencies: Mapping[str, UserLatency] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineMinutes:
    """How full the server was in the last minutes: the highest KV cache usage and queue, and requests preempted."""

    seconds: float
    kv_cache_usage: float | None = None
    waiting: float | None = None
    preempted: float | None = None


@dataclass(frozen=True, slots=True)
class CrossChecks:
    """Values that need client, server and GPU metrics together. None or absent: unknown now."""

    # The client's TTFT less the server's, in seconds. matched: of canaries that were alone; mean: over five minutes.
    ttft_gap_s: Mapping[str, float] = field(default_factory=dict)
    queue_share: float | None = None  # share of the mean TTFT of five minutes that was spent in the server's queue
    counted: Mapping[str, float] = field(
        default_factory=dict
    )  # ratio of tokens that the server counted to tokens received
    neighbour_utilization: float | None = None  # of the GPU while this server had no requests
    stalled_s: float | None = None  # how long an engine has had requests without progress
    pressure: Mapping[str, bool] = field(default_factory=dict)  # signs of KV cache pressure
    is_kv_cache_too_small: bool | None = None  # what the signs show together
    imbalance: Mapping[str, Imbalance] = field(default_factory=dict)  # of replicas or engines, by reason
    has_multiple_backends: bool = False  # several servers answer at one address, so their counters are mixed
    held_back_ratio: float | None = None  # share of a canary's tokens that came together with the first one
    # By latency objective: whether users' requests of the last hour met it, where that is certain, and the share of
    # them that may be on either side of it.
    users_met: Mapping[str, bool] = field(default_factory=dict)
    users_uncertain: Mapping[str, float] = field(default_factory=dict)
    user_minutes: UserMinutes | None = None
    engine_minutes: EngineMinutes | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, or one MIG instance.

    `labels`: dcgm-exporter's labels that are known and not empty (gpu, UUID, device, modelName, Hostname, GPU_I_ID,
    GPU_I_PROFILE, pod, namespace, container). `values`: by dcgm-exporter's names, in its units up to version 4.8.
    `versions`: of the driver and of CUDA, if known.
    """

    labels: Mapping[str, str]
    values: Mapping[str, float]
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GpuSnapshot:
    """One scrape of a target's GPUs. `source`: dcgm (an exporter), prometheus (an exporter's series there)
    or nvml (this machine's driver).
    """

    at_ns: int
    wall_s: float
    source: str
    gpus: tuple[Gpu, ...]


def changed_replicas(before: Iterable[str], after: Iterable[str]) -> str:
    """Return which replicas came and which went, by address, in words; "" if they are the same."""
    was, now = set(before), set(after)
    pairs = (("came", sorted(now - was)), ("went", sorted(was - now)))
    return ", ".join(f"{_first(names)} {verb}" for verb, names in pairs if names)


def _first(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def differing_flags(flags: Mapping[str, str]) -> dict[str, str]:
    """Return the flags in which the replicas that are read together differ, with their values."""
    return {name: value for name, value in flags.items() if DIFFERS in value} if REPLICAS in flags else {}
