"""Answers of vLLM's API server by status, as prometheus-fastapi-instrumentator counts them on vLLM's page. Pure.

It counts an answer at its end, by status class: 429 is "4xx" like any fault of the client. An answer that a client does
not wait for is a 2xx. There is no series before the first answer.
"""

from collections.abc import Mapping

from probe.scrape.metrics_parser import Samples, first

NAMES = ("http_requests_total",)
# POST requests that make an engine work. Adapters are loaded at a path of the same beginning.
_GENERATING, _NOT_GENERATING = ("/v1/", "/generate", "/invocations", "/inference/v1/generate"), "_lora_adapter"


def errors(found: Samples) -> float | None:
    """Return the answers with status 5xx to requests that generate: 0 if there is none among the answers."""
    answers = [answer for answer in first(found, NAMES) if "handler" in answer.labels]  # not another program's
    return sum(answer.value for answer in answers if _is_error(answer.labels)) if answers else None


def _is_error(labels: Mapping[str, str]) -> bool:
    handler = labels.get("handler", "")
    is_generating = handler.startswith(_GENERATING) and not handler.endswith(_NOT_GENERATING)
    return is_generating and labels.get("method") == "POST" and labels.get("status", "").startswith("5")
