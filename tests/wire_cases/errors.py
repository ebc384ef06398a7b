"""Rows: errors in the server's words, in a body or an event of status 200."""

from typing import Any

from hostile_server import event
from memory_wire import RESET

from probe.client.api_request import RequestShape
from probe.core.request import Api, Omittable, Outcome
from wire_cases.wire import DONE, FOUR, Timed, WireCase, body, chat, comp, failed, final, stream

_ERROR, _REJECTED, _BROKEN = Outcome.SERVER_ERROR, Outcome.REJECTED, Outcome.BROKEN_STREAM

# What gateways and servers answer in place of a stream: the object, its words, who does.
_BODIES: tuple[tuple[Any, str, str, Outcome], ...] = (
    ({"error": {"message": "upstream died", "type": "x"}}, "upstream died", "inference-perf #713", _ERROR),
    ({"error": "upstream died"}, "upstream died", "Ollama, TGI, vLLM's API-key check", _ERROR),
    ({"error": {"message": "no backend", "code": 502}}, "no backend", "openrouter.ai/docs/errors", _ERROR),
    ({"error": {"code": "InternalServerError", "innererror": {}}}, "InternalServerError", "Azure", _ERROR),
    ({"error": "Bad Gateway", "message": "no route", "status": 502}, "Bad Gateway: no route", "Spring", _ERROR),
    ({"error": "server_error", "error_description": "try later"}, "server_error: try later", "OAuth proxies", _ERROR),
    ({"error": {"msg": "died"}}, "died", "gateways", _ERROR),
    ({"error": True, "message": "it died"}, "it died", "gateways", _ERROR),
    ({"error": 1301, "message": "it died"}, "1301: it died", "gateways", _ERROR),
    ({"error": {"message": '{"error":{"message":"inner"}}', "code": 500}}, "inner", "a gateway before another", _ERROR),
    ({"error": '{"message":"slow","code":429}'}, "slow", "a gateway before another", _REJECTED),
    ({"detail": '{"detail":"queue is full"}'}, "queue is full", "a gateway before another", _REJECTED),
    ({"error": ["died", "twice"]}, "died; twice", "gateways", _ERROR),
    ({"errors": [{"code": 5006, "message": "bad model"}], "success": False}, "bad model", "Cloudflare", _ERROR),
    ({"message": "An invalid response was received"}, "An invalid response", "Kong, AWS API Gateway", _ERROR),
    ({"Message": "User is not authorized"}, "User is not authorized", "AWS", _ERROR),
    ({"__type": "ThrottlingException", "message": "slow down"}, "slow down", "Amazon Bedrock", _REJECTED),
    ({"statusCode": 500, "message": "backend"}, "backend", "Azure API Management", _ERROR),
    ({"detail": "engine is gone"}, "engine is gone", "FastAPI", _ERROR),
    (
        {"detail": [{"type": "missing", "loc": ["body", "prompt"], "msg": "Field required"}, {"msg": "Also"}]},
        "body.prompt: Field required; Also",
        "FastAPI, pydantic",
        _ERROR,
    ),
    (
        {"type": "about:blank", "title": "Gone", "status": 500, "detail": "pod evicted"},
        "pod evicted",
        "RFC 9457",
        _ERROR,
    ),
    ({"fault": {"faultstring": "quota policy", "detail": {"errorcode": "x"}}}, "quota policy", "Apigee", _ERROR),
    ({"code": 1302, "msg": "concurrency"}, "concurrency", "Zhipu", _ERROR),
    ({"error_code": 18, "error_msg": "qps"}, "qps", "Baidu Qianfan", _ERROR),
    ({"object": "error", "message": "old", "code": 500}, "old", "vLLM before 0.9, SGLang", _ERROR),
    ({"type": "error", "error": {"type": "api_error", "message": "boom"}}, "boom", "Anthropic", _ERROR),
    ({"kind": "Status", "status": "Failure", "message": "no pods", "code": 500}, "no pods", "Kubernetes", _ERROR),
    ([{"error": {"code": 500, "message": "internal", "status": "INTERNAL"}}], "internal", "Google, a list", _ERROR),
    ({"error": {"message": "slow", "type": "rate_limit_error"}}, "slow", "OpenAI, Anthropic", _REJECTED),
    ({"error": {"message": "slow", "code": "429"}}, "slow", "LiteLLM", _REJECTED),
    ({"error": {"code": 429, "message": "q", "status": "RESOURCE_EXHAUSTED"}}, "q", "Google", _REJECTED),
    (
        {"error": {"message": "model overloaded", "type": "overloaded_error"}},
        "model overloaded",
        "TGI, Anthropic",
        _REJECTED,
    ),
    ({"error": {"message": "two\nlines\x1b[31m"}}, "two lines?[31m", "hostile", _ERROR),
    ({"error": {"message": "long " * 200}}, "long long", "hostile", _ERROR),
    ({"error": {"message": "key sk-of-the-matrix-0123456789 is bad"}}, "key (hidden) is bad", "proxies", _ERROR),
)
_EVENTS: tuple[tuple[bytes, str, str, Outcome], ...] = (
    (
        event({"error": {"message": "EngineDeadError", "code": 500}}),
        "EngineDeadError",
        "guidellm #743, inference-perf #744",
        _ERROR,
    ),
    (event({"error": "CUDA error", "error_type": "generation"}), "CUDA error", "TGI", _ERROR),
    (event({"message": "upstream reset"}), "upstream reset", "gateways", _ERROR),
    (event({"detail": "gone"}), "gone", "FastAPI", _ERROR),
    (b'event: error\ndata: {"message":"upstream timed out"}\n\n', "upstream timed out", "a gateway, typed", _ERROR),
    (b'event: error\ndata: {"error":{"message":"lost"}}\n\n', "lost", "LM Studio", _ERROR),
    (b"event: error\ndata: stream closed\n\n", "stream closed", "gateways: words without JSON", _ERROR),
    (b"event: error\ndata:\n\n", "event: error", "gateways: no words", _ERROR),
    (b'error: {"code":500,"message":"slot died"}\n\n', "slot died", "llama.cpp #16109: the field is error", _ERROR),
    (
        event(
            {
                "choices": [
                    {"index": 0, "text": "", "finish_reason": "error", "error": {"code": 502, "message": "provider"}}
                ]
            }
        ),
        "provider",
        "a gateway, in the choice",
        _ERROR,
    ),
    (
        event(
            {"error": {"code": 502, "message": "gone"}, "choices": [{"index": 0, "text": "", "finish_reason": "error"}]}
        ),
        "gone",
        "openrouter.ai/docs/errors, mid-stream",
        _ERROR,
    ),
    (comp("", 2, "error"), "finish reason 'error'", "vLLM FinishReason.ERROR: a KV transfer failed", _ERROR),
    (comp("", 2, "abort"), "finish reason 'abort'", "vllm #57082, sglang #22535", _ERROR),
    (event({"error": {"message": "Rate limit", "code": 429}}), "Rate limit", "LiteLLM", _REJECTED),
)


