"""What the kernel still holds of a request that is given up."""

import asyncio
import socket
import struct
from array import array
from contextlib import suppress
from fcntl import ioctl
from termios import TIOCOUTQ

_RESET = struct.pack("ii", 1, 0)  # of SO_LINGER: close with a reset, and send nothing more


def discard_unsent(transport: asyncio.Transport) -> None:
    """Have the close of an open connection discard what the kernel could not send yet.

    Otherwise a server that reads slowly gets the request, and goes on with it, long after it was given up.
    """
    own = transport.get_extra_info("socket")
    if own is None:
        return
    unsent = array("i", [0])
    with suppress(OSError):  # not every kind of socket has it
        ioctl(own.fileno(), TIOCOUTQ, unsent)
        if unsent[0]:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
