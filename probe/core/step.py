"""One step of load: its plan, its raw records, and its summary."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from probe.core.request import RequestRecord
from probe.core.snapshot import UserLoad

# A timed step that has sent too few requests to be judged is extended, at most by this many times its length.
MAX_EXTENSION = 2


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Token counts of prompts, or of answers, over a step. All None without any."""

    mean: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class SentTokens:
    """What a step's requests asked for, warm-up included, and what the server counted of those it answered.

    `answered_prompts`, `answered_answers`: what the answered ones had asked for, in the mean. None in older results.
    """

    prompts: TokenCounts = TokenCounts()
    answers: TokenCounts = TokenCounts()
    counted_prompts: TokenCounts = TokenCounts()
    counted_answers: TokenCounts = TokenCounts()
    answered_prompts: float | None = None
    answered_answers: float | None = None


# A 95 % confidence interval; None on a side that has too few samples.
Interval = tuple[float | None, float | None]


@dataclass(frozen=True, slots=True)
class Distribution:
    """Exact statistics of one latency over a step, in seconds. All None if there are no samples.

    Intervals are None for samples that depend on one another.
    """

    count: int = 0
    mean: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None
    p95_interval: Interval | None = None
    p99_interval: Interval | None = None
    p50_interval: Interval | None = None
    p90: float | None = None


@dataclass(frozen=True, slots=True)
class ServerPeaks:
    """Peaks of the server's metrics during a step, from scrapes. None: unknown."""

    kv_cache_usage_peak: float | None = None
    running_peak: float | None = None
    waiting_peak: float | None = None
    preemptions: float | None = None
    prefix_hit_ratio: float | None = None  # of the prompt tokens that the server looked up meanwhile


@dataclass(frozen=True, slots=True)
class GpuUse:
    """GPU use during a step: means over the target's GPUs and over snapshots with new values.

    `utilization`, `dram_active`, `tensor_active`: shares of time. `power_w`: of one GPU. `memory`: share in use.
    Peaks: of any GPU in any snapshot. `gpus`: number of GPUs with known power. None: unknown.
    """

    utilization: float | None = None
    dram_active: float | None = None
    tensor_active: float | None = None
    power_w: float | None = None
    memory: float | None = None
    utilization_peak: float | None = None
    memory_peak: float | None = None
    memory_peak_bytes: float | None = None
    gpus: int | None = None

    @property
    def total_power_w(self) -> float | None:
        """Return the power of all GPUs together, in watts."""
        return None if self.power_w is None or self.gpus is None else self.power_w * self.gpus


class Pattern(StrEnum):
    """Arrival pattern of an open loop."""

    CONSTANT = "constant"
    POISSON = "poisson"
    GAMMA = "gamma"  # bursts, by `burstiness`
    RISING = "rising"  # Poisson, at a rate that rises at first
    REPLAY = "replay"  # recorded times

    @classmethod
    def _missing_(cls, value: object) -> "Pattern | None":
        """Return the pattern that older results name otherwise, so that they stay readable."""
        return cls.RISING if value == "ramp" else None


