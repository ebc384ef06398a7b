"""Advice after a run that ended with failed requests, from the first failure."""

import re

from probe.core.request import Outcome
from probe.core.result import CapacityResult
from probe.observe.guard import FAILED_REQUESTS, RATE_LIMITED

# vLLM's words for a prompt that is too long; other servers have similar ones.
_TOO_LONG = re.compile(r"(context|model) length|maximum context|too (long|many tokens)", re.IGNORECASE)
_IN_THE_SERVER = (Outcome.SERVER_ERROR, Outcome.UNREACHABLE, Outcome.TIMEOUT, Outcome.BROKEN_STREAM)


def failure_advice(result: CapacityResult) -> str | None:
    """Return what to do, or None unless failed requests left the run without a capacity."""
    failure, reason = result.first_failure, result.stopped.reason
    is_unanswered = bool(result.steps) and not any(step.requests.ok for step in result.steps)
    if failure is None or reason == RATE_LIMITED or not (reason in FAILED_REQUESTS or is_unanswered):
        return None
    if _TOO_LONG.search(failure):
        return "shorten the workload: its prompt and output have to fit the server's context length."
    if failure.partition(":")[0] in _IN_THE_SERVER:
        return "look at the server's log for the first failure, and measure again once it answers."
    return "change what the first failure names: the workload, model or request keys of the target, or its API key."
