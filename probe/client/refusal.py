"""Tell an overload from a broken server by what a server or a gateway answered. Pure.

In: a status, and the words of the body or of an error event. Out: a Refusal, whose outcome is `rejected` only where the
answer shows a server that is up and refuses load. Doubt goes against that: an answer that fits both is a server error,
because a dead server behind a gateway must not look like a full queue.
"""

import re
from dataclasses import dataclass
from typing import Self

from probe.core.request import Outcome


@dataclass(frozen=True, slots=True)
class Wording:
    """Words of a refusal, as a regular expression. `said`: an answer with them, by `source`.

    `also_429`: whether they show an overload in a 429 too, which otherwise is the limit of a key.
    """

    pattern: str
    said: str
    source: str
    also_429: bool = True


# A server that is up, and has too much to do.
OVERLOADED = (
    Wording(
        r"cannot accept new requests",
        "The engine is currently busy and cannot accept new requests. Please try again later or on a different"
        " instance.",
        "vLLM, --max-num-queued-reqs",
    ),
    Wording(
        r"token backlog limit",
        "The engine has reached its prefill token backlog limit. Please try again later or on a different instance.",
        "vLLM, --max-num-queued-tokens",
    ),
    Wording(r"(queue|backlog)\b.{0,20}\bfull\b", "The request queue is full.", "SGLang; Knative, Dynamo, others"),
    Wording(
        r"aborted by a higher priority request",
        "The request is aborted by a higher priority request.",
        "SGLang, --enable-priority-scheduling",
    ),
    Wording(
        r"\b(is|are|currently|temporarily|server|engine|model|system|service|envoy) overloaded\b",
        "Model is overloaded",
        "TGI, TEI, Dynamo, OpenAI, Gemini, Envoy's overload manager",
    ),
    Wording(
        r"overloaded_error|\boverloadederror\b|\"overloaded\"|^\W*overloaded\W*$",
        '{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}',
        "Anthropic's Messages API",
    ),
    Wording(
        r"reset reason: overflow",
        "upstream connect error or disconnect/reset before headers. reset reason: overflow",
        "Envoy, Istio: a circuit breaker's limit of connections or requests",
    ),
    Wording(r"reached concurrency limit", "reached concurrency limit", "Envoy, adaptive concurrency"),
    Wording(
        r"\b(workers?|servers?|engines?|instances?|backends?|models?|replicas?|gpus?)"
        r" (is |are |currently |too )*busy\b",
        "Service temporarily unavailable: All workers are busy, please retry later",
        "Dynamo, Ollama, LocalAI; Hugging Face: model too busy",
    ),
    Wording(
        r"dropped due to backpressure",
        "Request dropped due to backpressure (num_queued_requests=5, max_queued_requests=5).",
        "Ray Serve, max_queued_requests",
    ),
    Wording(r"exceeds maximum queue size", "Exceeds maximum queue size", "Triton, max_queue_size"),
    Wording(
        r"system (is )?saturated|InferencePoolResourceExhausted",
        "inference gateway: InferencePoolResourceExhausted - system saturated, sheddable request dropped",
        "llm-d, Gateway API Inference Extension",
    ),
    Wording(r"activator overload", "activator overload", "Knative, KServe"),
    Wording(r"no slots? available", "no slot available", "llama.cpp"),
    Wording(
        r"(experiencing|under) (high|heavy) (demand|load|traffic)",
        "The system is currently experiencing high demand",
        "Azure",
    ),
    Wording(r"\bload[- ]?shed(ding)?\b|\bshedding load\b", "request rejected by load shedding", "gateways"),
    Wording(
        r"\bat (full |maximum |max )?capacity\b|\bcapacity (is )?(temporarily )?exceeded",
        "Capacity temporarily exceeded, please try again.",
        "Cloudflare",
        also_429=False,
    ),
    Wording(
        r"concurrency( limit)? (is |has been |was )?(reached|exceeded)",
        "Concurrency limit exceeded",
        "gateways",
        also_429=False,
    ),
    Wording(
        r"too many (concurrent|pending|queued|outstanding|active|in-?flight) requests"
        r"|too many requests in (flight|(the )?queue)"
        r"|max(imum)? (number of )?(concurrent|pending|queued|outstanding|active|in-?flight) requests",
        "too many concurrent requests",
        "gateways",
        also_429=False,
    ),
)
# A server that is not there, starts, or fails, whatever else is said: "overloaded or not ready yet" may be either.
BROKEN = (
    Wording(r"no healthy|unhealthy", "no healthy upstream", "Envoy, Istio"),
    Wording(
        r"\bno ((live|available|active|ready) )?"
        r"(upstream|server|worker|instance|backend|replica|endpoint|deployment)s?\b",
        "No deployments available for selected model, Try again in 60 seconds",
        "LiteLLM, while a server that failed cools down: a 429; HAProxy, Traefik, the routers of vLLM and SGLang",
    ),
    Wording(
        r"connection (failure|refused|reset|termination|timed? ?out|error)|reset reason: (remote|connection)",
        "upstream connect error or disconnect/reset before headers. reset reason: connection failure",
        "Envoy, Istio",
    ),
    Wording(r"circuits? (breakers? )?(is |are )?open", "all circuits open", "SGLang's router, Traefik"),
    Wording(
        r"\bnot (yet )?ready\b|\bloading\b|\bstarting\b|\binitiali[sz]ing\b|\bwarming up\b|\bscaling\b"
        r"|\bsleep(s|ing)?\b",
        "Loading model",
        "llama.cpp; vLLM while it scales",
    ),
    Wording(r"shut(ting)? ?down|\bdraining\b|maintenance", "shutting down for maintenance", "gateways"),
    Wording(
        r"engine ?(is )?dead|out of memory|\bOOM\b|\bCUDA\b|\bNCCL\b|\bcrash|failed to deploy",
        "EngineDeadError: EngineCore encountered an issue",
        "vLLM, Ray Serve",
    ),
    Wording(r"bad gateway|name resolution|\bDNS\b", "502 Bad Gateway", "nginx"),
)
_RATE_LIMIT = re.compile(r"rate.?limit|too many requests|throttl|slow.?down|reduce your request rate", re.IGNORECASE)


