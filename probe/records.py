"""Every type that crosses a boundary, and the words they use.

Glossary (the same in code, series, dashboards and docs; times in seconds unless a name ends
in `_ns`, all on one monotonic clock):

TTFT            first non-empty content, reasoning or tool delta minus the scheduled send.
                A role-only chunk is not a token.
ITL             gap between successive token events of a stream. An event may carry several
                tokens; the count is kept beside it.
TPOT            (E2E - TTFT) / (output tokens - 1): a request's mean. Undefined for one token.
E2E             last token event minus the scheduled send.
scheduled send  when the request was due. A late client makes schedule lag, never a better TTFT.
offered load    requests started per second; throughput, completed; goodput, completed within
                every objective.
knee            the highest load whose share of good requests still meets every objective.
capacity        the knee as a rate.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum


class Traffic(StrEnum):
    """Why a request was sent."""

    CANARY = "canary"
    CAPACITY = "capacity"
    ONDEMAND = "ondemand"


class Api(StrEnum):
    """Which of the server's streaming interfaces a request uses."""

    COMPLETIONS = "completions"
    CHAT = "chat"


class Outcome(StrEnum):
    """How a request ended. Few values: each is a label in `kneewatch_requests_total`."""

    OK = "ok"
    UNREACHABLE = "unreachable"  # no connection, or it broke before an answer
    TIMEOUT = "timeout"
    UNAUTHORIZED = "unauthorized"  # 401, 403
    NOT_FOUND = "not_found"  # 404: wrong path, or the model is not served
    REJECTED = "rejected"  # 429: the server defends itself
    BAD_REQUEST = "bad_request"  # other 4xx, and redirects
    SERVER_ERROR = "server_error"  # 5xx, or an error event inside the stream
    BROKEN_STREAM = "broken_stream"  # 200, then not a complete event stream
    WRONG_ANSWER = "wrong_answer"  # a complete stream that a validator refuses
    CLIENT_BOUND = "client_bound"  # answered; a miss that may be our own lateness, and judges no latency
    ABORTED = "aborted"  # cancelled by us: guard, budget or shutdown


# Outcomes of requests that the server answered as it should.
UP = (Outcome.OK, Outcome.CLIENT_BOUND)


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """One request to send. `prompt` is token ids for completions and text for chat.

    `prompt_tokens` is exact for completions and about right for chat, where the server's
    template and tokenizer decide; the record holds what the server counted.
    """

    workload: str
    api: Api
    prompt: tuple[int, ...] | str
    prompt_tokens: int
    output_tokens: int

    def without_prompt(self) -> "RequestSpec":
        """The same request, for a record."""
        return replace(self, prompt=())


@dataclass(frozen=True, slots=True)
class TokenEvents:
    """The events of a stream that carried tokens, in order, as arrays of one length: a step has millions.

    `first_visible`: index of the first one with something to read. Before it there may be tokens that are the
    beginning of a character.
    """

    at_ns: "array[int]" = field(default_factory=lambda: array("q"))
    late_ns: "array[int]" = field(default_factory=lambda: array("q"))  # by how much at_ns may be too late, at most
    tokens: "array[int]" = field(default_factory=lambda: array("i"))  # as the server counted since the one before
    first_visible: int | None = None

    def __len__(self) -> int:
        return len(self.at_ns)


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """What happened to one request: raw stamps. Latencies are derived in latency.py.

    `spec` is what was asked for, but for the prompt: records are kept, and prompts are long.
    """

    target: str
    model: str
    traffic: Traffic
    spec: RequestSpec
    scheduled_ns: int
    sent_ns: int
    done_ns: int
    done_wall_s: float  # for people and pages; never subtracted
    outcome: Outcome
    detail: str | None = None  # one line, for people, where the outcome is not OK
    http_status: int | None = None
    events: TokenEvents = field(default_factory=TokenEvents)
    reads: int = 0  # network reads the body arrived in
    prompt_tokens: int = 0  # as the server's usage counts them
    output_tokens: int = 0
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Objective:
    """At least `ratio` of requests have this latency within `within_s`."""

    ratio: float
    within_s: float


@dataclass(frozen=True, slots=True)
class Objectives:
    """What users were promised over `window_s`. `None` means nothing was promised."""

    name: str
    window_s: float = 30 * 86400.0
    availability: float | None = None
    ttft: Objective | None = None
    tpot: Objective | None = None

    def latencies(self) -> Mapping[str, Objective]:
        """The latency objectives that are set, by name, in the order ttft, tpot."""
        return {k: o for k, o in (("ttft", self.ttft), ("tpot", self.tpot)) if o is not None}


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


@dataclass(frozen=True, slots=True)
class Users:
    """The load of everybody but us. None: the server does not count it."""

    requests_per_second: float | None = None
    output_tokens_per_second: float | None = None


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
    users: Users = Users()
    gpu: GpuUse = GpuUse()
    tripped: str | None = None  # why the guard ended it, if it did


