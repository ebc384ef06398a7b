"""One request to an OpenAI-compatible server: RequestSpec in, RequestRecord out.

While a stream arrives, this module only stamps each network read and keeps its bytes; stream.py reads
them afterwards. Whatever the server does becomes an Outcome: nothing is raised but cancellation, which
closes the connection at once (vLLM then drops the request).
"""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Self

import httpx

from probe.client.endpoint import Endpoint
from probe.client.sse import Event, Read, events
from probe.client.stream import Transcript, error_message, judge, transcript
from probe.clock import Clock
from probe.errors import TargetError
from probe.records import Api, Outcome, RequestRecord, RequestSpec, Traffic
from probe.words import one_line

# uvicorn, and so vLLM, closes an idle connection after 5 s (VLLM_HTTP_TIMEOUT_KEEP_ALIVE): we let go first,
# so that a request never meets a connection that is just being closed.
_KEEPALIVE_S = 4.0
_CONNECT_S = 5.0
_MAX_STREAM_BYTES = 64 * 1024 * 1024
_MAX_ERROR_BYTES = 64 * 1024
_MAX_NAME = 256
_MODELS_S = 10.0
_PATHS = {Api.COMPLETIONS: "/v1/completions", Api.CHAT: "/v1/chat/completions"}
_STATUS_OUTCOMES = {
    401: Outcome.UNAUTHORIZED,
    403: Outcome.UNAUTHORIZED,
    404: Outcome.NOT_FOUND,
    429: Outcome.REJECTED,
}
# What an exchange may raise: httpx's own errors, and those it lets through from sockets, TLS, text
# decoding and the event loop.
NETWORK_ERRORS = (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, ArithmeticError, RuntimeError, ExceptionGroup)
_OK = 200
_BAD_REQUEST, _SERVER_ERROR = 400, 500


class Send(Protocol):
    """The seam to the network: tests and load steps need no more than this."""

    async def __call__(self, spec: RequestSpec, scheduled_ns: int) -> RequestRecord:
        """Sends one request, due at `scheduled_ns`, and waits for its end."""
        ...


@dataclass(slots=True)
class _Answer:
    """What has arrived so far; kept outside the receive call so that a time-out loses nothing."""

    status: int | None = None
    content_type: str = ""
    location: str = ""
    secret: bytes = b""  # the key that was sent along: a server may repeat it back
    reads: list[Read] = field(default_factory=list)

    @property
    def body(self) -> bytes:
        return b"".join(read.data for read in self.reads)

    def hide(self, data: bytes) -> bytes:
        """The bytes without our key."""
        return data.replace(self.secret, b"(hidden)") if self.secret else data

    def safe(self, text: str) -> str:
        """The text on one line, cut, and without our key."""
        return one_line(self.hide(text.encode("utf-8", "replace")))

    def events(self) -> Iterator[Event]:
        """The stream's events without our key."""
        return (Event(event.at_ns, self.hide(event.data)) for event in events(self.reads))


