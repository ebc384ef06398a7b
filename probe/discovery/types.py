"""What a discovery finds, and what every kind of discovery is. Pure.

    async with aclosing(source(config.discover, on_problem).states()) as states:     # probe/targets/discover.py
        async for found in states: ...

Each state is complete: a target is new when its id is, has gone when its id has, and goes on under the same id with
another `base_url`, `revision` or `ready` otherwise. A discovered target's name is the template's, a slash and the id.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

OnProblem = Callable[[str], None]
OnWell = Callable[[], None]


@dataclass(frozen=True, slots=True)
class DiscoveredServer:
    """One server.

    `id` is unique within its discovery and stays while the server is the same: a pod's name, a Service's, or HOST:PORT.
    `labels`: a pod's, an EndpointSlice's with its endpoint's `zone` and `node`, or those of a target group but for what
    begins with two underscores; {} for DNS and a Service.
    `revision`: what a rollout changes: a pod's pod-template-hash, else its controller-revision-hash; None: not known.
    `rolling`: whether pods of two revisions of its workload are there, ready or not: one replaces the other. Of a
    Service's endpoints, whose revision is not known: whether one of them comes or goes.
    `ready`: False for what has been ready and is not any more; one that never was is not found at all.
    """

    id: str
    base_url: str
    labels: Mapping[str, str] = field(default_factory=dict)
    revision: str | None = None
    rolling: bool = False
    ready: bool = True


State = tuple[DiscoveredServer, ...]


class Discovery(Protocol):
    """A discovery that goes on for as long as it is listened to."""

    def states(self) -> AsyncGenerator[State, None]:
        """The complete state, sorted by id, as soon as it is known, and again whenever it has changed.

        A burst of changes is one state. Endless, and raises nothing: while nobody can be asked nothing comes, and what
        was found last holds. Whoever listens closes it (contextlib.aclosing), which ends what runs beside it.
        """
        ...


def state_of(found: Iterable[DiscoveredServer]) -> State:
    """Sorted by id, each id once: the first that has it."""
    by_id: dict[str, DiscoveredServer] = {}
    for one in found:
        by_id.setdefault(one.id, one)
    return tuple(by_id[name] for name in sorted(by_id))


def authority(host: str, port: int) -> str:
    """HOST:PORT, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
