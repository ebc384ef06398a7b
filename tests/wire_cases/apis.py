"""Rows: the other APIs: typed events, and answers that are no stream."""

import json
from typing import Any

from probe.core.request import Api, Outcome
from wire_cases.wire import DONE, VLLM, Timed, WireCase, body, failed, stream

_ERROR, _BROKEN = Outcome.SERVER_ERROR, Outcome.BROKEN_STREAM


def _typed(*events: dict[str, Any]) -> Timed:
    return stream(*(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in events), first=80)


def _output(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "response.output_text.delta", "delta": text} for text in texts]


def _block(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": x}} for x in texts]


_CREATED = {"type": "response.created", "response": {"model": "tiny", "status": "in_progress", "usage": None}}
_STARTED = {"type": "message_start", "message": {"model": "tiny", "usage": {"input_tokens": 8, "output_tokens": 1}}}


def _completed(usage: object, **others: object) -> dict[str, Any]:
    why = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    return {"type": "response.completed", "response": {"model": "tiny", "usage": usage, **why, **others}}


def _ended(usage: object) -> list[dict[str, Any]]:
    return [{"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": usage}, {"type": "message_stop"}]


_TOKENS = {"input_tokens": 8, "output_tokens": 4}
_FOUR_EVENTS = {"tokens": (1, 1, 1, 1), "ttft": 100.0, "tpot": 20.0}


def _responses(name: str, source: str, *events: dict[str, Any], **others: Any) -> WireCase:
    return WireCase(name, source, _typed(_CREATED, *events), api=Api.RESPONSES, **others)


def _messages(name: str, source: str, *events: dict[str, Any], **others: Any) -> WireCase:
    return WireCase(name, source, _typed(_STARTED, *events), api=Api.MESSAGES, **others)


def _vector(said: object, outcome: Outcome, words: str = "", **others: Any) -> WireCase:
    usage = {"usage": (8, 0) if outcome is not _ERROR and outcome is not _BROKEN else (0, 0)}
    name = f"embeddings: {str(said)[-75:]}"
    none = {"tokens": (0,) if outcome is not _ERROR and outcome is not _BROKEN else (), "ttft": None, "tpot": None}
    return WireCase(
        name, "vLLM 0.32, OpenAI", body(said), outcome, words=words, api=Api.EMBEDDINGS, **{**usage, **none, **others}
    )


def _embedded(vector: object, prompt: object = 8) -> dict[str, Any]:
    data = [{"object": "embedding", "index": 0, "embedding": vector}]
    return {"object": "list", "model": "tiny", "data": data, "usage": {"prompt_tokens": prompt}}


APIS: tuple[WireCase, ...] = (
    _responses("responses", VLLM, *_output(*"abcd"), _completed(_TOKENS)),
    _responses(
        "responses: counts as floats",
        "gateways",
        *_output(*"abcd"),
        _completed({"input_tokens": 8.0, "output_tokens": 4.0}),
    ),
    _responses(
        "responses: counts as digits",
        "gateways",
        *_output(*"abcd"),
        _completed({"input_tokens": "8", "output_tokens": "4"}),
    ),
    _responses(
        "responses: a ping, and types that are not known",
        "OpenAI",
        {"type": "response.new"},
        *_output(*"abcd"),
        {"type": "keepalive"},
        _completed(_TOKENS),
        ttft=120.0,
    ),
    _responses(
        "responses: no usage",
        "openai-agents-python #1179, LiteLLM",
        *_output(*"abcd"),
        _completed(None),
        outcome=Outcome.WRONG_ANSWER,
        words="the server sent no usage",
        usage=(0, 0),
        tpot=None,
    ),
    failed(
        "responses: [DONE] in place of the end",
        "gateways",
        stream(*(f"data: {json.dumps(each)}\n\n".encode() for each in _output("a")), DONE),
        _BROKEN,
        "the stream ended without response.completed after 1 token events",
        tokens=(1,),
        usage=(0, 0),
        tpot=None,
        ttft=100.0,
        api=Api.RESPONSES,
    ),
    _responses(
        "responses: failed",
        "OpenAI",
        {"type": "response.failed", "response": {"error": {"code": "server_error", "message": "engine died"}}},
        outcome=_ERROR,
        words="engine died",
        tokens=(),
        usage=(0, 0),
        ttft=None,
        tpot=None,
    ),
    _responses(
        "responses: failed without words",
        "OpenAI",
        {"type": "response.failed", "response": {"error": None}},
        outcome=_ERROR,
        words="response.failed",
        tokens=(),
        usage=(0, 0),
        ttft=None,
        tpot=None,
    ),
    *(
        _responses(
            f"responses: completed, with the status failed and the error {error}",
            "LiteLLM",
            *_output(*"ab"),
            {"type": "response.completed", "response": {"status": "failed", "error": error}},
            outcome=_ERROR,
            words=words,
            tokens=(1, 1),
            usage=(0, 0),
            tpot=None,
        )
        for error, words in (({"message": "engine died"}, "engine died"), (None, "the response's status is 'failed'"))
    ),
    _responses(
        "responses: an error",
        "OpenAI",
        {"type": "error", "code": "server_error", "message": "engine died", "param": None},
        outcome=_ERROR,
        words="engine died",
        tokens=(),
        usage=(0, 0),
        ttft=None,
        tpot=None,
    ),
    _messages("messages", VLLM, *_block(*"abcd"), *_ended(_TOKENS)),
    _messages(
        "messages: the prompt only at the begin",
        "Anthropic",
        {"type": "ping"},
        *_block(*"abcd"),
        *_ended({"output_tokens": 4}),
        ttft=120.0,
    ),
    _messages(
        "messages: a null prompt at the end",
        "LiteLLM",
        *_block(*"abcd"),
        *_ended({"input_tokens": None, "output_tokens": 4}),
    ),
    _messages(
        "messages: overloaded",
        "Anthropic, errors while streaming",
        *_block("a"),
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
        outcome=Outcome.REJECTED,
        words="error inside the stream: Overloaded",
        tokens=(1,),
        usage=(8, 1),
        tpot=None,
    ),
    failed(
        "messages: an error as a body",
        "Anthropic",
        body({"type": "error", "error": {"type": "api_error", "message": "boom"}}),
        _ERROR,
        "boom",
        api=Api.MESSAGES,
    ),
    _vector(_embedded([0.5, -1]), Outcome.OK),
    _vector(_embedded([0.5, 1], 8.0), Outcome.OK),
    _vector(_embedded([0.5, 2], -1), Outcome.OK, usage=(0, 0)),
    _vector(_embedded([0, 0.0]), Outcome.CORRUPT, "the vector is all zeros"),
    _vector(_embedded([None]), Outcome.CORRUPT, "the vector holds NaN"),
    _vector({"error": {"message": "no such model"}}, _ERROR, "error in the answer: no such model"),
    _vector({"detail": "engine is gone"}, _ERROR, "error in the answer: engine is gone"),
    failed(
        "embeddings: a log-in page",
        "SSO proxies",
        body("<title>Sign in</title>", "text/html"),
        _BROKEN,
        "the answer is not a result of embeddings: Sign in",
        api=Api.EMBEDDINGS,
    ),
)
