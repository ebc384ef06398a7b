"""One capacity run, from the lock of its server to a reported result. The daemon and `kneewatch ramp` both run this.

    lock -> admit -> load plan -> workers -> CapacityRun -> on_result

In: a RunRequest (what to measure), its RequestSource (what to send), the server's lock, a ServerAccess (how to reach
it), and three functions that differ between callers: `admit` refuses the run or limits it, `interrupts` lets something
outside stop it, RunObservers receive its measurements. Out: a CapacityResult.

Without the lock or an admission nothing is sent: LockError or RefusedError says why. Once a run is admitted, exactly
one result is reported, while the lock is still held. The run ended by itself, was stopped (even before its workers had
started), ran into the end of its window, was cancelled (losing the lock cancels) or broke, perhaps before its load plan
had begun. What cancelled or broke it is raised again afterwards.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from socket import gethostname

from probe import __version__
from probe.capacity.run.admission import Admission
from probe.capacity.run.load_plan import load_plan
from probe.capacity.run.locks import Lock
from probe.capacity.run.request import RunJob, RunRequest, context_of
from probe.capacity.run.runner import CapacityRun
from probe.capacity.run.seams import ServerAccess, StepObservers, ignore
from probe.capacity.search.fixed_steps import FixedSteps
from probe.core.clock import Clock
from probe.core.provenance import Provenance, kv_facts, version_facts
from probe.core.reasons import ENDED_BY_BUDGET, TOKENS_PER_DAY, WINDOW
from probe.core.result import CapacityResult
from probe.load.request_source import RequestSource
from probe.load.worker_pool import WorkerPool, workers_of
from probe.observe.guard import GuardVerdict

Admit = Callable[[], Awaitable[Admission]]
Interrupts = Callable[[CapacityRun], AbstractContextManager[None]]


class RefusedError(Exception):
    """The admission refused the run; `verdict` has the reason and its numbers."""

    def __init__(self, verdict: GuardVerdict) -> None:
        super().__init__(f"{verdict.reason}: {verdict.detail}")
        self.verdict = verdict


def job_of(request: RunRequest, source: RequestSource, admission: Admission) -> RunJob:
    """Return the job that the request is, within the limits of its admission."""
    budget = request.budget
    if admission.tokens is not None and admission.tokens < budget.tokens:
        budget = replace(budget, tokens=admission.tokens, tokens_name=TOKENS_PER_DAY.word)
    sending, shape = request.steps.conditions, source.endpoint.shape
    context = context_of(admission.server, source.workload, request.objectives, request.server, shape, sending=sending)
    facts = {**version_facts(context.version), **kv_facts(admission.server), **request.facts}
    provenance = Provenance(__version__, request.command, source.seed, gethostname(), facts)
    return RunJob(replace(request, budget=budget), source.model, context, provenance=provenance)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunObservers(StepObservers):
    """Callbacks for the end of a run. `on_result`: its one result, and what broke or cancelled it, if anything did.

    `loading` is entered for as long as the run may have requests in flight.
    """

    on_result: Callable[[CapacityResult, BaseException | None], None]
    on_admitted: Callable[[RunRequest, Admission], None] = ignore
    loading: Callable[[], AbstractAsyncContextManager[None]] = nullcontext


async def run_capacity(
    make_request: Callable[[], tuple[RunRequest, RequestSource]],
    lock: Lock,
    server: ServerAccess,
    clock: Clock,
    *,
    admit: Admit,
    interrupts: Interrupts,
    observers: RunObservers,
) -> CapacityResult:
    """Run once and return the reported result. The request is made once the run is admitted.

    Raises LockError where the lock cannot be had or was lost, RefusedError where `admit` refuses, and whatever breaks
    or cancels the run.
    """
    async with lock:
        admission = await admit()
        if not admission.verdict.allows_load:
            raise RefusedError(admission.verdict)
        request, source = make_request()
        job = job_of(request, source, admission)
        workers = workers_of(request.load, source, request.steps.streams, clock, request.workers)
        observers.on_admitted(request, admission)
        begin = partial(CapacityRun, job, load=workers, server=server, clock=clock, observers=observers)
        async with AsyncExitStack() as opened:
            try:
                plan = await opened.enter_async_context(load_plan(job.request, source.workload))
            except (Exception, asyncio.CancelledError) as error:
                await _report_broken(begin(FixedSteps(())), error, observers)
                raise
            run = begin(plan)
            with _stopped_after(admission.seconds, run), interrupts(run):
                return await _reported(run, workers, observers)


async def _reported(run: CapacityRun, workers: WorkerPool, observers: RunObservers) -> CapacityResult:
    try:
        result = await _result_of(run, workers, observers)
    except (Exception, asyncio.CancelledError) as error:
        await _report_broken(run, error, observers)
        raise
    observers.on_result(result, None)
    return result


async def _report_broken(run: CapacityRun, error: BaseException, observers: RunObservers) -> None:
    """Report the result of a run that `error` ended: load that ran is accounted for, whatever broke."""
    is_cancelled = isinstance(error, asyncio.CancelledError)
    # A lock that is lost cancels with its reason.
    reason = str(error) or "cancelled" if is_cancelled else type(error).__name__
    run.stop("interrupt" if is_cancelled else "error", reason)
    observers.on_result(await run.result(), error)


async def _result_of(run: CapacityRun, workers: WorkerPool, observers: RunObservers) -> CapacityResult:
    async with AsyncExitStack() as entered:
        if not await run.before_stop(entered.enter_async_context(workers)):
            return await run.result()
        await entered.enter_async_context(observers.loading())
        return await run.run()


@contextmanager
def _stopped_after(seconds: float | None, run: CapacityRun) -> Iterator[None]:
    """Stop the run when its window closes. None: it may take as long as it needs."""
    closing = None
    if seconds is not None:
        closing = asyncio.get_running_loop().call_later(seconds, run.stop, ENDED_BY_BUDGET.word, WINDOW.word)
    try:
        yield
    finally:
        if closing is not None:
            closing.cancel()
