"""The canary of one target: single requests at a low rate, judged. `kneewatch check` uses it too.

Canaries overlap: each is sent when it is due, whether or not those before it have ended. Otherwise a slow server would
get fewer of them, and count for less the slower it is (coordinated omission).

After an answered canary the server is asked a question with a known answer (KnownAnswer), where one is configured. What
failed while this process did not run is the client's fault (`excused`).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

import structlog

from probe.client.client import Client
from probe.client.judgement import excused, judge_name
from probe.config.canaries import KnownAnswerConfig
from probe.config.targets import TargetConfig
from probe.core.clock import Clock
from probe.core.errors import TargetError
from probe.core.failure_log import FailureLog
from probe.core.objectives import Objectives
from probe.core.request import UNKNOWN_MODEL, Api, Outcome, RequestRecord, RequestSpec, TraceContext, Traffic
from probe.core.step import StepPlan
from probe.core.workload import Workload
from probe.load.loop_lag import watch_lag
from probe.load.step_executor import StepExecution

_log = structlog.get_logger()
WORKLOAD = "known_answer"


class KnownAnswer:
    """Asks the question when it is due. After a wrong answer it is due with each canary, until an answer is right.

    So a corrupt server fails each of its canaries, and not one in twenty, and a single wrong answer is one failure.
    """

    def __init__(
        self,
        asked: KnownAnswerConfig,
        client: Client,
        clock: Clock,
        sending: Callable[[Workload], AbstractAsyncContextManager[None]],
        on_record: Callable[[RequestRecord], None],
    ) -> None:
        """Take `sending`, which is entered while the question is in flight."""
        self._client, self._clock, self._sending, self._on_record = client, clock, sending, on_record
        prompt_tokens = asked.most_prompt_tokens
        api = Api(asked.api)
        self._workload = Workload(WORKLOAD, api, prompt_tokens, asked.max_tokens)
        self._spec = RequestSpec(WORKLOAD, api, asked.prompt, prompt_tokens, asked.max_tokens, expects=asked.expect)
        self._every_ns = int(asked.every * 1e9)
        self._due_ns: int | None = None
        self._is_wrong = False
        self._last: Outcome | None = None

    @classmethod
    def from_target(
        cls,
        target: TargetConfig,
        client: Client,
        clock: Clock,
        sending: Callable[[Workload], AbstractAsyncContextManager[None]],
        on_record: Callable[[RequestRecord], None],
    ) -> "KnownAnswer | None":
        """Return the question of a target, or None if none is configured."""
        asked = target.canary.known_answer
        return None if asked is None else cls(asked, client, clock, sending, on_record)

    async def find_corruption(self, model: str) -> str | None:
        """Ask the question if it is due. Return what is wrong with the answer, or None.

        A server that does not answer the question has not answered wrongly: canaries show whether it works.
        """
        now_ns = self._clock.monotonic_ns()
        if not self._is_wrong and self._due_ns is not None and now_ns < self._due_ns:
            return None
        self._due_ns = now_ns + self._every_ns
        record = await self.ask(model)
        if record.outcome in (Outcome.OK, Outcome.CORRUPT):
            self._is_wrong = record.outcome is Outcome.CORRUPT
        if record.outcome is not self._last:
            self._last = record.outcome
            log = _log.info if record.outcome is Outcome.OK else _log.warning
            log("known answer changed", target=record.target, outcome=record.outcome.value, detail=record.detail)
        return record.detail if record.outcome is Outcome.CORRUPT else None

    async def ask(self, model: str) -> RequestRecord:
        """Ask the question. Return its record, with the outcome `corrupt` if the answer is wrong."""
        async with self._sending(self._workload):
            async with watch_lag(self._clock) as lag:
                sent = await self._client.send(self._spec, model, Traffic.ANSWER, self._clock.monotonic_ns())
            record = excused(sent, lag)
            self._on_record(record)
        return record


_ONE = StepPlan(concurrency=1, seconds=0.0, requests=1)
# Failures are rarer and matter longer, so they are kept separately.
KEEP_RECENT = 60
KEEP_FAILURES = 20


class Canary:
    """Sends one request per call, and keeps the last records, the one that ended last first."""

    def __init__(
        self,
        target: str,
        model: str,
        client: Client,
        specs: Iterator[RequestSpec],
        *,
        objectives: Objectives,
        clock: Clock,
        traffic: Traffic = Traffic.CANARY,
        known_answer: KnownAnswer | None = None,
        is_traced: bool = False,
    ) -> None:
        """Take `known_answer`: a question to ask after an answered request, when it is due. `is_traced`: each
        request begins a trace, which the server is told.
        """
        self._target = target
        self._objectives = objectives
        self._wanted = model
        self._client = client
        self._specs = specs
        self._clock = clock
        self._traffic = traffic
        self._known_answer = known_answer
        self._is_traced = is_traced
        self.model = model if model != "auto" else UNKNOWN_MODEL
        self._aliases: tuple[str, frozenset[str]] = (self.model, frozenset())  # the model, and all of its names
        self._recent: deque[RequestRecord] = deque(maxlen=KEEP_RECENT)
        self._failures: deque[RequestRecord] = deque(maxlen=KEEP_FAILURES)
        self.failure_log = FailureLog()

    @property
    def recent(self) -> Sequence[RequestRecord]:
        return tuple(self._recent)

    @property
    def failures(self) -> Sequence[RequestRecord]:
        return tuple(self._failures)

    @property
    def aliases(self) -> frozenset[str]:
        """Return the other names of the model; asked for once an answer has another name."""
        return self._aliases[1] if self._aliases[0] == self.model else frozenset()

    async def run_once(self) -> RequestRecord:
        """Send one request and keep its record. Return it, also of a failure: only cancellation is raised."""
        record = await self.measure()
        self.add(record)
        return record

    async def measure(self) -> RequestRecord:
        """Send one request. Return its record, also of a failure: only cancellation is raised."""
        record = await self._send()
        if record.is_up and record.answered_as is not None and not await self._is_alias(record.answered_as):
            outcome, detail = judge_name(record.model, record.answered_as)
            return replace(record, outcome=outcome, detail=detail)
        if self._known_answer is not None and record.is_up:
            wrong = await self._known_answer.find_corruption(record.model)
            if wrong is not None:
                record = replace(record, outcome=Outcome.CORRUPT, detail=wrong)
        return record

    async def _send(self) -> RequestRecord:
        scheduled = self._clock.monotonic_ns()
        spec = next(self._specs)
        try:
            async with watch_lag(self._clock) as lag:
                await self._learn_model()
        except TargetError as error:
            return excused(self._unsent(spec, scheduled, error), lag, self._objectives)
        return await self._ask(spec)

    async def _is_alias(self, answered: str) -> bool:
        """Return whether the model has this name, too. The server is asked until it lists the name."""
        if answered not in self.aliases:
            self._aliases = self.model, await self._client.aliases(self.model)
        return answered in self.aliases

    def add(self, record: RequestRecord) -> None:
        """Add the record as the newest."""
        self._recent.appendleft(record)
        self.failure_log.add(record)
        if record.outcome is not Outcome.OK:
            self._failures.appendleft(record)

    def log_change(self, record: RequestRecord) -> None:
        """Log an outcome that differs from the newest record's."""
        if not self._recent or self._recent[0].outcome is not record.outcome:
            log = _log.info if record.outcome is Outcome.OK else _log.warning
            log("canary outcome changed", target=self._target, outcome=record.outcome.value, detail=record.detail)

    async def _ask(self, spec: RequestSpec) -> RequestRecord:
        """Run a step of one request."""
        trace = TraceContext.new() if self._is_traced else None
        ready = self._client.prepare(spec, self.model, self._traffic, trace=trace)
        step = StepExecution(_ONE, iter((ready,)), self._clock, lateness=self._client.lateness)
        run = await step.run(asyncio.Event())
        return excused(run.records[0], run.loop_lag_s, self._objectives)

    async def _learn_model(self) -> None:
        """Request the served model if it is "auto", and again after each failure: another may come back."""
        failing = bool(self._recent) and self._recent[0].outcome is not Outcome.OK
        if self._wanted == "auto" and (self.model == UNKNOWN_MODEL or failing):
            self.model = await self._client.resolve_model("auto")

    def _unsent(self, spec: RequestSpec, scheduled_ns: int, error: TargetError) -> RequestRecord:
        now = self._clock.monotonic_ns()
        return RequestRecord(
            target=self._target,
            model=self.model,
            traffic=self._traffic,
            spec=spec.without_prompt(),
            scheduled_ns=scheduled_ns,
            sent_ns=scheduled_ns,
            done_ns=now,
            done_wall_s=self._clock.wall_s(),
            outcome=error.outcome,
            detail=str(error),
        )


class StartupGrace:
    """The time in which a server that has not been up yet may fail its canaries."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._ends_ns = clock.monotonic_ns() + int(seconds * 1e9)

    @property
    def is_on(self) -> bool:
        """Return whether the server may still be starting: it has not been up, and has time left."""
        return self._clock.monotonic_ns() < self._ends_ns

    def is_starting(self, record: RequestRecord) -> bool:
        """Return whether `record` was due within the grace, and before the first canary that the server answered."""
        if record.is_up:
            self._ends_ns = min(self._ends_ns, record.scheduled_ns)
        return record.scheduled_ns < self._ends_ns