@dataclass(frozen=True, slots=True)
class Arrivals:
    """An arrival pattern and its parameters; the pattern decides which ones are used (arrivals.py).

    `rate_rps`: the mean rate, which a rising one reaches after `ramp_s`, from `start_rate_rps`. `speed`: of a replay,
    relative to the recorded times; `times_s` are as they are sent.
    """

    pattern: Pattern = Pattern.POISSON
    rate_rps: float = 0.0
    burstiness: float = 1.0
    start_rate_rps: float = 0.0
    ramp_s: float = 0.0
    times_s: tuple[float, ...] = ()
    speed: float = 1.0
    # Lengths of successive segments, each with exactly the expected number of arrivals.
    counted_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step of load: a warm-up that is not judged, then `seconds` (or, if set, `requests`) that are.

    Closed loop: `concurrency` requests in flight, each sent after the answer to the one before. Open loop (with
    `arrivals`): requests are sent at their scheduled times, with at most `concurrency` in flight. One more ends the
    step or, where the step `holds`, waits for an answer to one before; its latencies count from when it was due.
    `most_users_rps`: the rate of users at which its load leaves its bound, so that the guard ends it; None: no bound.
    `usual_users_rps`: the rate at which they may have sent before it.
    """

    concurrency: int
    seconds: float
    requests: int | None = None
    loop: str = "closed"
    warm_up_s: float = 0.0
    arrivals: Arrivals | None = None
    holds: bool = False
    most_users_rps: float | None = None
    usual_users_rps: float = 0.0

    @property
    def is_pulse(self) -> bool:
        """Return whether all requests are sent at once."""
        return self.arrivals is None and self.requests == self.concurrency

    @property
    def without_times(self) -> "StepPlan":
        """Return the plan without the times of a trace, which are many, for a summary."""
        if self.arrivals is None or not self.arrivals.times_s:
            return self
        return replace(self, arrivals=replace(self.arrivals, times_s=()))

    @property
    def load(self) -> float:
        """Return the load that orders steps: requests/s in an open loop, requests in flight in a closed one."""
        return self.concurrency if self.arrivals is None else self.arrivals.rate_rps


@dataclass(frozen=True, slots=True)
class TrafficBeside:
    """A server's traffic other than a run's own requests: users, and `probes` (canaries and requests on demand)."""

    users: UserLoad = field(default_factory=UserLoad)
    probes: tuple[RequestRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class StepRun:
    """The raw data of a step. `window_ns`: from the end of the warm-up to the end of sending (load/step_summary.py).

    `capped`: an open loop reached its limit of requests in flight. `problem`: an error of the client, which makes the
    step invalid. `other_probes`: canaries and requests on demand that ended meanwhile.
    """

    plan: StepPlan
    records: tuple[RequestRecord, ...]
    window_ns: tuple[int, int]
    loop_lag_s: tuple[float, ...]
    is_cut_short: bool
    is_capped: bool = False
    problem: str | None = None
    other_probes: tuple[RequestRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """Numbers of a step's requests by result. Aborted requests were cancelled by Kneewatch and are not judged."""

    ok: int
    failed: int
    aborted: int


@dataclass(frozen=True, slots=True)
class ErrorBound:
    """Upper bound of the client's own error for 99 % of these latencies, in seconds.

    It covers late sending, the event loop's delay in reading bytes, and the operating system's delay in running the
    process.
    """

    ttft: float
    itl: float


@dataclass(frozen=True, slots=True)
class StepSummary:
    """The summary of a step. An invalid step has a `reason` and is not judged.

    `is_late`: the client was too late to judge the server by these latencies. Such a step is valid only if it met its
    objectives nevertheless (load/late_step.py).

    Rates count probe requests; `users` is the user traffic meanwhile. `good_ratio`: per objective, the ratio
    of requests that met it. `broken`: the objectives with too low a ratio.
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
    loop_lag_s: Distribution = Distribution()  # how late the event loop ran
    coalesced_ratio: float | None = None  # token events in the same read as the one before
    tokens_per_event: float | None = None
    goodput_by_objective_rps: Mapping[str, float] = field(default_factory=dict)
    users: UserLoad = field(default_factory=UserLoad)
    gpu: GpuUse = GpuUse()
    tripped: str | None = None  # why the guard stopped it
    held_s: Distribution = Distribution()  # how long requests waited for one fewer in flight
    tokens: SentTokens = field(default_factory=SentTokens)
    rejected: int = 0  # of the failed requests, those that the server refused for having too much to do
    is_late: bool = False

    @property
    def load(self) -> float:
        """Return the load that was judged, in the unit of the plan: of a late open loop what was sent, at most."""
        is_sent = self.valid and self.is_late and self.plan.arrivals is not None
        return min(self.plan.load, self.offered_rps) if is_sent else self.plan.load

    @property
    def certain_rps(self) -> float:
        """Return the throughput; of a late step at most what was sent: a late read moves answers into the window."""
        if not self.is_late:
            return self.throughput_rps
        return min(self.throughput_rps, self.offered_rps if self.plan.arrivals is None else self.load)

    @property
    def total_tokens_per_second(self) -> float:
        """Return prompt and output tokens per second."""
        return self.prompt_tokens_per_second + self.output_tokens_per_second

    @property
    def accepted_tokens_per_second(self) -> float:
        """Return the output tokens per second of requests that met every objective."""
        share = self.goodput_rps / self.throughput_rps if self.throughput_rps > 0 else 0.0
        return self.output_tokens_per_second * share

    @property
    def tokens_per_joule(self) -> float | None:
        """Return the output tokens per joule of the server's GPUs; None where their power is not known."""
        power = self.gpu.total_power_w
        return self.output_tokens_per_second / power if power else None


def total_rps(own_rps: float, users: UserLoad, weight: float = 1.0) -> float:
    """Return the load of a step in requests/s: its own rate, and the users' meanwhile, 0 where that is unknown.

    `weight`: how many of the workload's requests take as much capacity as one of the users'.
    """
    return own_rps + weight * (users.requests_per_second or 0.0)