class Client:
    """The connections to one target."""

    def __init__(
        self, endpoint: Endpoint, clock: Clock, timeout_s: float, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._timeout_s = timeout_s
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(timeout_s, connect=min(_CONNECT_S, timeout_s)),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=_KEEPALIVE_S),
            verify=endpoint.tls(),
            headers={"accept-encoding": "identity"},  # compression would hold events back to pack them together
            trust_env=False,  # a proxy from the environment would be measured as if it were the server
            transport=transport,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes every connection; what is in flight fails."""
        await self._http.aclose()

    async def models(self) -> list[str]:
        """The names the server answers to, its own order. Raises TargetError, one line with the mend."""
        url = f"{self._endpoint.base_url}/v1/models"
        answer = _Answer()
        ended = await self._exchange("GET", "/v1/models", None, answer, min(self._timeout_s, _MODELS_S))
        if answer.status != _OK or ended is not None:
            outcome, detail = ended or self._refusal(answer)
            raise TargetError(
                f"{url}: {answer.safe(detail or outcome.value)}; {_MENDS.get(outcome, _CHECK_URL)}", outcome
            )
        try:
            served = [model["id"] for model in json.loads(answer.hide(answer.body))["data"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise TargetError(
                f"{url}: the answer is not a list of models; expected an OpenAI-compatible server, check base_url",
                Outcome.NOT_FOUND,
            ) from None
        usable = [name for name in served if _is_name(name)]
        if served and not usable:
            raise TargetError(
                f"{url}: none of the models listed has a name to ask for; check base_url", Outcome.NOT_FOUND
            )
        return usable

    async def resolve_model(self, wanted: str) -> str:
        """The model to ask for: `wanted`, or the first one served for "auto". Raises TargetError."""
        served = await self.models()
        if wanted == "auto" and served:
            return served[0]
        if wanted in served:
            return wanted
        names = one_line(", ".join(served[:8])) or "no model"
        raise TargetError(
            f"{self._endpoint.base_url}: the model {wanted!r} is not served; expected one of: {names}; mend `model`",
            Outcome.NOT_FOUND,
        )

    async def send(self, spec: RequestSpec, model: str, traffic: Traffic, scheduled_ns: int) -> RequestRecord:
        """Sends one request and records what happened. Raises nothing but CancelledError."""
        answer = _Answer()
        said = Transcript()
        body = _body(spec, model)
        sent_ns = self._clock.monotonic_ns()
        ended: tuple[Outcome, str | None] | None = await self._exchange(
            "POST", _PATHS[spec.api], body, answer, self._timeout_s
        )
        done_ns = self._clock.monotonic_ns()
        if answer.status == _OK:
            said = transcript(answer.events(), spec.api)
            ended = ended or _verdict(spec, answer, said)
        outcome, detail = ended or self._refusal(answer)
        return RequestRecord(
            target=self._endpoint.target,
            model=model,
            traffic=traffic,
            spec=spec.without_prompt(),
            scheduled_ns=scheduled_ns,
            sent_ns=sent_ns,
            done_ns=done_ns,
            done_wall_s=self._clock.wall_s(),
            outcome=outcome,
            detail=answer.safe(detail) if detail else None,
            http_status=answer.status,
            events=said.events,
            reads=len(answer.reads),
            prompt_tokens=said.prompt_tokens or 0,
            output_tokens=said.output_tokens or 0,
            finish_reason=said.finish_reason,
        )

    async def _exchange(
        self, method: str, path: str, body: dict[str, Any] | None, answer: _Answer, timeout_s: float
    ) -> tuple[Outcome, str | None] | None:
        """Sends and receives, into `answer`; None, or how it failed. A refusal that breaks off is still a refusal."""
        url = f"{self._endpoint.base_url}{path}"
        try:
            headers = self._endpoint.headers(url)
            answer.secret = headers.get("authorization", "").removeprefix("Bearer ").encode()
        except (OSError, ValueError) as error:
            return Outcome.UNAUTHORIZED, str(error)
        self._http.cookies.clear()  # a load balancer's cookie would tie us to one replica
        try:
            request = self._http.build_request(method, url, json=body, headers=headers)
            async with asyncio.timeout(timeout_s):
                await self._receive(request, answer)
        except NETWORK_ERRORS as error:
            if answer.status in (None, _OK):
                return self._failure(error, answer, timeout_s)
        return None

    async def _receive(self, request: httpx.Request, answer: _Answer) -> None:
        """Fills `answer` as bytes arrive. The hot path: it stamps and stores, nothing else."""
        response = await self._http.send(request, stream=True)
        try:
            answer.status = response.status_code
            answer.content_type = response.headers.get("content-type", "")
            answer.location = response.headers.get("location", "")
            size, now, reads = 0, self._clock.monotonic_ns, answer.reads
            async for data in response.aiter_raw():
                reads.append(Read(now(), data))
                size += len(data)
                if size > _MAX_STREAM_BYTES:
                    raise ValueError(f"more than {_MAX_STREAM_BYTES} bytes of answer")
                if size > _MAX_ERROR_BYTES and answer.status != _OK:
                    return
        finally:
            await response.aclose()

    def _failure(self, error: Exception, answer: _Answer, timeout_s: float) -> tuple[Outcome, str]:
        """The outcome of an exchange that did not come to its end."""
        words = str(error) or type(error).__name__
        if isinstance(error, TimeoutError | httpx.TimeoutException):
            if isinstance(error, httpx.ConnectTimeout):
                return Outcome.TIMEOUT, "no connection in time"
            got = f"{len(answer.reads)} reads of an answer" if answer.reads else "no answer"
            return Outcome.TIMEOUT, f"{got} within {timeout_s:g} s"
        if answer.status is not None:
            return Outcome.BROKEN_STREAM, f"the answer broke off: {words}"
        return Outcome.UNREACHABLE, f"cannot be reached ({answer.safe(words)})"

    def _refusal(self, answer: _Answer) -> tuple[Outcome, str]:
        """The outcome of an answer whose status is not 200."""
        status = answer.status or 0
        outcome = _STATUS_OUTCOMES.get(status, Outcome.SERVER_ERROR if status >= _SERVER_ERROR else Outcome.BAD_REQUEST)
        if status < _BAD_REQUEST and answer.location:
            return outcome, f"HTTP {status} redirects to {answer.safe(answer.location)!r}; give the final address"
        words = error_message(answer.hide(answer.body))
        return outcome, f"HTTP {status}: {words}" if words else f"HTTP {status}"


def _verdict(spec: RequestSpec, answer: _Answer, said: Transcript) -> tuple[Outcome, str | None]:
    if "event-stream" not in answer.content_type and not said.done:
        kind = answer.content_type.split(";")[0][:60] or "no content type"
        return Outcome.BROKEN_STREAM, f"the answer is {kind!r}, expected an event stream"
    return judge(spec, said)


def _is_name(name: object) -> bool:
    """Whether a served model's name can be a label, a line and a request."""
    return isinstance(name, str) and 0 < len(name) <= _MAX_NAME and name.isprintable()


_CHECK_URL = "check base_url and that the server is up"
_MENDS = {
    Outcome.UNAUTHORIZED: "set api_key_file to a file with a valid key",
    Outcome.NOT_FOUND: "expected an OpenAI-compatible server, check base_url",
    Outcome.REJECTED: "the server refuses load, try later",
    Outcome.SERVER_ERROR: "look at the server's log",
}


def _body(spec: RequestSpec, model: str) -> dict[str, Any]:
    """The request as vLLM's API takes it. `ignore_eos` makes the output length exact; the running usage
    count tells how many tokens each event carries.
    """
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": spec.output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    if spec.api is Api.COMPLETIONS:
        return {**body, "prompt": spec.prompt}
    return {**body, "messages": [{"role": "user", "content": spec.prompt}]}
