"""LiteLLM's /metrics/ page (callback "prometheus") to a ServerSnapshot: the only file with "litellm_" names. Pure.

Written from its source of 2026; no page was recorded. LiteLLM is a gateway: it reports no queue, no KV cache and no
batch, so the guard cannot work behind it. Its TTFT begins with its own call to the model.
"""

from probe.scrape.metrics_parser import Samples, by_label, is_server_error, values_of
from probe.scrape.reads import Counted, Engine, Facts, Proof, Read, Reads, labelled

_FINISHED = "litellm_proxy_total_requests_metric_total"
_CLIENT_LEFT = "499"


def _rejections(found: Samples) -> float | None:
    codes = by_label(found, "status_code", _FINISHED)
    return codes.get("429", 0.0) if codes else None


def _outcomes(found: Samples) -> dict[str, float]:
    codes = by_label(found, "status_code", _FINISHED)
    if not codes:
        return {}
    return {
        "ok": sum(count for code, count in codes.items() if code.startswith("2")),
        "failed": sum(count for code, count in codes.items() if is_server_error(code)),
        "aborted": codes.get(_CLIENT_LEFT, 0.0),
    }


_READS: Reads = {
    "running": ("litellm_in_flight_requests",),
    "rejections": Read((_FINISHED,), _rejections),
    "prompt_tokens": ("litellm_input_tokens_metric_total",),
    "generation_tokens": ("litellm_output_tokens_metric_total",),
    "finished": labelled("status_code", _FINISHED),
    "outcomes": Read((_FINISHED,), _outcomes),
    "ttft": ("litellm_llm_api_time_to_first_token_metric",),
    "e2e": ("litellm_request_total_latency_metric",),
    "queue": ("litellm_request_queue_time_seconds",),
}
ENGINE = Engine(
    "litellm",
    ("litellm_",),
    _READS,
    facts=Facts(
        "LiteLLM",
        "1.106",
        Proof.RUN,
        Counted.AT_THE_END,
        ("2xx", "5xx and 429", "499"),
        streamed_only=True,
        cells={
            "page": "with the callback `prometheus`",
            "running, waiting": "requests in flight, no queue",
            "model's name": "`requested_model`",
            "TTFT": "from its call to the backend",
            "canary": "not tested",
            "guarded load": "no: the guard cannot see a queue",
        },
    ),
    more=lambda found: {"models": values_of("requested_model", found.get(_FINISHED, ()))},
    path="/metrics/",  # without the last character it answers with a redirect
)
