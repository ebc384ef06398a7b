"""Parse a request, or refuse it with vLLM 0.32's messages.

Input: the body's bytes and the server's limits. Output: a ParsedRequest, or a Refusal with the status and the JSON that
the real server answers. Text is not tokenised: four bytes count as one token, about as in English, and a chat message
adds what a template would.
"""

import json
import struct
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from probe.mock_server.prompts import BYTES_PER_TOKEN
from probe.simulator.cost import Profile

_B = TypeVar("_B", bound=BaseModel)
VOCABULARY = 32_000  # ids from 0; the smallest of today's common models, so ids that are valid here are valid there
TEMPLATE_TOKENS = 3  # a chat prompt's opening for the answer
TEMPLATE_TOKENS_PER_MESSAGE = 4  # role and delimiters
DEFAULT_MAX_TOKENS = 16  # completions only; chat defaults to the rest of the context
# The one question that the mock server answers, with one token: the default of `canary.known_answer`.
_QUESTION, _ANSWER = "the capital of France", " Paris"
TokenIds = list[Annotated[int, Field(ge=0)]]


class Refusal(Exception):  # noqa: N818  # an answer, not an error of this program
    """An error response: `status`, and `body` in vLLM's shape."""

    def __init__(self, status: int, message: str, kind: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}


def parse_body(shape: type[_B], body: bytes, content_type: str) -> _B:
    if content_type.partition(";")[0].strip().lower() != "application/json":
        message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
        raise Refusal(400, message, "Bad Request")
    if not body:
        raise _invalid([{"type": "missing", "loc": (), "msg": "Field required", "input": None}])
    try:
        asked = json.loads(body)
    except json.JSONDecodeError as error:
        problem = {"type": "json_invalid", "loc": (error.pos,), "msg": "JSON decode error", "input": {}}
        raise _invalid([problem | {"ctx": {"error": error.msg}}]) from None
    except (UnicodeDecodeError, RecursionError):
        raise Refusal(400, "There was an error parsing the body", "Bad Request") from None
    if not isinstance(asked, dict):
        message = "Input should be a valid dictionary or object to extract fields from"
        raise _invalid([{"type": "model_attributes_type", "loc": (), "msg": message, "input": asked}])
    try:
        return shape.model_validate(asked)
    except ValidationError as error:
        raise _invalid([dict(problem) for problem in error.errors(include_url=False)]) from None


def _invalid(problems: list[dict[str, Any]]) -> Refusal:
    """Return vLLM's refusal of a body of the wrong shape: a line for each of pydantic's errors."""
    lines = []
    for problem in problems:
        shown = {"type": problem["type"], "loc": _place(problem["loc"]), "msg": problem["msg"]}
        shown["input"] = _shown(problem["input"])
        if "ctx" in problem:
            shown["ctx"] = problem["ctx"]
        lines.append(f"\n  {shown}")
    count = f"{len(lines)} validation error{'s' if len(lines) > 1 else ''}:"
    return Refusal(400, count + "".join(lines), "Bad Request", _place(problems[0]["loc"]))


def _place(loc: tuple[int | str, ...]) -> str:
    # Pydantic puts the names of a union's branches into the path, as in prompt.list[int].0.
    steps = [str(step) for step in loc if isinstance(step, int) or (step.isidentifier() and step != "str")]
    return ".".join(["body", *steps])


def _shown(given: object) -> str:
    if isinstance(given, list | dict):
        return f"<{type(given).__name__} of {len(given)} items>"
    return str(given)


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A valid request: lengths in tokens, and how to send its answer.

    `content`: the prompt for prefix matching, BYTES_PER_TOKEN per token; empty without a prefix cache.
    """

    prompt_tokens: int
    output_tokens: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    content: bytes = field(default=b"", repr=False)
    answer: str = ""  # the only token; empty: words up to the limit
    texts: tuple[str, ...] = ()  # the documents of a ranking
    is_text: bool = True  # else the answer is numbers


class _StreamOptions(BaseModel):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class CommonBody(BaseModel):
    model: str | None = None
    max_tokens: int | None = None
    n: int | None = 1
    ignore_eos: bool | None = False
    stream: bool | None = False
    stream_options: _StreamOptions | None = None


class _Completion(CommonBody):
    prompt: TokenIds | list[TokenIds] | str | list[str] | None = None


class ChatMessage(BaseModel):
    role: str
    content: str | list[dict[str, Any]] | None = None


class ChatBody(CommonBody):
    messages: list[ChatMessage]
    max_completion_tokens: int | None = None


def read_completion(body: bytes, content_type: str, *, model: str, profile: Profile) -> ParsedRequest:
    """Parse a POST to /v1/completions. Raises Refusal."""
    asked = parse_body(_Completion, body, content_type)
    _check_common(asked, model)
    prompt_tokens = count_prompt(asked.prompt, profile)
    limit = DEFAULT_MAX_TOKENS if asked.max_tokens is None else asked.max_tokens
    content = _content(asked.prompt) if profile.prefix_caching else b""
    text = asked.prompt if isinstance(asked.prompt, str) else ""
    return checked_request(asked, prompt_tokens, limit, profile.max_model_len, content, text=text)


def read_chat(body: bytes, content_type: str, *, model: str, profile: Profile) -> ParsedRequest:
    """Parse a POST to /v1/chat/completions. Raises Refusal."""
    return chat_request(parse_body(ChatBody, body, content_type), model=model, profile=profile)


def chat_request(asked: ChatBody, *, model: str, profile: Profile) -> ParsedRequest:
    """Return the request of a parsed chat. Raises Refusal."""
    _check_common(asked, model)
    if not asked.messages:
        message = "Cannot apply chat template to an empty conversation. Provide at least one message."
        raise Refusal(400, message, "BadRequestError")
    prompt_tokens = TEMPLATE_TOKENS + sum(
        TEMPLATE_TOKENS_PER_MESSAGE + text_tokens(_text_of(message)) for message in asked.messages
    )
    limit = asked.max_tokens if asked.max_completion_tokens is None else asked.max_completion_tokens
    content = _chat_content(asked.messages) if profile.prefix_caching else b""
    limit = profile.max_model_len if limit is None else limit
    return checked_request(
        asked, prompt_tokens, limit, profile.max_model_len, content, text=_text_of(asked.messages[-1])
    )


def text_tokens(text: str) -> int:
    """Return how many tokens the mock server counts for `text`: one per four bytes of UTF-8, rounded up."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN)


