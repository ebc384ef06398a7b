"""A target as pages, API and terminal show it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from probe.core.objectives import Objectives
from probe.core.request import RequestRecord
from probe.core.result import CapacityResult
from probe.core.snapshot import CrossChecks, GpuSnapshot, ServerSnapshot, UserLoad


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
    checks: CrossChecks = field(default_factory=CrossChecks)
    users: UserLoad | None = None  # over the last minutes
    passive: bool = False  # it gets no requests
    capacity: CapacityResult | None = None
    forecast: CapacityResult | None = None
    measured: CapacityResult | None = None  # the last that load has measured, before or with `capacity`
    capacity_state: str | None = None  # "running", or the reason why the last run did not start
    discovery: str | None = None  # what found it
    labels: Mapping[str, str] = field(default_factory=dict)  # of its pod, or of the list it stands in
