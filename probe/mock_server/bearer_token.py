"""The mock server's check of API keys."""

import hashlib
import secrets

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

GUARDED_PREFIX = "/v1"


class BearerToken:
    """vLLM's --api-key: 401 for paths under /v1 without the token. All other paths stay open."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._digest = hashlib.sha256(token.encode()).digest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        guarded = scope["type"] == "http" and scope["method"] != "OPTIONS" and scope["path"].startswith(GUARDED_PREFIX)
        if guarded and not self._is_authorized(dict(scope["headers"]).get(b"authorization", b"")):
            await JSONResponse({"error": "Unauthorized"}, status_code=401)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _is_authorized(self, authorization: bytes) -> bool:
        scheme, _, token = authorization.partition(b" ")
        return scheme.lower() == b"bearer" and secrets.compare_digest(hashlib.sha256(token).digest(), self._digest)
