"""The client of one OpenAI-compatible server: prepares requests, sends them, and lists the models.

While a stream arrives, bytes are stamped and kept; exchange.py and stream_parser.py parse them afterwards. Every
reaction of the server becomes an Outcome. Only cancellation raises; it closes the connection at once, and vLLM then
drops the request.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import httpx
import msgspec

from probe.client.api_json import said_instead
from probe.client.api_request import FORMS, HEADERS, body_of
from probe.client.compression import unpack
from probe.client.endpoint import Endpoint
from probe.client.exchange import Ended, Exchange, PreparedRequest
from probe.client.failures import NETWORK_ERRORS, failure_of, shortage
from probe.client.loop_lateness import LoopLateness
from probe.client.patience import Patience
from probe.client.response_buffer import BodyLimits, ResponseBuffer, ResponseMemory, stream_limits
from probe.client.result_body import LIMITS as RESULT_LIMITS
from probe.client.transport import Transport, wire
from probe.core.clock import Clock
from probe.core.errors import TargetError
from probe.core.foreign_json import JsonLimits, read_json
from probe.core.redactor import Redactor
from probe.core.request import Outcome, RequestRecord, RequestSpec, TraceContext, Traffic
from probe.core.text import one_line
from probe.core.time_limits import TimeLimits

# A server with a thousand adapters lists them in half a megabyte.
MODELS = JsonLimits(max_bytes=2**20, max_values=60_000)
_MAX_NAME = 256
_MAX_LENGTH = 10**9


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as the server lists it. `max_model_len`: the most tokens of a prompt and its answer; None: not listed."""

    root: object
    max_model_len: int | None


def served_models(body: bytes) -> dict[object, ServedModel]:
    """Return the models by name, in the server's order. Raises ValueError, KeyError or TypeError for another answer."""
    listed = read_json(body, MODELS)["data"]
    return {model["id"]: ServedModel(model.get("root"), _length(model.get("max_model_len"))) for model in listed}


def is_name(name: object) -> bool:
    """Return whether a served model's name can be used as a label, in a line of text and in a request."""
    return isinstance(name, str) and 0 < len(name) <= _MAX_NAME and name.isprintable()


def _length(value: object) -> int | None:
    return value if type(value) is int and 0 < value <= _MAX_LENGTH else None


# Of all answers in flight or not yet parsed: a thousand streams of 512 tokens hold some 120 MiB on average.
_MAX_IN_FLIGHT = 160 * 2**20
_MODELS_S = 10.0
# A rotated key is read again after this time at most. Reading the file costs more than sending a request.
_KEY_NS = 1_000_000_000
_OK = 200


