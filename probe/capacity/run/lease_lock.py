"""The lock of a server in a cluster: the holder of its Kubernetes Lease (coordination.k8s.io/v1) may load it.

    async with KubernetesLease(server, namespace, clock): ...   raises LockError, and cancels its body when it is lost

The Lease is named after the server. Its holder renews it twice a second, as often as answers come. The Lease is lost
after 2.4 s without a renewal that the API server accepted, or as soon as it has another holder. The body is then
cancelled, as by asyncio.timeout, and LockError raised (`lost_lock`), so that load is gone within 3 s.

A prober that wants a held Lease watches it for its duration, 10 s. If the Lease changes meanwhile, its holder is alive
(LockError, `locked`); if not, the prober takes it over. As in client-go's leader election only observed changes count,
on the local monotonic clock: no other machine's time is used. Every write names the version that it replaces, so of two
probers that take a Lease one is refused. Deleting the Lease ends the load.

The holder deletes the Lease at the end, only in the version that it wrote: a removed server leaves nothing behind.
"""

import asyncio
import hashlib
import secrets
import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from datetime import UTC, datetime
from types import TracebackType

import msgspec

from probe.capacity.run.locks import LOST_LEASE
from probe.core.clock import Clock
from probe.core.errors import LockError
from probe.core.reasons import LOCKED, NO_LOCK
from probe.core.text import one_line
from probe.kubernetes.client import FORBIDDEN, NOT_FOUND, KubernetesClient, KubernetesError, open_cluster
from probe.kubernetes.lease import ConflictError, Lease, LeaseClient, LeaseSpec

LASTS_S = 10  # more than lease_lock.LOST_S, and than a load worker needs to see that its controller has died
LONGEST_S = 60.0  # the longest duration of a Lease that is believed
# The prefix of this process's identities; each of its Leases has its own identity.
_PROCESS = f"{socket.gethostname()}_{secrets.token_hex(4)}"


def new_identity() -> str:
    return f"{_PROCESS}{secrets.token_hex(2)}"


def is_held_here(spec: LeaseSpec) -> bool:
    """Return whether this process holds the Lease."""
    return (spec.holder_identity or "").startswith(_PROCESS)


def lasts_s(spec: LeaseSpec) -> float:
    """Return how long a Lease has to stay unchanged before it may be taken over, in seconds."""
    return min(max(LASTS_S, spec.lease_duration_seconds or 0), LONGEST_S)


def role_words(namespace: str | None) -> str:
    """Return the rights that are missing where the API server refuses."""
    verbs = "get, list, create, update and delete"
    return f"it needs a Role in {namespace} with {verbs} of leases (docs/discovery.md)"


LOST = "lost_lock"
RENEW_S = 0.5
LOST_S = 2.4  # the rest of 3 s is for ending the load
# The time limit of one renewal. A renewal and the next one fit in LOST_S if each takes that long, and so does a second
# try, on a new connection, if the first is not answered.
_TRY_S = 1.2
_AGAIN_S = 0.1
_LAST_LOOK_S = 3.0  # to release it; there is no load any more
_LOOK_S = 0.5
_TRIES = 5


class _LostError(Exception):
    """The Lease is lost; the message is the reason."""


