"""What a capacity run is connected to: the load, the server, and the observers of its steps."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from probe.core.errors import TargetError
from probe.core.request import Outcome, RequestRecord
from probe.core.result import Phase
from probe.core.snapshot import GpuSnapshot, ServerSnapshot, UserLoad
from probe.core.step import StepPlan, StepRun, StepSummary
from probe.observe.user_load import users_beside


class Load(Protocol):
    """Runs steps, one after the other."""

    async def run(self, plan: StepPlan, stop: asyncio.Event, on_record: Callable[[RequestRecord], None]) -> StepRun:
        """Run one step to its end or until `stop` is set; `on_record` receives each request as it ends."""
        ...

    def in_flight(self) -> list[RequestRecord]:
        """Return the requests in flight, as they would be recorded had they been cancelled when last reported."""
        ...

    def reported_ns(self) -> int | None:
        """Return the time of the oldest report behind `in_flight`; None when no worker has a step."""
        ...

    async def add_workers(self) -> None:
        """Send later steps by more workers, where there are cores for them: this machine was late."""


_T = TypeVar("_T")


class Think(Protocol):
    """Runs seconds of arithmetic where they hold up nothing else."""

    def __call__(self, work: Callable[[], _T], /) -> Awaitable[_T]: ...


class UsersBetween(Protocol):
    """Returns the load of users between the first and the last of a run's snapshots, given the run's own requests."""

    def __call__(self, records: Iterable[RequestRecord], snapshots: Sequence[ServerSnapshot], /) -> UserLoad: ...


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """How a run reads the server: the metrics page, and the GPUs (None: there are none).

    `users_between` knows the other probe traffic during the run; `other_probes` returns its finished requests.
    """

    read: Callable[[], Awaitable[ServerSnapshot]]
    read_gpus: Callable[[], Awaitable[GpuSnapshot]] | None = None
    users_between: UsersBetween = users_beside
    other_probes: Callable[[], Sequence[RequestRecord]] = tuple


async def unread() -> ServerSnapshot:
    """Read no metrics page: for a run that is guarded by its own answers alone."""
    raise TargetError("the metrics page is not read in this run", Outcome.ABORTED)


def ignore(*_: object) -> None:
    """Take an event that a caller does not follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepObservers:
    """Callbacks of a run: finished requests, finished steps, and the current phase."""

    on_phase: Callable[[Phase], None] = ignore
    on_record: Callable[[RequestRecord], None] = ignore
    on_step: Callable[[StepSummary], None] = ignore
