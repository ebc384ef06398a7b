"""Latencies of one request, in seconds, from its raw timestamps. Pure. docs/architecture.md defines the terms.

Each function returns None (or nothing) if the latency is undefined. It never returns 0, which would count as a very
good sample.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from itertools import pairwise

from probe.core.request import Outcome, RequestRecord

_NS = 1e-9
# Above this `held_back_ratio`, a TPOT would be less than half of its true value. Streams without a buffer stay far
# below, and ones held back to the end are at 1 (docs/evidence/instrument.md).
HELD_BACK = 0.5
# A TPOT that may be longer than it seems by more than this is unknown, not reported at its longest.
_CERTAIN = 1.5


def ttft_s(record: RequestRecord) -> float | None:
    """Return the time to the first token, with text or without: its event minus scheduled send."""
    return _until_s(record, 0 if record.events and record.spec.api.generates else None)


def first_visible_s(record: RequestRecord) -> float | None:
    """Return the time to the first token with text, where tokens without any came before it; else it would be TTFT."""
    return _until_s(record, record.events.first_visible or None)


def _until_s(record: RequestRecord, event: int | None) -> float | None:
    return (record.events.at_ns[event] - record.scheduled_ns) * _NS if event is not None else None


def wait_s(record: RequestRecord) -> float | None:
    """Return TTFT, or, of an answer without tokens, E2E: how long there was nothing to see."""
    return ttft_s(record) if record.spec.api.generates else e2e_s(record)


def first_answer_s(record: RequestRecord) -> float | None:
    """Return the time to the first answer token after reasoning that shows; None without either."""
    events = record.events
    return _until_s(record, events.first_answer if events.first_answer != events.first_visible else None)


def ttft_parts_s(record: RequestRecord) -> Mapping[str, float]:
    """Return where the time from sending to the first token went: queue, prefill, and outside the engine.

    The first two are the server's account. Empty without one, if it is longer than the whole, and for a stream that was
    held back, in which the first token came earlier than is known.
    """
    first, times = ttft_s(record), record.server_times
    if first is None or times is None or is_held_back(record):
        return {}
    outside_s = first - (record.sent_ns - record.scheduled_ns) * _NS - times.queue_s - times.prefill_s
    return {"queue": times.queue_s, "prefill": times.prefill_s, "outside": outside_s} if outside_s >= 0 else {}


def e2e_s(record: RequestRecord) -> float | None:
    """Return the end-to-end latency: last token event minus scheduled send; None if the request failed."""
    if record.outcome is not Outcome.OK or not record.events:
        return None
    return (record.events.at_ns[-1] - record.scheduled_ns) * _NS


def tpot_s(record: RequestRecord) -> float | None:
    """Return (E2E - TTFT) / the output tokens after the read that TTFT ends with.

    None for a single token, a failed request, and where it is unknown: in a stream that was held back, and where tokens
    of unknown place make it uncertain. Where these may change it by a little, it is as long as it can be.
    """
    first, last, after, events = ttft_s(record), e2e_s(record), tokens_after_first(record), record.events
    if first is None or last is None or not after or is_held_back(record):
        return None
    usual_s = (last - first) / after
    if not events.unplaced:
        return usual_s
    # All tokens without a place may have come before the first event or after the last one, but between the time when
    # the request was sent and the end of the answer.
    took_s = (max(record.done_ns, events.at_ns[-1]) - record.sent_ns) * _NS
    most_s = min((last - first) / max(after - events.unplaced, 1), took_s / (sum(events.tokens) - 1))
    return max(usual_s, most_s) if most_s <= _CERTAIN * usual_s else None


def tokens_after_first(record: RequestRecord) -> int:
    """Return how many tokens came after the read with the first one."""
    at_ns, tokens = record.events.at_ns, record.events.tokens
    return sum(tokens[bisect_right(at_ns, at_ns[0]) :]) if len(at_ns) else 0


def token_times_ns(record: RequestRecord) -> list[int]:
    """Return when tokens came. Events of one read have one time: when the later ones were sent is unknown."""
    return list(dict.fromkeys(record.events.at_ns))


def itl_ns(record: RequestRecord) -> list[int]:
    """Return the gaps between successive token events in nanoseconds (integers sort faster, and there are millions).

    Without those between events of one read, and without any of a stream that was held back.
    """
    return [] if is_held_back(record) else [after - before for before, after in pairwise(token_times_ns(record))]


def itl_s(record: RequestRecord) -> Iterator[float]:
    """Return the gaps between successive token events. An event with several tokens ends one gap."""
    return (gap * _NS for gap in itl_ns(record))


def stall_s(record: RequestRecord) -> float | None:
    """Return the longest gap between two token events; None without gaps."""
    return max(itl_s(record), default=None)


def ttft_error_s(record: RequestRecord) -> float | None:
    """Return how much the client may have added to TTFT by sending late or by reading the first token late.

    The second part is an upper bound (client/loop_lateness.py). None without a first token. For an answer without
    tokens it is what the client may have added to E2E.
    """
    if not record.events:
        return None
    return max(schedule_lag_s(record), 0.0) + record.events.late_ns[0] * _NS


def itl_error_ns(record: RequestRecord) -> list[int]:
    """Return the largest error the client may have added to each gap: the later of the two stamps' lateness."""
    return [max(before, after) for before, after in pairwise(record.events.late_ns)]


