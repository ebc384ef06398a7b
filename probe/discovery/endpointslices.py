"""EndpointSlices of one Service as the API tells them, to what was found. Pure.

All slices of a Service together are its endpoints. One may stand in two of them: for a moment, while it is moved, and
for good where the Service has IPv4 and IPv6. It is one server: the IPv4 slice's word counts, and of slices of one
family the word of the one which changed last.

When an endpoint is found is as with pods (pods.py). What a slice does not say is an endpoint's revision. So one that
comes, not ready yet, or goes, terminating, is a sign that the others may be replaced too, or share their load anew.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

import msgspec

from probe.discovery.types import DiscoveredServer, State, authority, state_of
from probe.kubernetes.objects import KubernetesObject

SERVICE_NAME = "kubernetes.io/service-name"  # the label that a slice has its Service by
_FIRST = "IPv4"
_FAMILIES = (_FIRST, "IPv6")  # and FQDN, of which the API does not say what it means


class SlicePort(msgspec.Struct):
    name: str | None = None
    port: int | None = None


class Conditions(msgspec.Struct):
    """What is left out or null is as the API's reference says."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class TargetReference(msgspec.Struct):
    kind: str = ""
    name: str = ""
    uid: str = ""


class SliceEndpoint(msgspec.Struct, rename="camel"):
    """One server behind the Service; of its addresses only the first means anything."""

    addresses: list[str] | None = None
    conditions: Conditions | None = None
    target_ref: TargetReference | None = None
    node_name: str | None = None
    zone: str | None = None

    @property
    def pod(self) -> TargetReference | None:
        """Which it is, where it is one."""
        reference = self.target_ref
        return reference if reference is not None and reference.kind == "Pod" and reference.name else None

    @property
    def terminating(self) -> bool:
        return self.conditions is not None and bool(self.conditions.terminating)

    @property
    def ready(self) -> bool:
        """`ready` is always true with publishNotReadyAddresses: what the pod itself says is `serving` then."""
        said = self.conditions or Conditions()
        return said.ready is not False and said.serving is not False


class EndpointSlice(KubernetesObject, rename="camel", kw_only=True):
    """What we read of one."""

    address_type: str = ""
    endpoints: list[SliceEndpoint] | None = None
    ports: list[SlicePort] | None = None

    def port(self, port: int | str) -> int | None:
        """The number of the port; None where the slice has none of that name."""
        if isinstance(port, int):
            return port
        return next((one.port for one in self.ports or () if one.name == port), None)


@dataclass(frozen=True, slots=True)
class _Server:
    """An endpoint as one slice has it. `uid`: which pod it is; "" where there is none, or nobody says."""

    found: DiscoveredServer
    uid: str
    terminating: bool

    @property
    def key(self) -> tuple[str, str]:
        """A pod of a StatefulSet comes back under its name, as another."""
        return self.found.id, self.uid


class Slices:
    """The slices of one Service, as lists and watches tell them."""

    def __init__(self, port: int | str, scheme: str, path: str) -> None:
        self._port, self._scheme, self._path = port, scheme, path
        self._slices: dict[str, EndpointSlice] = {}  # by name; the one that changed last is the last
        self._have_been_ready: set[tuple[str, str]] = set()

    def replace(self, slices: Iterable[EndpointSlice]) -> None:
        """A list: there are no others."""
        self._slices.clear()
        for one in slices:
            self.put(one)

    def put(self, one: EndpointSlice) -> None:
        """One that is new or has changed."""
        self._slices.pop(one.metadata.name, None)
        self._slices[one.metadata.name] = one
        self._have_been_ready |= {server.key for server in self._servers(one) if server.found.ready}

    def remove(self, name: str) -> None:
        self._slices.pop(name, None)

    @property
    def state(self) -> State:
        """Forgets who has gone. Not before it is asked for: one that is moved may be in no slice between two events."""
        servers = self._merged()
        self._have_been_ready &= {server.key for server in servers if not server.terminating}
        changing = any(server.key not in self._have_been_ready for server in servers)
        return state_of(
            replace(server.found, rolling=changing) for server in servers if server.key in self._have_been_ready
        )

    @property
    def problem(self) -> str | None:
        """What keeps endpoints from being found, but for their not being ready."""
        if not self._slices:
            return "there is none: no such Service, or one without a selector, whose slices are still to be written"
        unusable = (name for name, one in self._slices.items() if one.address_type not in _FAMILIES)
        if (name := min(unusable, default=None)) is not None:
            return f"those whose addresses are no IPs are left out, such as {name}"
        lacking = (name for name, one in self._slices.items() if one.endpoints and one.port(self._port) is None)
        if (name := min(lacking, default=None)) is not None:
            return f"those without a port called {self._port!r} are left out, such as {name}"
        return None

    def _merged(self) -> Collection[_Server]:
        """Each server once. Who terminates in one slice does so in all, also where that is not said yet."""
        slices = sorted(self._slices.values(), key=lambda one: one.address_type == _FIRST)
        servers = [server for one in slices for server in self._servers(one)]
        ended = {server.key for server in servers if server.terminating}
        servers.sort(key=lambda server: server.key not in ended)  # a pod's successor of the same name comes after it
        return {server.found.id: replace(server, terminating=server.key in ended) for server in servers}.values()

    def _servers(self, one: EndpointSlice) -> Iterator[_Server]:
        """Those of one slice."""
        port = one.port(self._port)
        if one.address_type not in _FAMILIES or port is None:
            return
        for endpoint in one.endpoints or ():
            if not endpoint.addresses:
                continue
            where, pod = authority(endpoint.addresses[0], port), endpoint.pod
            places = {"zone": endpoint.zone, "node": endpoint.node_name}
            found = DiscoveredServer(
                id=where if pod is None else pod.name,
                base_url=f"{self._scheme}://{where}{self._path}",
                labels=(one.metadata.labels or {}) | {name: place for name, place in places.items() if place},
                ready=endpoint.ready,
            )
            yield _Server(found, "" if pod is None else pod.uid, endpoint.terminating)
