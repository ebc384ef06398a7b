"""Security headers of every response: no foreign content, no framing. And whether a client takes gzip."""

import re

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Only own files may load, because model and target names are untrusted.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def with_headers(app: ASGIApp) -> ASGIApp:
    """Return the app with these headers, unless a response sets them itself."""

    async def closed(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await app(scope, receive, send_with_headers)

    return closed


def takes_gzip(accept_encoding: str) -> bool:
    """Return whether the header `Accept-Encoding` names gzip without refusing it by `q=0` (RFC 9110, 12.5.3)."""
    for coding in accept_encoding.lower().split(","):
        name, *parameters = (part.strip() for part in coding.split(";"))
        if name == "gzip":
            return not any(re.fullmatch(r"q\s*=\s*0(\.0*)?", each) for each in parameters)
    return False
