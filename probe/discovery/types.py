"""Discovered servers, and the protocol of a discovery. Pure.

    async with aclosing(source(config.discover, on_problem).states()) as states:
        async for found in states: ...

Each state is complete. A new id is a new target, a missing id is a target that is gone, and a known id may have another
`base_url`, `revision` or `is_ready`. A discovered target's name is the template's name, a slash and the id.
"""

import ipaddress
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

OnProblem = Callable[[str], None]
OnWell = Callable[[], None]


@dataclass(frozen=True, slots=True)
class DiscoveredServer:
    """One server.

    `id`: unique in its discovery, constant for the server's life: the name of a pod or Service, or HOST:PORT.
    `labels`: a pod's; an EndpointSlice's, with its endpoint's `zone` and `node`; or a target group's, without those
    that begin with two underscores; {} for DNS and a Service.
    `revision`: a pod's pod-template-hash, else its controller-revision-hash; None: not known.
    `is_rolling_out`: a rollout replaces pods of its workload, which has pods of two revisions, ready or not. The
    endpoints of a Service have no revision: there, one of them is not ready yet or terminates.
    `is_ready`: False for a server that has been ready and no longer is. One that never was is not discovered.
    `flags`: the vLLM startup flags that its pod states (core/vllm_command.py).
    `facts`: facts for its results, such as its image and node (core/provenance.py).
    `pod`: its pod as dcgm-exporter's labels name one: `pod` and `namespace`; {} if it is none, or not known.
    """

    id: str
    base_url: str
    labels: Mapping[str, str] = field(default_factory=dict)
    revision: str | None = None
    is_rolling_out: bool = False
    is_ready: bool = True
    flags: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    pod: Mapping[str, str] = field(default_factory=dict)


State = tuple[DiscoveredServer, ...]
_MAX_PORT = 65535


class Discovery(Protocol):
    """A source of servers, active while its states are read."""

    def states(self) -> AsyncGenerator[State, None]:
        """Yield the complete state, sorted by id, as soon as it is known and whenever it has changed.

        A burst of changes is one state. The generator never ends and raises nothing: while the source fails it yields
        nothing, and the last state stays in effect. The caller closes it (contextlib.aclosing), which ends its tasks.
        """
        ...


def pod_labels(name: str, namespace: str) -> Mapping[str, str]:
    """Return a pod as DiscoveredServer has it; {} unless both are known."""
    return {"pod": name, "namespace": namespace} if name and namespace else {}


def state_of(found: Iterable[DiscoveredServer]) -> State:
    """Return the servers sorted by id, and of several with one id the first."""
    by_id: dict[str, DiscoveredServer] = {}
    for one in found:
        by_id.setdefault(one.id, one)
    return tuple(by_id[name] for name in sorted(by_id))


def authority(host: str, port: int) -> str:
    """Return HOST:PORT, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def ip_authority(host: str, port: int) -> str | None:
    """Return `authority`, or None if the host is no IP address without a zone or the port is none."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    has_zone = isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None
    return authority(str(address), port) if not has_zone and 0 < port <= _MAX_PORT else None
