"""The targets that this process should monitor: configured or discovered, and in its shard.

In: the configuration, and the servers that each discovery finds. Out: `DesiredTargets.by_name`.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from pydantic import BaseModel

from probe.config.capacity import POD
from probe.config.config import Config, LeaseConfig, LoadConfig
from probe.config.gpu import GpuConfig
from probe.config.prometheus import PrometheusConfig
from probe.config.targets import TargetConfig, TemplateConfig
from probe.config.workloads import WorkloadConfig
from probe.core.objectives import Objectives
from probe.discovery.types import DiscoveredServer
from probe.monitor.startup_flags import with_facts, with_flags
from probe.monitor.wiring import engine_of
from probe.scrape import engines

# Of llm-d, and of NVIDIA Dynamo's operator.
_ROLE_LABELS = ("llm-d.ai/role", "nvidia.com/dynamo-sub-component-type")


@dataclass(frozen=True, slots=True)
class Shard:
    """One of several Kneewatch processes that share the targets; `index` counts from 0."""

    index: int
    total: int

    def has(self, target: str) -> bool:
        """Return whether the target is in this shard.

        Rendezvous hashing: one more shard takes its share of the targets and moves no others. Thaler and Ravishankar,
        "A name-based mapping scheme for rendezvous", 1996.
        """
        return self.index == max(range(self.total), key=lambda index: _weight(f"{index}/{target}"))


@dataclass(frozen=True, slots=True)
class WatchSpec:
    """All configuration that a target's monitor is built from. A monitor is replaced when its spec changes."""

    target: TargetConfig
    objectives: Objectives
    canary_workloads: tuple[WorkloadConfig, ...]  # by kind of canary
    capacity_workload: WorkloadConfig
    prometheus: PrometheusConfig | None
    lock_dir: Path | None
    lease: LeaseConfig | None
    load: LoadConfig | None

    def changed_fields(self, before: "WatchSpec") -> list[str]:
        """Return the names of the fields that differ, such as "target.canary.every". Never their values: some are
        secrets.
        """
        pairs = ((each.name, getattr(before, each.name), getattr(self, each.name)) for each in fields(self))
        return [name for field_name, old, new in pairs for name in _changed(field_name, old, new)]


@dataclass(frozen=True, slots=True)
class DesiredTarget:
    """A target to monitor.

    `discovery`: the name of the discovery that found it. `inhibited_by`: why no capacity run may start now.
    `replicas`: the pages of the replicas that `metrics_discovery` has found; None: not known yet.
    `found`: the server as it was discovered. `shares_host`: others of its discovery have the same host.
    """

    spec: WatchSpec
    discovery: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    inhibited_by: str | None = None
    replicas: tuple[str, ...] | None = None
    found: DiscoveredServer | None = None
    shares_host: bool = False

    @property
    def config(self) -> TargetConfig:
        return self.spec.target

    @property
    def name(self) -> str:
        return self.spec.target.name


