"""The age of the requests that this process waits for: a stuck one is in no histogram, since it never ends."""

import gc
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple


class Oldest(NamedTuple):
    """Ages in seconds, 0 without such a request: of the oldest request, and of the oldest without a token."""

    request: float
    unanswered: float


def oldest(states: Iterable[Any], now_s: float) -> Oldest:
    """Return the ages at `now_s` (wall time). `states`: vLLM's RequestState of each request in flight."""
    known = [state.stats for state in states if state.stats is not None]
    ages = [now_s - stats.arrival_time for stats in known]
    unanswered = [now_s - stats.arrival_time for stats in known if not stats.num_generation_tokens]
    return Oldest(max([0.0, *ages]), max([0.0, *unanswered]))


def finder() -> Callable[[], Oldest]:
    """Return a function for the ages of now. Raises LookupError if there is no engine client in this process.

    vLLM shows a stat logger no request before its first token. So its output processor, which has all of them, is
    looked for once, when vLLM has made it and has not yet frozen the garbage collector's heap.
    """
    from vllm.v1.engine.output_processor import OutputProcessor  # type: ignore[import-not-found]  # noqa: PLC0415

    found = [each for each in gc.get_objects() if isinstance(each, OutputProcessor)]
    if not found:
        raise LookupError("no OutputProcessor in this process")

    def ages() -> Oldest:
        return oldest([state for each in found for state in [*each.request_states.values()]], time.time())

    return ages
