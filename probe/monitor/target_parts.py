"""Builds the parts of a target's monitor from its configuration and its context."""

from collections.abc import Callable

from probe.capacity.run.admission import AdmissionCheck
from probe.config.targets import TargetConfig
from probe.core.clock import Clock
from probe.core.objectives import Objectives
from probe.monitor.target_context import MeasurementSink, TargetContext
from probe.monitor.wiring import scraper_of
from probe.observe.cross_checks import CrossChecker
from probe.observe.server_observer import ServerObserver
from probe.scrape.scraper import Scraper


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
    checker = CrossChecker(context.state, objectives, target.capacity.server.max_num_seqs)
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
