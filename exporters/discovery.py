"""Discovered targets, and the shard of this Kneewatch, as series."""

import re
from collections.abc import Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry

from exporters import names
from exporters.exposition_format import line, pairs
from exporters.registry import gauge
from exporters.rendered_samples import RenderedSamples

# Limits for a target's labels, which come from outside.
_MOST_LABELS = 32
_LONGEST = 256


class DiscoveryExporter:
    """Targets that were found, by the name of what found them."""

    def __init__(self, registry: CollectorRegistry, shard: tuple[int, int] | None) -> None:
        """`shard`: which one, from 0, of how many; None: this Kneewatch has all targets."""
        self.relay = RenderedSamples((names.TARGET_INFO,))
        self._found = gauge(names.DISCOVERED, registry)
        self._failing = gauge(names.DISCOVERY_FAILING, registry)
        self._known: set[str] = set()
        if shard is not None:
            gauge(names.SHARD, registry).set(shard[0])
            gauge(names.SHARDS, registry).set(shard[1])

    def announce(self, discoveries: Iterable[str]) -> None:
        """All that there are; a new one has found nothing yet."""
        wanted = set(discoveries)
        for discovery in wanted - self._known:
            self._found.labels(discovery).set(0)
            self._failing.labels(discovery).set(0)
        for discovery in self._known - wanted:
            self._found.remove(discovery)
            self._failing.remove(discovery)
        self._known = wanted

    def found(self, discovery: str, count: int) -> None:
        """So many targets there are now."""
        self._found.labels(discovery).set(count)

    def failing(self, discovery: str, *, failing: bool) -> None:
        """It cannot be asked, or can be asked again."""
        self._failing.labels(discovery).set(failing)

    def describe(self, target: str, discovery: str, labels: Mapping[str, str]) -> None:
        """What is known of a target: `labels` are its pod's, or those of the list it stands in."""
        said = {"target": target, "discovery": discovery}
        for name, value in told(labels):
            # kube-state-metrics writes them so.
            said.setdefault(f"label_{re.sub(r'[^a-zA-Z0-9_]', '_', name)}", value)
        text = line(names.TARGET_INFO.name, pairs(said.items()), 1.0)
        self.relay.put_text(target, {names.TARGET_INFO.name: text})

    def forget(self, target: str) -> None:
        """Remove the series of a target that is no longer watched."""
        self.relay.forget(target)


def told(labels: Mapping[str, str]) -> Sequence[tuple[str, str]]:
    """Those of a target's labels that are told, by name."""
    return [(name[:_LONGEST], value[:_LONGEST]) for name, value in sorted(labels.items())[:_MOST_LABELS]]
