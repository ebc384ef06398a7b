"""TGI's /metrics page to a ServerSnapshot: the only file with "tgi_" names. Pure.

Written from its source, 0.9.4 to 3.3.7; no page was recorded. A series appears with its first event, so a missing
one is zero once the queue's size is there. TGI measures neither TTFT nor ITL nor its KV cache; tokens are counted at
the end of a request, batches at each step.
"""

from probe.scrape.metrics_parser import Samples, by_label, total
from probe.scrape.reads import Counted, Engine, Facts, Proof, Read, Reads

_RUNNING, _WAITING = "tgi_batch_current_size", "tgi_queue_size"
_SUCCESS, _FAILURE = "tgi_request_success", "tgi_request_failure"  # counters, in spite of the names
# The failure of kind "validation" is the client's.
_OUTCOMES = {"ok": ("success",), "failed": ("overloaded", "generation", "incomplete"), "aborted": ("dropped",)}
_PROMPT, _OUTPUT = "tgi_request_input_length", "tgi_request_generated_tokens"


def _from_zero(name: str) -> Read:
    """Read a value that is zero before its first event."""
    return Read((name, _WAITING), lambda found: total(found, name) or _zero(found))


def _zero(found: Samples) -> float | None:
    return 0.0 if found.get(_WAITING) else None


def _finished(found: Samples) -> dict[str, float]:
    failures = by_label(found, "err", _FAILURE)
    return {"success": total(found, _SUCCESS) or 0.0} | failures if failures or _zero(found) is not None else {}


def _outcomes(found: Samples) -> dict[str, float]:
    finished = _finished(found)
    return {name: sum(finished.get(kind, 0.0) for kind in kinds) for name, kinds in _OUTCOMES.items() if finished}


_READS: Reads = {
    "running": _from_zero(_RUNNING),
    "waiting": (_WAITING,),
    "kv_cache_tokens": ("tgi_batch_max_total_tokens",),
    "rejections": Read(
        (_FAILURE, _WAITING), lambda found: by_label(found, "err", _FAILURE).get("overloaded", _zero(found))
    ),
    "prompt_tokens": _from_zero(f"{_PROMPT}_sum"),
    "generation_tokens": _from_zero(f"{_OUTPUT}_sum"),
    "progress": _from_zero("tgi_batch_inference_count"),
    "finished": Read((_SUCCESS, _FAILURE, _WAITING), _finished),
    "outcomes": Read((_SUCCESS, _FAILURE, _WAITING), _outcomes),
    "e2e": ("tgi_request_duration",),
    "queue": ("tgi_request_queue_duration",),
    "prompt_length": (_PROMPT,),
    "output_length": (_OUTPUT,),
}
ENGINE = Engine(
    "tgi",
    ("tgi_",),
    _READS,
    facts=Facts(
        "TGI",
        "0.9.4 to 3.3.7",
        Proof.SOURCES,
        Counted.AT_THE_END,
        ("success", "`overloaded`, `generation`, `incomplete`", "`dropped`"),
        cells={"progress": "steps"},
    ),
)
