"""The server and its GPUs, read again and again while a run lasts.

An hour has 7,200 polls, and one of 32 replicas takes a megabyte. The guard compares the newest ones whole; older ones
are kept thin: totals, gauges, and the sums and counts of the histograms that a search learns from.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache

from probe.core.clock import Clock
from probe.core.errors import TargetError
from probe.core.snapshot import KV_SIZES, EngineSnapshot, GpuSnapshot, ServerSnapshot
from probe.observe import kv_size
from probe.observe.guard import LOOK_BACK
from probe.observe.restarts import restarted
from probe.observe.snapshot_history import NEEDED, slim

# Under load the server is read often: an overload shows within two or three polls. An overloaded server answers
# slowly, which must not hold up the guard: it checks at its own pace, and after each failure.
POLL_S = 0.5
_POLL_TIMEOUT_S = 1.0
_GPU_POLL_S = 1.0
# A server does not restart twice within this time.
_TWICE_NS = 10 * 10**9
# With more engines, an older poll keeps only how many requests run on each, and how full they are together.
_FEW_ENGINES = 8


def thin(snapshot: ServerSnapshot, *, has_engines: bool = False, has_replicas: bool = False) -> ServerSnapshot:
    """Return what a run needs of an older poll; with all of its engines, or with its replicas, if that is asked for."""
    is_small = len(snapshot.by_engine) <= _FEW_ENGINES and not snapshot.replicas
    return replace(
        slim(snapshot, NEEDED),
        flags=snapshot.flags,
        finished=snapshot.finished,
        by_engine=snapshot.by_engine if has_engines or is_small else _engines(snapshot),
        waiting_by_reason={},
        others=_shared(tuple((key, snapshot.others[key]) for key in KV_SIZES if key in snapshot.others)),
        replicas={name: thin(one) for name, one in snapshot.replicas.items()} if has_replicas else {},
    )


def thinned(snapshots: Sequence[ServerSnapshot]) -> list[ServerSnapshot]:
    """Return what a load plan learns from. The shares of engines are known from the first and the last; the last one
    has the spread of lengths too.
    """
    older = [thin(one, has_engines=index == 0) for index, one in enumerate(snapshots[:-1])]
    return [*older, *(replace(last, replicas={}, counted_apart={}) for last in snapshots[-1:])]


def _engines(snapshot: ServerSnapshot) -> dict[str, EngineSnapshot]:
    """Return how many requests run on each engine, with the mean use of all KV caches for the use of each."""
    usage = kv_size.mean_usage(snapshot)
    if not snapshot.by_engine:  # too many to be shown
        return {} if usage is None else {"": EngineSnapshot(kv_cache_usage=usage)}
    same: dict[float | None, EngineSnapshot] = {}
    return {
        sys.intern(name): same.setdefault(one.running, EngineSnapshot(running=one.running, kv_cache_usage=usage))
        for name, one in snapshot.by_engine.items()
    }


@lru_cache(maxsize=64)
def _shared(values: tuple[tuple[str, float], ...]) -> Mapping[str, float]:
    """Return the values as a mapping that all polls share: they are the server's for as long as it runs."""
    return dict(values)


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
        self._begins: set[int] = set()  # indices in `snapshots` of the first of each step
        self._replaced: set[int] = set()  # and of those before and after a change of processes
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
        return self._keep(snapshot)

    def _keep(self, snapshot: ServerSnapshot) -> ServerSnapshot:
        """Keep and return a poll, less of the one before, and thin the one that the guard no longer looks back to."""
        self.first = self.first or replace(snapshot, replicas={}, counted_apart={})
        if self.snapshots and self.snapshots[-1].flags == snapshot.flags:
            snapshot = replace(snapshot, flags=self.snapshots[-1].flags)  # kept once
        count = len(self.snapshots)
        if self.snapshots and restarted(self.snapshots[-1], snapshot) is not None:
            self._replaced |= {count - 1, count}
        self.snapshots.append(snapshot)
        if count and (before := self.snapshots[-2]).replicas and count - 1 not in self._replaced:
            self._exchange(count - 1, replace(before, replicas={k: thin(one) for k, one in before.replicas.items()}))
        if (index := count - LOOK_BACK) >= 0:
            has_engines, has_replicas = index in self._begins, index in self._replaced
            self._exchange(index, thin(self.snapshots[index], has_engines=has_engines, has_replicas=has_replicas))
        return snapshot

    def _exchange(self, index: int, less: ServerSnapshot) -> None:
        """Put less of a poll in its place, among the regular polls too if it was one of these."""
        old, self.snapshots[index] = self.snapshots[index], less
        at = next((i for i in reversed(range(len(self.polls))) if self.polls[i] is old), None)
        if at is not None:
            self.polls[at] = less

    def begin(self) -> int:
        """Return the index in `snapshots` that the next one will have."""
        self._begins.add(len(self.snapshots))
        return len(self.snapshots)

    def end(self) -> None:
        """Forget the snapshots of what has ended, but for the run's first and those that the guard looks back to."""
        self.snapshots[1:-LOOK_BACK] = []
        self._begins.clear()
        self._replaced.clear()

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
                    read = await self._read_gpus()
                    # Most exporters sample every 30 s, and repeat old values in between.
                    if not self._gpus or self._gpus[-1].gpus != read.gpus:
                        self._gpus.append(read)
            await asyncio.sleep(_GPU_POLL_S)

    @property
    def latest(self) -> ServerSnapshot | None:
        """Return the latest snapshot; None: there is none."""
        return self.snapshots[-1] if self.snapshots else None

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
