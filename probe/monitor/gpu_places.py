"""Where the GPUs of a discovered server are read: the dcgm-exporter on its node, and the labels of its pod.

In: the server, and the dcgm-exporters that discovery finds. Out: a GpuPlace, with the reason where nothing can be read:
the GPUs of another pod are never taken instead.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import structlog

from probe.config.gpu import DcgmConfig, GpuConfig
from probe.core.text import one_line
from probe.discovery.types import DiscoveredServer, State

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class GpuPlace:
    """Where to read the GPUs of one server.

    `urls`: pages of dcgm-exporters. `labels`: its pod's; {}: not known to be one. `node`: where it is, if known.
    `problem`: why nothing can be read. `is_pending`: the exporters are being listed for the first time.
    """

    urls: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    node: str | None = None
    problem: str | None = None
    is_pending: bool = False


class Exporters:
    """The dcgm-exporters of each selection, as discovery reports them."""

    def __init__(self) -> None:
        self._by_node: dict[str, dict[str, list[DiscoveredServer]]] = {}
        self._problems: dict[str, str] = {}

    async def found(self, selection: str, exporters: State) -> None:
        """Replace the exporters of a selection."""
        nodes: dict[str, list[DiscoveredServer]] = {}
        for one in exporters:
            nodes.setdefault(one.facts.get("node", ""), []).append(one)
        self._by_node[selection] = nodes

    def problem(self, selection: str, problem: str | None) -> None:
        """Report why the exporters of a selection cannot be listed; None: they can be again."""
        if problem is None:
            self._problems.pop(selection, None)
        else:
            self._problems[selection] = problem
            _log.warning("dcgm-exporters", selection=selection, problem=problem)

    def is_pending(self, selection: str) -> bool:
        """Return whether nothing is known of a selection yet, not even why."""
        return selection not in self._by_node and selection not in self._problems

    def on(self, node: str, selection: str) -> tuple[str, ...]:
        """Return the pages of the exporters on a node. Raise LookupError, which says why there is none."""
        problem, nodes = self._problems.get(selection), self._by_node.get(selection)
        if nodes is None:
            why = problem or "they have not been listed yet"
            raise LookupError(f"the dcgm-exporters ({selection}) are not known: {why}")
        here = nodes.get(node, [])
        # While one replaces another, both may be there.
        if chosen := [one for one in here if one.is_ready] or here[:1]:
            return tuple(one.base_url for one in chosen)
        count = sum(map(len, nodes.values()))
        others = f"{count} on other nodes" if count else "none on any node"
        raise LookupError(f"there is no dcgm-exporter on node {node} ({selection}: {others})")


def place_of(gpu: GpuConfig, server: DiscoveredServer, exporters: Exporters, *, shares_host: bool = False) -> GpuPlace:
    """Return where the server's GPUs are. `shares_host`: other servers have the same host."""
    if gpu.dcgm is not None:
        return _on_node(gpu.dcgm, server, exporters)
    if shares_host and not server.pod and not {"UUID", "gpu"} & gpu.labels.keys():
        host = urlsplit(server.base_url).hostname
        return GpuPlace(problem=f"several servers are on {host}, and nothing says which GPUs each has; {_WITH_POD}")
    return GpuPlace(labels=server.pod, node=server.facts.get("node"))


_WITH_POD = "give them the labels pod and namespace, or make each a target with gpu.labels"


def _on_node(dcgm: DcgmConfig, server: DiscoveredServer, exporters: Exporters) -> GpuPlace:
    if not server.pod:
        return GpuPlace(problem="the discovery does not say which pod the server is (labels pod and namespace)")
    if not (node := server.facts.get("node")):
        return GpuPlace(problem="the discovery does not say on which node the pod is (label node)")
    try:
        return GpuPlace(exporters.on(node, dcgm.name), server.pod, node)
    except LookupError as error:
        return GpuPlace(problem=one_line(str(error.args[0])), is_pending=exporters.is_pending(dcgm.name))
