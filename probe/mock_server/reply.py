"""One response of the mock server: runs a request and writes its tokens, as a stream or at once.

Input: a Driver and a MockResponse. Output: an ASGI response. When the client disconnects, the request is aborted at
once, not only when its next token cannot be sent.
"""

import asyncio

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from probe.mock_server import wire
from probe.mock_server.driver import Driver, Generation
from probe.mock_server.forms import Form
from probe.mock_server.request_body import Refusal

BROKEN = Refusal(500, "Internal server error", "InternalServerError")


class Reply:
    """An ASGI response that runs one request, and aborts it as soon as the client disconnects."""

    def __init__(self, driver: Driver, answer: wire.MockResponse, form: Form, *, shared_tokens: int) -> None:
        """`shared_tokens`: leading tokens of the prompt that an earlier prompt had too."""
        self._driver = driver
        self._answer = answer
        self._form = form
        self._shared_tokens = shared_tokens

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
        closing = events.closing() if number else events.broken(BROKEN.body)
        for event in closing:
            await write(event)
        await send({"type": "http.response.body", "body": b""})

    async def _whole(self, generation: Generation) -> Response:
        number: int | None = 0
        while number != generation.output_tokens:
            number = await generation.next_token()
            if number is None:
                return json_answer(wire.dumps(BROKEN.body), BROKEN.status)
        return json_answer(self._form.whole(self._answer))


def json_answer(body: str, status: int = 200) -> Response:
    return like_vllm(Response(body, status, media_type="application/json"))


def like_vllm(response: Response) -> Response:
    """Add the header that vLLM's CORS middleware adds, even without an Origin, and return the response."""
    response.headers["vary"] = "Origin"
    return response
