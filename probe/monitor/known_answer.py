"""The question with a known answer, asked beside the canaries of one target."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import structlog

from probe.client.client import Client
from probe.config.canaries import KnownAnswerConfig
from probe.config.targets import TargetConfig
from probe.core.clock import Clock
from probe.core.request import Api, Outcome, RequestRecord, RequestSpec, Traffic
from probe.core.workload import Workload
from probe.load.loop_lag import watch_lag
from probe.monitor.client_stop import excuse_stop

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
        """`sending`: is entered while the question is in flight."""
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
    def of(
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
        """Ask the question. Return its record, whose outcome is `corrupt` if the answer is wrong."""
        async with self._sending(self._workload):
            async with watch_lag(self._clock) as lag:
                sent = await self._client.send(self._spec, model, Traffic.ANSWER, self._clock.monotonic_ns())
            record = excuse_stop(sent, lag)
            self._on_record(record)
        return record
