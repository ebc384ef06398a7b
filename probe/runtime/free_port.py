"""A port for a program to be started."""

import socket
from contextlib import suppress
from random import SystemRandom

# Below those that Linux gives to outgoing connections (ip_local_port_range): one of these may take a port that was free
# a moment before.
_PORTS = range(10_000, 32_768)


def free_port() -> int:
    """Return a TCP port that is free on 127.0.0.1."""
    while True:
        port = SystemRandom().choice(_PORTS)
        with socket.socket() as sock, suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port
