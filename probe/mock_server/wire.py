"""The bytes of an answer as vLLM 0.32 writes them: events of a stream, whole answers, vectors and scores. Pure.

Input: a ParsedRequest, the model's name and the answer's id. Output: JSON in the field order and with the separators of
recorded transcripts (tests/golden/vllm-0.32). The parts of an event that are the same for every token are built once
per request, because JSON is most of what a token costs here.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from probe.mock_server.request_parser import ParsedRequest

FINGERPRINT = "vllm-0.32.0-sim"
DONE = b"data: [DONE]\n\n"

# Each counts as one token. The mock server has no model: it answers with these words in turn.
WORDS = (
    *(" queue", " block", " token", " batch", " step", " knee", " load", " decode", " prefill", " cache"),
    *(" wait", " rate", " burst", " limit", " seat", " page", " time", " point", " curve", " server"),
)
_WORDS_JSON = tuple(json.dumps(word) for word in WORDS)
VECTOR_LENGTH = 64


@dataclass(frozen=True, slots=True)
class MockResponse:
    """Everything that the bytes of one answer depend on. `seed` picks the words."""

    request: ParsedRequest
    model: str
    id: str  # 16 hexadecimal digits, as vLLM's
    created: int  # seconds since the epoch
    seed: int

    @property
    def finish_reason(self) -> str:
        return "stop" if self.request.answer else "length"

    def text(self) -> str:
        return "".join(self.word(number) for number in range(1, self.request.output_tokens + 1))

    def word(self, number: int) -> str:
        """Return the text of token `number`, from 1 to output_tokens."""
        return self.request.answer or WORDS[(self.seed + number) % len(WORDS)]

    def usage(self, output_tokens: int) -> dict[str, int]:
        prompt_tokens = self.request.prompt_tokens
        return {
            "prompt_tokens": prompt_tokens,
            "total_tokens": prompt_tokens + output_tokens,
            "completion_tokens": output_tokens,
        }


class EventStream:
    """The events of one streamed answer, token by token."""

    def __init__(self, answer: MockResponse, head: Mapping[str, Any], *, chat: bool) -> None:
        self._answer = answer
        self._head = dumps(head)[:-1] + ',"choices":['
        self._chat = chat
        if chat:
            self._before = f'data: {self._head}{{"index":0,"delta":{{"content":'
            self._after = '},"logprobs":null,"finish_reason":null,"token_ids":null}]'
            self._after_last = (
                f'}},"logprobs":null,"finish_reason":"{answer.finish_reason}","stop_reason":null,"token_ids":null}}]'
            )
        else:
            self._before = f'data: {self._head}{{"index":0,"text":'
            rest = '"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]'
            self._after = f',"logprobs":null,"finish_reason":null,{rest}'
            self._after_last = f',"logprobs":null,"finish_reason":"{answer.finish_reason}",{rest}'
        if not answer.request.include_usage:  # the fingerprint comes once, in the last event with JSON in it
            self._after_last += f',"system_fingerprint":"{FINGERPRINT}"'

    def at_once(self) -> Sequence[bytes]:
        return ()

    def opening(self) -> Sequence[bytes]:
        """Return what precedes the first token: for chat an event with a role and no content, else nothing."""
        if not self._chat:
            return ()
        usage = self._usage(0) if self._answer.request.continuous_usage else ""
        choice = '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        return (f'data: {self._head}{choice}{usage},"prompt_token_ids":null,"prompt_text":null}}\n\n'.encode(),)

    def token(self, number: int) -> bytes:
        """Return the event of token `number`, from 1 to output_tokens."""
        request = self._answer.request
        word = (
            json.dumps(request.answer)
            if request.answer
            else _WORDS_JSON[(self._answer.seed + number) % len(_WORDS_JSON)]
        )
        after = self._after if number < request.output_tokens else self._after_last
        usage = self._usage(number) if request.continuous_usage else ""
        return f"{self._before}{word}{after}{usage}}}\n\n".encode()

    def closing(self) -> Sequence[bytes]:
        """Return what follows the last token: a usage event if requested, then the end mark."""
        request = self._answer.request
        if not request.include_usage:
            return (DONE,)
        usage = dumps(self._answer.usage(request.output_tokens))
        return (
            f'data: {self._head}],"usage":{usage},"system_fingerprint":"{FINGERPRINT}"}}\n\n'.encode(),
            DONE,
        )

    def broken(self, body: Mapping[str, Any]) -> Sequence[bytes]:
        return f"data: {json.dumps(body)}\n\n".encode(), DONE

    def _usage(self, number: int) -> str:
        prompt = self._answer.request.prompt_tokens
        details = ',"completion_tokens_details":null' if self._chat else ""
        return (
            f',"usage":{{"prompt_tokens":{prompt},"total_tokens":{prompt + number},'
            f'"completion_tokens":{number}{details}}}'
        )


def completion_events(answer: MockResponse) -> EventStream:
    return EventStream(answer, _head(answer, "cmpl", "text_completion"), chat=False)


def chat_events(answer: MockResponse) -> EventStream:
    return EventStream(answer, _head(answer, "chatcmpl", "chat.completion.chunk"), chat=True)


def completion_body(answer: MockResponse) -> str:
    """Return the whole answer of /v1/completions."""
    return (
        f'{dumps(_head(answer, "cmpl", "text_completion"))[:-1]},"choices":[{{"index":0,'
        f'"text":{json.dumps(answer.text())},"logprobs":null,"finish_reason":"{answer.finish_reason}","stop_reason":null,'
        '"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null,"routed_experts":null}],'
        f'{_trailer(answer)},"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}}'
    )


def chat_body(answer: MockResponse) -> str:
    """Return the whole answer of /v1/chat/completions."""
    return (
        f'{dumps(_head(answer, "chatcmpl", "chat.completion"))[:-1]},"choices":[{{"index":0,'
        f'"message":{{"role":"assistant","content":{json.dumps(answer.text())},"refusal":null,'
        '"annotations":null,"audio":null,"function_call":null,"reasoning":null},"logprobs":null,'
        f'"finish_reason":"{answer.finish_reason}","stop_reason":null,"token_ids":null,"routed_experts":null}}],'
        f'{_trailer(answer)},"prompt_logprobs":null,"prompt_token_ids":null,"prompt_text":null,'
        '"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}'
    )


def models_body(model: str, max_model_len: int, created: int, permission: str) -> str:
    """Return the answer of /v1/models."""
    name = json.dumps(model, ensure_ascii=False)
    return (
        f'{{"object":"list","data":[{{"id":{name},"object":"model","created":{created},"owned_by":"vllm",'
        f'"root":{name},"parent":null,"max_model_len":{max_model_len},"permission":['
        f'{{"id":"modelperm-{permission}","object":"model_permission","created":{created},'
        '"allow_create_engine":false,"allow_sampling":true,"allow_logprobs":true,"allow_search_indices":false,'
        '"allow_view":true,"allow_fine_tuning":false,"organization":"*","group":null,"is_blocking":false}]}]}'
    )


def dumps(value: Mapping[str, Any]) -> str:
    """Return JSON with vLLM's separators and unescaped text."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _head(answer: MockResponse, prefix: str, kind: str) -> dict[str, Any]:
    return {"id": f"{prefix}-{answer.id}", "object": kind, "created": answer.created, "model": answer.model}


