"""NVIDIA NIM 1.x' /v1/metrics page to a ServerSnapshot. Its names have no prefix. Pure.

Written from a page that others recorded. From 2.0 on NIM serves vLLM's or SGLang's own page. Its
`time_per_output_token_seconds` has a sample for each token, so it is ITL.
"""

from collections.abc import Mapping, Sequence

from probe.core.snapshot import ServerSnapshot
from probe.scrape.metrics_parser import EngineMetrics, Samples, by_label, histograms, largest, parts, total, values_of

_RUNNING, _WAITING, _USAGE = "num_requests_running", "num_requests_waiting", "gpu_cache_usage_perc"
_PROMPT, _OUTPUT, _FINISHED = "prompt_tokens_total", "generation_tokens_total", "request_finish_total"
_HISTOGRAMS: Mapping[str, Sequence[str]] = {
    "ttft": ("time_to_first_token_seconds",),
    "itl": ("time_per_output_token_seconds",),
    "e2e": ("e2e_request_latency_seconds",),
    "prompt_length": ("request_prompt_tokens",),
    "output_length": ("request_generation_tokens",),
}


def _snapshot(found: Samples) -> ServerSnapshot:
    finished = by_label(found, "finished_reason", _FINISHED)
    return ServerSnapshot(
        at_ns=0,
        wall_s=0.0,
        running=total(found, _RUNNING),
        waiting=total(found, _WAITING),
        kv_cache_usage=largest(found, _USAGE),  # a ratio, in spite of the name
        prompt_tokens=total(found, _PROMPT),
        generation_tokens=total(found, _OUTPUT),
        finished=finished,
        # Its request_failure_total does not say by whose fault.
        outcomes={"ok": sum(finished.values())} if finished else {},
        models=values_of("model_name", found.get(_RUNNING, ())),
        progress=total(found, _OUTPUT),
        histograms=histograms(found, _HISTOGRAMS),
    )


ENGINE = EngineMetrics(
    "nim",
    ("num_request_max", "gpu_cache_usage_perc"),
    frozenset(
        (
            _RUNNING,
            _WAITING,
            _USAGE,
            _PROMPT,
            _OUTPUT,
            _FINISHED,
            *parts(n for its in _HISTOGRAMS.values() for n in its),
        )
    ),
    _snapshot,
    path="/v1/metrics",
)
