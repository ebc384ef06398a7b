"""The capacity runs of one watched target: when one may begin, what ends it early, what the last one found."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import structlog

from probe.capacity.run.admission import Admission, AdmissionCheck
from probe.capacity.run.locks import Lock
from probe.capacity.run.request import RunRequest
from probe.capacity.run.runner import CapacityRun
from probe.capacity.run.seams import ServerAccess
from probe.capacity.run.service import RefusedError, RunObservers, run_capacity
from probe.capacity.trend.known_capacity import KnownCapacity
from probe.core import reasons
from probe.core.clock import Clock
from probe.core.errors import LockError
from probe.core.request import RequestRecord
from probe.core.result import Capacity, CapacityResult, Phase, RunProgress
from probe.core.snapshot import REPLICAS
from probe.core.step import StepSummary
from probe.core.text import one_line
from probe.load.request_source import RequestSource
from probe.observe.guard import denied
from probe.observe.server_observer import ServerObserver

_log = structlog.get_logger()


class RunSink(Protocol):
    """Where capacity runs report to."""

    def result(self, result: CapacityResult) -> None:
        """Publish the result of a run that has ended."""

    def needs_confirmation(self, result: CapacityResult) -> bool:
        """Return whether the last run, or the one that it repeats, is so far below the target's baseline that another
        run has to confirm it.
        """

    def unrepeated_drop(self, target: str) -> str | None:
        """Return the id of the target's last run if it was such a one, not long ago, and no run has repeated it."""

    def refused(self, target: str, reason: str) -> None:
        """Publish that a run was not allowed to start."""


@dataclass(frozen=True, slots=True)
class RunHooks:
    """What a run needs from its target's monitor: a request built when the run is due, and observers of the run."""

    request: Callable[[str | None], tuple[RunRequest, RequestSource]]  # by the id of the run that it repeats, if any
    lock: Callable[[], Lock]
    on_lock: Callable[[], None]
    on_record: Callable[[RequestRecord], None]
    on_load_end: Callable[[], None]