def _content(prompt: TokenIds | list[TokenIds] | str | list[str] | None) -> bytes:
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return _whole_tokens(prompt)
    ids: list[Any] = prompt or []
    return struct.pack(f"<{len(ids)}I", *ids)


def _chat_content(messages: list[ChatMessage]) -> bytes:
    """Return the chat as bytes, padded by the tokens of the template."""
    role = TEMPLATE_TOKENS_PER_MESSAGE * BYTES_PER_TOKEN
    contents = (
        message.role.encode()[:role].ljust(role, b"\0") + _whole_tokens(_text_of(message)) for message in messages
    )
    return b"".join(contents) + bytes(TEMPLATE_TOKENS * BYTES_PER_TOKEN)


def _whole_tokens(text: str) -> bytes:
    content = text.encode("utf-8", "surrogatepass")
    return content.ljust(text_tokens(text) * BYTES_PER_TOKEN, b"\0")


def _text_of(message: ChatMessage) -> str:
    if isinstance(message.content, list):
        return "".join(str(part.get("text", "")) for part in message.content)
    return message.content or ""


def _check_common(asked: CommonBody, model: str) -> None:
    if asked.model is not None and asked.model != model:
        message = f"The model `{asked.model}` does not exist. Valid aliases: {model}."
        raise Refusal(404, message, "NotFoundError", "model")
    if asked.stream_options is not None and not asked.stream:
        raise _bad("Stream options can only be defined when `stream=True`.", "stream_options")
    if asked.n not in (None, 1):
        raise Refusal(400, "The mock server gives one answer per request: n must be 1", "BadRequestError", "n")


def _bad(message: str, param: str, given: int | None = None) -> Refusal:
    where = f"(parameter={param})" if given is None else f"(parameter={param}, value={given})"
    return Refusal(400, f"{message} {where}", "BadRequestError", param)


def count_prompt(prompt: TokenIds | list[TokenIds] | str | list[str] | None, profile: Profile) -> int:
    if prompt is None or prompt == "":
        raise _bad("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        if len(prompt) > 1:
            message = f"The mock server takes one prompt per request, not {len(prompt)}"
            raise Refusal(400, message, "BadRequestError", "prompt")
        prompt = prompt[0]
    if isinstance(prompt, str):
        # vLLM stops tokenising text one token past the limit, so it does not know the length.
        return min(text_tokens(prompt), profile.max_model_len + 1)
    ids: list[Any] = prompt or []
    if not ids:
        raise Refusal(400, "You must pass at least one prompt", "BadRequestError")
    if (largest := max(ids)) >= VOCABULARY:
        raise Refusal(400, f"Token id {largest} is out of vocabulary", "BadRequestError")
    return len(ids)


def checked_request(
    asked: CommonBody, prompt_tokens: int, limit: int, longest: int, content: bytes, *, text: str
) -> ParsedRequest:
    if prompt_tokens > longest:
        least = "at least " if prompt_tokens == longest + 1 else ""
        message = (
            f"This model's maximum context length is {longest} tokens. However, your prompt contains "
            f"{least}{prompt_tokens} input tokens, which exceeds this limit even without any output tokens. "
            "Please reduce the length of the input prompt."
        )
        raise _bad(message, "input_tokens", prompt_tokens)
    output_tokens = min(limit, longest - prompt_tokens)  # vLLM silently shortens an answer that is too long
    if output_tokens < 1:
        raise _bad(f"max_tokens must be at least 1, got {output_tokens}.", "max_tokens", output_tokens)
    options = asked.stream_options or _StreamOptions()
    answer = _ANSWER if _QUESTION in text and not asked.ignore_eos else ""
    return ParsedRequest(
        prompt_tokens=prompt_tokens,
        output_tokens=1 if answer else output_tokens,
        stream=bool(asked.stream),
        include_usage=bool(options.include_usage),
        continuous_usage=bool(options.include_usage and options.continuous_usage_stats),
        content=content,
        answer=answer,
    )
