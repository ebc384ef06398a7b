"""What each engine step held, from what vLLM reports after it. Pure; the standard library only.

vLLM reports the requests that got tokens, not what the scheduler planned. What follows:

- All requests of a step get their tokens at one time, and each decoding request gets one in every step. So the gap
  since a decoding request's last token is the duration of the step, and all gaps are equal. Unequal gaps show a request
  that skipped a step, such as a preempted one, and the contents of its steps are unknown.
- A request that runs and gets no token is in the middle of its prompt. vLLM cuts a prompt only where a step is full,
  so that step held exactly the most tokens that a step may hold. At the prompt's end its length shows whether that was
  right. Steps before the end are held back until then.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

_MOST_HELD = 64  # steps; no prompt takes as many in a chunk of 2048 tokens


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """The scheduler's configuration. `is_async`: a step is planned before the one before it has ended.

    `step_tokens`: the tokens of a full step; None if prompts are also cut where a step is not full.
    """

    step_tokens: int | None
    block_size: int
    is_async: bool


class StepReport(NamedTuple):
    """What vLLM reports after a step. `running` and `kv_tokens` (in allocated blocks) are from after it.

    `gaps_s`: of each request that decoded, the time since its last token; `prompt_tokens`: computed for the requests
    that got their first token, in this step or before; `finished`: requests that ended.
    """

    gaps_s: Sequence[float]
    first_tokens: int
    prompt_tokens: int
    finished: int
    running: int
    kv_tokens: float


class Step(NamedTuple):
    """An engine step. `kv_tokens`: in the KV cache before it, over all its requests."""

    seconds: float
    requests: int
    decode_tokens: int
    prefill_tokens: int
    kv_tokens: float


class StepContents:
    """Reconstructs the steps of one engine. `skipped` counts steps of unknown content or duration."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self.skipped = 0
        self._limits = limits
        self._running, self._kv_tokens = 0, 0.0  # after the step before
        self._ahead: int | None = 0  # tokens computed of an unfinished prompt; None: unknown
        self._held: list[Step] = []  # back to the beginning of that prompt

    def add(self, report: StepReport) -> list[Step]:
        """Take a step's report. Return the steps with content that is known by now, oldest first."""
        unanswered = self._unanswered(report)
        steps = self._known(report, unanswered)
        self._running, self._kv_tokens = report.running, report.kv_tokens
        return steps

    def no_tokens(self, running: int, kv_tokens: float) -> None:
        """Take a step after which no request got a token: it computed a part of a prompt, or nothing."""
        self.skipped += len(self._held)
        self._held, self._ahead = [], None if running else 0
        self._running, self._kv_tokens = running, kv_tokens

    def _unanswered(self, report: StepReport) -> int:
        """Return how many requests of the step got no token.

        An asynchronous scheduler has planned this step by the report of the one before, and not yet the next one.
        """
        planned = self._running if self._limits.is_async else report.running + report.finished
        return planned - len(report.gaps_s) - report.first_tokens

    def _known(self, report: StepReport, unanswered: int) -> list[Step]:
        decodes, limit = len(report.gaps_s), self._limits.step_tokens
        ahead = self._ahead
        is_regular = not decodes or report.gaps_s.count(report.gaps_s[0]) == decodes
        if unanswered == 0:
            self._ahead = 0
            prefill = report.prompt_tokens - (ahead or 0)
            is_possible = prefill >= report.first_tokens and (limit is None or decodes + prefill <= limit)
            if is_regular and is_possible and (ahead is not None or not report.first_tokens):
                return self._release([self._step(report, prefill, unanswered)] if decodes else [])
            self._discard(ahead=0)
            return []
        prefill = (limit or 0) - decodes
        after = (ahead or 0) + prefill - report.prompt_tokens
        is_possible = unanswered == 1 and prefill > 0 and after > 0 and len(self._held) < _MOST_HELD
        if limit is None or ahead is None or not is_regular or not is_possible or not decodes:
            self._discard()
            return []
        self._ahead = after
        self._held.append(self._step(report, prefill, unanswered))
        return []

    def _step(self, report: StepReport, prefill: int, unanswered: int) -> Step:
        decodes = len(report.gaps_s)
        requests = decodes + report.first_tokens + unanswered
        # A request's last block is half empty in the mean.
        unused = (self._limits.block_size - 1) / 2 * self._running
        planned = decodes + prefill if self._limits.is_async else 0
        kv_tokens = max(self._kv_tokens - unused - planned, 0.0)
        return Step(report.gaps_s[0], requests, decodes, prefill, kv_tokens)

    def _release(self, steps: list[Step]) -> list[Step]:
        self.skipped += not steps
        held, self._held = self._held, []
        return held + steps

    def _discard(self, ahead: int | None = None) -> None:
        self.skipped += len(self._held) + 1
        self._held, self._ahead = [], ahead
