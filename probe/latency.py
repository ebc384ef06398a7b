"""Latencies of one request from its raw stamps; seconds. Pure. Definitions: records.py's glossary.

Each function gives None (or nothing) where the latency is undefined, never a zero: a zero would
count as a very good sample.
"""

from collections.abc import Iterator
from itertools import pairwise

from probe.records import Outcome, RequestRecord

_NS = 1e-9


def ttft_s(record: RequestRecord) -> float | None:
    """First visible token event minus the scheduled send."""
    for event in record.events:
        if event.visible:
            return (event.at_ns - record.scheduled_ns) * _NS
    return None


def e2e_s(record: RequestRecord) -> float | None:
    """Last token event minus the scheduled send; None unless the request succeeded."""
    if record.outcome is not Outcome.OK or not record.events:
        return None
    return (record.events[-1].at_ns - record.scheduled_ns) * _NS


def tpot_s(record: RequestRecord) -> float | None:
    """(E2E - TTFT) / (output tokens - 1); None for a single token or a failed request."""
    first, last = ttft_s(record), e2e_s(record)
    if first is None or last is None or record.output_tokens <= 1:
        return None
    return (last - first) / (record.output_tokens - 1)


def itl_s(record: RequestRecord) -> Iterator[float]:
    """Gaps between successive token events. An event that carries several tokens is one gap."""
    stamps = [event.at_ns for event in record.events]
    return ((after - before) * _NS for before, after in pairwise(stamps))


def schedule_lag_s(record: RequestRecord) -> float:
    """How late the request was sent."""
    return (record.sent_ns - record.scheduled_ns) * _NS
