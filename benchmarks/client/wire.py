"""A client's connection to the truth server: requests, with the time the kernel had them, and writes that never wait.

Input: a non-blocking socket and the epoll set that watches it. Output: requests in, bytes out.
"""

import os
import re
import select
import socket
import struct
import time
from dataclasses import dataclass

from benchmarks.client.answers import Answer

SO_TIMESTAMPNS = 35  # Linux: recvmsg says when the kernel received the bytes it returns
_READ = select.EPOLLIN | select.EPOLLRDHUP
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Request:
    """One that is there to its end. `closes`: the client wants no other answer on this connection."""

    method: str
    path: str
    body: bytes
    closes: bool


class Connection:
    """The socket, and the stream on it: one at a time, for a client asks again when it has its answer."""

    __slots__ = (
        *("fd", "_socket", "_epoll", "_inbox", "_unsent", "arrived_ns", "unread_ns", "open"),
        *("streaming", "closes", "answer", "asked_ns", "due_ns", "first_ns", "last_ns", "sent"),
    )

    def __init__(self, accepted: socket.socket, epoll: select.epoll) -> None:
        accepted.settimeout(0)
        self._socket, self.fd, self._epoll = accepted, accepted.fileno(), epoll
        self._inbox = self._unsent = b""
        self.arrived_ns = self.unread_ns = 0
        self.open = True
        self.streaming = self.closes = False
        self.answer = Answer(b"", ())
        self.asked_ns = self.due_ns = self.first_ns = self.last_ns = self.sent = 0
        epoll.register(self.fd, _READ)

    def receive(self) -> bool:
        """Read what has arrived, and when it did; return False if the client has left."""
        try:
            data, extra, _, _ = self._socket.recvmsg(16_384, 64)
        except BlockingIOError:
            return True
        except OSError:
            return False
        # The kernel's stamp is on the wall clock; what counts is how long ago it was.
        self.unread_ns = 0
        if extra:
            seconds, nanoseconds = struct.unpack("qq", extra[0][2])
            self.unread_ns = max(0, time.time_ns() - seconds * 1_000_000_000 - nanoseconds)
        self.arrived_ns = time.perf_counter_ns() - self.unread_ns
        self._inbox += data
        return bool(data)

    def take_request(self) -> Request | None:
        """Return the first request received, if it is complete."""
        head, found, rest = self._inbox.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        size = int(length[1]) if length else 0
        if not found or len(rest) < size:
            return None
        self._inbox = rest[size:]
        method, path, *_ = (head.split(b"\r\n", 1)[0].decode("latin-1") + "  ").split(" ")
        return Request(method, path, rest[:size], closes=_CLOSE.search(head) is not None)

    def write(self, data: bytes) -> bool:
        """Write, and keep what a full socket buffer does not take; return False if the client has left."""
        waited = bool(self._unsent)
        try:
            taken = os.write(self.fd, self._unsent + data if waited else data)
        except BlockingIOError:
            taken = 0
        except OSError:
            return False
        if waited or taken < len(data):
            self._unsent = (self._unsent + data)[taken:]
            self._epoll.modify(self.fd, _READ | select.EPOLLOUT if self._unsent else _READ)
        return True

    @property
    def blocked(self) -> bool:
        return bool(self._unsent)

    def close(self) -> None:
        self.open = self.streaming = False
        self._socket.close()
