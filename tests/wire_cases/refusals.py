"""Rows: answers of another status than 200, with the key that would help."""

from probe.client.api_request import RequestShape
from probe.core.request import Api, Outcome
from wire_cases.wire import Timed, WireCase, body, failed, head

_BAD, _ERROR, _REJECTED, _LOST = Outcome.BAD_REQUEST, Outcome.SERVER_ERROR, Outcome.REJECTED, Outcome.UNREACHABLE
_NO_IDS = "Unmapped prompt format. Your prompt is neither a list of strings nor a string. prompt=[1000, 1001"
_LIMIT = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."


def _nginx(status: int, title: str) -> Timed:
    page = (
        f"<html>\r\n<head><title>{status} {title}</title></head>\r\n<body>\r\n<center>nginx</center>\r\n</body></html>"
    )
    return body(page, "text/html", status=status)


def _said(message: object, status: int, *more: str) -> Timed:
    return body({"error": {"message": message, "code": status}}, "application/json", *more, status=status)


REFUSALS: tuple[WireCase, ...] = (
    failed(
        "the limit of vLLM's queue",
        "vLLM 0.32, --max-num-queued-reqs=4; vllm #55812",
        _said("The engine is currently busy and cannot accept new requests. Please try again later.", 503),
        _REJECTED,
        "HTTP 503: The engine is currently busy and cannot accept new requests.",
    ),
    failed("a rate limit", "OpenAI", _said("Rate limit reached", 429, "retry-after: 20"), _REJECTED, "HTTP 429: Rate"),
    failed("overloaded", "Anthropic", _said("Overloaded", 529), _REJECTED, "HTTP 529: Overloaded"),
    failed("no server behind nginx", "nginx", _nginx(502, "Bad Gateway"), _ERROR, "HTTP 502: 502 Bad Gateway"),
    failed(
        "a slow server behind nginx", "nginx", _nginx(504, "Gateway Time-out"), _ERROR, "HTTP 504: 504 Gateway Time-out"
    ),
    failed(
        "no server behind Envoy",
        "Envoy",
        body("no healthy upstream", "text/plain", status=503),
        _ERROR,
        "HTTP 503: no healthy upstream",
    ),
    failed(
        "a wrong key",
        "vLLM --api-key",
        body({"error": "Unauthorized"}, status=401),
        Outcome.UNAUTHORIZED,
        "HTTP 401: Unauthorized",
    ),
    failed(
        "a model that is not there",
        "vLLM 0.32",
        _said("The model `x` does not exist.", 404),
        Outcome.NOT_FOUND,
        "HTTP 404: The model `x` does not exist.",
    ),
    failed(
        "a wrong path", "FastAPI", body({"detail": "Not Found"}, status=404), Outcome.NOT_FOUND, "HTTP 404: Not Found"
    ),
    failed(
        "a redirect",
        "nginx, Istio: http to https",
        body("", "text/html", "location: https://llama/v1/completions", status=307),
        _BAD,
        "HTTP 307 redirects to 'https://llama/v1/completions'; give the final address",
    ),
    failed(
        "a prompt that is too long",
        "vLLM 0.32",
        _said("This model's maximum context length is 8 tokens. However, you requested 12 tokens", 400),
        _BAD,
        "HTTP 400: This model's maximum context length is 8 tokens.",
    ),
    failed(
        "chat of a base model",
        "vLLM 0.32",
        _said("As of transformers v4.44, default chat template is no longer allowed", 400),
        _BAD,
        "default chat template is no longer allowed",
        api=Api.CHAT,
    ),
    failed(
        "token ids refused",
        "LiteLLM hosted_vllm: litellm #17118, guidellm #308",
        _said(f"litellm.APIConnectionError: APIConnectionError: OpenAIException - {_NO_IDS}", 500),
        _ERROR,
        "; set request.prompt: text if the server takes no token ids",
    ),
    failed(
        "token ids refused by a type without a name",
        "TGI, serde: an untagged enum",
        body("Failed to deserialize: data did not match any variant of untagged enum Prompt", "text/plain", status=422),
        _BAD,
        "; set request.prompt: text if the server takes no token ids",
    ),
    failed(
        "token ids refused in embeddings",
        "FastAPI, pydantic",
        body({"detail": [{"loc": ["body", "input", "str"], "msg": "Input should be a valid string"}]}, status=422),
        _BAD,
        "HTTP 422: body.input.str: Input should be a valid string; set request.prompt: text",
        api=Api.EMBEDDINGS,
    ),
    failed(
        "another field that should be a string",
        "FastAPI, pydantic",
        body({"detail": [{"loc": ["body", "user"], "msg": "Input should be a valid string"}]}, status=422),
        _BAD,
        "HTTP 422: body.user: Input should be a valid string",
    ),
    failed(
        "ignore_eos refused",
        "guidellm #367, transformers serve",
        body({"detail": "Unexpected fields in the request: {'ignore_eos'}"}, status=422),
        _BAD,
        "; set request.omit: [ignore_eos] if the server does not know it",
    ),
    failed(
        "ignore_eos refused by its place",
        "FastAPI with extra=forbid",
        body({"detail": [{"loc": ["body", "ignore_eos"], "msg": "Extra inputs are not permitted"}]}, status=422),
        _BAD,
        "HTTP 422: body.ignore_eos: Extra inputs are not permitted; set request.omit: [ignore_eos]",
    ),
    failed(
        "continuous_usage_stats refused",
        "lemma-platform #583, aibrix #788",
        _said("Extra inputs are not permitted, field: 'stream_options.continuous_usage_stats', value: True", 400),
        _BAD,
        "; set request.omit: [continuous_usage_stats] if the server does not know it",
    ),
    failed(
        "max_tokens refused",
        "OpenAI, Azure: modelbench #1190, tool-eval-bench #72",
        _said(_LIMIT, 400),
        _BAD,
        "; set request.chat_limit: max_completion_tokens",
        api=Api.CHAT,
    ),
    failed(
        "max_tokens refused, and its other name too",
        "OpenAI",
        _said(_LIMIT, 400),
        _BAD,
        "'max_completion_tokens' instead.",
        api=Api.CHAT,
        shape=RequestShape(chat_limit="max_completion_tokens"),
    ),
    *(
        failed(
            f"the limit is too large: {words[:30]}",
            source,
            _said(words, 400),
            _BAD,
            words[:60],
            api=Api.CHAT,
            unsaid=("chat_limit",),
        )
        for words, source in (
            ("'max_tokens' or 'max_completion_tokens' is too large: 4. This model's context has 8 tokens", "vLLM"),
            ("max_tokens and max_completion_tokens cannot both be set", "OpenAI"),
        )
    ),
    failed(
        "a rate limit as 503",
        "Amazon S3, Bedrock behind a gateway",
        _said("SlowDown: Please reduce your request rate.", 503),
        _REJECTED,
        "HTTP 503: SlowDown",
    ),
    failed("nothing", "a server that closes", ((1, b""),), _LOST, "closed the connection without an answer"),
    failed("no content", "gateways", ((1, head("", status=204)),), _BAD, "HTTP 204"),
    failed("not HTTP", "a wrong port", ((1, b"SSH-2.0-OpenSSH_9.2\r\n\r\n"),), _LOST, "not HTTP"),
)
