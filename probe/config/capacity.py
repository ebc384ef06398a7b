"""The `capacity` section of a target, and its checks."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, Self

from pydantic import Discriminator, Field, PrivateAttr, Tag

from probe.config.types import (
    AtLeastAMinute,
    ConfigSection,
    Count,
    Cron,
    Duration,
    Facts,
    GpuName,
    MatcherText,
    Name,
    NotASwitch,
    Parameters,
    Positive,
    Rates,
    Steps,
    SwitchedOff,
    Timezone,
    WindowText,
    arm,
    default_duration,
)
from probe.core.server_limits import Limits, limits_of
from probe.core.vllm_command import count

# Where a server's startup flags are read, in the order of precedence.
CONFIGURATION, SERVER_INFO, POD, PROCESS = FLAG_SOURCES = ("configuration", "server_info", "pod", "process")
_LIMITS = ("max_num_seqs", "max_num_active_seqs", "max_num_batched_tokens")


class ScheduleConfig(ConfigSection):
    """When scheduled load may start."""

    cron: Cron = "0 4 * * *"
    """Start times of runs, as in crontab: minute, hour, day, month, weekday (0 and 7 are Sunday; or `mon-fri`), or
    `@daily`, `@hourly` and so on. With both a day and a weekday either is enough. A time that the clock shows twice is
    its first.
    """
    timezone: Timezone = "UTC"
    """Time zone of the schedule and its windows, such as `Europe/Berlin`."""
    windows: tuple[WindowText, ...] = ()
    """When load is allowed, such as `["01:00-05:00", "Sat,Sun 00:00-24:00"]`; always if empty. No run starts outside,
    and a run still going at the end is stopped. A window over midnight belongs to the day it starts on. Runs of
    discovered targets begin at any time from `cron` to the window's end, and without windows within two hours, each
    target at another one each day.
    """
    grace: AtLeastAMinute = default_duration("30m")
    """A run that cannot begin this long after its time, since other runs go on or the machine was suspended, is given
    up (`late`).
    """


_RUN_TOKENS = 5_000_000


class BudgetConfig(ConfigSection):
    """Maximum cost of one capacity run, and of all runs of a day."""

    tokens_per_day: Count | None = None
    """Maximum tokens of all scheduled runs of a day, at least `tokens_per_run`; a run gets what is left. Default: four
    times `tokens_per_run`.
    """
    # By default a run may spend no more than a day may.
    tokens_per_run: Count = Field(
        default_factory=lambda data: min(_RUN_TOKENS, data.get("tokens_per_day") or _RUN_TOKENS),
        json_schema_extra={"default": _RUN_TOKENS},
    )
    """Maximum prompt and output tokens of a run. Default: 5000000, or `tokens_per_day` if that is less."""
    seconds: Positive = 300.0
    """Maximum duration of a run, in seconds."""
    over_objective_seconds: Positive = 20.0
    """Maximum total time, in seconds, in which requests of a run are late, slow or failing; hanging requests count only
    if E2E has an objective, or both TTFT and TPOT do.
    """

    @property
    def daily_tokens(self) -> int:
        """Return the configured limit, or four times a run: the nightly one and three that confirm or repeat it."""
        return 4 * self.tokens_per_run if self.tokens_per_day is None else self.tokens_per_day


class ServerLimitsConfig(ConfigSection):
    """Startup flags and hardware of the server that vLLM's metrics do not show."""

    max_num_seqs: Count | None = None
    """Max concurrent sequences (`--max-num-seqs`) of the server, for the search; vLLM's metrics do not show it.
    Default: as the server or its pod shows it ([discovery.md](discovery.md#startup-flags)), or inferred if it can be
    observed.
    """
    max_num_active_seqs: Count | None = None
    """`--max-num-active-seqs` of the server, a lower limit of the same. Default: as the server or its pod shows it."""
    max_num_batched_tokens: Count | None = None
    """`--max-num-batched-tokens` of the server. Default: as the server or its pod shows it; otherwise 2048 is assumed.
    """
    kv_cache_tokens: Count | None = None
    """Size of the KV cache in tokens, of all engines on one metrics page together: vLLM logs it at its start for one
    engine (`GPU KV cache size`). For a page that does not show it, as of vLLM's Rust front end, or shows a wrong one.
    Default: as the page shows it.
    """
    gpu: GpuName | None = None
    """GPU model of the server, named as by `nvidia-smi -L`, such as `NVIDIA H100 80GB HBM3`; one of
    [these](results.md#before-there-is-a-server). For its [hardware limits](capacity.md#beside-what-the-gpu-can-do),
    and as a condition of each capacity.
    """
    parameters: Parameters | None = None
    """Parameters of the model that are active per token (of a mixture of experts, only the active ones), such as `8B`,
    `700M` or `8e9`. With `gpu`.
    """
    weight_bits: Literal[4, 8, 16] = 16
    """Bits per weight; 8 implies FP8 compute if the GPU supports it. With `parameters`."""
    gpus: Count = 1
    """GPUs of one engine that share each step (`--tensor-parallel-size`). With `parameters`."""
    flags: dict[str, str] = {}  # noqa: RUF012 - pydantic copies it
    """Further startup flags of the server, such as `{tensor_parallel_size: "4"}`. They are conditions of each capacity:
    a changed flag begins a new baseline. Flags that the server or its pod shows are added
    ([discovery.md](discovery.md#startup-flags)).
    """
    facts: Facts = {}  # noqa: RUF012 - pydantic copies it
    """Facts about the server for its results, such as `{image: "vllm/vllm-openai:v0.32.0", commit: 4f1c2ab8}`. They are
    not conditions: another image does not begin a new baseline. The image and node of a discovered pod are added
    ([results.md](results.md#what-a-result-says-of-itself)).
    """
    _sources: dict[str, str] = PrivateAttr(default_factory=dict)  # of the flags that are not from the configuration

    @property
    def flag_sources(self) -> dict[str, str]:
        """Return where each startup flag is from, as one of FLAG_SOURCES."""
        return {name: self._sources.get(name, CONFIGURATION) for name in self.startup_flags}

    def with_flags(self, flags: Mapping[str, str], source: str) -> Self:
        """Return these limits with the flags of a source, unless an earlier one of FLAG_SOURCES states them."""
        rank = FLAG_SOURCES.index
        known = self.flag_sources
        new = {name: value for name, value in flags.items() if name not in known or rank(source) < rank(known[name])}
        limits = {name: number for name in _LIMITS if (number := count(new.get(name, "")))}
        others = {name: value for name, value in new.items() if name not in limits}
        changed = self.model_copy(update={**limits, "flags": {**self.flags, **others}})
        changed._sources = {**self._sources, **dict.fromkeys(new, source)}  # noqa: SLF001 - of the same class
        return changed

    def with_facts(self, facts: Mapping[str, str]) -> Self:
        """Return these limits with more facts. Configured facts win."""
        return self.model_copy(update={"facts": {**facts, **self.facts}})

    @property
    def limits(self) -> Limits:
        """Return the limits of one engine, by all known flags."""
        return limits_of(self.startup_flags)

    @property
    def startup_flags(self) -> dict[str, str]:
        """Return all known startup flags, which are conditions of a capacity."""
        limits = self.model_dump(include=set(_LIMITS), exclude_none=True)
        return {**self.flags, **{name: str(value) for name, value in limits.items()}}


