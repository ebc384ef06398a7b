"""The guard of one run: applies observe/guard.py to what happens, and ends the step or the run for it."""

import asyncio
from array import array
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from probe.capacity.run.load_plan import LoadPlan
from probe.capacity.run.request import GUARD_S, RunJob
from probe.capacity.run.seams import Load
from probe.capacity.run.server_watch import POLL_S, ServerWatch
from probe.capacity.run.step_users import StepUsers
from probe.core import objectives as slo
from probe.core import reasons
from probe.core.clock import Clock
from probe.core.request import NO_FAILURES, Outcome, RequestRecord
from probe.core.result import Stopped
from probe.core.step import StepPlan, StepRun
from probe.core.time_limits import was_arriving
from probe.load.loop_lag import lag_of_most_moments
from probe.load.messages import WORKER_LOST_S
from probe.observe.guard import (
    broken_for_certain,
    counted_after_s,
    decide,
    page_fault,
    rejections,
)
from probe.observe.stream_guard import StreamGuard


class StopSwitch:
    """Stops a run. `step_over` is set with `run_over`, or alone when only the current step has to end."""

    def __init__(self) -> None:
        self.run_over = asyncio.Event()
        self.step_over = asyncio.Event()
        self._stopped: Stopped | None = None

    @property
    def is_on(self) -> bool:
        """Return whether the run has to stop, or has."""
        return self.run_over.is_set()

    @property
    def stopped(self) -> Stopped:
        """Return what ended the run; "done" until something else has."""
        return self._stopped or Stopped("done")

    def stop(self, by: str, reason: str | None = None) -> None:
        """End the load now. The first reason given is the one reported."""
        self._stopped = self._stopped or Stopped(by, reason)
        self.halt()

    def halt(self) -> None:
        """End the load now, for no new reason."""
        self.run_over.set()
        self.step_over.set()

    async def pause(self, seconds: float) -> None:
        """Sleep for `seconds`, or until the run has to stop."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.run_over.wait()

    async def before_stop(self, work: Coroutine[Any, Any, object]) -> bool:
        """Do the work unless the run is stopped first: then cancel it and return False. Raises what the work raises."""
        working, stopped = asyncio.create_task(work), asyncio.create_task(self.run_over.wait())
        try:
            await asyncio.wait((working, stopped), return_when=asyncio.FIRST_COMPLETED)
        finally:
            in_time = working.done()
            for task in (working, stopped):
                task.cancel()
            await asyncio.gather(working, stopped, return_exceptions=True)
        if in_time:
            working.result()
        return in_time


# Requests in flight are judged by a report that is no older than this. Reports that stay older end the run: the client
# is at fault then, and not the server. A worker that says nothing is given up before.
_OLD_S = 0.5
_TOO_LONG_OLD_S = WORKER_LOST_S - _OLD_S + GUARD_S
# After an overload: how long the server may take to empty its queue before load goes on.
_CALM_S = 30.0
# Polls in a row without a queue: what the engine had planned when the load ended may have late first tokens still.
_CALM_POLLS = 2
# Overloads that, without load, show a slow server.
_SLOW = (reasons.NO_FIRST_TOKEN.word, reasons.SLOW_ANSWERS.word)
_RESTARTED = Stopped("guard", reasons.SERVER_RESTARTED.word)
# Answers that may be a full queue whose words a gateway has replaced by its own. The metrics page tells.
_BARE_REFUSALS = (429, 503)
# After a restart: if there are several servers, the old one answers again within so many polls.
_AGAIN_POLLS = 6


class RunGuard:
    """Judges the server, its requests and the client while steps run. `tripped`: why the current step has to end."""

    def __init__(
        self,
        job: RunJob,
        plan: LoadPlan,
        load: Load,
        clock: Clock,
        *,
        watch: ServerWatch,
        switch: StopSwitch,
        other_probes: Callable[[], Sequence[RequestRecord]] = tuple,
    ) -> None:
        """Take `other_probes`, which returns the canaries and requests on demand that have ended."""
        self._request = request = job.request
        self._plan = plan
        self._load = load
        self._clock = clock
        self._watch = watch
        self._switch = switch
        self._limits = job.limits.promised(request.objectives)
        self._stream = StreamGuard(self._limits, request.objectives) if request.by_stream else None
        self._is_unloaded = request.by_stream  # until the answers of the unloaded server are known
        self._failures: list[Outcome] = []
        self._is_cut = False  # whether the first failed answer still arrived at its time limit
        self._rejected = 0  # requests that the server refused for having too much to do
        self._unexplained: list[Outcome] = []  # of refusals until the next poll
        self._is_loading = False
        self._rate_rps = 0.0  # of the step that runs, where it is known
        self._planned = 0.0  # requests of the step that runs, where it has a rate
        self._judged_from_ns = 0  # requests due later count in it
        self._answered_ns = array("q")
        self._missed: Counter[str] = Counter()  # by the objective's name
        self._other_probes = other_probes
        self._users: StepUsers | None = None  # of the step that runs, where they may bring its load to its bound
        self._old_since_ns: int | None = None  # since when reports on the load are too old
        self._polls_again = _AGAIN_POLLS
        self.is_warm = False  # a cold server's first request may take long
        self.tripped: str | None = None

    def step_started(self, plan: StepPlan) -> None:
        """Prepare to judge a step."""
        self._rate_rps = plan.arrivals.rate_rps if plan.arrivals else 0.0
        self._planned = self._rate_rps * plan.seconds
        self._judged_from_ns = self._clock.monotonic_ns() + int(plan.warm_up_s * 1e9)
        self._missed.clear()
        self._users = None
        if plan.most_users_rps is not None and self._request.is_guarded:
            self._users = StepUsers(plan, self._watch.latest, self._judged_from_ns)
        if not self._switch.is_on:
            self._switch.step_over.clear()
        self._is_loading = True

    def step_ended(self, run: StepRun) -> None:
        """Judge how the load of a step ended."""
        if run.problem is not None:
            self._switch.stop("error", run.problem)
        elif run.is_capped:
            self._trip(reasons.IN_FLIGHT_CAP.word)
        if self._stream is not None:
            self._stream.forget_answers()  # no load, nothing to judge
        self._is_loading = False

    def observe_unloaded(self, run: StepRun) -> None:
        """Take in the answers of the unloaded server; stop the run where they are too slow already.

        An answer that may have missed an objective by this machine's own delay says nothing of the server.
        """
        waking_s, promised = lag_of_most_moments(run.loop_lag_s), self._request.objectives
        known = [record for record in run.records if not slo.may_be_client_delay(record, promised, waking_s)]
        if self._stream is not None and (verdict := self._stream.observe_unloaded(known)) is not None:
            self._switch.stop("guard", verdict.reason)
        self._is_unloaded = False

    async def wait_until_calm(self, send_one: Callable[[], Awaitable[StepRun]]) -> None:
        """Wait for the server to have no queue, and forget the overload; stop the run where it stays.

        `send_one` sends a request alone; by the stream only its answer shows that the queue is gone.
        """
        ends = self._clock.monotonic_ns() + int(_CALM_S * 1e9)
        calm, needed = 0, 1 if self._stream is not None else _CALM_POLLS
        while not self._switch.is_on:
            calm = calm + 1 if await self._is_calm(send_one) else 0
            if calm >= needed:
                break
            if self._clock.monotonic_ns() > ends:
                self._switch.stop("guard", self.tripped)
            await self._switch.pause(POLL_S)
        self._watch.forget_polls()
        self._rejected = 0
        self.tripped = None

    async def _is_calm(self, send_one: Callable[[], Awaitable[StepRun]]) -> bool:
        if self._stream is not None:
            return self._stream.is_as_unloaded((await send_one()).records)
        snapshot = await self._watch.poll()
        return snapshot is not None and not snapshot.waiting

    def trip_reason(self, run: StepRun) -> str | None:
        """Return why the guard ended a step early, if it did."""
        stopped = self.stopped()
        return self.tripped or (stopped.reason if run.is_cut_short and stopped.by == "guard" else None)

    def request_ended(self, record: RequestRecord) -> None:
        """Judge a finished request."""
        self._judge(record)
        if self._users is not None:
            self._users.ended(record)
        if record.outcome is Outcome.OK:
            self._answered_ns.append(record.done_ns)
        if self._stream is not None:
            self._stream.answered(record)
        if record.outcome not in NO_FAILURES:
            self._refused(record)
            self.check()

    def _refused(self, record: RequestRecord) -> None:
        """Take in a failure. The load ends at once for one that the next poll explains."""
        if record.is_overload:
            self._rejected += 1
        elif record.http_status in _BARE_REFUSALS and self._counts_rejections():
            self._unexplained.append(record.outcome)
            self._switch.step_over.set()
        else:
            self._is_cut = self._is_cut or (not self._failures and was_arriving(record.detail))
            self._failures.append(record.outcome)

    def _counts_rejections(self) -> bool:
        last = self._watch.latest
        return self._request.is_guarded and self._is_loading and last is not None and last.rejections is not None

    @property
    def is_unsure(self) -> bool:
        """Return whether the next poll decides what a refusal was."""
        return bool(self._unexplained)

    def explain_refusals(self) -> None:
        """Take refusals for rejections where the page, polled since, has counted some; else the server failed."""
        polls = [*(poll for poll in self._watch.polls if poll is not None), *self._watch.snapshots[-1:]]
        if rejections(polls):
            self._rejected += len(self._unexplained)
        else:
            self._failures += self._unexplained
        self._unexplained.clear()
        self.check()

    def _judge(self, record: RequestRecord) -> None:
        """End a step of a search as soon as it is certain to break an objective. Fixed steps run to their end."""
        if not (self._request.is_guarded and self._plan.survives_overload and self._planned):
            return
        if record.scheduled_ns >= self._judged_from_ns:
            self._missed.update(name for name, good in slo.met(record, self._request.objectives).items() if not good)
            if broken_for_certain(self._missed, self._planned, self._request.objectives) is not None:
                self._trip(reasons.OBJECTIVE_BROKEN.word)

    def check(self) -> None:
        """Judge the server now."""
        limits = self._limits.offered(self._rate_rps)
        polls = self._watch.polls if self._stream is None else ()
        verdict = decide(
            polls,
            self._failures,
            limits,
            self._unanswered_s(),
            rejected=self._rejected,
            before=self._watch.first,
            is_cut=self._is_cut,
        )
        if verdict.allows_load and self._stream is not None:
            verdict = self._stream.decide() or verdict
        if self._request.is_guarded and not verdict.allows_load:
            self._trip(verdict.reason)
        elif self._request.is_guarded and (fault := page_fault(self._answered_ns, self._watch.snapshots)) is not None:
            self._trip(fault.word)
        elif self._plan.survives_overload and self.has_several_servers():  # a search learns from the page
            self._trip(reasons.SEVERAL_SERVERS.word)
        elif self._have_users_come():
            self._trip(reasons.USERS_CHANGED.word)

    def _have_users_come(self) -> bool:
        """Return whether the users of the step that runs bring its load to its bound."""
        latest = self._watch.latest
        if self._users is None or not self._is_loading or self.tripped is not None or latest is None:
            return False
        self._users.poll(latest, self._load.in_flight(), self._other_probes())
        return self._users.are_too_many()

    def has_several_servers(self) -> bool:
        """Return whether several servers answer: the metrics page alternates, or does not count all requests."""
        if self._watch.has_restarted:  # its counters began again at zero
            return self._watch.has_alternated
        return page_fault(self._answered_ns, self._watch.snapshots) is reasons.SEVERAL_SERVERS

    def stopped(self) -> Stopped:
        """Return what ended the run. A server that falls asleep fails its requests before a poll shows why; one of
        several seems to restart before the first one answers again.
        """
        stopped, snapshots = self._switch.stopped, self._watch.snapshots
        if stopped == _RESTARTED and self._watch.has_alternated:
            return Stopped("guard", reasons.SEVERAL_SERVERS.word)
        is_asleep = bool(snapshots) and snapshots[-1].is_asleep
        return Stopped("guard", reasons.ASLEEP.word) if stopped.by == "guard" and is_asleep else stopped

    async def watch_after_restart(self) -> None:
        """Watch on without load after a restart: behind a load balancer the old server answers again."""
        while self._polls_again > 0 and self.stopped() == _RESTARTED:
            self._polls_again -= 1
            await asyncio.sleep(POLL_S)

    def uncounted_s(self) -> float:
        """Return for how long the metrics page may still not have counted the run's requests; `check` decides later."""
        snapshots = self._watch.snapshots
        is_behind = self._request.is_guarded and page_fault(self._answered_ns, snapshots, within_s=0.0) is not None
        return counted_after_s(snapshots[-1]) if is_behind else 0.0

    def check_client(self) -> None:
        """Stop a run if the reports on its own requests arrive too late for too long."""
        now_ns = self._clock.monotonic_ns()
        if self._report_age_s() <= _OLD_S:
            self._old_since_ns = None
        elif self._old_since_ns is None:
            self._old_since_ns = now_ns
        elif self._request.is_guarded and now_ns - self._old_since_ns > int(_TOO_LONG_OLD_S * 1e9):
            self._switch.stop("error", reasons.CLIENT_LATE.word)

    def _trip(self, reason: str | None) -> None:
        """End the step for an overload, where the load plan survives one, and else the run."""
        if self._is_unloaded and reason in _SLOW:
            reason = reasons.SLOW_UNLOADED.word
        is_overload = reasons.is_overload(reason)
        if self._plan.survives_overload and self.is_warm and self._is_loading and reasons.ends_step(reason):
            self.tripped = self.tripped or reason
            self._switch.step_over.set()
        elif not (is_overload and self.tripped is not None):  # the same one shows until the server has recovered
            self._switch.stop("guard", reason)

    def _unanswered_s(self) -> list[float]:
        """Return for how long requests had waited for their first token when that was reported.

        None of a cold server's first request, which may take long; none by a report that is too old, as the answers
        may have arrived since.
        """
        if not self.is_warm or self._report_age_s() > _OLD_S:
            return []
        waiting = [record for record in self._load.in_flight() if record.reads == 0]
        return [(record.done_ns - record.scheduled_ns) * 1e-9 for record in waiting]

    def _report_age_s(self) -> float:
        reported_ns = self._load.reported_ns()
        return 0.0 if reported_ns is None else (self._clock.monotonic_ns() - reported_ns) * 1e-9
