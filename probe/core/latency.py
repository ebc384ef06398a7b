"""Latencies of one request from its raw stamps; seconds. Pure. Definitions: records.py's glossary.

Each function gives None (or nothing) where the latency is undefined, never a zero: a zero would
count as a very good sample.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise

from probe.core.request import Outcome, RequestRecord

_NS = 1e-9


def ttft_s(record: RequestRecord) -> float | None:
    """First visible token event minus the scheduled send."""
    events = record.events
    return (
        (events.at_ns[events.first_visible] - record.scheduled_ns) * _NS if events.first_visible is not None else None
    )


def e2e_s(record: RequestRecord) -> float | None:
    """Last token event minus the scheduled send; None unless the request succeeded."""
    if record.outcome is not Outcome.OK or not record.events:
        return None
    return (record.events.at_ns[-1] - record.scheduled_ns) * _NS


def tpot_s(record: RequestRecord) -> float | None:
    """(E2E - TTFT) / (output tokens - 1); None for a single token or a failed request."""
    first, last = ttft_s(record), e2e_s(record)
    if first is None or last is None or record.output_tokens <= 1:
        return None
    return (last - first) / (record.output_tokens - 1)


# Those that an objective may promise, by its name.
PROMISED: Mapping[str, Callable[[RequestRecord], float | None]] = {"ttft": ttft_s, "tpot": tpot_s}


def itl_ns(record: RequestRecord) -> list[int]:
    """Gaps between successive token events, in nanoseconds: of millions, sorting whole numbers is quicker."""
    return [after - before for before, after in pairwise(record.events.at_ns)]


def itl_s(record: RequestRecord) -> Iterator[float]:
    """Gaps between successive token events. An event that carries several tokens is one gap."""
    return (gap * _NS for gap in itl_ns(record))


def stall_s(record: RequestRecord) -> float | None:
    """The longest gap between two token events; None where there are not two."""
    return max(itl_s(record), default=None)


def ttft_error_s(record: RequestRecord) -> float | None:
    """By how much the client may have made TTFT too long: sent late, or the first token noticed late.

    The last is a bound (client/turns.py); None without a first token.
    """
    first = record.events.first_visible
    if first is None:
        return None
    return max(schedule_lag_s(record), 0.0) + record.events.late_ns[first] * _NS


def itl_error_ns(record: RequestRecord) -> list[int]:
    """By how much the client may have moved each gap: by the later of the two stamps it lies between, at most."""
    return [max(before, after) for before, after in pairwise(record.events.late_ns)]


def coalesced(record: RequestRecord) -> int:
    """How many token events came in one read with the one before: their gap is not known, and reads 0."""
    return sum(after == before for before, after in pairwise(record.events.at_ns))


def schedule_lag_s(record: RequestRecord) -> float:
    """How late the request was sent."""
    return (record.sent_ns - record.scheduled_ns) * _NS
