"""What a completion request to vLLM's API consists of: path, headers and body. Pure."""

from typing import Any

from probe import __version__
from probe.core.request import Api, RequestSpec

PATHS = {Api.COMPLETIONS: "/v1/completions", Api.CHAT: "/v1/chat/completions"}
HEADERS = {
    "accept": "*/*",
    "accept-encoding": "identity",  # compression would hold events back to pack them together
    "content-type": "application/json",
    "user-agent": f"kneewatch/{__version__}",
}


def body_of(spec: RequestSpec, model: str) -> dict[str, Any]:
    """Return the body of a request to vLLM's API. `ignore_eos` makes the output length exact, but for an answer whose
    text is judged; the running usage count gives the number of tokens in each event.
    """
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": spec.output_tokens,
        "temperature": 0,
        "ignore_eos": spec.expects is None,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    if spec.api is Api.COMPLETIONS:
        return {**body, "prompt": spec.prompt}
    return {**body, "messages": [{"role": "user", "content": spec.prompt}]}
