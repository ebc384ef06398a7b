"""The server and its GPUs, read again and again while a run lasts."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from probe.core.clock import Clock
from probe.core.errors import TargetError
from probe.core.snapshot import GpuSnapshot, ServerSnapshot
from probe.observe.restarts import restarted

# Under load the server is read often: an overload shows within two or three polls. An overloaded server answers
# slowly, which must not hold up the guard: it checks at its own pace, and after each failure.
POLL_S = 0.5
_POLL_TIMEOUT_S = 1.0
_GPU_POLL_S = 1.0
# A server does not restart twice within this time.
_TWICE_NS = 10 * 10**9


class ServerWatch:
    """What was read of a server since its run began. `polls`: by the regular polls alone, None where one failed."""

    def __init__(
        self,
        read_server: Callable[[], Awaitable[ServerSnapshot]],
        read_gpus: Callable[[], Awaitable[GpuSnapshot]] | None,
        clock: Clock,
    ) -> None:
        self._read_server = read_server
        self._read_gpus = read_gpus
        self._clock = clock
        self._gpus: list[GpuSnapshot] = []
        self.polls: list[ServerSnapshot | None] = []
        self.snapshots: list[ServerSnapshot] = []  # those before and after a step too
        self.first: ServerSnapshot | None = None  # before the run's load
        self.failure: str | None = None  # why the last poll that failed did
        self.has_alternated = False  # several servers answer, one after the other
        self._polled: ServerSnapshot | None = None
        self._replaced_ns: int | None = None  # when another process answered last

    async def poll(self) -> ServerSnapshot | None:
        """Read the server once; None where it cannot be read."""
        try:
            async with asyncio.timeout(_POLL_TIMEOUT_S):
                snapshot = await self._read_server()
        except TimeoutError:
            self.failure = f"the metrics page did not answer within {_POLL_TIMEOUT_S:g} s"
            return None
        except TargetError as error:
            self.failure = str(error)
            return None
        self.snapshots.append(snapshot)
        self.first = self.first or snapshot
        return snapshot

    async def follow_server(self) -> None:
        """Poll the server until cancelled."""
        due = self._clock.monotonic_ns()
        while True:
            self.polls.append(polled := await self.poll())
            if polled is not None:
                self._compare(polled)
            due = max(due + int(POLL_S * 1e9), self._clock.monotonic_ns())
            await asyncio.sleep((due - self._clock.monotonic_ns()) * 1e-9)

    def _compare(self, polled: ServerSnapshot) -> None:
        """Note whether another process answered than at the last poll."""
        before, self._polled = self._polled, polled
        if before is None or restarted(before, polled) is None:
            return
        now_ns = self._clock.monotonic_ns()
        is_same = before.replicas.keys() == polled.replicas.keys()
        self.has_alternated |= is_same and self._replaced_ns is not None and now_ns - self._replaced_ns < _TWICE_NS
        self._replaced_ns = now_ns

    async def follow_gpus(self) -> None:
        """Read the GPUs until cancelled. Their readings, and failures to read them, stop nothing."""
        while True:
            if self._read_gpus is not None:
                with suppress(TargetError):
                    self._gpus.append(await self._read_gpus())
            await asyncio.sleep(_GPU_POLL_S)

    @property
    def last_gpus(self) -> GpuSnapshot | None:
        """Return the last snapshot of the GPUs; None: there is none."""
        return self._gpus[-1] if self._gpus else None

    @property
    def has_restarted(self) -> bool:
        """Return whether another process has answered since the run began."""
        return self._replaced_ns is not None

    def take_gpus(self) -> list[GpuSnapshot]:
        """Return the GPU snapshots since the last call, and the one before them."""
        gpus, self._gpus = self._gpus, self._gpus[-1:]
        return gpus

    def forget_polls(self) -> None:
        """Forget all polls but one: by that the guard sees that the server was replaced."""
        self.polls[:] = [poll for poll in self.polls if poll is not None][-1:]