def stall_error_s(record: RequestRecord) -> float:
    """Return how much the client may have added to the longest gap; 0 without gaps."""
    return max(itl_error_ns(record), default=0) * _NS


def tpot_hidden_s(record: RequestRecord, waking_s: float) -> float:
    """Return by how much the client may have shortened TPOT: it begins late where the first token was read late.

    The token came after the request was due, so it is at most TTFT. `waking_s`: how late the system ran the process.
    """
    if not record.events:
        return 0.0
    late_s = min(record.events.late_ns[0] * _NS + waking_s, ttft_s(record) or 0.0)
    return late_s / max(tokens_after_first(record) - record.events.unplaced, 1)


def stall_hidden_s(record: RequestRecord, waking_s: float) -> float:
    """Return by how much the longest gap may have been longer than `stall_s`.

    A late read shortens the gap after it, and hides those between the tokens that it reads together.
    """
    events = record.events
    gaps = zip(pairwise(events.at_ns), events.late_ns, strict=False)
    longest_ns = max((after - before + late_ns for (before, after), late_ns in gaps), default=0)
    return max(longest_ns * _NS + waking_s - (stall_s(record) or 0.0), 0.0)


def coalesced(record: RequestRecord) -> int:
    """Return how many token events came in the same read as the one before: their gap is unknown."""
    return sum(after == before for before, after in pairwise(record.events.at_ns))


def held_back_ratio(record: RequestRecord) -> float | None:
    """Return the share of the tokens after the first one that came in the same read as the first one.

    A proxy that buffers the answer raises it, and so does a server that sends the tokens at once. The time between
    these tokens is unknown. None for fewer than two tokens.
    """
    at_ns, tokens = record.events.at_ns, record.events.tokens
    whole = sum(tokens)
    if whole <= 1:
        return None
    together = sum(tokens[: bisect_right(at_ns, at_ns[0])])
    return (together - 1) / (whole - 1)


def is_held_back(record: RequestRecord) -> bool:
    """Return whether so much of a stream came with its first token that its TPOT is unknown."""
    ratio = held_back_ratio(record)
    return ratio is not None and ratio > HELD_BACK


def schedule_lag_s(record: RequestRecord) -> float:
    """Return how late the request was sent, but for the time that it was held back on purpose."""
    return (record.sent_ns - record.scheduled_ns - record.held_ns) * _NS


def held_s(record: RequestRecord) -> float:
    """Return for how long the request was held back, until one fewer was in flight."""
    return record.held_ns * _NS
