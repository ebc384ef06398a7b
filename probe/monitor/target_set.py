"""The monitors of one process, and the loop that makes them match the desired targets.

In: the configuration and the discovered servers (desired_targets.py). Out: one TargetMonitor for each desired target,
its tasks scheduled, and the discoveries' series.
"""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import structlog

from probe.capacity.run.admission import firing_pages
from probe.config.config import Config
from probe.core.clock import Clock
from probe.core.target_status import TargetStatus
from probe.discovery.types import DiscoveredServer
from probe.monitor.desired_targets import DesiredTarget, DesiredTargets, Shard
from probe.monitor.gpu_places import Exporters, GpuPlace, place_of
from probe.monitor.gpu_readers import GpuReaders
from probe.monitor.metrics_sink import MetricsSink
from probe.monitor.target_context import TargetContext
from probe.monitor.target_monitor import TargetMonitor
from probe.monitor.target_tasks import TargetTasks
from probe.observe.server_state import ServerState

_log = structlog.get_logger()


class TargetSet:
    """The monitored targets. Only one `reconcile` may run at a time."""

    def __init__(
        self, config: Config, shard: Shard | None, *, clock: Clock, sink: MetricsSink, tasks: TargetTasks
    ) -> None:
        """Take `shard`: the share of the targets to monitor; None: all."""
        self._clock, self._sink, self._tasks = clock, sink, tasks
        self.monitors: dict[str, TargetMonitor] = {}
        self._desired = DesiredTargets(config, shard)
        self._current: dict[str, DesiredTarget] = {}  # what each monitor was built from
        self._server_states: dict[str, ServerState] = defaultdict(ServerState)  # by page: two targets may share one
        self._pages: dict[str, str] = {}  # by target
        self._sharing: dict[str, set[str]] = defaultdict(set)  # the targets by page
        self._readers = GpuReaders(clock)
        self.exporters = Exporters()
        self._is_closing = False
        self._poll_problems: dict[str, str] = {}  # by discovery: why it cannot be asked
        self._reported: dict[str, str] = {}  # by discovery: the problem that was logged

    # What changes the desired targets. `reconcile` puts it into effect.

    def configure(self, config: Config) -> None:
        """Replace the configuration."""
        self._desired.configure(config)
        for name in config.discoveries:
            self._sink.discovery.publish_found(name, self._desired.count(name))

    def discovered(self, discovery: str, servers: tuple[DiscoveredServer, ...]) -> None:
        """Replace the servers of a discovery."""
        self._desired.discovered(discovery, servers)
        self._sink.discovery.publish_found(discovery, len(servers))

    def discovery_problem(self, discovery: str, problem: str | None) -> None:
        """Report why a discovery cannot be asked; None: it can be asked again."""
        if problem is None:
            self._poll_problems.pop(discovery, None)
        else:
            self._poll_problems[discovery] = problem
        self._report(discovery)

    # What takes effect.

    def open_configured(self) -> None:
        """Open the monitors of the targets that are known at startup."""
        desired = list(self._desired.by_name().values())
        for i, target in enumerate(desired):
            self._add(target, i / len(desired))

    async def reconcile(self) -> None:
        """Close the monitors that are no longer desired or have another spec, then open the missing ones.

        There may be a thousand of each, so the event loop runs other work between any two: load workers that hear
        nothing for two seconds end their load, whichever target it is for.
        """
        desired = self._desired.by_name()
        kept = {name for name, had in self._current.items() if name in desired and desired[name].spec == had.spec}
        for name in kept:
            self._update(desired[name])
        self._log_replaced(desired)
        async with asyncio.TaskGroup() as removals:
            for name in [name for name in self._current if name not in kept]:
                removals.create_task(self._remove(name))
                await asyncio.sleep(0)
        new = [target for name, target in desired.items() if name not in self.monitors]
        for i, target in enumerate(new):
            await asyncio.sleep(0)
            if self._is_closing:
                return  # nothing would close it
            is_added = False
            with _logged("a target cannot be watched", target.name):
                self._add(target, i / len(new))
                is_added = True
            if not is_added:
                await self._remove(target.name)
        self.monitors = {name: self.monitors[name] for name in desired if name in self.monitors}
        for name in self._desired.config.discoveries:
            self._report(name)

    def stop_adding(self) -> None:
        """Open no more monitors: the process is shutting down."""
        self._is_closing = True

    async def stop_runs(self, why: str) -> None:
        """Stop the capacity run of each target, and wait until it has been reported."""
        await asyncio.gather(*(monitor.stop_run(why) for monitor in self.monitors.values()))

    async def close(self) -> None:
        """Close every monitor's connections, and the GPU readers."""
        await asyncio.gather(*(monitor.close() for monitor in self.monitors.values()), self._readers.close())

    # What is known.

    def statuses(self) -> Sequence[TargetStatus]:
        """Return the status of each target, in the configuration's order."""
        return [
            replace(monitor.status(), discovery=self._current[name].discovery, labels=self._current[name].labels)
            for name, monitor in self.monitors.items()
        ]

    def discovery_problems(self) -> Mapping[str, str]:
        """Return why each failing discovery cannot be asked, or what it leaves out."""
        return {name: self._reported[name] for name in self._desired.config.discoveries if name in self._reported}

    def servers(self) -> set[str]:
        """Return the servers of all targets, as their locks name them."""
        return {monitor.server for monitor in self.monitors.values()}

    def set_other_probers(self, servers: Collection[str]) -> None:
        """Report which servers other probers load now, or have loaded a moment ago."""
        # A run that has the lock has the server for itself: the prober before it has ended.
        own = {monitor.server for monitor in self.monitors.values() if monitor.is_measuring}
        for monitor in self.monitors.values():
            monitor.set_other_prober(loading=monitor.server in servers and monitor.server not in own)

    def _log_replaced(self, desired: Mapping[str, DesiredTarget]) -> None:
        for name, had in self._current.items():
            if name in desired and (changed := desired[name].spec.changed_fields(had.spec)):
                _log.info("a target's monitor is replaced", target=name, changed=changed)

    def _update(self, target: DesiredTarget) -> None:
        """Update a monitor that stays with what is not in its spec."""
        name = target.name
        monitor, had = self.monitors[name], self._current[name]
        self._current[name] = target
        monitor.follow_replicas(target.replicas)
        monitor.inhibit_load(target.inhibited_by)
        monitor.set_workloads(self._desired.config)
        if (target.discovery, target.labels) != (had.discovery, had.labels):
            self._describe(target)

    def _add(self, target: DesiredTarget, position: float) -> None:
        """Open a monitor. `position`: its place among the new ones, from 0 to 1."""
        config, name, page = self._desired.config, target.name, target.config.metrics_page
        context = TargetContext(
            firing_pages=firing_pages(config, name),
            tokens_since=partial(self._sink.tokens_since, name),
            on_load_end=partial(self._forget_user_rates, target.config.server),
            state=self._server_states[page],
            read_gpus=self._readers.reader(target.config, config.prometheus, partial(self._gpu_place, name)),
        )
        monitor = TargetMonitor(config, target.config, self._clock, self._sink, context)
        self.monitors[name], self._current[name], self._pages[name] = monitor, target, page
        monitor.follow_replicas(target.replicas)
        monitor.inhibit_load(target.inhibited_by)
        for known in self._sink.add(target.config, monitor.canary_models, monitor.objectives, monitor.valid_s):
            monitor.restore(known)
        self._sharing[page].add(name)
        self._sink.health.publish_shared_page(self._sharing[page])
        self._describe(target)
        self._tasks.plan(monitor, config, position, is_found=target.discovery is not None)

    def _gpu_place(self, name: str) -> GpuPlace:
        """Return where a target's GPUs are now."""
        target = self._current[name]
        if target.found is None:
            return GpuPlace()
        return place_of(target.config.gpu, target.found, self.exporters, shares_host=target.shares_host)

    def _describe(self, target: DesiredTarget) -> None:
        if target.discovery is not None:
            self._sink.discovery.describe(target.name, target.discovery, target.labels)

    async def _remove(self, name: str) -> None:
        with _logged("closing a removed target failed", name):
            await self._close(name)

    async def _close(self, name: str) -> None:
        """End all work for a target, and remove its series."""
        monitor = self.monitors.pop(name, None)
        self._current.pop(name, None)
        if monitor is None:
            return
        try:
            await monitor.stop_run("the target is not watched any more")
            await self._tasks.drop(name)
            await monitor.close()
        finally:
            self._sink.forget(name)
            page = self._pages.pop(name)
            self._sharing[page].discard(name)
            self._sink.health.publish_shared_page(self._sharing[page])
            if not self._sharing[page]:
                del self._sharing[page]
                self._server_states.pop(page, None)

    def _forget_user_rates(self, server: str) -> None:
        for monitor in self.monitors.values():
            if monitor.server == server:
                monitor.forget_user_rates()

    def _report(self, discovery: str) -> None:
        """Set a discovery's series, and log its problem when that changes."""
        problem = self._poll_problems.get(discovery) or self._desired.left_out.get(discovery)
        self._sink.discovery.publish_failing(discovery, failing=problem is not None)
        if problem == self._reported.get(discovery):
            return
        if problem is None:
            del self._reported[discovery]
            _log.info("discovery works again", discovery=discovery)
        else:
            self._reported[discovery] = problem
            _log.warning("discovery", discovery=discovery, problem=problem)


@contextmanager
def _logged(failure: str, target: str) -> Iterator[None]:
    """Log whatever breaks inside: one broken target must not keep others from being added or removed."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - see above
        _log.error(failure, target=target, exc_info=error)
