"""max_num_seqs, inferred from how many requests run while others wait. Pure."""

from collections.abc import Sequence

from probe.core.snapshot import ServerSnapshot
from probe.observe.kv_pressure import most_running

_KV_ROOM = 0.9  # with more of the cache in use, requests may wait for memory
_NEARLY = 0.93
# How often as many as ever must run while others wait; one less if none ever waited while fewer ran. Once is enough of
# an overload for a power of two, the usual limit, if none did, or with this share of them waiting: one or two wait by
# chance, such as long prompts for a step's tokens.
_POLLS, _MANY = 3, 0.5


def infer_max_num_seqs(snapshots: Sequence[ServerSnapshot], *, overloaded: bool = False) -> int | None:
    """Infer max_num_seqs from the number of running requests; None as long as it does not show.

    It shows when again and again exactly as many requests run as ever did, while others wait and memory is free. A
    varying load would come near its maximum more often than exactly to it. `overloaded`: the last load was stopped
    because requests waited too long.
    """
    fullest = [(most_running(r), r.waiting or 0) for r in snapshots if (r.kv_cache_usage or 0) < _KV_ROOM and r.running]
    most = max((most_running(r) for r in snapshots), default=0.0)
    full = [waiting for running, waiting in fullest if running == most]
    waited = sum(waiting > 0 for waiting in full)
    near = sum(_NEARLY * most <= running < most for running, _ in fullest)
    elsewhere = sum(waiting > 0 for running, waiting in fullest if running < most)
    is_usual = round(most).bit_count() == 1
    if overloaded and is_usual and (not elsewhere or max(full, default=0) >= _MANY * most):
        needed = 1.0
    else:
        needed = max(_POLLS if elsewhere else _POLLS - 1, len(full) / 2)
    if waited < needed or (elsewhere and len(full) < near / 2):
        return None
    return max(round(most), 1)