class Client:
    """The connections to one target."""

    def __init__(
        self,
        endpoint: Endpoint,
        clock: Clock,
        limits: TimeLimits | float,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Take `limits`: the time limits of requests; a number: the one limit of each, in seconds."""
        self._endpoint = endpoint
        self._clock = clock
        self._limits = limits if isinstance(limits, TimeLimits) else TimeLimits(set_s=limits)
        self._memory = ResponseMemory(_MAX_IN_FLIGHT)
        self._transport = transport or endpoint.transport()
        self._prepare_transport: Callable[[str], None] = getattr(self._transport, "prepare", _nothing)
        self._urls: dict[str, httpx.URL] = {}
        self._headers: tuple[int, dict[str, str]] | None = None
        self.redactor = Redactor()  # may be shared with other clients: a server may repeat to one what another has sent

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection. Requests in flight fail."""
        await self._transport.aclose()

    @property
    def lateness(self) -> LoopLateness:
        """Return the measure of how late the event loop serves arriving bytes."""
        return self._transport.lateness if isinstance(self._transport, Transport) else LoopLateness()

    async def connect_ahead(self, count: int) -> None:
        """Open connections, so that the first requests of a step do not wait for them."""
        connect_ahead = getattr(self._transport, "connect_ahead", None)
        if connect_ahead is not None:
            await connect_ahead(httpx.URL(self._endpoint.base_url), count, self._endpoint.connect_s)

    def share_memory(self, count: int) -> None:
        """Hold as much of answers as one of `count` clients of a step may, from the next prepared request on."""
        self._memory = ResponseMemory(_MAX_IN_FLIGHT // count)

    async def models(self) -> dict[str, ServedModel]:
        """Return the served models by name, in the server's order. Raises TargetError."""
        url = f"{self._endpoint.base_url}/v1/models"
        limit_s = min(self._limits.answer_s(), _MODELS_S)
        asked = self._exchange("GET", "/v1/models", b"", BodyLimits(max_bytes=MODELS.max_bytes), limit_s=limit_s)
        if not isinstance(asked, Exchange):
            outcome, detail = asked
            raise _no_models(url, outcome, one_line(detail or ""))
        ended = await self._carry_out(asked)
        unpack(asked.received)
        asked.received.release()
        if asked.received.status != _OK or ended is not None:
            outcome, detail = ended or asked.refusal()
            raise _no_models(url, outcome, asked.safe(detail or outcome.value))
        try:
            served = served_models(asked.redactor.hide(asked.received.body))
        except (ValueError, KeyError, TypeError):
            raise _no_models(url, Outcome.NOT_FOUND, _no_list(asked)) from None
        usable = {str(name): model for name, model in served.items() if is_name(name)}
        if served and not usable:
            raise TargetError(
                f"{url}: none of the models listed has a name to ask for; check base_url", Outcome.NOT_FOUND
            )
        return usable

    async def resolve_model(self, wanted: str) -> str:
        """Return the model to request: `wanted`, or the first one served for "auto". Raises TargetError."""
        served = list(await self.models())
        if wanted == "auto" and served:
            return served[0]
        if wanted in served:
            return wanted
        names = one_line(", ".join(served[:8])) or "no model"
        raise TargetError(
            f"{self._endpoint.base_url}: the model {wanted!r} is not served; expected one of: {names};"
            " fix --model (in a configuration: model)",
            Outcome.NOT_FOUND,
        )

    async def aliases(self, model: str) -> frozenset[str]:
        """Return all names that the server lists for a model: vLLM answers under the first of them. Empty: unknown."""
        try:
            served = await self.models()
        except TargetError:
            return frozenset()
        root = served[model].root if model in served else None
        return frozenset(name for name, its in served.items() if root is not None and its.root == root)

    async def max_model_len(self, model: str) -> int | None:
        """Return the most tokens of a prompt and its answer, as vLLM lists them; None: unknown."""
        try:
            return (await self.models())[model].max_model_len
        except (TargetError, KeyError):
            return None

    def prepare(
        self,
        spec: RequestSpec,
        model: str,
        traffic: Traffic,
        aliases: frozenset[str] | None = None,
        trace: TraceContext | None = None,
    ) -> PreparedRequest:
        """Prepare a request, so that it only has to be sent when it is due.

        `aliases`: other names of the model. An answer under none of them is wrong; None: the caller judges names.
        `trace`: sent to the server, so that the request is a span of this trace.
        """
        body = msgspec.json.encode(body_of(spec, model, self._endpoint.shape))
        limits = stream_limits(spec.output_tokens) if spec.api.generates else RESULT_LIMITS
        limit_s = self._limits.answer_s(spec.output_tokens)
        made = self._exchange("POST", FORMS[spec.api].path, body, limits, limit_s=limit_s, trace=trace)
        return PreparedRequest(
            target=self._endpoint.target,
            model=model,
            traffic=traffic,
            spec=spec.without_prompt(),
            aliases=aliases,
            clock=self._clock,
            exchange=made if isinstance(made, Exchange) else None,
            refused=None if isinstance(made, Exchange) else made,
            carry_out=self._carry_out,
            shape=self._endpoint.shape,
            trace=trace,
        )

    async def send(self, spec: RequestSpec, model: str, traffic: Traffic, scheduled_ns: int) -> RequestRecord:
        """Send one request and return its record. Raises only CancelledError."""
        answer = await self.prepare(spec, model, traffic).send(scheduled_ns)
        return answer.record()

    def _exchange(
        self,
        method: str,
        path: str,
        body: bytes,
        limits: BodyLimits,
        *,
        limit_s: float,
        trace: TraceContext | None = None,
    ) -> Exchange | Ended:
        """Return a request with its headers, or the reason why it cannot be made."""
        self._prepare_transport(self._endpoint.base_url)
        try:
            headers = self._request_headers()
        except (OSError, ValueError) as error:
            lacking = shortage(error)
            return (Outcome.CLIENT_BOUND, lacking) if lacking else (Outcome.UNAUTHORIZED, str(error))
        received = ResponseBuffer(limits, self._memory)
        try:
            if path not in self._urls:
                self._urls[path] = httpx.URL(f"{self._endpoint.base_url}{path}")
            request = httpx.Request(
                method,
                self._urls[path],
                headers=headers if trace is None else {**headers, "traceparent": trace.traceparent},
                content=body,
                extensions={"received": received, "timeout": self._endpoint.timeouts(limit_s)},
            )
            if isinstance(self._transport, Transport):
                request.extensions["wire"] = wire(request)
        except NETWORK_ERRORS as error:
            return Outcome.UNREACHABLE, f"cannot be reached ({one_line(str(error))})"
        return Exchange(request, received, self.redactor, headers, limit_s)

    def _request_headers(self) -> dict[str, str]:
        """Return the headers that all requests have: the same value until a secret changes."""
        now = self._clock.monotonic_ns()
        if self._headers is None or now - self._headers[0] > _KEY_NS:
            before, self._headers = self._headers, None
            read = {**HEADERS, **self._endpoint.headers(f"{self._endpoint.base_url}/", self.redactor)}
            self._headers = now, before[1] if before is not None and before[1] == read else read
        return self._headers[1]

    def _renew(self, exchange: Exchange) -> None:
        """Put the newest secrets into a request: it may have been prepared minutes before a key was rotated."""
        prepared, request, known = exchange.headers, exchange.request, self._headers
        try:
            newest = self._request_headers()
        except (OSError, ValueError):  # half-way through a rotation
            newest = known[1] if known is not None else dict(prepared)
        if newest == prepared:
            return
        for name in prepared.keys() - newest.keys():
            del request.headers[name]
        request.headers.update(newest)
        if "wire" in request.extensions:
            request.extensions["wire"] = wire(request)

    def _patience(self, exchange: Exchange) -> Patience:
        """Return the time limits of an exchange. The transport keeps those of the connection that are set.

        Only the limit for the list of models is raised by nothing.
        """
        limits, where = self._limits, self._endpoint
        silence_s = limits.silence_s
        return Patience(
            exchange.received,
            self._clock,
            answer_s=exchange.limit_s,
            first_s=silence_s if where.first_byte_s is None else math.inf,
            next_s=silence_s if where.between_bytes_s is None else math.inf,
            raised_by=limits.raised_by if exchange.limit_s != _MODELS_S else "",
        )

    async def _carry_out(self, exchange: Exchange) -> Ended | None:
        """Send and receive. Return the failure, or None. A refusal that breaks off is still a refusal."""
        patience = self._patience(exchange)
        try:
            self._renew(exchange)
            async with patience:
                response = await self._transport.handle_async_request(exchange.request)
                if exchange.received.status is None:
                    await _receive(response, exchange.received, self._clock)
            if exchange.received.cut and exchange.received.status == _OK:
                outcome = Outcome.CLIENT_BOUND if exchange.received.is_cut_for_others else Outcome.BROKEN_STREAM
                return outcome, f"the answer was cut off: {exchange.received.cut}"
        except NETWORK_ERRORS as error:
            if exchange.received.status in (None, _OK):
                return failure_of(error, exchange, patience)
        except asyncio.CancelledError:
            exchange.received.release()
            raise
        return None


def _nothing(_: str) -> None:
    pass


async def _receive(response: httpx.Response, received: ResponseBuffer, clock: Clock) -> None:
    """Fill `received` from another transport. Bytes are stamped when it yields them, with no bound on lateness."""
    try:
        received.head_ns = clock.monotonic_ns()
        received.status = response.status_code
        received.headers = [(name.lower(), value) for name, value in response.headers.raw]
        async for data in response.aiter_raw():
            now_ns = clock.monotonic_ns()
            if not received.add(now_ns, now_ns, data):
                return
        received.is_complete = True
    finally:
        await response.aclose()


def _no_list(asked: Exchange) -> str:
    """Return what an answer of status 200 is that lists no models, in the server's words where it has any."""
    if asked.received.packed is not None:
        return asked.received.packed
    words = said_instead(asked.received.body, asked.redactor.hide)
    return asked.safe(f"the answer is not a list of models: {words}" if words else "the answer is not a list of models")


def _no_models(url: str, outcome: Outcome, words: str) -> TargetError:
    hint = _HINTS.get(outcome, _CHECK_URL)
    return TargetError(f"{url}: {words}; {hint}" if hint else f"{url}: {words}", outcome)


_CHECK_URL = "check base_url and that the server is up"
_HINTS = {
    Outcome.UNAUTHORIZED: "set api_key_file to a file with a valid key",
    Outcome.NOT_FOUND: "expected an OpenAI-compatible server, check base_url",
    Outcome.REJECTED: "the server refuses load, try later",
    Outcome.SERVER_ERROR: "look at the server's log",
    Outcome.CLIENT_BOUND: "",  # the words have it
}
