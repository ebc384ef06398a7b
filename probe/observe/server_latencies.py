"""What a server measured of a probe request, by what the client saw of it: a range for each latency. Pure.

The server's clock begins when the request has arrived and ends when a token has been computed. So its latency is at
most the client's, counted from the moment at which the request was written on a connection that was there. By how much
it is less is the delay between the two:

- `delay_s`, which distance.py learns from the server's histogram;
- what this request shows: vLLM notes a request's arrival just before it sends the response's head (0.32,
  renderers/base.py), so from the head to a token nearly as much time passes at the client as at the server;
- the server's own times in the answer, where it sends them: its TTFT is at least its queue and prefill time.

Where none is known the latency may be as low as zero: doubt about a probe request goes against the users whose latency
is what remains (histogram_arithmetic.remove_samples).
"""

from math import inf

from probe.core.latency import is_held_back
from probe.core.request import RequestRecord
from probe.observe.distance import JITTER_S
from probe.observe.histogram_arithmetic import Sample

_NS = 1e-9
# From the arrival that vLLM notes to the head: it renders the prompt. Up to 14 ms on a busy machine
# (docs/evidence/instrument.md).
_TO_HEAD_S = 0.02


def seen_s(record: RequestRecord, at_ns: int) -> float:
    """Return the time (s) from when the request was written."""
    return (at_ns - record.sent_ns - (record.wire.written_ns if record.wire is not None else 0)) * _NS


def ttft(record: RequestRecord, delay_s: Sample) -> Sample:
    """Return the range of the server's TTFT (s)."""
    late_s, first_s = record.events.late_ns[0] * _NS, seen_s(record, record.events.at_ns[0])
    least, most = _less_delay(record, first_s, delay_s) if shows_first_token(record) else (0.0, max(first_s, 0.0))
    times = record.server_times
    own_s = times.queue_s + times.prefill_s if times is not None else 0.0
    return max(least - late_s, min(own_s, most), 0.0), most


def cut_ttft(record: RequestRecord, delay_s: Sample) -> Sample:
    """Return the range of the server's TTFT (s) of a request that was cancelled, of which only reads are known."""
    most = seen_s(record, record.done_ns)
    if record.wire is None or record.wire.first_read_ns is None:
        return 0.0, max(most, 0.0)
    first_s = seen_s(record, record.sent_ns + record.wire.first_read_ns)
    return _less_delay(record, first_s, delay_s)[0], max(most - delay_s[0], first_s - delay_s[0], 0.0)


def e2e(record: RequestRecord, delay_s: Sample) -> Sample:
    """Return the range of the server's E2E latency (s)."""
    least, most = _less_delay(record, seen_s(record, record.events.at_ns[-1]), delay_s)
    return max(least - record.events.late_ns[-1] * _NS, 0.0), most


def tpot(record: RequestRecord, output_tokens: int) -> Sample:
    """Return the range of the server's TPOT (s): the delay is the same at both ends, but for jitter.

    Of a stream that does not show its first token only the upper end is known.
    """
    events = record.events
    decoding_s = (events.at_ns[-1] - events.at_ns[0]) * _NS
    jitter_s = JITTER_S + max(events.late_ns[0], events.late_ns[-1]) * _NS
    least, most = max(decoding_s - jitter_s, 0.0), decoding_s + jitter_s
    if not shows_first_token(record):
        least, most = 0.0, max(seen_s(record, events.at_ns[-1]), most)
    return least / (output_tokens - 1), most / (output_tokens - 1)


def shows_first_token(record: RequestRecord) -> bool:
    """Return whether the first event is the first token's, and did not wait for more of them."""
    return record.events.tokens[0] <= 1 and not is_held_back(record)


def _less_delay(record: RequestRecord, seconds: float, delay_s: Sample) -> Sample:
    """Return the range of a latency at the server by the client's, counted from the writing.

    What the request itself shows counts before what others showed, unless the delay is certainly longer: a gateway may
    send a head of its own.
    """
    shortest, longest = delay_s
    wire = record.wire
    if wire is not None and wire.head_ns is not None:
        to_head_s = (wire.head_ns - wire.written_ns) * _NS
        shortest, longest = max(shortest, to_head_s - _TO_HEAD_S), max(to_head_s + JITTER_S, shortest)
    most = max(seconds - shortest, 0.0)
    return max(seconds - longest, 0.0) if longest < inf else 0.0, most
