"""Result of a capacity run: capacity, conditions, cost, and why the run ended."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Self

from probe.core.fitted_server import FittedServer
from probe.core.provenance import EXPECTED, Provenance
from probe.core.snapshot import UserLoad
from probe.core.step import StepSummary


@dataclass(frozen=True, slots=True)
class Roofline:
    """A server compared with the limits of its GPUs (capacity/model/roofline.py). Ratio 1 is the limit; None: unknown.

    `step_s`: duration of a step with one request. `floor_s`: the part that reading the weights takes at least; their
    ratio is `decode_ratio`. `prefill_ratio`: of peak FLOP/s, in a step full of prompts. `bandwidth_ratio`,
    `flops_ratio`: in use by vLLM's own estimates, over the ten seconds with the most of each.
    """

    gpu: str
    sure: bool  # whether the GPU's maker publishes these limits
    step_s: float | None = None
    floor_s: float | None = None
    decode_ratio: float | None = None
    prefill_ratio: float | None = None
    bandwidth_ratio: float | None = None
    flops_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class PriorForecast:
    """A forecast from before a run, of the same setup, without correction. `half_width`: of its interval, relative."""

    requests_per_second: float
    half_width: float


@dataclass(frozen=True, slots=True)
class Correction:
    """What a forecast took from earlier ones that runs with load have judged (capacity/trend/track_record.py).

    `judged`: how many of them. `ratio`: by how much the forecast was raised (above 0) or lowered.
    """

    judged: int
    ratio: float
    uncorrected: PriorForecast


@dataclass(frozen=True, slots=True)
class Capacity:
    """The knee as a rate of all requests, user and probe traffic; None, with the `reason`, if none was found.

    `upper` is None if no step broke an objective, if the load of users is unknown, or if max_num_seqs is unknown and
    may be what limits the server: the capacity is then a lower bound. `knee_concurrency`: probe requests in flight at
    the knee of a closed loop; None too where nothing broke.
    """

    mode: str  # "empirical": from load steps; "forecast": from a model; "verified": from both
    requests_per_second: float | None = None
    lower: float | None = None
    upper: float | None = None
    output_tokens_per_second: float | None = None
    knee_concurrency: int | None = None
    limiting: str | None = None
    bottleneck: str | None = None
    reason: str | None = None
    advice: str | None = None  # how to relieve the bottleneck, or to find a knee
    learnt_from: tuple[float, float] | None = None  # range of loads, in requests/s, that a forecast is based on
    bottleneck_gain: float | None = None  # relative gain without it, or at half its cost (capacity/model/bottleneck.py)
    roofline: Roofline | None = None
    prefill_tokens_per_second: float | None = None  # of one engine in steps full of prompts, by the step cost model
    correction: Correction | None = None
    fitted_server: FittedServer | None = None  # the simulated copy that a forecast or verified capacity is from

    @property
    def is_lower_bound(self) -> bool:
        """Return whether the server takes at least this load, and perhaps more."""
        return self.lower is not None and self.upper is None

    def with_note(self, note: str) -> Self:
        """Return the capacity with a sentence before its others; unchanged where there is no capacity."""
        if self.requests_per_second is None:
            return self
        return replace(self, reason="; ".join(filter(None, (note, self.reason))))


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a run for the server: probe requests, their prompt and output tokens, and seconds until the last ended.

    Computing the result may take longer, but costs the server nothing.
    """

    requests: int
    tokens: int
    seconds: float
    over_objective_seconds: float


@dataclass(frozen=True, slots=True)
class Stopped:
    """Why a capacity run ended: done, guard, budget, interrupt or error, with the reason."""

    by: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Phase:
    """The current phase of a run, for display. `seconds`: its approximate duration; None: unknown."""

    text: str
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class RunProgress:
    """A capacity run under way: when it began (wall time, s), its current phase, and the steps that ended."""

    started_s: float
    phase: str
    steps: Sequence[StepSummary] = ()


@dataclass(frozen=True, slots=True)
class RunContext:
    """The conditions of a capacity. It is not valid for another engine, GPU, workload or objective."""

    workload: Mapping[str, object]  # at least its "name"
    objectives: Mapping[str, object]
    engine: str = "unknown"
    version: str = "unknown"
    gpu: str | None = None
    flags: Mapping[str, str] = field(default_factory=dict)  # the server's known flags
    flag_sources: Mapping[str, str] = field(default_factory=dict)  # by flag: "metrics", or as in config/capacity.py

    def __post_init__(self) -> None:
        """Raise ValueError for a workload without a name: a stored result or a file may be without."""
        if not isinstance(self.workload.get("name"), str):
            raise ValueError("expected a workload with a name")  # noqa: TRY004 - of a value that was read


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
    confirms: str | None = None  # id of the run that this one repeats because its result was low
    users: UserLoad = field(default_factory=UserLoad)  # user traffic during the run
    first_failure: str | None = None  # outcome and words of the first request that failed, on one line
    prior_forecast: PriorForecast | None = None
    provenance: Provenance | None = None  # None: written by a version that did not note it

    @property
    def missing_facts(self) -> tuple[str, ...]:
        """Return the facts about the server that are missing in the result; none for a result without provenance."""
        if self.provenance is None:
            return ()
        known = {**self.context.flags, **self.provenance.facts} | ({"gpu": ""} if self.context.gpu is not None else {})
        return tuple(name for name in EXPECTED if name not in known)

    @property
    def ended_s(self) -> float:
        """Return the wall time of the run's end."""
        return self.started.timestamp() + self.cost.seconds
