"""The canaries that send one target's requests on demand: one for each workload that was asked for."""

from probe.client.client import Client
from probe.config.config import Config
from probe.config.targets import TargetConfig
from probe.config.workloads import WorkloadConfig
from probe.core.clock import Clock
from probe.core.request import Traffic
from probe.core.workload import Workload, requests
from probe.monitor.canary import Canary
from probe.monitor.wiring import workload


class OnDemandCanaries:
    """The canaries by workload, each created when its workload is first asked for."""

    def __init__(self, config: Config, target: TargetConfig, client: Client, clock: Clock) -> None:
        self._target = target
        self._objectives = config.objectives_of(target)
        self._client = client
        self._clock = clock
        self._workloads = _workloads(config)
        self._canaries: dict[str, Canary] = {}

    def configure(self, config: Config) -> None:
        """Replace the workloads by those of a new configuration; a canary whose workload is unchanged stays."""
        workloads = _workloads(config)
        self._canaries = {
            name: canary for name, canary in self._canaries.items() if workloads.get(name) == self._workloads[name]
        }
        self._workloads = workloads

    def workload(self, name: str | None) -> Workload:
        """Return a configured workload; None: the target's canary workload. Raise KeyError for an unknown name."""
        name = self._target.canary.workload if name is None else name
        return workload(name, self._workloads[name])

    def canary(self, load: Workload) -> Canary:
        """Return the canary of one of these workloads."""
        if load.name not in self._canaries:
            self._canaries[load.name] = Canary(
                self._target.name,
                self._target.model,
                self._client,
                requests(load),
                objectives=self._objectives,
                clock=self._clock,
                traffic=Traffic.ONDEMAND,
            )
        return self._canaries[load.name]


def _workloads(config: Config) -> dict[str, WorkloadConfig]:
    return {name: config.workload(name) for name in ("default", *config.workloads)}
