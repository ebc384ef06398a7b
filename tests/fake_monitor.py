"""A monitor for tests of the pages: what it knows is given to it, what it is asked is kept."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from example_records import record, status
from prometheus_client import CollectorRegistry

from exporters.registry import MetricsPage
from probe.core.request import RequestRecord, Traffic
from probe.core.result import CapacityResult
from probe.core.target_status import FiringAlerts, OwnClock, TargetStatus


@dataclass
class FakeMonitor:
    shown: Sequence[TargetStatus] = (status(),)
    known: Sequence[CapacityResult] = ()
    is_ready: bool = True
    text: str = "targets: []\n"
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    answers: RequestRecord = field(default_factory=lambda: record(traffic=Traffic.ONDEMAND))
    refusal: str | None = None
    workloads: Sequence[str] = ("short",)
    allowed_hosts: Sequence[str] = ()
    problems: Mapping[str, str] = field(default_factory=dict)
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    reloads: int = 0
    alerts: FiringAlerts | None = None
    clock: OwnClock | None = None

    @property
    def page(self) -> MetricsPage:
        return MetricsPage(self.registry)

    def statuses(self) -> Sequence[TargetStatus]:
        return self.shown

    def results(self, target: str | None = None) -> Sequence[CapacityResult]:
        return [r for r in self.known if target in (None, r.target)]

    def result_of(self, result_id: str) -> CapacityResult | None:
        return next((r for r in self.known if r.id == result_id), None)

    def discovery_problems(self) -> Mapping[str, str]:
        return self.problems

    def firing_alerts(self) -> FiringAlerts | None:
        return self.alerts

    def own_clock(self) -> OwnClock | None:
        return self.clock

    def config_text(self) -> str:
        return self.text

    async def on_demand(self, target: str, workload: str | None) -> RequestRecord:
        if target not in [one.name for one in self.shown] or (workload is not None and workload not in self.workloads):
            raise KeyError(workload or target)
        self.asked.append((target, workload))
        return replace(self.answers, target=target)

    async def reload(self) -> str | None:
        self.reloads += 1
        return self.refusal
