"""What a target's monitor gets besides its configuration, where its measurements go, and the parts made of both."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from probe.capacity.run.admission import AdmissionCheck
from probe.config.targets import TargetConfig
from probe.core.clock import Clock
from probe.core.objectives import Objectives
from probe.core.request import RequestRecord
from probe.core.result import CapacityResult
from probe.monitor.capacity_runs import RunSink
from probe.monitor.wiring import scraper_of
from probe.observe.cross_checks import CrossChecker
from probe.observe.server_observer import GpuReader, ScrapeSink, ServerObserver
from probe.observe.server_state import ServerState
from probe.scrape.scraper import Scraper


def _none_spent(_: float) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class TargetContext:
    """Alerts, spent tokens and GPUs of one target, and the state it shares with other targets.

    `firing_pages` returns the paging alerts that fire for the target; None: there is no Prometheus to ask.
    `tokens_since` returns the tokens of the target's runs that began at a wall time (s) or later; None: unknown.
    `on_load_end` is called after each capacity run: other targets may share the server; None: no other target does.
    `state` is shared by the targets with the same metrics page.
    """

    firing_pages: Callable[[], Awaitable[list[str]]] | None = None
    tokens_since: Callable[[float], int | None] = _none_spent
    on_load_end: Callable[[], None] | None = None
    state: ServerState = field(default_factory=ServerState)
    read_gpus: GpuReader | None = None


class MeasurementSink(ScrapeSink, RunSink, Protocol):
    """Receives a target's measurements, for exporters and store."""

    def record(self, record: RequestRecord) -> None:
        """Take a request that has ended."""

    def corrected(self, forecast: CapacityResult) -> CapacityResult:
        """Return a forecast corrected by what runs have shown of earlier ones."""

    def forecast(self, result: CapacityResult) -> None:
        """Take a forecast, or the reason why there is none."""

    def forecast_for_users(self, result: CapacityResult) -> None:
        """Take a forecast for the users' requests, in addition to the one for the workload of the target's capacity."""


def new_scraper(target: TargetConfig, clock: Clock) -> Scraper:
    """Return the scraper of the target's server."""
    return scraper_of(target, clock, min(target.scrape, 3.0))


def new_observer(
    target: TargetConfig,
    objectives: Objectives,
    clock: Clock,
    *,
    scraper: Scraper,
    sink: MeasurementSink,
    context: TargetContext,
) -> ServerObserver:
    """Return the observer of the target's server and GPUs."""
    checker = CrossChecker(context.state, objectives, target.capacity.server.limits.running)
    return ServerObserver(
        target.name,
        scraper,
        clock,
        sink,
        state=context.state,
        cross_checker=checker,
        read_gpus=context.read_gpus,
    )


def new_admission_check(
    target: TargetConfig,
    objectives: Objectives,
    clock: Clock,
    context: TargetContext,
    lacking_workload: Callable[[], str | None],
) -> AdmissionCheck:
    """Return the check before each capacity run of the target."""
    return AdmissionCheck(
        target.capacity,
        objectives,
        clock,
        context.state,
        firing_pages=context.firing_pages,
        spent=context.tokens_since,
        lacking_workload=lacking_workload,
    )
