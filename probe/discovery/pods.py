"""The servers among the pods of one selector. Pure.

A pod is a server from the first time it is ready until it ends or starts to terminate. Before that it loads its model
and is expected not to answer. If a pod that has been ready no longer is, users notice, or have less capacity: it
remains a server, with is_ready=False, also while its container restarts.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

import msgspec

from probe.core.provenance import MAX_VALUE
from probe.core.text import one_line
from probe.core.vllm_command import vllm_flags
from probe.discovery.types import DiscoveredServer, State, ip_authority, pod_labels, state_of
from probe.kubernetes.client import KubernetesObject

REVISIONS = ("pod-template-hash", "controller-revision-hash")


class ContainerPort(msgspec.Struct, rename="camel"):
    name: str = ""
    container_port: int = 0


class Variable(msgspec.Struct):
    name: str = ""
    value: str = ""  # empty where it comes from a Secret, a ConfigMap or the pod's fields


class Container(msgspec.Struct):
    name: str = ""
    image: str = ""
    ports: list[ContainerPort] | None = None
    command: list[str] | None = None
    args: list[str] | None = None
    env: list[Variable] | None = None

    @property
    def vllm_flags(self) -> dict[str, str]:
        """Return vLLM's flags, {} if it runs another program."""
        environment = {one.name: one.value for one in self.env or () if one.value}
        return vllm_flags(self.command or (), self.args or (), environment)


class PodSpec(msgspec.Struct, rename="camel"):
    node_name: str = ""
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None


class PodCondition(msgspec.Struct):
    type: str = ""
    status: str = ""


class ContainerStatus(msgspec.Struct):
    name: str = ""
    image_id: str = msgspec.field(name="imageID", default="")


class PodStatus(msgspec.Struct):
    phase: str = ""
    pod_ip: str = msgspec.field(name="podIP", default="")
    conditions: list[PodCondition] | None = None
    container_statuses: list[ContainerStatus] | None = msgspec.field(name="containerStatuses", default=None)


class Pod(KubernetesObject, kw_only=True):
    """The fields of a pod that are used here."""

    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)

    @property
    def has_ended(self) -> bool:
        return self.metadata.deletion_timestamp is not None or self.status.phase in ("Succeeded", "Failed")

    @property
    def is_ready(self) -> bool:
        return any(one.type == "Ready" and one.status == "True" for one in self.status.conditions or ())

    @property
    def revision(self) -> str | None:
        labels = self.metadata.labels or {}
        return next((labels[label] for label in REVISIONS if label in labels), None)

    @property
    def workload(self) -> str | None:
        """Return the owner, the same for all revisions: a Deployment has one ReplicaSet, named after its hash, for
        each.
        """
        owner = next(iter(self.metadata.owner_references or ()), None)
        return f"{owner.kind}/{owner.name.removesuffix(f'-{self.revision}')}" if owner is not None else None

    @property
    def containers(self) -> list[Container]:
        """Return all containers; an init container may be a sidecar."""
        return [*(self.spec.containers or ()), *(self.spec.init_containers or ())]

    @property
    def vllm_flags(self) -> Mapping[str, str]:
        """Return vLLM's flags, from the first container that has some."""
        return next(filter(None, (container.vllm_flags for container in self.containers)), {})

    def facts(self, port: int) -> dict[str, str]:
        """Return node and image of the container that serves: the one that runs vLLM, has the port, or is first.

        A tag may move: `image_digest` names the image that runs.
        """
        containers = self.containers
        serves = next((one for one in containers if one.vllm_flags), None) or next(
            (one for one in containers if any(p.container_port == port for p in one.ports or ())),
            next(iter(containers), Container()),
        )
        ids = {one.name: one.image_id for one in self.status.container_statuses or ()}
        digest = ids.get(serves.name, "").rpartition("@")[2]
        found = {"image": serves.image, "image_digest": digest, "node": self.spec.node_name}
        return {name: one_line(value, MAX_VALUE) for name, value in found.items() if value.strip()}

    def port(self, port: int | str) -> int | None:
        """Return the port's number, or None if no container has a port of that name."""
        if isinstance(port, int):
            return port
        return next((p.container_port for c in self.containers for p in c.ports or () if p.name == port), None)


class Pods:
    """The pods of one selector, kept up to date by lists and watches."""

    def __init__(self, port: int | str, scheme: str, path: str) -> None:
        self._port, self._scheme, self._path = port, scheme, path
        self._found: dict[str, DiscoveredServer | None] = {}  # None: the pod exists, but is not a server
        self._have_been_ready: dict[str, str] = {}  # uid by name
        self._no_port: set[str] = set()
        self._no_address: set[str] = set()  # their IP is none
        self._revisions: dict[str, tuple[str | None, str]] = {}  # workload and revision of each pod that has not ended

    def replace(self, pods: Iterable[Pod]) -> None:
        """Replace all pods."""
        pods = tuple(pods)
        for name in self._found.keys() - {pod.metadata.name for pod in pods}:
            self.remove(name)
        for pod in pods:
            self.put(pod)

    def put(self, pod: Pod) -> None:
        """Add or update a pod."""
        name = pod.metadata.name
        self._found[name] = self._server(pod)
        self._revisions.pop(name, None)
        if pod.revision is not None and not pod.has_ended:  # also while it loads its model
            self._revisions[name] = pod.workload, pod.revision

    def remove(self, name: str) -> None:
        self._found.pop(name, None)
        self._have_been_ready.pop(name, None)
        self._revisions.pop(name, None)
        self._no_port.discard(name)
        self._no_address.discard(name)

    @property
    def state(self) -> State:
        revisions = Counter(workload for workload, _ in set(self._revisions.values()))
        rolling = {workload for workload, count in revisions.items() if count > 1}
        return state_of(
            replace(found, is_rolling_out=name in self._revisions and self._revisions[name][0] in rolling)
            for name, found in self._found.items()
            if found is not None
        )

    @property
    def problem(self) -> str | None:
        """Return why pods are left out, other than for not being ready; None if none are."""
        if not self._found:
            return "no pod has these labels"
        if self._no_port:
            return f"pods without a port called {self._port!r} are left out, such as {min(self._no_port)}"
        if self._no_address:
            return f"pods whose podIP is no IP address are left out, such as {min(self._no_address)}"
        return None

    def _server(self, pod: Pod) -> DiscoveredServer | None:
        name, status, labels = pod.metadata.name, pod.status, pod.metadata.labels or {}
        self._no_port.discard(name)
        self._no_address.discard(name)
        if pod.is_ready:
            self._have_been_ready[name] = pod.metadata.uid
        # A pod of a StatefulSet comes back under its name, but is another.
        if pod.has_ended or not status.pod_ip or self._have_been_ready.get(name) != pod.metadata.uid:
            return None
        if (port := pod.port(self._port)) is None:
            self._no_port.add(name)
            return None
        if (where := ip_authority(status.pod_ip, port)) is None:
            self._no_address.add(name)
            return None
        return DiscoveredServer(
            id=name,
            base_url=f"{self._scheme}://{where}{self._path}",
            labels=labels,
            revision=pod.revision,
            is_ready=pod.is_ready,
            flags=pod.vllm_flags,
            facts=pod.facts(port),
            pod=pod_labels(name, pod.metadata.namespace),
        )