def _compiled(rows: tuple[Wording, ...]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{row.pattern})" for row in rows), re.IGNORECASE)


_OVERLOADED, _OVERLOADED_429 = _compiled(OVERLOADED), _compiled(tuple(row for row in OVERLOADED if row.also_429))
_BROKEN = _compiled(BROKEN)

_OK, _BAD_REQUEST, _TOO_MANY, _SERVER_ERROR, _UNAVAILABLE, _SITE_OVERLOADED = 200, 400, 429, 500, 503, 529
# A server asks to come again within seconds for an overload, and within minutes or hours for maintenance (RFC 9110,
# 15.6.4, has both).
_SOON_S = 60
# Words of an error are at the begin; a page of HTML is not searched whole.
_MAX_CHARACTERS = 4096
_STATUSES = {
    401: Outcome.UNAUTHORIZED,
    403: Outcome.UNAUTHORIZED,
    404: Outcome.NOT_FOUND,
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that is none. `status`: HTTP's; 200 for an error inside a stream that states none.

    `retry_after`: the header's value. `is_marked`: whether the gateway marks the answer as an overload
    (x-envoy-overloaded).
    """

    status: int
    words: str
    retry_after: str = ""
    is_marked: bool = False

    @classmethod
    def in_stream(cls, words: str, status: int | None = None) -> Self:
        """Return an error of an answer that began with 200. `status`: the one that it states."""
        is_telling = status is not None and (status >= _SERVER_ERROR or status == _TOO_MANY)
        return cls(status if status is not None and is_telling else _OK, words)

    @property
    def outcome(self) -> Outcome:
        """Return the outcome of the request."""
        if self.is_overload or self._is_rate_limit:
            return Outcome.REJECTED
        if self.status in _STATUSES:
            return _STATUSES[self.status]
        is_server = self.status >= _SERVER_ERROR or self.status in (_OK, _TOO_MANY)
        return Outcome.SERVER_ERROR if is_server else Outcome.BAD_REQUEST

    @property
    def is_overload(self) -> bool:
        """Return whether the server is up, and refused the request for having too much to do."""
        if _OK < self.status < _SERVER_ERROR and self.status != _TOO_MANY:
            return False
        if self.is_marked:
            return True
        if self._shows(_BROKEN):
            return False
        if self._shows(_OVERLOADED_429 if self.status == _TOO_MANY else _OVERLOADED):
            return True
        return self.status == _SITE_OVERLOADED or (self.status == _UNAVAILABLE and self._is_soon)

    @property
    def _is_rate_limit(self) -> bool:
        if self._shows(_BROKEN):
            return False
        return self.status == _TOO_MANY or (self.status in (_OK, _UNAVAILABLE) and self._shows(_RATE_LIMIT))

    @property
    def _is_soon(self) -> bool:
        return self.retry_after.isascii() and self.retry_after.isdigit() and int(self.retry_after[:9]) <= _SOON_S

    def _shows(self, words: re.Pattern[str]) -> bool:
        return words.search(self.words[:_MAX_CHARACTERS]) is not None
