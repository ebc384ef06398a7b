"""One reading of a server or its GPUs, and what follows from several of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Histogram:
    """A server's histogram: cumulative counts by upper bound (inf last), sum and count."""

    buckets: tuple[tuple[float, float], ...]
    sum: float

    @property
    def count(self) -> float:
        """Observations: the count of the last (infinite) bucket."""
        return self.buckets[-1][1] if self.buckets else 0.0


@dataclass(frozen=True, slots=True)
class EngineReading:
    """What a server says of one of its data-parallel engines. None: it does not say it of each."""

    running: float | None = None
    waiting: float | None = None
    kv_cache_usage: float | None = None
    preemptions: float | None = None
    generation_tokens: float | None = None


@dataclass(frozen=True, slots=True)
class ServerSnapshot:
    """One reading of a server's own metrics, summed over its engines (KV: the fullest one).

    None means that the server does not expose the value, which differs from zero.
    """

    at_ns: int
    wall_s: float
    engine: str = "unknown"
    version: str = "unknown"
    asked_ns: int = 0  # when its page was asked for; 0: not known. It says how things were between then and `at_ns`
    started_s: float | None = None  # wall time at which the process began
    running: float | None = None
    waiting: float | None = None
    waiting_by_reason: Mapping[str, float] = field(default_factory=dict)
    kv_cache_usage: float | None = None
    preemptions: float | None = None
    rejections: float | None = None
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    finished: Mapping[str, float] = field(default_factory=dict)  # requests by finish reason
    prefix_cache_queries: float | None = None
    prefix_cache_hits: float | None = None
    kv_cache_tokens: float | None = None  # of all engines together
    estimated_flops: float | None = None  # of a GPU of each engine, as vLLM estimates them where it is asked to
    estimated_read_bytes: float | None = None  # from that GPU's memory
    estimated_write_bytes: float | None = None
    engines: int = 1
    by_engine: Mapping[str, EngineReading] = field(
        default_factory=dict
    )  # of 2 to 32 engines, by their labels, in order
    models: tuple[str, ...] = ()  # that it serves, by its own names for them
    progress: float | None = None  # grows with each step while there is work: tokens, or steps; None: nothing tells it
    drafts: float | None = None  # of speculative decoding: steps with a draft, its tokens, and those that were accepted
    draft_tokens: float | None = None
    accepted_tokens: float | None = None
    adapters: tuple[str, ...] = ()  # LoRA adapters that run
    flags: Mapping[str, str] = field(default_factory=dict)  # it was started with, as far as it shows them
    histograms: Mapping[str, Histogram] = field(default_factory=dict)  # ttft, itl, tpot, e2e, ...


@dataclass(frozen=True, slots=True)
class UserLoad:
    """The load of everybody but us. None: the server does not count it."""

    requests_per_second: float | None = None
    output_tokens_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class UserTotals:
    """What others asked of a server since Kneewatch watches it: the server's counters less our own requests.

    None: the server does not count it. `histograms`: ttft and tpot, as far as the server has them, in its buckets.
    """

    requests: float | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    histograms: Mapping[str, Histogram] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CountedTraffic:
    """What the server counted between two readings, and what we sent it meanwhile, all of it ended.

    `server` None: not counted. TTFT in seconds, summed over requests.
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
class CrossChecks:
    """What only client, server and GPU together can tell. None or absent: it cannot be told now."""

    # Client's TTFT less the server's, in seconds. matched: of canaries alone on it; mean: of all in five minutes.
    ttft_gap_s: Mapping[str, float] = field(default_factory=dict)
    queue_share: float | None = None  # of the mean TTFT of five minutes, the time in the server's queue
    counted: Mapping[str, float] = field(default_factory=dict)  # tokens the server counted over those we received
    neighbour_utilization: float | None = None  # of the GPU, by others than this server
    stalled_s: float | None = None  # for how long an engine has had requests and made nothing
    pressure: Mapping[str, bool] = field(default_factory=dict)  # signs that the KV cache is too small
    several: bool = False  # servers answer at one address: of their mixed counters nothing follows


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, or one instance of a GPU that is divided (MIG).

    `labels`: what dcgm-exporter says of it (gpu, UUID, device, modelName, Hostname, GPU_I_ID, GPU_I_PROFILE, pod,
    namespace, container), as far as it is known; none is empty. `values`: by dcgm-exporter's names, in its units as
    they were up to 4.8.
    """

    labels: Mapping[str, str]
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class GpuSnapshot:
    """One reading of a target's GPUs. `source`: dcgm (an exporter's page) or nvml (the driver of this machine)."""

    at_ns: int
    wall_s: float
    source: str
    gpus: tuple[Gpu, ...]
