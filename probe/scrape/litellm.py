"""LiteLLM's /metrics/ page (callback "prometheus") to a ServerSnapshot: the only file with "litellm_" names. Pure.

Written from its source of 2026; no page was recorded. LiteLLM is a gateway: it reports no queue, no KV cache and no
batch, so the guard cannot work behind it. Its TTFT begins with its own call to the model.
"""

from collections.abc import Mapping, Sequence

from probe.core.snapshot import ServerSnapshot
from probe.scrape.metrics_parser import (
    EngineMetrics,
    Samples,
    by_label,
    histograms,
    is_server_error,
    parts,
    total,
    values_of,
)

_RUNNING = "litellm_in_flight_requests"
_PROMPT, _OUTPUT = "litellm_input_tokens_metric_total", "litellm_output_tokens_metric_total"
_FINISHED = "litellm_proxy_total_requests_metric_total"
_CLIENT_LEFT = "499"
_HISTOGRAMS: Mapping[str, Sequence[str]] = {
    "ttft": ("litellm_llm_api_time_to_first_token_metric",),
    "e2e": ("litellm_request_total_latency_metric",),
    "queue": ("litellm_request_queue_time_seconds",),
}


def _snapshot(found: Samples) -> ServerSnapshot:
    codes = by_label(found, "status_code", _FINISHED)
    return ServerSnapshot(
        at_ns=0,
        wall_s=0.0,
        running=total(found, _RUNNING),
        rejections=codes.get("429", 0.0) if codes else None,
        prompt_tokens=total(found, _PROMPT),
        generation_tokens=total(found, _OUTPUT),
        finished=codes,
        outcomes={
            "ok": sum(count for code, count in codes.items() if code.startswith("2")),
            "failed": sum(count for code, count in codes.items() if is_server_error(code)),
            "aborted": codes.get(_CLIENT_LEFT, 0.0),
        }
        if codes
        else {},
        models=values_of("requested_model", found.get(_FINISHED, ())),
        histograms=histograms(found, _HISTOGRAMS),
    )


ENGINE = EngineMetrics(
    "litellm",
    ("litellm_",),
    frozenset((_RUNNING, _PROMPT, _OUTPUT, _FINISHED, *parts(n for its in _HISTOGRAMS.values() for n in its))),
    _snapshot,
    path="/metrics/",  # without the last character it answers with a redirect
)
