"""TGI's /metrics page to a ServerSnapshot: the only file with "tgi_" names. Pure.

Written from its source, 0.9.4 to 3.3.7; no page was recorded. A series appears with its first event, so a missing
one is zero once the queue's size is there. TGI measures neither TTFT nor ITL nor its KV cache; tokens are counted at
the end of a request, batches at each step.
"""

from collections.abc import Mapping, Sequence

from probe.core.snapshot import ServerSnapshot
from probe.scrape.metrics_parser import EngineMetrics, Samples, by_label, histograms, parts, total

_RUNNING, _WAITING = "tgi_batch_current_size", "tgi_queue_size"
_SUCCESS, _FAILURE = "tgi_request_success", "tgi_request_failure"  # counters, in spite of the names
# The failure of kind "validation" is the client's.
_OUTCOMES = {"ok": ("success",), "failed": ("overloaded", "generation", "incomplete"), "aborted": ("dropped",)}
_STEPS = "tgi_batch_inference_count"
_PROMPT, _OUTPUT = "tgi_request_input_length", "tgi_request_generated_tokens"
_ROOM = "tgi_batch_max_total_tokens"
_HISTOGRAMS: Mapping[str, Sequence[str]] = {
    "e2e": ("tgi_request_duration",),
    "queue": ("tgi_request_queue_duration",),
    "prompt_length": (_PROMPT,),
    "output_length": (_OUTPUT,),
}


def _snapshot(found: Samples) -> ServerSnapshot:
    failures = by_label(found, "err", _FAILURE)
    alive = 0.0 if found.get(_WAITING) else None
    finished = {"success": total(found, _SUCCESS) or 0.0} | failures if alive is not None or failures else {}
    return ServerSnapshot(
        at_ns=0,
        wall_s=0.0,
        running=total(found, _RUNNING) or alive,
        waiting=total(found, _WAITING),
        rejections=failures.get("overloaded", alive),
        prompt_tokens=total(found, f"{_PROMPT}_sum") or alive,
        generation_tokens=total(found, f"{_OUTPUT}_sum") or alive,
        finished=finished,
        outcomes={
            name: sum(finished.get(kind, 0.0) for kind in kinds) for name, kinds in _OUTCOMES.items() if finished
        },
        kv_cache_tokens=total(found, _ROOM),
        progress=total(found, _STEPS) or alive,
        histograms=histograms(found, _HISTOGRAMS),
    )


ENGINE = EngineMetrics(
    "tgi",
    ("tgi_",),
    frozenset(
        (_RUNNING, _WAITING, _SUCCESS, _FAILURE, _STEPS, _ROOM, *parts(n for its in _HISTOGRAMS.values() for n in its))
    ),
    _snapshot,
)
