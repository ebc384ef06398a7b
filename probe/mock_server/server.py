"""The mock server: vLLM 0.32's HTTP routes on a simulated engine.

Input: a Profile and a model name. Output: an ASGI app, or a listening server. It identifies itself in /version and in
every answer's system_fingerprint. It generates words, not language, and always max_tokens of them, with or without
ignore_eos; only the question for the capital of France is answered. Unlike vLLM it takes only one prompt and one answer
(n) per request. When a client disconnects, its request is aborted at once, not only when its next token cannot be sent.
"""

import asyncio
import contextlib
import hashlib
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from random import Random

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from probe.mock_server import wire
from probe.mock_server.driver import HEALTHY, Driver, Faults, Generation
from probe.mock_server.forms import FORMS, RESULT_FORMS, Form
from probe.mock_server.http_counts import CountedAnswers
from probe.mock_server.metrics import Metrics
from probe.mock_server.prompts import PromptHistory
from probe.mock_server.request_parser import Refusal
from probe.mock_server.staging import NOTHING, Staging
from probe.runtime.ending import acting_on_signals
from probe.simulator.cost import Profile

_INTERNAL_ERROR = Refusal(500, "Internal server error", "InternalServerError")
_ELSEWHERE = "Please try again later or on a different instance."
# By the limit of the queue that is reached: vLLM 0.32's answers, without a Retry-After.
FULL = {
    "max_num_queued_reqs": Refusal(
        503, f"The engine is currently busy and cannot accept new requests. {_ELSEWHERE}", "Service Unavailable"
    ),
    "max_num_queued_tokens": Refusal(
        503, f"The engine has reached its prefill token backlog limit. {_ELSEWHERE}", "Service Unavailable"
    ),
}
VERSION = "0.32.0-sim"
STOP_SECONDS = 1  # for answers in progress when the server stops
_GUARDED_PREFIX = "/v1"


class Reply:
    """An ASGI response that runs one request, and aborts it as soon as the client disconnects."""

    def __init__(self, driver: Driver, answer: wire.MockResponse, form: Form, *, shared_tokens: int) -> None:
        """Take `shared_tokens`: leading tokens that the prompt shares with an earlier one."""
        self._driver = driver
        self._answer = answer
        self._form = form
        self._shared_tokens = shared_tokens
        self._is_gone = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = self._answer.request
        generation = self._driver.submit(
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.output_tokens,
            shared_tokens=self._shared_tokens,
            is_text=request.is_text,
        )

        async def abort_when_gone() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            self._is_gone = True
            self._driver.abort(generation)

        watcher = asyncio.create_task(abort_when_gone())
        try:
            if request.stream:
                await self._stream(generation, send)
            else:
                response = await self._whole(generation)
                await response(scope, receive, send)
        finally:
            watcher.cancel()
            self._driver.abort(generation)

    async def _stream(self, generation: Generation, send: Send) -> None:
        events = self._form.events(self._answer)
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"vary", b"Origin")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

        async def write(event: bytes) -> None:
            await send({"type": "http.response.body", "body": event, "more_body": True})

        for event in events.at_once():
            await write(event)
        # vLLM sends chat's opening with the first token, not before.
        opening = events.opening()
        while (number := await generation.next_token()) is not None:
            for event in opening:
                await write(event)
            opening = ()
            await write(events.token(number))
            if number == generation.output_tokens:
                break
        closing = events.closing() if number else events.broken(_INTERNAL_ERROR.body)
        for event in closing:
            await write(event)
        await send({"type": "http.response.body", "body": b""})

    async def _whole(self, generation: Generation) -> Response:
        number: int | None = 0
        while number != generation.output_tokens:
            number = await generation.next_token()
            if number is None and self._is_gone:
                return _json_answer("null")  # vLLM counts this 200 when the client is gone
            if number is None:
                return _json_answer(wire.dumps(_INTERNAL_ERROR.body), _INTERNAL_ERROR.status)
        return _json_answer(self._form.whole(self._answer))


def _json_answer(body: str, status: int = 200) -> Response:
    return _with_vary(Response(body, status, media_type="application/json"))


def _with_vary(response: Response) -> Response:
    """Add the header that vLLM's CORS middleware adds, even without an Origin, and return the response."""
    response.headers["vary"] = "Origin"
    return response


def build_app(
    profile: Profile,
    *,
    model: str,
    seed: int = 0,
    api_key: str | None = None,
    faults: Faults = HEALTHY,
    is_pooling: bool = False,
) -> Starlette:
    """Build the mock server as an ASGI app. `app.state.driver` is its Driver; set `.faults` there to inject faults.

    `seed` fixes ids, words and noise. With `api_key`, paths under /v1 require it as a bearer token. `is_pooling`:
    serve an embedding model, which answers with vectors and scores instead of text.
    """
    mock, forms = _MockServer(profile, model, seed, faults), RESULT_FORMS if is_pooling else FORMS
    routes = [
        *(Route(path, mock.answers(form), methods=["POST"]) for path, form in forms.items()),
        Route("/v1/models", mock.models, methods=["GET"]),
        Route("/health", mock.health),
        Route("/version", mock.version),
        Route("/metrics", mock.metrics),
        Route("/sleep", mock.sleep, methods=["POST"]),
        Route("/wake_up", mock.wake_up, methods=["POST"]),
    ]
    counted = {(method, route.path) for route in routes for method in route.methods or ()}
    app = Starlette(
        routes=routes,
        middleware=[
            *([Middleware(BearerToken, token=api_key)] if api_key else []),
            Middleware(CountedAnswers, routes=counted, answered=mock.answered),
        ],
        exception_handlers={HTTPException: _http_error},
    )
    app.state.driver = mock.driver
    return app