@dataclass(frozen=True, slots=True)
class Roofline:
    """How near a server comes to what its GPUs can at most (capacity/roofline.py). Ratios are of a limit: 1 is as fast
    as can be. None: not known.

    `step_s`: a step with one request, of which reading the weights takes `floor_s` at least: the `decode_ratio`.
    `prefill_ratio`: of peak FLOP/s, in a step that is full of prompts. `bandwidth_ratio`, `flops_ratio`: in use, by
    vLLM's own estimates, over the ten seconds with most of each.
    """

    gpu: str
    sure: bool  # whether the limits are known to be those that the GPU's maker publishes
    step_s: float | None = None
    floor_s: float | None = None
    decode_ratio: float | None = None
    prefill_ratio: float | None = None
    bandwidth_ratio: float | None = None
    flops_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Capacity:
    """The knee as a rate of all requests, users' and ours, or None with the `reason` why there is none.

    `upper` is None where no step broke an objective: the figure is then a lower bound. `knee_concurrency`: ours in
    flight at the knee, where the loop was closed.
    """

    mode: str  # "empirical": measured by steps, no model behind it; "forecast": by a model; "verified": by both
    requests_per_second: float | None = None
    lower: float | None = None
    upper: float | None = None
    output_tokens_per_second: float | None = None
    knee_concurrency: int | None = None
    limiting: str | None = None
    bottleneck: str | None = None
    reason: str | None = None
    advice: str | None = None  # what to do about the bottleneck
    learnt_from: tuple[float, float] | None = None  # loads in requests/s that a forecast was learnt from
    bottleneck_gain: float | None = None  # growth without it, or with half of its cost (bottleneck.py); 0.4: 40 % more
    roofline: Roofline | None = None


@dataclass(frozen=True, slots=True)
class Cost:
    """What measuring took of the server: our own requests, tokens (prompt and output), and the seconds until the last
    of them was over. What follows from them may be worked out a while longer; that costs the server nothing.
    """

    requests: int
    tokens: int
    seconds: float
    over_objective_seconds: float


@dataclass(frozen=True, slots=True)
class Stopped:
    """What ended a capacity run: done, guard, budget, interrupt or error; and why."""

    by: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Doing:
    """What a run is at, for people who wait. `seconds`: how long that takes, about; None where nobody knows."""

    words: str
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class RunContext:
    """What a capacity holds for: it says nothing of another engine, GPU, workload or promise."""

    workload: Mapping[str, object]  # at least its "name"
    objectives: Mapping[str, object]
    engine: str = "unknown"
    version: str = "unknown"
    gpu: str | None = None
    flags: Mapping[str, str] = field(default_factory=dict)  # the server's own, as far as it shows them


@dataclass(frozen=True, slots=True)
class CapacityResult:
    """One capacity run: the same shape in the store, the API and a `--json` file."""

    id: str
    target: str
    model: str
    started: datetime
    context: RunContext
    steps: tuple[StepSummary, ...]
    capacity: Capacity
    cost: Cost
    stopped: Stopped
    schema: str = "kneewatch.result/1"
    confirms: str | None = None  # the id of the run before it, which this one repeated at once because it was low
    users: Users = Users()  # the load of others, as long as the run saw it

    @property
    def ended_s(self) -> float:
        """When it ended, on the wall clock: what its age counts from."""
        return self.started.timestamp() + self.cost.seconds


@dataclass(frozen=True, slots=True)
class Figure:
    """A capacity of a target's history, as far as shifts are told by it (capacity/shift.py).

    `confirms`: its run repeated the one before it at once, because that one was low.
    """

    at_s: float  # wall time
    requests_per_second: float
    lower: float | None
    upper: float | None
    mode: str
    fingerprint: str  # of what it holds for (capacity/fingerprint.py)
    confirms: bool = False


@dataclass(frozen=True, slots=True)
class Baseline:
    """What a target's knee is compared with: the median of `count` runs from `since_s` (wall time) on.

    `noise_ratio` is the standard deviation of one of them. `follows_shift`: it started when a shift had lasted.
    """

    requests_per_second: float
    count: int
    since_s: float
    noise_ratio: float
    follows_shift: bool = False


@dataclass(frozen=True, slots=True)
class Shift:
    """The newest capacity against its baseline: `ratio` is -0.1 for 10 % less.

    `fired` holds, per method, whether it says that the knee has shifted; `since_s` (wall time) is when that began.
    """

    ratio: float
    baseline: Baseline
    fired: Mapping[str, bool]
    since_s: float | None = None


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
class UsersTotals:
    """What others asked of a server since Kneewatch watches it: the server's counters less our own requests.

    None: the server does not count it. `histograms`: ttft and tpot, as far as the server has them, in its buckets.
    """

    requests: float | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    histograms: Mapping[str, Histogram] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Counted:
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


@dataclass(frozen=True, slots=True)
class GuardVerdict:
    """Whether load may go on; `reason` is a short fixed word, `detail` the numbers."""

    go: bool
    reason: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class TargetStatus:
    """One target as the status page, the API and the terminal show it."""

    name: str
    base_url: str
    model: str
    objectives: Objectives
    up: bool | None  # None before the first canary ended
    recent: Sequence[RequestRecord] = ()  # newest first
    failures: Sequence[RequestRecord] = ()  # newest first, kept longer than successes
    server: ServerSnapshot | None = None
    server_error: str | None = None
    gpus: GpuSnapshot | None = None
    gpu_error: str | None = None
    checks: CrossChecks = CrossChecks()
    users: Users | None = None  # over the last minutes
    passive: bool = False  # it gets no requests
    capacity: CapacityResult | None = None
    forecast: CapacityResult | None = None
    measured: CapacityResult | None = None  # the last that load has measured, before or with `capacity`
    capacity_state: str | None = None  # "running", or the reason why the last run did not start
    discovery: str | None = None  # what found it
    labels: Mapping[str, str] = field(default_factory=dict)  # of its pod, or of the list it stands in
