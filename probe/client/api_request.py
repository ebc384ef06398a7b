"""What a request to an API of vLLM consists of: path, headers and body. Pure."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from probe import __version__
from probe.core.request import Api, Omittable, RequestSpec
from probe.core.workload import as_text

HEADERS = {
    "accept": "*/*",
    "accept-encoding": "identity",  # compression would hold events back to pack them together
    "content-type": "application/json",
    "user-agent": f"kneewatch/{__version__}",
}


# How servers refuse token ids: LiteLLM and others say that a prompt should be a string.
MAX_TOKENS, MAX_COMPLETION_TOKENS = "max_tokens", "max_completion_tokens"
# openai-harmony, which reads the answers of gpt-oss, fails beyond their end: vllm #50690, #22515.
_HARMONY = re.compile(r"while expecting start token|tokens remaining in message header|harmonyerror", re.IGNORECASE)
# OpenAI and Azure name the field to use. vLLM and others name both fields where the number in either is too large.
_OTHER_LIMIT = re.compile(
    rf"\b(use|favou?r of)\b.{{0,20}}{MAX_COMPLETION_TOKENS}|{MAX_COMPLETION_TOKENS}.{{0,20}}\binstead\b", re.IGNORECASE
)
# A field that is refused within another one, by its path: the other one may stay.
_WITHIN = re.compile(rf"\b{Omittable.STREAM_OPTIONS}\W{{1,4}}(?={Omittable.CONTINUOUS_USAGE_STATS})")
_NO_IDS = re.compile(
    r"(prompt|\binput\b(?! should)).{0,80}\bstr(ing)?s?\b|\bstr(ing)?s?\b.{0,80}(prompt|\binput\b)"
    r"|untagged enum (Prompt|Input)",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class RequestShape:
    """How the requests to a server differ from those to vLLM.

    `extra`: further fields. `omitted`: those that it refuses. `is_text`: it takes no token ids.
    `expects_done`: its streams end with [DONE]; else with a finish reason. `vector_length`: of embeddings, if known.
    `chat_limit`: the field of chat for the most tokens of an answer.
    """

    extra: Mapping[str, Any] = field(default_factory=dict)
    omitted: frozenset[Omittable] = frozenset()
    is_text: bool = False
    expects_done: bool = True
    vector_length: int | None = None
    chat_limit: str = MAX_TOKENS

    @property
    def conditions(self) -> dict[str, object]:
        """Return the conditions of a capacity by configuration key; empty for requests as vLLM takes them."""
        every = {
            "extra_body": dict(self.extra),
            "omit": ", ".join(sorted(self.omitted)),
            "prompt": "text" if self.is_text else "",
        }
        return {key: value for key, value in every.items() if value}

    def hint(self, api: Api, refusal: str) -> str:
        """Return which key would avoid this refusal, as the end of a sentence; "" where none would."""
        refused = _WITHIN.sub("", refusal)
        named = [name for name in Omittable if name not in self.omitted and re.search(rf"\b{name}\b", refused)]
        if named:
            return omit_hint(*named)
        if Omittable.IGNORE_EOS not in self.omitted and _HARMONY.search(refusal):
            return "; set request.omit: [ignore_eos], since gpt-oss fails beyond its answer's end"
        if api is Api.CHAT and self.chat_limit == MAX_TOKENS and _OTHER_LIMIT.search(refusal):
            return f"; set request.chat_limit: {MAX_COMPLETION_TOKENS}"
        has_ids = api.takes_ids and not self.is_text and _NO_IDS.search(refusal)
        return "; set request.prompt: text if the server takes no token ids" if has_ids else ""


PLAIN_REQUESTS = RequestShape()


def omit_hint(*names: Omittable) -> str:
    """Return how to leave out these fields, as the end of a sentence."""
    them = "it" if len(names) == 1 else "them"
    return f"; set request.omit: [{', '.join(names)}] if the server does not know {them}"


def body_of(spec: RequestSpec, model: str, shape: RequestShape) -> dict[str, Any]:
    """Return the body of a request.

    `ignore_eos` makes the output length exact; it is left out if the answer's text is judged. The running usage count
    of completions and chat gives the number of tokens in each event.
    """
    if not spec.api.generates:
        return {"model": model, **shape.extra, **FORMS[spec.api].prompt(spec, shape)}
    body: dict[str, Any] = {
        "model": model,
        shape.chat_limit if spec.api is Api.CHAT else FORMS[spec.api].limit: spec.output_tokens,
        "temperature": 0,
        "stream": True,
        **FORMS[spec.api].own(spec, shape),
    }
    own = {name: value for name, value in body.items() if name not in shape.omitted}
    body = {**own, **shape.extra}  # which may set the temperature, and nothing else of these
    if spec.expects is not None and "temperature" in own:
        body["temperature"] = 0  # the answer is known only without chance
    return {**body, **FORMS[spec.api].prompt(spec, shape)}


def _openai(spec: RequestSpec, shape: RequestShape) -> dict[str, Any]:
    usage = {"include_usage": True, "continuous_usage_stats": True}
    options = {name: value for name, value in usage.items() if name not in shape.omitted}
    return {"ignore_eos": spec.expects is None, "stream_options": options}


def _ids_or_text(spec: RequestSpec, shape: RequestShape) -> tuple[int, ...] | str:
    return as_text(spec.prompt) if shape.is_text and not isinstance(spec.prompt, str) else spec.prompt


def _nothing(_spec: RequestSpec, _shape: RequestShape) -> dict[str, Any]:
    return {}


def _message(spec: RequestSpec, _: RequestShape) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": spec.prompt}]}


def _pair(spec: RequestSpec) -> tuple[str, str]:
    """Return a query and a document. One pair: vLLM counts each as a request of its own."""
    words = (spec.prompt if isinstance(spec.prompt, str) else as_text(spec.prompt)).split()
    ends = max(len(words) // _QUERY_SHARE, 1)
    return " ".join(words[:ends]), " ".join(words[ends:]) or words[0]


def _ranked(spec: RequestSpec, _: RequestShape) -> dict[str, Any]:
    query, document = _pair(spec)
    return {"query": query, "documents": [document]}


def _scored(spec: RequestSpec, _: RequestShape) -> dict[str, Any]:
    query, document = _pair(spec)
    return {"text_1": query, "text_2": [document]}


_QUERY_SHARE = 4  # a query is a quarter of a pair, and the document the rest


@dataclass(frozen=True, slots=True)
class ApiForm:
    """What requests to an API and the ends of its answers look like; `answer_reader` of exchange.py has its parser."""

    path: str
    own: Callable[[RequestSpec, RequestShape], dict[str, Any]]
    """The fields that only this API has."""
    prompt: Callable[[RequestSpec, RequestShape], dict[str, Any]]
    last_event: str = "[DONE]"
    end: bytes = b"data: [DONE]\n\n"
    """The last bytes of an answer, as vLLM writes them. One that ends otherwise is judged once it is parsed."""
    limit: str = MAX_TOKENS
    """The field for the most tokens of the answer."""


# Messages has no ignore_eos: the model decides where its answer ends.
FORMS: Mapping[Api, ApiForm] = {
    Api.COMPLETIONS: ApiForm("/v1/completions", _openai, lambda spec, shape: {"prompt": _ids_or_text(spec, shape)}),
    Api.CHAT: ApiForm("/v1/chat/completions", _openai, _message),
    Api.RESPONSES: ApiForm(
        "/v1/responses",
        lambda spec, _: {"ignore_eos": spec.expects is None, "store": False},
        lambda spec, _: {"input": spec.prompt},
        last_event="response.completed",
        end=b'"type":"response.completed"}\n\n',
        limit="max_output_tokens",
    ),
    Api.MESSAGES: ApiForm(
        "/v1/messages", _nothing, _message, last_event="message_stop", end=b'{"type":"message_stop"}\n\n'
    ),
    Api.EMBEDDINGS: ApiForm(
        "/v1/embeddings", _nothing, lambda spec, shape: {"input": _ids_or_text(spec, shape)}, end=b"}"
    ),
    Api.RERANK: ApiForm("/v1/rerank", _nothing, _ranked, end=b"}"),
    Api.SCORE: ApiForm("/v1/score", _nothing, _scored, end=b"}"),
}