def _harmony(*, omitted: bool) -> WireCase:
    """gpt-oss with ignore_eos: vLLM's parser of harmony fails after the end of the answer."""
    words = "Unexpected token 200002 while expecting start token 200006"
    sent = stream(
        *(chat({"reasoning": x}, i) for i, x in enumerate("ab", 1)),
        event({"error": {"message": words, "code": 400}}),
        DONE,
    )
    hint = "" if omitted else "; set request.omit: [ignore_eos], since gpt-oss"
    shape = RequestShape(omitted=frozenset({Omittable.IGNORE_EOS})) if omitted else RequestShape()
    return failed(
        f"harmony past its end{', as configured' if omitted else ''}",
        "guidellm #979, vllm #50690",
        sent,
        _ERROR,
        f"{words}{hint}",
        tokens=(1, 1),
        usage=(8, 2),
        ttft=100,
        api=Api.CHAT,
        shape=shape,
    )


def _html(text: str) -> Timed:
    return body(f"<!doctype html><html><head>{text}</head><body>...</body></html>", "text/html; charset=utf-8")


ERRORS = (
    *(
        failed(f"a body: {str(said)[:60]}", source, body(said), outcome, f"error inside the stream: {words}")
        for said, words, source, outcome in _BODIES
    ),
    *(
        failed(
            f"an event: {words} ({source})",
            source,
            stream(*FOUR[:2], said, DONE),
            outcome,
            words,
            tokens=(1, 1),
            usage=(8, 2),
            ttft=100,
        )
        for said, words, source, outcome in _EVENTS
    ),
    failed(
        "an error as an event stream without events",
        "gateways",
        body({"error": {"message": "died"}}, "text/event-stream"),
        _ERROR,
        "died",
    ),
    failed(
        "an error event, and a reset",
        "nginx before a dead worker",
        (*stream(FOUR[0], event({"error": "worker died"}))[:-1],),
        _ERROR,
        "worker died",
        tokens=(1,),
        usage=(8, 1),
        ttft=100,
        end=RESET,
    ),
    failed(
        "an error event of the type application/json",
        "gateways",
        stream(event({"error": "died"}), kind="application/json"),
        _ERROR,
        "died",
    ),
    failed(
        "an error after the usage",
        "sglang",
        stream(*FOUR, final({"prompt_tokens": 8, "completion_tokens": 4}), event({"error": "late"})),
        _ERROR,
        "late",
        tokens=(1, 1, 1, 1),
        usage=(8, 4),
        ttft=100,
    ),
    failed(
        "an error without a field after the tokens",
        "lemonade #2826: a backend's JSON verbatim",
        stream(*FOUR[:2], b'{"error":{"code":400,"message":"request exceeds the context size"}}'),
        _ERROR,
        "request exceeds the context size",
        tokens=(1, 1),
        usage=(8, 2),
        ttft=100,
    ),
    _harmony(omitted=False),
    _harmony(omitted=True),
    failed(
        "a log-in page",
        "captive portals, SSO proxies",
        _html("<title>\n Sign in &amp; go </title>"),
        _BROKEN,
        "the answer is 'text/html', expected an event stream: Sign in & go",
    ),
    failed(
        "a page without a title",
        "captive portals",
        _html(""),
        _BROKEN,
        "the answer is 'text/html', expected an event stream: <!doctype",
    ),
    failed(
        "words as text/plain",
        "Envoy, Istio",
        body("no healthy upstream", "text/plain"),
        _BROKEN,
        "'text/plain', expected an event stream: no healthy upstream",
    ),
    failed(
        "words without a content type",
        "proxies",
        body("upstream died", ""),
        _BROKEN,
        "the answer is 'no content type', expected an event stream: upstream died",
    ),
    failed(
        "words as an event stream",
        "proxies",
        body("upstream died", "text/event-stream"),
        _BROKEN,
        "without [DONE] after 0 token events; it holds: upstream died",
    ),
    failed(
        "an answer that is not streamed",
        "gateways that drop stream",
        body({"object": "text_completion", "choices": [{"text": "abcd", "finish_reason": "length"}], "usage": {}}),
        _BROKEN,
        "expected an event stream: a whole answer, not streamed",
    ),
    failed(
        "all is well, and nothing else",
        "gateways",
        body({"code": 0, "message": "success"}),
        _BROKEN,
        "expected an event stream",
    ),
    failed(
        "an empty object",
        "gateways",
        body({}),
        _BROKEN,
        "the answer is 'application/json', expected an event stream: {}",
    ),
)
