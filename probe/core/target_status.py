"""State of a target for pages, API and terminal."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from probe.core.canary_history import CanaryHistory
from probe.core.failure_log import FailureGroup, Since, Trouble
from probe.core.latency_day import LatencyDay
from probe.core.objectives import Objectives
from probe.core.request import RequestRecord
from probe.core.result import CapacityResult, RunProgress
from probe.core.snapshot import CrossChecks, GpuSnapshot, ServerSnapshot, UserLoad


def worst(ups: Iterable[bool | None]) -> bool | None:
    """Return whether all of the known ones are up; None if none is known."""
    known = [is_up for is_up in ups if is_up is not None]
    return all(known) if known else None


@dataclass(frozen=True, slots=True)
class CanaryStatus:
    """What one kind of canary of a target shows. `since`: since when `up` is as it is."""

    workload: str
    model: str
    every_s: float
    up: bool | None  # None until the first canary has ended, and once the newest is too old
    recent: Sequence[RequestRecord] = ()  # newest first
    since: Since | None = None
    trouble: Trouble | None = None  # failures that go on
    is_starting: bool = False  # its failures do not count yet: the server has time to start


@dataclass(frozen=True, slots=True)
class TargetStatus:
    """State of one target, as the status page, the API and the terminal show it."""

    name: str
    base_url: str
    model: str
    objectives: Objectives
    up: bool | None  # whether the newest canary of each kind succeeded; None until the first has ended
    canaries: Sequence[CanaryStatus] = ()  # by kind, in the configuration's order
    recent: Sequence[RequestRecord] = ()  # newest first
    failures: Sequence[RequestRecord] = ()  # newest first, kept longer than successes
    failure_groups: Sequence[FailureGroup] = ()  # newest first
    since: Since | None = None  # since when `up` has been as it is
    trouble: Trouble | None = None  # of its only kind of canary; several kinds have their own
    history: CanaryHistory | None = None
    latencies: LatencyDay | None = None  # of the last 24 hours
    server: ServerSnapshot | None = None
    server_error: str | None = None
    last_server: ServerSnapshot | None = None  # the newest one, also while the server's page cannot be read
    last_checks: CrossChecks | None = None  # as of `last_server`
    asleep_since_s: float | None = None  # wall time of the first scrape that showed the server asleep; None: awake
    gpus: GpuSnapshot | None = None
    gpu_error: str | None = None
    checks: CrossChecks = field(default_factory=CrossChecks)
    users: UserLoad | None = None  # over the last few minutes
    passive: bool = False  # gets no requests
    capacity: CapacityResult | None = None
    forecast: CapacityResult | None = None
    for_users: CapacityResult | None = None  # the last forecast for what users send, where the other is not
    measured: CapacityResult | None = None  # the run with load that says what it takes, not later than `capacity`
    run: RunProgress | None = None  # the capacity run under way
    next_run_s: float | None = None  # wall time of the next scheduled capacity run, and of the next forecast
    next_forecast_s: float | None = None
    capacity_state: str | None = None  # "running", or why the last run did not start
    discovery: str | None = None  # the discovery that found it
    labels: Mapping[str, str] = field(default_factory=dict)  # of its pod or target group


@dataclass(frozen=True, slots=True)
class OwnClock:
    """How late Kneewatch's event loop, which timestamps the answers, woke up in the last five minutes.

    `late_s`: exceeded in 1 % of the time; `most_s`: at most.
    """

    host: str
    late_s: float
    most_s: float


@dataclass(frozen=True, slots=True)
class FiringAlert:
    """One alert that fires. `since_s`: when its condition began to hold (wall time); None: unknown."""

    name: str
    severity: str
    target: str | None
    since_s: float | None


@dataclass(frozen=True, slots=True)
class FiringAlerts:
    """An answer of Prometheus. With an `error`, which alerts fire is unknown."""

    alerts: Sequence[FiringAlert]
    at_s: float
    error: str | None = None
