"""The server's own account of a request's times, from the last chunk of its answer. Pure; never raises.

vLLM adds it with `--enable-per-request-metrics` (0.32): milliseconds in `metrics`, beside the usage.
"""

import msgspec

from probe.core.request import ServerTimes

_MAX_MS = 86_400_000.0  # a day; no request takes as long


class _Metrics(msgspec.Struct):
    """`time_to_first_token_ms` begins when the request is scheduled (0.32, build_per_request_timing_metrics)."""

    queue_time_ms: float | None = None
    time_to_first_token_ms: float | None = None


_decode = msgspec.json.Decoder(_Metrics).decode


def server_times(metrics: msgspec.Raw) -> ServerTimes | None:
    """Return the times, or None if they are not all there, or cannot be."""
    if not metrics:
        return None
    try:
        found = _decode(metrics)
    except (ValueError, RecursionError):
        return None
    queue_ms, prefill_ms = found.queue_time_ms, found.time_to_first_token_ms
    if queue_ms is None or prefill_ms is None or not (0 <= queue_ms <= _MAX_MS and 0 <= prefill_ms <= _MAX_MS):
        return None
    return ServerTimes(queue_ms * 1e-3, prefill_ms * 1e-3)
