"""One load level: its plan, its raw records, and the summary derived from them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from probe.core.request import RequestRecord
from probe.core.snapshot import UserLoad

# A 95 % confidence interval; None on a side that the samples do not bound.
Interval = tuple[float | None, float | None]


@dataclass(frozen=True, slots=True)
class Distribution:
    """Exact statistics of one latency over a step, in seconds. All None without a sample.

    Intervals are None where the samples depend on one another.
    """

    count: int = 0
    mean: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None
    p95_interval: Interval | None = None
    p99_interval: Interval | None = None


@dataclass(frozen=True, slots=True)
class ServerPeaks:
    """The worst the server showed during a step, from polls of its metrics. None: not seen."""

    kv_cache_usage_peak: float | None = None
    running_peak: float | None = None
    waiting_peak: float | None = None
    preemptions: float | None = None


@dataclass(frozen=True, slots=True)
class GpuUse:
    """How a target's GPUs were used during a step: means over GPUs and over the readings that told something new.

    Shares of time from 0 to 1, power in watts of one GPU, memory in use of what there is. None: not told.
    """

    utilization: float | None = None
    dram_active: float | None = None
    tensor_active: float | None = None
    power_w: float | None = None
    memory: float | None = None


class Pattern(StrEnum):
    """How the requests of an open loop are spread over time."""

    CONSTANT = "constant"
    POISSON = "poisson"
    GAMMA = "gamma"  # bursts, by `burstiness`
    RAMP = "ramp"  # Poisson, from one rate to another
    REPLAY = "replay"  # recorded times


@dataclass(frozen=True, slots=True)
class Arrivals:
    """An arrival pattern; which of the figures count, depends on the pattern (arrivals.py)."""

    pattern: Pattern = Pattern.POISSON
    rate_rps: float = 0.0
    burstiness: float = 1.0
    end_rate_rps: float = 0.0
    ramp_s: float = 0.0
    times_s: tuple[float, ...] = ()
    # Lengths of time, one after the other, in each of which exactly as many come as the rate says.
    counted_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step of load: a warm-up that is not judged, then `seconds` that are (or, if set, so many `requests`).

    Closed loop: `concurrency` requests in flight, each answered before its successor is sent. Open loop (with
    `arrivals`): requests are sent when they are due; `concurrency` is how many may be in flight at most.
    """

    concurrency: int
    seconds: float
    requests: int | None = None
    loop: str = "closed"
    warm_up_s: float = 0.0
    arrivals: Arrivals | None = None


@dataclass(frozen=True, slots=True)
class StepRun:
    """A step as it happened. `window_ns`: from the end of the warm-up to the end of sending; see summary.py.

    `capped`: an open loop had as many in flight as it may. `problem` names what went wrong on our side; such a step
    judges nothing.
    """

    plan: StepPlan
    records: tuple[RequestRecord, ...]
    window_ns: tuple[int, int]
    loop_lag_s: tuple[float, ...]
    cut_short: bool
    capped: bool = False
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """How a step's requests ended. Aborted ones were cancelled by us and judge nothing."""

    ok: int
    failed: int
    aborted: int


@dataclass(frozen=True, slots=True)
class ErrorBound:
    """By how much the client itself may have made 99 of 100 of these too long or too short, in seconds.

    From how late requests were sent, how late the event loop noticed that bytes had arrived, and how late the
    process was given a processor.
    """

    ttft: float
    itl: float


@dataclass(frozen=True, slots=True)
class StepSummary:
    """One step, measured. `valid=False` names why in `reason`; such a step judges nothing.

    Rates are those of our requests; `users` is what others asked of the server meanwhile. `good_ratio`
    holds, per objective (availability, ttft, tpot), the share of requests that met it; `broken` names
    the objectives whose share was too low.
    """

    plan: StepPlan
    valid: bool
    reason: str | None
    seconds: float
    requests: RequestCounts
    offered_rps: float
    throughput_rps: float
    goodput_rps: float
    output_tokens_per_second: float
    prompt_tokens_per_second: float
    ttft_s: Distribution
    itl_s: Distribution
    tpot_s: Distribution
    e2e_s: Distribution
    schedule_lag_s: Distribution
    error_bound_s: ErrorBound
    good_ratio: Mapping[str, float]
    broken: tuple[str, ...]
    server: ServerPeaks
    stall_s: Distribution = Distribution()  # the longest gap of each request
    loop_lag_s: Distribution = Distribution()  # how late the process woke
    coalesced_ratio: float | None = None  # token events that came in one read with the one before
    tokens_per_event: float | None = None
    goodput_by_objective_rps: Mapping[str, float] = field(default_factory=dict)
    users: UserLoad = field(default_factory=UserLoad)
    gpu: GpuUse = GpuUse()
    tripped: str | None = None  # why the guard ended it, if it did
