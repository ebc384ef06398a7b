"""NVIDIA NIM 1.x' /v1/metrics page to a ServerSnapshot. Its names have no prefix. Pure.

Written from a page that others recorded. From 2.0 on NIM serves vLLM's or SGLang's own page. Its
`time_per_output_token_seconds` has a sample for each token, so it is ITL.
"""

from probe.scrape.metrics_parser import Samples, by_label, values_of
from probe.scrape.reads import Counted, Engine, Facts, Proof, Read, Reads, labelled

_RUNNING, _OUTPUT, _FINISHED = "num_requests_running", "generation_tokens_total", "request_finish_total"


def _outcomes(found: Samples) -> dict[str, float]:
    """Return the good answers. The page's request_failure_total counts faults of clients too."""
    finished = by_label(found, "finished_reason", _FINISHED)
    return {"ok": sum(finished.values())} if finished else {}


_READS: Reads = {
    "running": (_RUNNING,),
    "waiting": ("num_requests_waiting",),
    "kv_cache_usage": ("gpu_cache_usage_perc",),  # a ratio, in spite of the name
    "prompt_tokens": ("prompt_tokens_total",),
    "generation_tokens": (_OUTPUT,),
    "progress": (_OUTPUT,),
    "finished": labelled("finished_reason", _FINISHED),
    "outcomes": Read((_FINISHED,), _outcomes),
    "ttft": ("time_to_first_token_seconds",),
    "itl": ("time_per_output_token_seconds",),
    "e2e": ("e2e_request_latency_seconds",),
    "prompt_length": ("request_prompt_tokens",),
    "output_length": ("request_generation_tokens",),
}
ENGINE = Engine(
    "nim",
    ("num_request_max", "gpu_cache_usage_perc"),
    _READS,
    facts=Facts(
        "NIM",
        "1.x",
        Proof.SOURCES,
        Counted.EACH_STEP,
        ("finished", "", ""),
        cells={"model's name": "`model_name`", "progress": "tokens"},
    ),
    more=lambda found: {"models": values_of("model_name", found.get(_RUNNING, ()))},
    path="/v1/metrics",
)