class GammaConfig(ConfigSection):
    """Arrivals with gamma-distributed gaps."""

    burstiness: Annotated[float, Field(gt=0, le=100), NotASwitch]
    """Shape of the gaps, as in `vllm bench serve`: below 1 requests come in bursts, 1 is `poisson`, above it they are
    more even.
    """


ArrivalPattern = Annotated[
    Annotated[Literal["poisson", "constant", "rising"], Tag("plain")] | Annotated[GammaConfig, Tag("mapping")],
    Discriminator(arm),
]


class CapacityConfig(ConfigSection):
    """How capacity is determined. By default it is forecast from live traffic, without added load.

    Step-up load needs mode "verify", because it runs on servers with users. Without `concurrency` and `rates`, a search
    chooses the steps.
    """

    mode: Annotated[Literal["off", "forecast", "verify"], SwitchedOff] = "forecast"
    """`forecast` adds no load; `verify` also runs step-up load on schedule; with `off` only commands measure."""
    forecast_every: AtLeastAMinute = default_duration("30m")
    """Interval of forecasts, at least `1m`, within `forecast_cores`: each takes half a second to two seconds of CPU.
    While there is too little evidence, a forecast is also made each time the evidence has doubled; none is made where
    the server has shown nothing new. [What users send](capacity.md#capacity-for-what-users-send) is forecast too,
    if it is known and is not the workload.
    """
    history: MatcherText | None = None
    """Label matchers that select only this server's own series in Prometheus, such as `job="vllm",pod="llama-0"`, for
    `kneewatch forecast --history`. Default: `instance="HOST:PORT"` of its metrics.
    """
    guard: Literal["metrics", "stream"] = "metrics"
    """Evidence for a run's guard: the server's metrics page, or with `stream` only the run's own answers, for servers
    that do not show their queue there. `stream` needs a TTFT objective ([what it does not
    see](guard.md#without-a-metrics-page)).
    """
    schedule: ScheduleConfig = ScheduleConfig()
    """When scheduled load may start."""
    workload: Name | None = None
    """Workload of capacity runs and forecasts: a name under `workloads`, a preset, or `users` for [what users
    send](capacity.md#capacity-for-what-users-send). Default: the canary's.
    """
    concurrency: Steps | None = None
    """Fixed steps of a closed loop: requests in flight, rising. Not together with `rates`."""
    rates: Rates | None = None
    """Fixed steps of an open loop: requests per second, rising. Not together with `concurrency`."""
    arrivals: ArrivalPattern = "poisson"
    """When requests of `rates` are sent: at random (`poisson`), at equal distances (`constant`), at random with a rate
    that rises from 0 in the first sixth of a step, which is not judged (`rising`), or in bursts (`burstiness`).
    """
    max_concurrency: Annotated[Count, Field(le=1024)] | None = None
    """With `rates`: limit of requests in flight, as of a gateway; further ones wait, and the wait counts in TTFT.
    Default: no limit; a step ends at 512 in flight.
    """
    step: Duration = default_duration("15s")
    """Duration of a fixed step, but at least that of an unloaded answer; extended up to three times until 20 requests
    have been sent.
    """
    confirm: Duration = default_duration("180s")
    """Before reporting, repeat the highest fixed step that met its objectives, for this long or 1000 requests: queues
    near the knee grow for minutes. If it misses them now, the next lower step is repeated. No repetition if `step` is
    as long.
    """
    observe: Duration = default_duration("30s")
    """How long a search watches live traffic before it adds load."""
    timeout: Duration | None = None
    """Limit of a whole answer in capacity runs. Default: `canary.timeout` if that is set; else derived as it is, by the
    workload of these runs.
    """
    server: ServerLimitsConfig = ServerLimitsConfig()
    """Startup flags and hardware of the server that vLLM's metrics do not show."""
    budget: BudgetConfig = BudgetConfig()
    """Maximum cost of one capacity run, and of all runs of a day."""

    @property
    def forecast_valid_s(self) -> float:
        """Return for how long (s) a forecast says something about now: two intervals, and never less than an hour."""
        return max(2 * self.forecast_every, 3600.0)

    @property
    def has_fixed_steps(self) -> bool:
        """Return whether the steps are given, instead of a search's."""
        return self.concurrency is not None or self.rates is not None

    @property
    def least_s(self) -> float:
        """Return how long (s) a run goes on before its first step has ended."""
        return self.step if self.has_fixed_steps else self.observe + self.step


def capacity_problems(capacity: CapacityConfig) -> Iterator[str]:
    """Yield problems, each with what follows the section in its path."""
    if capacity.concurrency is not None and capacity.rates is not None:
        yield ": concurrency and rates are both set; keep one of them"
    if capacity.rates is None:
        for key, is_set in (
            ("arrivals", capacity.arrivals != "poisson"),
            ("max_concurrency", capacity.max_concurrency),
        ):
            if is_set:
                yield f".{key}: has no effect without rates; add rates, or remove it"
    server, budget = capacity.server, capacity.budget
    if server.parameters is None and (server.weight_bits, server.gpus) != (16, 1):
        yield ".server: weight_bits and gpus have no effect without parameters; add parameters"
    if server.parameters is not None and server.gpu is None:
        yield ".server: parameters has no effect without gpu; add gpu"
    if budget.daily_tokens < budget.tokens_per_run:
        yield (
            f".budget.tokens_per_day: {budget.daily_tokens} is less than tokens_per_run,"
            f" {budget.tokens_per_run}; raise it"
        )
