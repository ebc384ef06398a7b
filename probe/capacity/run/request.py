"""What a capacity run is asked to do (RunRequest), and the conditions that its capacity holds for."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType

from probe.capacity.model import unmodelled
from probe.capacity.model.hints import Hints, ModelSize
from probe.client.api_request import PLAIN_REQUESTS, RequestShape
from probe.config.capacity import CapacityConfig, GammaConfig, ServerLimitsConfig
from probe.config.config import LoadConfig
from probe.config.targets import TargetConfig
from probe.core.objectives import Objectives
from probe.core.provenance import Provenance
from probe.core.reasons import OVER_OBJECTIVE_SECONDS, SECONDS, TOKENS_PER_RUN
from probe.core.result import Cost, RunContext
from probe.core.snapshot import ServerSnapshot
from probe.core.step import Arrivals, Pattern
from probe.core.trace import NamedTrace, Trace
from probe.core.workload import Workload
from probe.observe.guard import GuardLimits


@dataclass(frozen=True, slots=True)
class Replay:
    """A trace and its speeds, rising; 1 is as recorded. `seconds`: length of each step; None: the whole trace."""

    trace: Trace
    speeds: tuple[float, ...] = (1.0,)
    seconds: float | None = None

    def step_s(self, speed: float) -> float:
        """Return how long the step at this speed lasts. Raises ValueError for a trace without times."""
        if self.trace.seconds is None:
            raise ValueError("the trace has no times")
        return self.seconds or self.trace.seconds / speed

    @property
    def requests(self) -> int:
        """Return about how many requests are sent, over all steps."""
        rate_rps = len(self.trace.requests) / (self.trace.seconds or 1.0)
        return sum(round(rate_rps * speed * self.step_s(speed)) for speed in self.speeds)

    @property
    def tokens(self) -> int:
        """Return the prompt and output tokens of all steps."""
        sent = (len(self.trace.due_s(speed, self.step_s(speed))) for speed in self.speeds)
        return sum(map(self.trace.tokens, sent))


# How often the guard and the budget are checked.
GUARD_S = 0.25
# The limit of requests in flight in an open loop.
_OPEN_STREAMS = 512
_POISSON = Arrivals()


@dataclass(frozen=True, slots=True)
class Budget:
    """What a run may cost at most."""

    tokens: int
    seconds: float
    over_objective_seconds: float
    tokens_name: str = TOKENS_PER_RUN.word  # or tokens_per_day, where less than a run's is left of that

    @property
    def over_objective_stop_s(self) -> float:
        """Return when to stop for over_objective_seconds: requests in flight stay late for a check or two more."""
        return max(self.over_objective_seconds - 2 * GUARD_S, self.over_objective_seconds / 2)

    def exceeded(self, cost: Cost) -> str | None:
        """Return the name of the budget that is spent, if one is."""
        if cost.tokens >= self.tokens:
            return self.tokens_name
        if cost.seconds >= self.seconds:
            return SECONDS.word
        if cost.over_objective_seconds >= self.over_objective_stop_s:
            return OVER_OBJECTIVE_SECONDS.word
        return None


@dataclass(frozen=True, slots=True)
class StepSettings:
    """The steps asked for: at fixed concurrency, at fixed rates (requests/s), or, with neither, found by a search.

    Each fixed step lasts for `seconds` or for a number of `requests`; the highest load that held is repeated for
    `confirm_s`. Rates have the pattern of `arrivals` and, if that is set, wait for answers at `max_concurrency` in
    flight. A `replay` takes the times of a trace instead. A search watches live traffic for `observe_s` first.
    """

    concurrency: tuple[int, ...] | None = None
    rates: tuple[float, ...] | None = None
    arrivals: Arrivals = _POISSON
    max_concurrency: int | None = None
    seconds: float = 15.0
    requests: int | None = None
    confirm_s: float = 0.0
    observe_s: float = 30.0
    replay: Replay | None = None

    @property
    def streams(self) -> int:
        """Return about the most requests in flight at once, which decides the number of load workers."""
        return max(self.concurrency) if self.concurrency else self.max_concurrency or _OPEN_STREAMS

    @property
    def conditions(self) -> dict[str, object]:
        """Return conditions of a capacity besides rate and workload; {} for Poisson arrivals and a closed loop."""
        pattern = Pattern.REPLAY if self.replay is not None else self.arrivals.pattern
        words = f"gamma, burstiness {self.arrivals.burstiness:g}" if pattern is Pattern.GAMMA else pattern.value
        arrivals: dict[str, object] = {} if pattern is Pattern.POISSON else {"arrivals": words}
        return arrivals if self.max_concurrency is None else {**arrivals, "max_concurrency": self.max_concurrency}


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What a capacity run measures, how, and what it may cost: as configured, or as asked for on the command line.

    `workload`: its name in the configuration; with a `trace`, the workload that sets the API. `by_stream`:
    guarded by the run's own answers alone. `server`: what is stated about it. `command`: without secrets.
    """

    target: str
    objectives: Objectives
    budget: Budget
    steps: StepSettings = StepSettings()
    workload: str = "default"
    is_guarded: bool = True  # without the guard every step runs to its end, within the budget
    by_stream: bool = False
    server: ServerLimitsConfig = field(default_factory=ServerLimitsConfig)
    load: LoadConfig | None = None
    workers: int | None = None  # None: as many as the configuration or the cores allow
    seed: int = 0
    trace: NamedTrace | None = None
    command: str | None = None
    facts: Mapping[str, str] = field(default_factory=dict)  # about the server, as stated (core/provenance.py)
    confirms: str | None = None  # the id of the run that it repeats


