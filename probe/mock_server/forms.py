"""The APIs of the mock server, a row for each: how to read its requests and how to write its answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pydantic import BaseModel

from probe.mock_server import typed_wire, wire
from probe.mock_server.request_parser import (
    ChatBody,
    ChatMessage,
    CommonBody,
    ParsedRequest,
    Refusal,
    TokenIds,
    chat_request,
    checked_request,
    count_prompt,
    parse_body,
    read_chat,
    read_completion,
)
from probe.simulator.cost import Profile


class Events(Protocol):
    """The events of one streamed answer."""

    def at_once(self) -> Sequence[bytes]:
        """Return what is sent before the engine has begun."""
        ...

    def opening(self) -> Sequence[bytes]:
        """Return what is sent with the first token, before it."""
        ...

    def token(self, number: int) -> bytes:
        """Return the event of a token, from 1 on."""
        ...

    def closing(self) -> Sequence[bytes]:
        """Return what follows the last token."""
        ...

    def broken(self, body: dict[str, Any]) -> Sequence[bytes]:
        """Return the end of an answer that breaks off with this error."""
        ...


@dataclass(frozen=True, slots=True)
class Form:
    """One API. `refusal` makes the body of an error response."""

    read: Callable[..., ParsedRequest]
    events: Callable[[wire.MockResponse], Events]
    whole: Callable[[wire.MockResponse], str]
    refusal: Callable[[Refusal], dict[str, Any]] = lambda refusal: refusal.body


class _ResponsesBody(BaseModel):
    model: str | None = None
    input: str | list[ChatMessage]
    max_output_tokens: int | None = None
    ignore_eos: bool | None = False
    stream: bool | None = False


class _MessagesBody(BaseModel):
    model: str
    messages: list[ChatMessage]
    max_tokens: int
    stream: bool | None = False


def _read_responses(body: bytes, content_type: str, *, model: str, profile: Profile) -> ParsedRequest:
    asked = parse_body(_ResponsesBody, body, content_type)
    said = [ChatMessage(role="user", content=asked.input)] if isinstance(asked.input, str) else asked.input
    chat = ChatBody(
        model=asked.model,
        messages=said,
        max_tokens=asked.max_output_tokens,
        ignore_eos=asked.ignore_eos,
        stream=asked.stream,
    )
    return chat_request(chat, model=model, profile=profile)


def _read_messages(body: bytes, content_type: str, *, model: str, profile: Profile) -> ParsedRequest:
    asked = parse_body(_MessagesBody, body, content_type)
    chat = ChatBody(model=asked.model, messages=asked.messages, max_tokens=asked.max_tokens, stream=asked.stream)
    return chat_request(chat, model=model, profile=profile)


def _anthropic_error(refusal: Refusal) -> dict[str, Any]:
    """Return the error in the form of Messages; vLLM checks the shape of a body before, in its own form."""
    error = refusal.body["error"]
    if error["type"] == "Bad Request":
        return refusal.body
    return {"type": "error", "error": {"type": error["type"], "message": error["message"]}}


class _EmbeddingsBody(BaseModel):
    model: str | None = None
    input: TokenIds | str


class _RerankBody(BaseModel):
    model: str | None = None
    query: str
    documents: list[str]


class _ScoreBody(BaseModel):
    model: str | None = None
    text_1: str
    text_2: list[str]


def _read_embeddings(body: bytes, content_type: str, *, model: str, profile: Profile) -> ParsedRequest:
    asked = parse_body(_EmbeddingsBody, body, content_type)
    _check_model(asked.model, model)
    return _numbers_request(asked.input, profile)


def _read_rerank(body: bytes, content_type: str, *, model: str, profile: Profile) -> ParsedRequest:
    asked = parse_body(_RerankBody, body, content_type)
    _check_model(asked.model, model)
    return _numbers_request(" ".join((asked.query, *asked.documents)), profile, tuple(asked.documents))


def _read_score(body: bytes, content_type: str, *, model: str, profile: Profile) -> ParsedRequest:
    asked = parse_body(_ScoreBody, body, content_type)
    _check_model(asked.model, model)
    return _numbers_request(" ".join((asked.text_1, *asked.text_2)), profile, tuple(asked.text_2))


def _check_model(asked: str | None, model: str) -> None:
    """Raise Refusal for another model."""
    if asked is not None and asked != model:
        raise Refusal(404, f"The model `{asked}` does not exist.", "NotFoundError")


def _numbers_request(prompt: TokenIds | str, profile: Profile, texts: tuple[str, ...] = ()) -> ParsedRequest:
    """Return a request for numbers. Raises Refusal."""
    tokens = count_prompt(prompt, profile)
    one = checked_request(CommonBody(), tokens, 1, profile.max_model_len, b"", text="")
    return replace(one, texts=texts, is_text=False)


FORMS = {
    "/v1/completions": Form(read_completion, wire.completion_events, wire.completion_body),
    "/v1/chat/completions": Form(read_chat, wire.chat_events, wire.chat_body),
    "/v1/responses": Form(_read_responses, typed_wire.ResponseEvents, typed_wire.response_body),
    "/v1/messages": Form(_read_messages, typed_wire.MessageEvents, typed_wire.message_body, _anthropic_error),
}
# All APIs of a server with a pooling model.
RESULT_FORMS = {
    "/v1/embeddings": Form(_read_embeddings, wire.completion_events, wire.embeddings_body),
    "/v1/rerank": Form(_read_rerank, wire.completion_events, wire.rerank_body),
    "/v1/score": Form(_read_score, wire.completion_events, wire.score_body),
}