class KubernetesLease:
    """The lock of a server in a cluster, held as a Lease. Use once."""

    _record: LeaseClient
    _lease: Lease  # as written last
    _body: asyncio.Task[object]
    _keeper: asyncio.Task[None]

    def __init__(
        self,
        server: str,
        namespace: str | None,
        clock: Clock,
        *,
        connect: Callable[[], AbstractAsyncContextManager[KubernetesClient]] = open_cluster,
    ) -> None:
        """Take `server`: the result of server_key. `namespace`: of the Lease; None: this pod's own."""
        self._server = server
        self._namespace = namespace
        self._clock = clock
        self._connect = connect
        self._identity = new_identity()
        self._open = AsyncExitStack()
        self._acquired = ""
        self._renewed_ns = 0
        self._cancelling = 0
        self._lost: str | None = None

    async def __aenter__(self) -> None:
        """Take the Lease. Raises LockError."""
        name = f"kneewatch-{hashlib.sha256(self._server.encode()).hexdigest()[:16]}"
        try:
            cluster = await self._open.enter_async_context(self._connect())
            self._namespace = self._namespace or cluster.namespace
            self._record = LeaseClient(cluster, self._namespace, name, self._server)
            await self._acquire()
        except (KubernetesError, msgspec.DecodeError) as error:
            await self._open.aclose()
            raise LockError(f"cannot get the lease of {self._server}: {self._describe(error)}", NO_LOCK.word) from None
        except BaseException:  # cancelled too: without the lock, __aexit__ does not close
            await self._open.aclose()
            raise
        body = asyncio.current_task()
        assert body is not None  # noqa: S101 - a task awaits this
        self._body, self._cancelling = body, body.cancelling()
        self._keeper = asyncio.create_task(self._keep())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the Lease. Raises LockError where the body was cancelled because the Lease was lost."""
        self._keeper.cancel()  # from here on it cancels no body
        # Take this cancellation of the body back; something else may have cancelled it too.
        is_own_cancellation = self._lost is not None and self._body.uncancel() <= self._cancelling
        try:
            await asyncio.gather(self._keeper, return_exceptions=True)
            if self._lost is None:
                await self._release()
        finally:
            await self._open.aclose()
        if is_own_cancellation and kind is asyncio.CancelledError:
            raise LockError(f"the lease of {self._server} is lost: {self._lost}; load was ended", LOST) from error

    async def _acquire(self) -> None:
        """Take the Lease. Raises LockError where another prober holds it, and KubernetesError."""
        first: LeaseSpec | None = None
        since_ns, tries = 0, 0
        while tries < _TRIES:
            asked_ns = self._clock.monotonic_ns()
            lease = await self._record.read()
            if lease is not None and lease.spec.holder_identity:
                if first is None:
                    first, since_ns = lease.spec, self._clock.monotonic_ns()
                elif lease.spec != first:
                    raise LockError(self._held(lease.spec), LOCKED.word)
                if (asked_ns - since_ns) * 1e-9 < lasts_s(lease.spec):
                    await asyncio.sleep(_LOOK_S)
                    continue
            if await self._take(lease):
                return
            tries += 1
        raise LockError(f"other probers keep taking the lease of {self._server}; try again later", LOCKED.word)

    async def _take(self, before: Lease | None) -> bool:
        """Write this prober as the holder; return False where another was faster. `before` None: there is no Lease."""
        self._acquired, asked_ns = self._now(), self._clock.monotonic_ns()
        try:
            if before is None:
                self._lease = await self._record.create(self._spec(0))
            else:
                self._lease = await self._record.replace(before, self._spec((before.spec.lease_transitions or 0) + 1))
        except ConflictError:
            return False
        except KubernetesError as error:
            if before is not None and error.status == NOT_FOUND:
                return False
            raise
        self._check_answer()
        self._renewed_ns = asked_ns
        return True

    def _check_answer(self) -> None:
        """Raise KubernetesError if the API server answers a write with another holder: it has not written this one."""
        if self._lease.spec.holder_identity != self._identity:
            raise KubernetesError(f"it accepted a write, but names another holder: {self._held(self._lease.spec)}")

    async def _keep(self) -> None:
        """Renew until cancelled; cancel the body where that fails for too long."""
        try:
            while True:
                await asyncio.sleep(max(RENEW_S - self._age_s(), 0.0))
                await self._renew()
        except _LostError as error:
            self._lost = str(error)
        except Exception as error:  # noqa: BLE001 - after any error nothing renews it
            self._lost = one_line(repr(error))
        self._body.cancel(LOST_LEASE)

    async def _renew(self) -> None:
        """Try to renew until the API server accepts it. Raises _LostError."""
        why = "none was tried"
        while (left_s := LOST_S - self._age_s()) > 0:
            asked_ns = self._clock.monotonic_ns()
            try:
                spec = self._spec(self._lease.spec.lease_transitions or 0)
                self._lease = await self._record.replace(self._lease, spec, min(_TRY_S, left_s))
            except ConflictError as error:
                why = str(error)
                await self._look_again(min(_TRY_S, max(LOST_S - self._age_s(), 0.0)))
            except KubernetesError as error:
                if error.status == NOT_FOUND:
                    raise _LostError("it was deleted") from None
                why = str(error)
            else:
                if self._lease.spec.holder_identity != self._identity:
                    raise _LostError(self._held(self._lease.spec))
                self._renewed_ns = asked_ns
                return
            await asyncio.sleep(_AGAIN_S)
        raise _LostError(f"the API server has accepted no renewal for {LOST_S:g} s ({why})")

    async def _look_again(self, limit_s: float) -> None:
        """Continue from another writer's version if this prober still holds it. Raises _LostError."""
        with suppress(KubernetesError):
            lease = await self._record.read(limit_s)
            if lease is None:
                raise _LostError("it was deleted")
            if lease.spec.holder_identity != self._identity:
                raise _LostError(self._held(lease.spec))
            self._lease = lease

    async def _release(self) -> None:
        """Give the Lease back, so that the next prober need not wait. Where that fails, it waits."""
        with suppress(KubernetesError, ConflictError, _LostError, msgspec.DecodeError):
            try:
                await self._delete()
            except ConflictError:  # a renewal that was sent before has been accepted
                await self._look_again(_LAST_LOOK_S)
                await self._delete()

    async def _delete(self) -> None:
        """Delete the Lease; without the right to delete, clear its holder."""
        try:
            await self._record.delete(self._lease)
        except KubernetesError as error:
            if error.status != FORBIDDEN:
                raise
            free = LeaseSpec(
                holder_identity="",
                lease_duration_seconds=1,
                acquire_time=self._acquired,
                renew_time=self._now(),
                lease_transitions=self._lease.spec.lease_transitions,
            )
            await self._record.replace(self._lease, free)

    def _spec(self, transitions: int) -> LeaseSpec:
        return LeaseSpec(
            holder_identity=self._identity,
            lease_duration_seconds=LASTS_S,
            acquire_time=self._acquired,
            renew_time=self._now(),
            lease_transitions=transitions,
        )

    def _age_s(self) -> float:
        """Return the seconds since the last accepted renewal was sent."""
        return (self._clock.monotonic_ns() - self._renewed_ns) * 1e-9

    def _now(self) -> str:
        return datetime.fromtimestamp(self._clock.wall_s(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def _held(self, spec: LeaseSpec) -> str:
        who = one_line(f"{spec.holder_identity}, since {spec.acquire_time}")
        where = f"{self._namespace}/{self._record.name}"
        return f"another prober loads {self._server} ({who}; lease {where}); wait until it ends"

    def _describe(self, error: Exception) -> str:
        fix = ""
        if isinstance(error, KubernetesError) and error.status == FORBIDDEN:
            fix = f"; {role_words(self._namespace)}"
        return f"{one_line(str(error), 400)}{fix}"
