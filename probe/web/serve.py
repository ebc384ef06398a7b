"""An ASGI app on a socket, for as long as a block runs."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from starlette.types import ASGIApp

from probe.errors import ConfigError

_CLOSE_S = 2


class _Server(uvicorn.Server):
    """uvicorn, but signals are the composition root's: they must end load before they end pages."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serve(app: ASGIApp, host: str, port: int) -> AsyncIterator[str]:
    """Serves the app while the block runs, and gives its address. Port 0 takes any free one.

    Raises ConfigError where the address is taken or not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()  # now and not when uvicorn gets to it: the address is given at once
    except (OSError, OverflowError, ValueError) as error:  # taken or not ours; no port; no host
        listener.close()
        words = getattr(error, "strerror", None) or error
        raise ConfigError(f"listen: {host}:{port} cannot be listened on ({words}); choose another") from None
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=_CLOSE_S, server_header=False
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    shown = f"[{host}]" if family == socket.AF_INET6 else host
    try:
        yield f"http://{shown}:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        listener.close()
