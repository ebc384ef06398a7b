"""Counts HTTP answers as vLLM 0.32 does, by prometheus-fastapi-instrumentator: method, handler, class of status.

It wraps the routes alone, so what the bearer token keeps out is not counted, as in vLLM. A request that ends without an
answer counts as 5xx there, and one for a path or method that no route has counts under the handler "none".
"""

from collections.abc import Callable, Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_NOT_COUNTED = frozenset(
    {"/metrics", "/health", "/version"}
)  # vLLM excludes these, and others that are not served here


class CountedAnswers:
    """Middleware that calls `answered` with the method, the status' class and the handler of each answer."""

    def __init__(
        self, app: ASGIApp, routes: Collection[tuple[str, str]], answered: Callable[[str, str, str], None]
    ) -> None:
        """Take the `routes` by method and path."""
        self._app = app
        self._routes = routes
        self._answered = answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _NOT_COUNTED:
            await self._app(scope, receive, send)
            return
        status = 500

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        method, path = scope["method"], scope["path"]
        try:
            await self._app(scope, receive, noting)
        finally:
            self._answered(method, f"{status // 100}xx", path if (method, path) in self._routes else "none")