class CapacityRuns:
    """Runs the capacity runs of one target, one at a time. `refusal` says why the last one did not run, or broke."""

    def __init__(
        self,
        target: str,
        clock: Clock,
        sink: RunSink,
        server: ServerObserver,
        *,
        admission: AdmissionCheck,
        hooks: RunHooks,
    ) -> None:
        self._target = target
        self._clock = clock
        self._sink = sink
        self._server = server
        self._admission = admission
        self._hooks = hooks
        self._run: CapacityRun | None = None
        self._ended = asyncio.Event()
        self.inhibited_by: str | None = None
        self.refusal: str | None = None
        self.progress: RunProgress | None = None  # of the run under way
        self.last_result: CapacityResult | None = None
        self._known = KnownCapacity()

    @property
    def is_running(self) -> bool:
        return self._run is not None

    async def capacity(self) -> bool:
        """Run once, and once more where the run ended by itself far below the baseline.

        A run that has to be repeated still, as after a restart, is repeated instead. Return whether a drop still has to
        be confirmed, by a run that is not made at once: also where the second one was refused or ended early.
        """
        first = await self._once(confirms=self._sink.unrepeated_drop(self._target))
        if first is None or first.stopped.by != "done" or not self._sink.needs_confirmation(first):
            return False
        if first.confirms is not None:
            return True
        _log.warning("capacity has dropped, it is measured again", target=self._target)
        return self._sink.needs_confirmation(await self._once(confirms=first.id) or first)

    def inhibit(self, why: str | None) -> None:
        """Let no run begin and stop the one in progress; None: lift that."""
        if why is not None and self._run is not None:
            self._run.stop("interrupt", why)
        self.inhibited_by = why

    @property
    def known(self) -> CapacityResult | None:
        """Return the run that says what the server takes."""
        return self._known.result

    def give_up(self, detail: str) -> None:
        """Report that a run could not begin in time."""
        self._refused(reasons.LATE.word, detail)

    def end(self, reason: str) -> None:
        """End the run in progress for one of the guard's reasons."""
        if self._run is not None:
            self._run.stop("guard", reason)

    async def stop(self, why: str) -> None:
        """Stop the run in progress, and wait until its result has been reported."""
        if self._run is not None:
            self._run.stop("interrupt", why)
            await self._ended.wait()

    def restore(self, result: CapacityResult) -> None:
        """Take a result as the last one, such as one from before a restart."""
        self.last_result = result
        self._known = self._known.after(result)

    async def _once(self, confirms: str | None = None) -> CapacityResult | None:
        """Return the result of one run; None where it was refused or lost its lock. `confirms`: see CapacityResult."""
        if self.inhibited_by is not None:
            self._refused(reasons.ROLLOUT.word, self.inhibited_by)
            return None
        state = self._server.state
        server = ServerAccess(self._server.look, self._server.read_gpus, state.users_between, state.other_probes)
        observers = RunObservers(
            on_admitted=self._log_start,
            on_record=self._hooks.on_record,
            on_phase=self._follow_phase,
            on_step=self._follow_step,
            on_result=self._report,
            loading=self._server.sending,
        )
        try:
            return await run_capacity(
                partial(self._hooks.request, confirms),
                self._hooks.lock(),
                server,
                self._clock,
                admit=self._admit,
                interrupts=self._interruptible,
                observers=observers,
            )
        except RefusedError as refused:
            self._refused(refused.verdict.reason or "", refused.verdict.detail)
        except LockError as error:
            if reasons.find(reasons.REFUSALS, error.reason) is not None:
                self._refused(error.reason, str(error))
            else:  # lost on the way: the run was cancelled, and has been reported
                self.refusal = str(error)
                _log.warning("capacity run ended", target=self._target, detail=str(error))
        finally:
            self.progress = None
        return None

    async def _admit(self) -> Admission:
        self._hooks.on_lock()
        admission = await self._admission.ask(self._server.read, self._known_now())
        if self.inhibited_by is not None:  # since the run has waited for the lock and the checks
            return Admission(denied(reasons.ROLLOUT, self.inhibited_by))
        return admission

    def _known_now(self) -> Capacity | None:
        """Return what is known of the capacity with as many replicas as there are now; None: unknown."""
        if self.known is None:
            return None
        now = self._server.server.flags.get(REPLICAS) if self._server.server is not None else None
        return self._known.most if self.known.context.flags.get(REPLICAS) == now else None

    @contextmanager
    def _interruptible(self, run: CapacityRun) -> Iterator[None]:
        self._run = run
        self._ended.clear()
        if self.inhibited_by is not None:
            run.stop("interrupt", self.inhibited_by)
        try:
            yield
        finally:
            self._run = None
            self._ended.set()

    def _report(self, result: CapacityResult, error: BaseException | None) -> None:
        if error is None:
            self.refusal = None
            self.restore(result)
        elif isinstance(error, Exception):  # a run that was cancelled has lost its lock, or its monitor ends
            detail = f": {one_line(str(error))}" if str(error) else ""
            self.refusal = f"error: {result.stopped.reason}{detail}"
            _log.error("capacity run ended", target=self._target, stopped="error", reason=self.refusal)
        self._hooks.on_load_end()
        self._sink.result(result)
        if error is None:
            _log.info(
                "capacity run ended",
                target=self._target,
                stopped=result.stopped.by,
                reason=result.stopped.reason or result.capacity.reason,
                mode=result.capacity.mode,
                requests_per_second=result.capacity.requests_per_second,
                knee_concurrency=result.capacity.knee_concurrency,
            )

    def _follow_phase(self, phase: Phase) -> None:
        if self.progress is not None:
            self.progress = replace(self.progress, phase=phase.text)

    def _follow_step(self, step: StepSummary) -> None:
        if self.progress is not None:
            self.progress = replace(self.progress, steps=(*self.progress.steps, step))

    def _log_start(self, request: RunRequest, admission: Admission) -> None:
        self.progress = RunProgress(self._clock.wall_s(), "starting")
        _log.info(
            "capacity run started",
            target=self._target,
            concurrency=request.steps.concurrency,
            rates=request.steps.rates,
            unchecked=admission.unchecked or None,
        )

    def _refused(self, reason: str, detail: str | None) -> None:
        self.refusal = f"{reason}: {detail}"
        _log.warning("capacity run refused", target=self._target, reason=reason, detail=detail)
        self._sink.refused(self._target, reason)
