"""What a failed request says of the server, and advice after a run that ended with failed requests."""

import re

from probe.core import reasons
from probe.core.request import Outcome, RequestRecord
from probe.core.result import CapacityResult
from probe.core.time_limits import was_arriving

# vLLM's words for a prompt that is too long; other servers have similar ones.
_TOO_LONG = re.compile(r"(context|model) length|maximum context|too (long|many tokens)", re.IGNORECASE)
_LIMITED = "HTTP 429"
_IN_THE_SERVER = (
    Outcome.SERVER_ERROR,
    Outcome.UNREACHABLE,
    Outcome.CERTIFICATE,
    Outcome.TIMEOUT,
    Outcome.BROKEN_STREAM,
)


def refusal_words(record: RequestRecord) -> str:
    """Return what a rejection says of the server, after its own words; "" for another outcome."""
    if record.outcome is not Outcome.REJECTED:
        return ""
    return "; the server is up and refuses load" if record.is_overload else "; a rate limit, or a full queue"


def failure_advice(result: CapacityResult) -> str | None:
    """Return what to do, or None unless failed requests left the run without a capacity."""
    failure, ended = result.first_failure, reasons.find_end(result.stopped)
    is_unanswered = bool(result.steps) and not any(step.requests.ok for step in result.steps)
    has_failed = ended in (reasons.SERVER_ERRORS, reasons.TIME_LIMIT, reasons.FAILED_REQUESTS)
    if failure is None or ended is reasons.RATE_LIMITED or not (has_failed or is_unanswered):
        return None
    if failure.startswith(Outcome.REJECTED.value):
        return f"{(reasons.RATE_LIMITED if _LIMITED in failure else reasons.REJECTIONS).advice}."
    if _TOO_LONG.search(failure):
        return "shorten the workload: its prompt and output have to fit the server's context length."
    if was_arriving(failure):
        return f"{reasons.TIME_LIMIT.advice}."
    if failure.partition(":")[0] in _IN_THE_SERVER:
        return f"{reasons.SERVER_ERRORS.advice}."
    return f"{reasons.FAILED_REQUESTS.advice}."