async def serve(
    profile: Profile,
    *,
    host: str,
    port: int,
    model: str,
    seed: int = 0,
    api_key: str | None = None,
    ready: Callable[[int], None] | None = None,
    handle_signals: bool = True,
    is_pooling: bool = False,
    staging: Staging = NOTHING,
) -> None:
    """Build the mock server and serve it, as `serve_app` does, with users and faults as staged."""
    app = build_app(profile, model=model, seed=seed, api_key=api_key, faults=staging.faults, is_pooling=is_pooling)
    staged = asyncio.create_task(staging.run(app, model, seed))
    try:
        await serve_app(app, host=host, port=port, ready=ready, handle_signals=handle_signals)
    finally:
        staged.cancel()
        await asyncio.gather(staged, return_exceptions=True)


async def serve_app(
    app: Starlette,
    *,
    host: str,
    port: int,
    ready: Callable[[int], None] | None = None,
    handle_signals: bool = True,
) -> None:
    """Serve until cancelled or, with `handle_signals`, until SIGTERM, SIGINT or SIGHUP.

    Port 0 takes any free one; `ready` gets the real port once requests are accepted. Answers in progress end with an
    error event. OSError if the address cannot be bound.
    """
    driver: Driver = app.state.driver
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family, backlog=2048) as listener:
        # On a listener made by hand, asyncio leaves Nagle's algorithm on, unlike vLLM's uvloop: a short answer's tokens
        # would wait 40 ms for the client's delayed acknowledgement, and arrive in one read. Connections inherit this.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        bound = listener.getsockname()[1]
        server = _Server(app, ready=lambda: ready(bound) if ready else None)

        def stop() -> None:
            driver.close()
            server.should_exit = True

        with acting_on_signals(stop) if handle_signals else contextlib.nullcontext():
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            try:
                await asyncio.shield(serving)
            finally:
                stop()
                await serving


class _MockServer:
    """The routes of one mock server, and their shared state."""

    def __init__(self, profile: Profile, model: str, seed: int, faults: Faults) -> None:
        self._profile = profile
        self._model = model
        self._random = Random(seed)
        self._metrics = Metrics(profile, model)
        self._prompts = PromptHistory(profile.block_size, profile.usable_blocks)
        self.driver = Driver(profile, self._metrics, seed=seed, faults=faults)
        self.answered = self._metrics.answered

    def answers(self, form: Form) -> Callable[[Request], Awaitable[ASGIApp]]:
        """Return the route that answers as this API."""

        async def answer(request: Request) -> ASGIApp:
            return await self._answer(form, request)

        return answer

    async def models(self, _: Request) -> Response:
        permission = f"{self._random.getrandbits(64):016x}"
        return _json_answer(wire.models_body(self._model, self._profile.max_model_len, int(time.time()), permission))

    async def health(self, _: Request) -> Response:
        return _with_vary(Response())

    async def version(self, _: Request) -> Response:
        return _json_answer(wire.dumps({"version": VERSION}))

    async def metrics(self, _: Request) -> Response:
        page = self._metrics.page(self.driver.engine)
        return _with_vary(Response(page, headers={"content-type": self._metrics.content_type}))

    async def sleep(self, request: Request) -> Response:
        level = request.query_params.get("level", "1")
        if level not in ("0", "1", "2"):
            return JSONResponse({"detail": "level: 0, 1 or 2"}, 422)
        self.driver.sleep(int(level))
        return _json_answer(wire.dumps({"status": "sleeping", "level": int(level)}))

    async def wake_up(self, _: Request) -> Response:
        self.driver.wake_up()
        return _json_answer(wire.dumps({"status": "awake", "tags": None}))

    async def _answer(self, form: Form, request: Request) -> ASGIApp:
        if self._random.random() < self.driver.faults.error_ratio:
            return _json_answer(wire.dumps(_INTERNAL_ERROR.body), _INTERNAL_ERROR.status)
        content_type = request.headers.get("content-type", "")
        try:
            parsed = form.read(await request.body(), content_type, model=self._model, profile=self._profile)
        except Refusal as refusal:
            return _json_answer(wire.dumps(form.refusal(refusal)), refusal.status)
        if (limit := self.driver.refuse()) is not None:
            return _json_answer(wire.dumps(form.refusal(FULL[limit])), FULL[limit].status)
        answer = wire.MockResponse(
            request=parsed,
            model=self._model,
            id=f"{self._random.getrandbits(64):016x}",
            created=int(time.time()),
            seed=self._random.randrange(len(wire.WORDS)),
        )
        return Reply(self.driver, answer, form, shared_tokens=self._prompts.match_and_add(parsed.content))


class _Server(uvicorn.Server):
    """uvicorn with a callback when it listens, and without its own signal handlers."""

    def __init__(self, app: Starlette, *, ready: Callable[[], None]) -> None:
        config = uvicorn.Config(
            app,
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=STOP_SECONDS,
        )
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _http_error(_: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):  # only registered for these
        raise error
    response = JSONResponse({"detail": error.detail}, error.status_code, headers=error.headers)
    return _with_vary(response)


class BearerToken:
    """vLLM's --api-key: 401 for paths under /v1 without the token. All other paths stay open."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._digest = hashlib.sha256(token.encode()).digest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        guarded = scope["type"] == "http" and scope["method"] != "OPTIONS" and scope["path"].startswith(_GUARDED_PREFIX)
        if guarded and not self._is_authorized(dict(scope["headers"]).get(b"authorization", b"")):
            await JSONResponse({"error": "Unauthorized"}, status_code=401)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _is_authorized(self, authorization: bytes) -> bool:
        scheme, _, token = authorization.partition(b" ")
        return scheme.lower() == b"bearer" and secrets.compare_digest(hashlib.sha256(token).digest(), self._digest)
