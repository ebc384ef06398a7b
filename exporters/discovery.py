"""Discovered targets, and the shard of this Kneewatch, as series."""

import re
from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry

from exporters import names
from exporters.registry import gauge
from exporters.rendered_samples import RenderedSamples, line, pairs

# Limits for a target's labels, which come from outside.
_MOST_LABELS = 32
_LONGEST = 256


class DiscoveryExporter:
    """Discovered targets, by the name of their discovery."""

    def __init__(self, registry: CollectorRegistry, shard: tuple[int, int] | None) -> None:
        """Take `shard`: which one, from 0, of how many; None: this Kneewatch has all targets."""
        self.relay = RenderedSamples((names.TARGET_INFO,))
        self._found = gauge(names.DISCOVERED, registry)
        self._least = gauge(names.DISCOVERY_LEAST, registry)
        self._failing = gauge(names.DISCOVERY_FAILING, registry)
        self._known: set[str] = set()
        if shard is not None:
            gauge(names.SHARD, registry).set(shard[0])
            gauge(names.SHARDS, registry).set(shard[1])

    def announce(self, discoveries: Mapping[str, int]) -> None:
        """Replace the set of discoveries, each with the servers it must find; a new one starts with none."""
        wanted = set(discoveries)
        for discovery in wanted - self._known:
            self._found.labels(discovery).set(0)
            self._failing.labels(discovery).set(0)
        for discovery in self._known - wanted:
            for metric in (self._found, self._failing, self._least):
                metric.remove(discovery)
        for discovery, least in discoveries.items():
            self._least.labels(discovery).set(least)
        self._known = wanted

    def publish_found(self, discovery: str, count: int) -> None:
        """Publish the number of servers that a discovery has found."""
        self._found.labels(discovery).set(count)

    def publish_failing(self, discovery: str, *, failing: bool) -> None:
        """Publish whether a discovery fails."""
        self._failing.labels(discovery).set(failing)

    def describe(self, target: str, discovery: str, labels: Mapping[str, str]) -> None:
        """Publish the labels of a target: its pod's, or the ones of its entry in a list."""
        labelled = {"target": target, "discovery": discovery}
        for name, value in exported_labels(labels):
            # kube-state-metrics writes them so.
            labelled.setdefault(f"label_{re.sub(r'[^a-zA-Z0-9_]', '_', name)}", value)
        text = line(names.TARGET_INFO.name, pairs(labelled.items()), 1.0)
        self.relay.put_text(target, {names.TARGET_INFO.name: text})

    def forget(self, target: str) -> None:
        """Remove the series of a target that is no longer watched."""
        self.relay.forget(target)


def exported_labels(labels: Mapping[str, str]) -> Sequence[tuple[str, str]]:
    """Return the labels of a target that are exported, by name and cut to a length."""
    return [(name[:_LONGEST], value[:_LONGEST]) for name, value in sorted(labels.items())[:_MOST_LABELS]]