def _trailer(answer: MockResponse) -> str:
    usage = dumps(answer.usage(answer.request.output_tokens))[:-1]
    return (
        f'"service_tier":null,"system_fingerprint":"{FINGERPRINT}",'
        f'"usage":{usage},"prompt_tokens_details":null,"completion_tokens_details":null}}'
    )


def embeddings_body(answer: MockResponse) -> str:
    """Return the answer of /v1/embeddings: a unit vector in 64-bit floats."""
    source = Random(answer.seed)
    raw = [source.gauss(0.0, 1.0) for _ in range(VECTOR_LENGTH)]
    norm = sum(value * value for value in raw) ** 0.5
    vector = {"index": 0, "object": "embedding", "embedding": [value / norm for value in raw]}
    return dumps({**_head(answer, "embd", "list"), "data": [vector], "usage": _result_usage(answer)})


def score_body(answer: MockResponse) -> str:
    """Return the answer of /v1/score."""
    data = [{"index": i, "object": "score", "score": score} for i, score in enumerate(_scores(answer))]
    return dumps({**_head(answer, "score", "list"), "data": data, "usage": _result_usage(answer)})


def rerank_body(answer: MockResponse) -> str:
    """Return the answer of /v1/rerank, best first."""
    tokens = answer.request.prompt_tokens
    results = [
        {"index": i, "document": {"text": text, "multi_modal": None}, "relevance_score": score}
        for i, (text, score) in enumerate(zip(answer.request.texts, _scores(answer), strict=True))
    ]
    results.sort(key=lambda each: -float(str(each["relevance_score"])))
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return dumps({"id": f"score-{answer.id}", "model": answer.model, "usage": usage, "results": results})


def _scores(answer: MockResponse) -> list[float]:
    source = Random(answer.seed)
    return [source.random() for _ in answer.request.texts]


def _result_usage(answer: MockResponse) -> dict[str, Any]:
    tokens = answer.request.prompt_tokens
    details = {"prompt_tokens_details": None, "completion_tokens_details": None}
    return {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0, **details}
