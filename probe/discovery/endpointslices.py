"""The servers in the EndpointSlices of one Service. Pure.

All slices of a Service together hold its endpoints. An endpoint may be in two of them: briefly, while it is moved, or
always, if the Service has IPv4 and IPv6. It is one server. The IPv4 slice takes precedence, and within one address
family the slice that changed last.

Endpoints become and cease to be targets as pods do (pods.py). A slice does not have an endpoint's revision. So an
endpoint that is not ready yet, or terminating, is a sign that the others may be replaced too, or get other load.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

import msgspec

from probe.core.provenance import MAX_VALUE
from probe.core.text import one_line
from probe.discovery.types import DiscoveredServer, State, ip_authority, pod_labels, state_of
from probe.kubernetes.client import KubernetesObject

SERVICE_NAME = "kubernetes.io/service-name"  # the label with the name of a slice's Service
_FIRST = "IPv4"
_FAMILIES = (_FIRST, "IPv6")  # not FQDN: the API does not define its meaning


class SlicePort(msgspec.Struct):
    name: str | None = None
    port: int | None = None


class Conditions(msgspec.Struct):
    """An absent or null condition has the meaning that the API's reference gives it."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class TargetReference(msgspec.Struct):
    kind: str = ""
    name: str = ""
    namespace: str = ""
    uid: str = ""


class SliceEndpoint(msgspec.Struct, rename="camel"):
    """One server behind the Service; only the first of its addresses has a meaning."""

    addresses: list[str] | None = None
    conditions: Conditions | None = None
    target_ref: TargetReference | None = None
    node_name: str | None = None
    zone: str | None = None

    @property
    def pod(self) -> TargetReference | None:
        """Return the endpoint's pod, or None if it is not one."""
        reference = self.target_ref
        return reference if reference is not None and reference.kind == "Pod" and reference.name else None

    @property
    def is_terminating(self) -> bool:
        return self.conditions is not None and bool(self.conditions.terminating)

    @property
    def is_ready(self) -> bool:
        """Return whether the pod is ready. With publishNotReadyAddresses `ready` is always true; `serving` has its
        state.
        """
        conditions = self.conditions or Conditions()
        return conditions.ready is not False and conditions.serving is not False


class EndpointSlice(KubernetesObject, rename="camel", kw_only=True):
    """The fields of a slice that are used here."""

    address_type: str = ""
    endpoints: list[SliceEndpoint] | None = None
    ports: list[SlicePort] | None = None

    def port(self, port: int | str) -> int | None:
        """Return the port's number, or None if the slice has no port of that name."""
        if isinstance(port, int):
            return port
        return next((one.port for one in self.ports or () if one.name == port), None)


@dataclass(frozen=True, slots=True)
class _Server:
    """An endpoint as in one slice. `uid`: its pod's, or "" if it has no pod or the slice does not name it."""

    found: DiscoveredServer
    uid: str
    is_terminating: bool

    @property
    def key(self) -> tuple[str, str]:
        """Return the identity of the server: a StatefulSet's pod comes back under its name, but is another."""
        return self.found.id, self.uid


class Slices:
    """The slices of one Service, kept up to date by lists and watches."""

    def __init__(self, port: int | str, scheme: str, path: str) -> None:
        self._port, self._scheme, self._path = port, scheme, path
        self._slices: dict[str, EndpointSlice] = {}  # by name, in the order of their last changes
        self._have_been_ready: set[tuple[str, str]] = set()

    def replace(self, slices: Iterable[EndpointSlice]) -> None:
        """Replace all slices."""
        self._slices.clear()
        for one in slices:
            self.put(one)

    def put(self, one: EndpointSlice) -> None:
        """Add or update a slice."""
        self._slices.pop(one.metadata.name, None)
        self._slices[one.metadata.name] = one
        self._have_been_ready |= {server.key for server in self._servers(one) if server.found.is_ready}

    def remove(self, name: str) -> None:
        self._slices.pop(name, None)

    @property
    def state(self) -> State:
        """Return the servers now. Forget those that are gone here, not on the event: a moved endpoint may briefly be in
        no slice.
        """
        servers = self._merged()
        self._have_been_ready &= {server.key for server in servers if not server.is_terminating}
        changing = any(server.key not in self._have_been_ready for server in servers)
        return state_of(
            replace(server.found, is_rolling_out=changing) for server in servers if server.key in self._have_been_ready
        )

    @property
    def problem(self) -> str | None:
        """Return why endpoints are left out, other than for not being ready; None if none are."""
        if not self._slices:
            return "there are no slices; check the Service's name, or write slices for a Service without a selector"
        unusable = (name for name, one in self._slices.items() if one.address_type not in _FAMILIES)
        if (name := min(unusable, default=None)) is not None:
            return f"slices whose addresses are not IP addresses are left out, such as {name}"
        lacking = (name for name, one in self._slices.items() if one.endpoints and one.port(self._port) is None)
        if (name := min(lacking, default=None)) is not None:
            return f"slices without a port called {self._port!r} are left out, such as {name}"
        return None

    def _merged(self) -> Collection[_Server]:
        """Return each server once. One that terminates in one slice does so in all, even if the others lag behind."""
        slices = sorted(self._slices.values(), key=lambda one: one.address_type == _FIRST)
        servers = [server for one in slices for server in self._servers(one)]
        ended = {server.key for server in servers if server.is_terminating}
        servers.sort(key=lambda server: server.key not in ended)  # a pod's successor of the same name comes after it
        return {server.found.id: replace(server, is_terminating=server.key in ended) for server in servers}.values()

    def _servers(self, one: EndpointSlice) -> Iterator[_Server]:
        port = one.port(self._port)
        if one.address_type not in _FAMILIES or port is None:
            return
        for endpoint in one.endpoints or ():
            where, pod = ip_authority(next(iter(endpoint.addresses or ()), ""), port), endpoint.pod
            if where is None:
                continue
            place_labels = {"zone": endpoint.zone, "node": endpoint.node_name}
            found = DiscoveredServer(
                id=where if pod is None else pod.name,
                base_url=f"{self._scheme}://{where}{self._path}",
                labels=(one.metadata.labels or {}) | {name: place for name, place in place_labels.items() if place},
                is_ready=endpoint.is_ready,
                facts={"node": one_line(endpoint.node_name, MAX_VALUE)} if endpoint.node_name else {},
                pod={} if pod is None else pod_labels(pod.name, pod.namespace or one.metadata.namespace),
            )
            yield _Server(found, "" if pod is None else pod.uid, endpoint.is_terminating)