class DesiredTargets:
    """The desired targets of one process."""

    def __init__(self, config: Config, shard: Shard | None) -> None:
        self.config = config
        self._shard = shard
        self.left_out: dict[str, str] = {}  # by discovery: why a discovered server cannot be monitored
        self._servers: dict[str, tuple[DiscoveredServer, ...]] = {}  # by discovery

    def configure(self, config: Config) -> None:
        """Replace the configuration. Servers are kept while their discovery is unchanged.

        When another discovery takes over a name, the servers of the one before are dropped at once: only the new one
        can say whether they may be monitored and sent the template's `api_key`, and it may never answer.
        """
        before = self.config.discoveries
        self.config = config
        same = {name for name, found in config.discoveries.items() if found == before.get(name)}
        self._servers = {name: servers for name, servers in self._servers.items() if name in same}

    def discovered(self, discovery: str, servers: tuple[DiscoveredServer, ...]) -> None:
        """Replace the servers of a discovery."""
        self._servers[discovery] = servers

    def count(self, discovery: str) -> int:
        """Return how many servers the discovery has found, in all shards."""
        return len(self._servers.get(discovery, ()))

    def by_name(self) -> Mapping[str, DesiredTarget]:
        """Return the targets to monitor, in the configuration's order. Set `left_out`."""
        self.left_out = {}
        return {each.name: each for each in self._all() if self._shard is None or self._shard.has(each.name)}

    def _all(self) -> Iterator[DesiredTarget]:
        for target in self.config.targets:
            if isinstance(target, TemplateConfig):
                yield from self._of_template(target)
            else:
                yield self._located(target)

    def _located(self, target: TargetConfig) -> DesiredTarget:
        servers = self._servers.get(target.name)
        if servers is None:
            return DesiredTarget(self._spec(target))
        why = next((words for server in servers if (words := _inhibited_by(server)) is not None), None)
        return DesiredTarget(self._spec(target), inhibited_by=why, replicas=replica_pages(target, servers))

    def _of_template(self, template: TemplateConfig) -> Iterator[DesiredTarget]:
        servers = self._servers.get(template.name, ())
        on_host = Counter(_host(server) for server in servers)
        for server in servers:
            try:
                target = template.target(server.id, server.base_url)
            except ValueError:
                self.left_out[template.name] = f"{server.id} has no address that can be watched"
                continue
            target = _with_role(target, server.labels)
            target = with_facts(with_flags(target, server.flags, POD), server.facts)
            if _is_gateway(template, server):
                # Load on the Service would be load on all of its pods, and each pod has a lock of its own. It has no
                # GPU of its own either.
                target = _without_capacity(target).model_copy(update={"gpu": GpuConfig()})
            yield DesiredTarget(
                self._spec(target),
                template.name,
                server.labels,
                _inhibited_by(server),
                found=server,
                shares_host=on_host[_host(server)] > 1,
            )

    def _spec(self, target: TargetConfig) -> WatchSpec:
        if target.known_role is not None:
            # One half of a request has no rate at which the whole holds its objectives.
            target = _without_capacity(target)
        config, kinds = self.config, target.kinds
        return WatchSpec(
            target=target,
            objectives=config.objectives_of(target),
            canary_workloads=tuple(config.workload(kind.canary.workload) for kind in kinds),
            capacity_workload=config.workload(target.capacity.workload or kinds[0].canary.workload),
            prometheus=config.prometheus,
            lock_dir=config.lock_dir,
            lease=config.lease,
            load=config.load,
        )


def _changed(name: str, old: object, new: object) -> Iterator[str]:
    """Yield the dotted names of the fields below `name` that differ."""
    if isinstance(old, BaseModel) and type(old) is type(new):
        for key in type(old).model_fields:
            yield from _changed(f"{name}.{key}", getattr(old, key), getattr(new, key))
    elif isinstance(old, tuple) and isinstance(new, tuple) and len(old) == len(new):
        for i, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _changed(f"{name}[{i}]", before, after)
    elif old != new:
        yield name


def _inhibited_by(server: DiscoveredServer) -> str | None:
    """Return why no capacity run may start on the server now, or None."""
    if server.is_rolling_out:
        known = server.revision is not None
        return "a rollout is under way" if known else "servers of its Service come or go"
    return None if server.is_ready else "the server is not ready"


def _is_gateway(template: TemplateConfig, server: DiscoveredServer) -> bool:
    pods = template.discover.kubernetes
    return pods is not None and pods.service is not None and server.id == pods.service.partition(":")[0]


def _with_role(target: TargetConfig, labels: Mapping[str, str]) -> TargetConfig:
    """Return the target with the role that its pod's labels state, where none is configured."""
    stated = next((labels[name] for name in _ROLE_LABELS if labels.get(name) in ("prefill", "decode")), None)
    return target if target.role or stated is None else target.model_copy(update={"role": stated})


def _without_capacity(target: TargetConfig) -> TargetConfig:
    return target.model_copy(update={"capacity": target.capacity.model_copy(update={"mode": "off"})})


def _weight(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def replica_pages(target: TargetConfig, servers: Iterable[DiscoveredServer]) -> tuple[str, ...]:
    """Return the address of each replica's metrics page."""
    found = target.metrics_discovery
    if found is not None and found.metrics_path is not None:
        return tuple(urljoin(server.base_url, found.metrics_path) for server in servers)
    return tuple(f"{server.base_url}{engines.path(engine_of(target))}" for server in servers)


def _host(server: DiscoveredServer) -> str | None:
    """Return the host, None for an address that cannot be one."""
    with suppress(ValueError):
        return urlsplit(server.base_url).hostname
    return None
