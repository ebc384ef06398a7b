"""A capacity run: what it found, what it holds for, what it cost and why it ended."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from probe.core.snapshot import UserLoad
from probe.core.step import StepSummary


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
class Phase:
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
    users: UserLoad = field(default_factory=UserLoad)  # the load of others, as long as the run saw it

    @property
    def ended_s(self) -> float:
        """When it ended, on the wall clock: what its age counts from."""
        return self.started.timestamp() + self.cost.seconds
