"""Which servers other probers are loading now, by their locks: such a server's counters include the probers' load.

In a cluster the locks are the Leases of the namespace, listed every two seconds. A Lease counts as held while it keeps
changing, as in lease_lock.py. Leases without a holder are deleted: a killed holder leaves its Lease behind.

On one machine the locks are the files of locks.py that another process has locked.
"""

import asyncio
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager, suppress

import msgspec
import structlog

from probe.capacity.run.lease_lock import LONGEST_S, is_held_here, lasts_s, role_words
from probe.capacity.run.locks import locked_by_others
from probe.config.config import Config, LeaseConfig
from probe.core.clock import Clock
from probe.core.text import one_line
from probe.kubernetes.client import FORBIDDEN, KubernetesClient, KubernetesError, open_cluster
from probe.kubernetes.lease import SERVER, ConflictError, Lease, Leases, LeaseSpec

_log = structlog.get_logger()
EVERY_S = 2.0
_AGAIN_S = 10.0
# A Lease that is lost is gone before its load is.
_ENDS_S = 3.0 + EVERY_S
_SWEEP = 20  # at a time


class OtherProbers:
    """The other probers' locks, and which servers they load."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[LeaseSpec, int]] = {}  # by the Lease's name: its state, and since when
        self._loaded: dict[str, int] = {}  # by server: when it was last loaded

    def files(self, servers: Collection[str], config: Config) -> Collection[str]:
        """Return the servers that others load, by the locks of this machine."""
        return self._still_loaded({server for server in servers if locked_by_others(server, config.lock_dir)})

    def leases(self, found: Collection[Lease], asked_ns: int) -> tuple[Collection[str], list[Lease]]:
        """Return the loaded servers, by all Leases of the namespace, and the Leases without a holder."""
        held, free = set(), []
        before, self._seen = self._seen, {}
        for lease in found:
            name, spec = str(lease.metadata.get("name")), lease.spec
            was = before.get(name)
            same = was is not None and was[0] == spec
            since_ns = was[1] if was is not None and same else self._clock.monotonic_ns()
            self._seen[name] = spec, since_ns
            unchanged_s = (asked_ns - since_ns) * 1e-9
            if not spec.holder_identity or unchanged_s > LONGEST_S:
                free.append(lease)
            elif not is_held_here(spec) and unchanged_s < lasts_s(spec):
                held.add(str((lease.metadata.get("annotations") or {}).get(SERVER)))
        return self._still_loaded(held), free

    def _still_loaded(self, held: Collection[str]) -> Collection[str]:
        now_ns = self._clock.monotonic_ns()
        self._loaded |= dict.fromkeys(held, now_ns)
        self._loaded = {server: ns for server, ns in self._loaded.items() if now_ns - ns < _ENDS_S * 1e9}
        return self._loaded.keys()


async def follow_others(
    config: Callable[[], Config],
    servers: Callable[[], Collection[str]],
    clock: Clock,
    report: Callable[[Collection[str]], None],
    *,
    connect: Callable[[], AbstractAsyncContextManager[KubernetesClient]] = open_cluster,
) -> None:
    """Report the servers that others load until cancelled. The last report stands while the API cannot be reached."""
    others, problem = OtherProbers(clock), ""
    while True:
        lease = config().lease
        if lease is None:
            report(others.files(servers(), config()))
            await asyncio.sleep(EVERY_S)
            continue
        try:
            async with connect() as cluster:
                while config().lease == lease:
                    await _look(cluster, lease, others, clock, report)
                    problem = ""
                    await asyncio.sleep(EVERY_S)
        except (KubernetesError, msgspec.MsgspecError) as error:
            if problem != (problem := one_line(str(error), 400)):
                forbidden = isinstance(error, KubernetesError) and error.status == FORBIDDEN
                fix = role_words(lease.namespace or "its own namespace") if forbidden else "it is retried"
                _log.warning("cannot list the servers that other probers load", detail=problem, fix=fix)
            await asyncio.sleep(_AGAIN_S)


async def _look(
    cluster: KubernetesClient,
    lease: LeaseConfig,
    others: OtherProbers,
    clock: Clock,
    report: Callable[[Collection[str]], None],
) -> None:
    leases = Leases(cluster, lease.namespace or cluster.namespace)
    asked_ns = clock.monotonic_ns()
    loaded, free = others.leases(await leases.listed(), asked_ns)
    report(loaded)
    for one in free[:_SWEEP]:
        try:
            with suppress(ConflictError):  # another prober has taken it
                await leases.delete(one)
        except KubernetesError:  # the right to delete may be missing; or another prober was faster
            return
