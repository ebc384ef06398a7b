"""Which targets there are now: those of the configuration and those that were found, as far as they are of our shard.

In: the configuration, and what each discovery says as it says it. Out: `wanted`, everything that is to be watched.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from probe.config.models import Config, TargetConfig, TemplateConfig
from probe.discovery.types import DiscoveredServer


@dataclass(frozen=True, slots=True)
class Shard:
    """One of several Kneewatches that share the targets; `index` from 0."""

    index: int
    total: int

    def has(self, target: str) -> bool:
        """Whether a target is its own. Rendezvous hashing: with one shard more, only those move that are its share.

        Thaler and Ravishankar, "A name-based mapping scheme for rendezvous", 1996.
        """
        return self.index == max(range(self.total), key=lambda index: _weight(f"{index}/{target}"))


@dataclass(frozen=True, slots=True)
class DesiredTarget:
    """A target that is to be watched.

    `terms`: all that its watch is made of; while they are equal, it goes on as it is. `hold`: why no step-up load may
    begin now. `discovery`: what found it.
    """

    config: TargetConfig
    terms: tuple[object, ...]
    discovery: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    hold: str | None = None


class TargetSet:
    """The targets of one process."""

    def __init__(self, config: Config, shard: Shard | None) -> None:
        self._config = config
        self._shard = shard
        self.left_out: dict[str, str] = {}  # by discovery: why something that it found cannot be watched
        self._found: dict[str, tuple[DiscoveredServer, ...]] = {}

    def configured(self, config: Config) -> None:
        """Another configuration. What a discovery has found stands while it is the same one.

        Of another one under the same name it goes at once: whether its servers are still to be watched, and may be sent
        the template's `api_key`, is for the new one to say, and that may never be asked.
        """
        before = {template.name: template.discover for template in self._config.templates}
        self._config = config
        same = {template.name for template in config.templates if template.discover == before.get(template.name)}
        self._found = {name: found for name, found in self._found.items() if name in same}

    def found(self, discovery: str, servers: tuple[DiscoveredServer, ...]) -> None:
        """All that a discovery has found."""
        self._found[discovery] = servers

    def count(self, discovery: str) -> int:
        """How many servers it has found, also those of other shards."""
        return len(self._found.get(discovery, ()))

    def wanted(self) -> Mapping[str, DesiredTarget]:
        """What is to be watched, by name, in the configuration's order. Sets `left_out`."""
        self.left_out = {}
        return {one.config.name: one for one in self._all() if self._shard is None or self._shard.has(one.config.name)}

    def _all(self) -> Iterator[DesiredTarget]:
        for target in self._config.targets:
            if isinstance(target, TemplateConfig):
                yield from self._of(target)
            else:
                yield DesiredTarget(target, self._terms(target))

    def _of(self, template: TemplateConfig) -> Iterator[DesiredTarget]:
        servers = self._found.get(template.name, ())
        for server in servers:
            try:
                target = template.target(server.id, server.base_url)
            except ValueError:
                self.left_out[template.name] = f"{server.id} has no address that can be watched"
                continue
            if _is_gateway(template, server):
                # Load on the Service would be load on all of its pods, each of which has a lock of its own.
                target = target.model_copy(update={"capacity": target.capacity.model_copy(update={"mode": "off"})})
            yield DesiredTarget(target, self._terms(target), template.name, server.labels, _hold(server))

    def _terms(self, target: TargetConfig) -> tuple[object, ...]:
        config = self._config
        canary = config.workload(target.canary.workload)
        load = config.workload(target.capacity.workload or target.canary.workload)
        objectives = config.objectives_of(target)
        return target, objectives, canary, load, config.prometheus, config.lock_dir, config.lease, config.load


def _hold(server: DiscoveredServer) -> str | None:
    """Why no load may begin on it now."""
    if server.rolling:
        known = server.revision is not None
        return "a rollout is under way" if known else "servers of its Service come or go"
    return None if server.ready else "the server is not ready"


def _is_gateway(template: TemplateConfig, server: DiscoveredServer) -> bool:
    pods = template.discover.kubernetes
    return pods is not None and pods.service is not None and server.id == pods.service.partition(":")[0]


def _weight(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
