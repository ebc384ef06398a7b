"""The canaries of one kind of one target: what is sent, and what they show.

In: one of TargetConfig.kinds. Out: the record of each canary, and a CanaryStatus. OnDemandCanaries sends the requests
on demand, of any configured workload.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain

from probe.client.client import Client
from probe.config.config import Config
from probe.config.targets import TargetConfig
from probe.config.time_limits import canary_limits, valid_s
from probe.config.workloads import PRESETS, WorkloadConfig
from probe.core.clock import Clock
from probe.core.failure_log import FailureGroup, Since
from probe.core.request import Outcome, RequestRecord, Traffic
from probe.core.target_status import CanaryStatus
from probe.core.workload import Workload, requests
from probe.monitor.canary import KEEP_FAILURES, KEEP_RECENT, Canary, KnownAnswer, StartupGrace
from probe.monitor.wiring import endpoint, workload
from probe.observe.server_observer import ServerObserver


class CanaryKind:
    """Sends one kind of canary, each while the server is awake."""

    def __init__(
        self,
        config: Config,
        target: TargetConfig,
        clock: Clock,
        observer: ServerObserver,
        on_record: Callable[[RequestRecord], None],
    ) -> None:
        """Take `on_record`: called with each question with a known answer."""
        self.endpoint = endpoint(target)
        self.client = Client(self.endpoint, clock, canary_limits(config, target))
        self.valid_s = valid_s(config, target)
        self._config, self._clock, self._observer = target.canary, clock, observer
        self._load = workload(target.canary.workload, config.workload(target.canary.workload))
        self.canary = Canary(
            target.name,
            target.model,
            self.client,
            requests(self._load),
            objectives=config.objectives_of(target),
            clock=clock,
            known_answer=KnownAnswer.from_target(target, self.client, clock, observer.sending, on_record),
            is_traced=config.otlp is not None,
        )
        self._startup = StartupGrace(clock, target.canary.startup_grace or 0.0)

    async def send(self) -> RequestRecord | None:
        """Send a canary. Return its record if it counts: not while the server sleeps, nor in its startup grace.

        The outcome of one during which the server fell asleep is `aborted`.
        """
        if await self._observer.is_asleep():
            return None
        async with self._observer.sending(self._load):
            record = await self.canary.measure()
            if slept := await self._observer.slept_during(record):
                record = replace(record, outcome=Outcome.ABORTED, detail="the server fell asleep")
            self._observer.add_record(record)
        if slept:
            return record
        self.canary.log_change(record)
        self.canary.add(record)
        return None if self._startup.is_starting(record) else record

    def status(self) -> CanaryStatus:
        """Return what the canaries of this kind show."""
        recent = self.canary.recent
        oldest_ns = self._clock.monotonic_ns() - int(self.valid_s * 1e9)
        shown = next((record for record in recent if record.is_up is not None), None)
        return CanaryStatus(
            workload=self._config.workload,
            model=self.canary.model,
            every_s=self._config.every,
            up=shown.is_up if shown is not None and shown.done_ns >= oldest_ns else None,
            recent=recent,
            since=self.canary.failure_log.since,
            trouble=self.canary.failure_log.trouble,
            is_starting=self._startup.is_on,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self.client.close()


def newest(kinds: Sequence[CanaryKind]) -> Sequence[RequestRecord]:
    """Return the last canaries of all kinds, newest first."""
    return _merged([kind.canary.recent for kind in kinds], KEEP_RECENT)


def newest_failures(kinds: Sequence[CanaryKind]) -> Sequence[RequestRecord]:
    """Return the last failed canaries of all kinds, newest first."""
    return _merged([kind.canary.failures for kind in kinds], KEEP_FAILURES)


def failure_groups(kinds: Sequence[CanaryKind]) -> Sequence[FailureGroup]:
    """Return the last groups of failures of all kinds, those that go on first, then the newest first."""
    groups = [kind.canary.failure_log.groups for kind in kinds]
    if len(groups) == 1:
        return groups[0]
    in_order = sorted(chain.from_iterable(groups), key=lambda group: (group.recovered_s is not None, -group.last_s))
    return in_order[:KEEP_FAILURES]


def since(statuses: Iterable[CanaryStatus], *, is_up: bool | None) -> Since | None:
    """Return since when the target is up or down: up since its last kind is, down since its first kind is."""
    known = [each.since for each in statuses if each.up is is_up and each.since is not None]
    return (max if is_up else min)(known, key=lambda each: each.at_s, default=None)


def _merged(records: Sequence[Sequence[RequestRecord]], most: int) -> Sequence[RequestRecord]:
    if len(records) == 1:
        return records[0]
    return sorted(chain.from_iterable(records), key=lambda record: record.done_ns, reverse=True)[:most]


class OnDemandCanaries:
    """The canaries by workload, each created when its workload is first asked for."""

    def __init__(self, config: Config, target: TargetConfig, client: Client, clock: Clock) -> None:
        self._target = target
        self._objectives = config.objectives_of(target)
        self._client = client
        self._clock = clock
        self._workloads = _workloads(config)
        self._canaries: dict[str, Canary] = {}

    def set_workloads(self, config: Config) -> None:
        """Take the workloads of a new configuration; a canary with an unchanged workload stays."""
        workloads = _workloads(config)
        self._canaries = {
            name: canary for name, canary in self._canaries.items() if workloads.get(name) == self._workloads[name]
        }
        self._workloads = workloads

    def workload(self, name: str | None) -> Workload:
        """Return a configured workload; None: the target's canary workload. Raise KeyError for an unknown name."""
        name = self._target.canary.workload if name is None else name
        return workload(name, self._workloads[name])

    def for_workload(self, load: Workload) -> Canary:
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
    return {name: config.workload(name) for name in ("default", *PRESETS, *config.workloads)}