@dataclass(frozen=True, slots=True)
class RunJob:
    """An admitted request: the model that is measured, and the conditions that its capacity holds for."""

    request: RunRequest
    model: str
    context: RunContext
    limits: GuardLimits = field(default_factory=GuardLimits)
    provenance: Provenance | None = None


def configured_run(target: TargetConfig, objectives: Objectives, load: LoadConfig | None) -> RunRequest:
    """Return the target's capacity run as configured."""
    capacity, budget = target.capacity, target.capacity.budget
    return RunRequest(
        target=target.name,
        objectives=objectives,
        budget=Budget(budget.tokens_per_run, budget.seconds, budget.over_objective_seconds),
        steps=steps_of(capacity),
        workload=capacity.workload or target.canary.workload,
        by_stream=capacity.guard == "stream",
        server=capacity.server,
        load=load,
        facts=capacity.server.facts,
    )


def steps_of(capacity: CapacityConfig) -> StepSettings:
    """Return the configured steps."""
    return StepSettings(
        concurrency=capacity.concurrency,
        rates=capacity.rates,
        arrivals=_arrivals_of(capacity.arrivals),
        max_concurrency=capacity.max_concurrency,
        seconds=capacity.step,
        confirm_s=capacity.confirm,
        observe_s=capacity.observe,
    )


def _arrivals_of(configured: str | GammaConfig) -> Arrivals:
    if isinstance(configured, GammaConfig):
        return Arrivals(Pattern.GAMMA, burstiness=configured.burstiness)
    return Arrivals(Pattern(configured))


def hints_of(server: ServerLimitsConfig) -> Hints:
    """Return what the configuration states about the server."""
    limits = server.limits
    size = ModelSize(server.parameters, server.weight_bits, server.gpus) if server.parameters is not None else None
    return Hints(
        limits.running,
        limits.step_tokens,
        gpu=server.gpu,
        model=size,
        least_max_num_seqs=limits.least_running if limits.running is None else 1,
        flags={name: value for name, value in server.startup_flags.items() if name in unmodelled.READ},
    )


def context_of(
    server: ServerSnapshot | None,
    workload: Workload,
    objectives: Objectives,
    stated: ServerLimitsConfig,
    shape: RequestShape = PLAIN_REQUESTS,
    *,
    sending: Mapping[str, object] = MappingProxyType({}),
) -> RunContext:
    """Return the conditions that a capacity of that server holds for; `stated`: beyond what its metrics show.

    The workload has the shape of its requests, and how they are sent (`sending`), where that is not the usual one:
    other requests, another capacity.
    """
    request = {**({"request": shape.conditions} if shape.conditions else {}), **sending}
    shown = server.flags if server else {}
    return RunContext(
        workload={**_plain(asdict(workload, dict_factory=_as_json)), **request},
        objectives=_plain(asdict(objectives)),
        engine=server.engine if server else "unknown",
        version=server.version if server else "unknown",
        gpu=stated.gpu,
        flags={**stated.startup_flags, **shown},
        flag_sources={**stated.flag_sources, **dict.fromkeys(shown, "metrics")},
    )


def _as_json(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return a mapping as it is after a round trip through JSON, so that a stored context has the same fingerprint."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in pairs}


def _plain(values: Mapping[str, object]) -> dict[str, object]:
    """Drop the values that are not set."""
    return {key: value for key, value in values.items() if value is not None}
