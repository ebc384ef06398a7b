"""Addresses on loopback that do not answer, as those of a dead node or behind a dead IPv6 path."""

import contextlib
import socket
from collections.abc import Iterator

DEAD = "127.0.0.2"


@contextlib.contextmanager
def dead_address(port: int, host: str = DEAD) -> Iterator[None]:
    """Have connections to this address hang: the listener's queue is full, so the kernel drops what asks to connect."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET))
        listener.bind((host, port))
        listener.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket(listener.family))
            waiting.settimeout(0)
            with contextlib.suppress(BlockingIOError):
                waiting.connect((host, port))
        yield
