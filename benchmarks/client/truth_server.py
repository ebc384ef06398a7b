"""A server with exactly known timings, to test load generators against: `python -m benchmarks.client.truth_server`.

Serves the part of vLLM's OpenAI-compatible API that a load generator uses, streams only. Token k of a request is due at
(the time this machine's kernel had the whole request) + TTFT + k * ITL: an absolute schedule, on which one late
write delays no other. GET /truth returns what was written, and how late; POST /truth/reset clears it.

One process, epoll and writes of ready-made bytes, nothing but the standard library: it has to be much cheaper than
any client. All gaps are equal, so a queue in order of writing is a queue in order of time and no heap is needed.
"""

import argparse
import contextlib
import gc
import json
import os
import resource
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from benchmarks.client.answers import HEAD, answer, read_ask
from benchmarks.client.truth import Truth
from benchmarks.client.wire import SO_TIMESTAMPNS, Connection, Request

# Limits of reads and writes per turn of the loop, so that neither waits long for the other.
READS_A_TURN = 4
WRITES_A_TURN = 48
# The shortest sleep: waking costs as much as writing, and being a tenth of a millisecond late matters little.
SHORTEST_SLEEP_NS = 100_000
_ASKS = ("/v1/completions", "/v1/chat/completions")
_LEFT = select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP


class TruthServer:
    """Listens on 127.0.0.1 at once; `serve` never returns."""

    def __init__(self, port: int, ttft_ns: int, itl_ns: int, model: str) -> None:
        self._ttft_ns, self._itl_ns, self._model = ttft_ns, itl_ns, model
        self._truth = Truth()
        # Streams that wait for their first token, and for a later one: both in order of due_ns.
        self._first: deque[Connection] = deque()
        self._later: deque[Connection] = deque()
        self._connections: dict[int, Connection] = {}
        self._active = 0
        self._listener = socket.create_server(("127.0.0.1", port), backlog=4096)
        self._listener.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)  # accepted sockets inherit both
        self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._listener.settimeout(0)
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)
        self.port: int = self._listener.getsockname()[1]

    def serve(self) -> NoReturn:
        clock, epoll, first, later = time.perf_counter_ns, self._epoll, self._first, self._later
        while True:
            due_ns = min(queue[0].due_ns for queue in (first, later) if queue) if first or later else None
            if due_ns is not None and (wait_ns := due_ns - clock()) > 0:
                # epoll waits for whole milliseconds, select for microseconds, and it takes an epoll set.
                select.select([epoll], [], [], max(wait_ns, SHORTEST_SLEEP_NS) / 1e9)
            ready = epoll.poll(None if due_ns is None else 0, READS_A_TURN)
            began_ns = clock()
            if ready:
                self._look(ready)
            self._write_due()
            self._truth.turns.append(clock() - began_ns)

    def _look(self, ready: list[tuple[int, int]]) -> None:
        asked: list[Connection] = []
        for fd, events in ready:
            connection = self._connections.get(fd)
            if connection is None:
                self._accept()
                continue
            here = connection.write(b"") if events & select.EPOLLOUT else True
            if events & select.EPOLLIN:
                here = here and connection.receive()
            elif events & _LEFT:
                here = False
            if not here:
                self._end(connection)
            elif events & select.EPOLLIN and not connection.streaming:
                asked += [connection] if self._serve_request(connection) else []
        # Read in the kernel's order, queued in the order of time.
        for connection in sorted(asked, key=lambda c: c.due_ns):
            self._first.append(connection)

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except BlockingIOError:
                return
            self._connections[accepted.fileno()] = Connection(accepted, self._epoll)

    def _serve_request(self, connection: Connection) -> bool:
        """Report whether a stream began. Its head is sent at once, as uvicorn does."""
        request = connection.take_request()
        if request is None:
            return False
        connection.closes = request.closes
        if request.method != "POST" or request.path not in _ASKS:
            self._reply(connection, *self._page(request))
            return False
        try:
            connection.answer = answer(read_ask(request.path, request.body))
        except (ValueError, TypeError, AttributeError) as error:
            self._reply(connection, "400 Bad Request", json.dumps({"error": {"message": str(error)}}))
            return False
        self._active += 1
        connection.streaming, connection.sent = True, 0
        connection.asked_ns = connection.arrived_ns
        connection.due_ns = connection.asked_ns + self._ttft_ns
        self._truth.asked(connection.asked_ns, connection.unread_ns)
        if not connection.write(HEAD):
            self._end(connection)
        return connection.open

    def _page(self, request: Request) -> tuple[str, str]:
        """Return status and body of every path that does not stream."""
        if request.path == "/truth/reset":
            self._truth = Truth()
        model = {"id": self._model, "object": "model", "created": 0, "owned_by": "vllm", "max_model_len": 4096}
        pages: dict[str, Callable[[], str]] = {
            "/truth": lambda: json.dumps(self._truth.report()),
            "/truth/reset": lambda: "{}",
            "/health": str,
            "/version": lambda: '{"version":"0.32.0"}',
            "/v1/models": lambda: json.dumps({"object": "list", "data": [model]}),
            "/metrics": self._metrics,
        }
        page = pages.get(request.path)
        return ("200 OK", page()) if page else ("404 Not Found", '{"detail":"Not Found"}')

    def _metrics(self) -> str:
        """Return the metrics that a guard reads, of a server that never queues."""
        values = {"gauge num_requests_running": self._active, "gauge num_requests_waiting": 0}
        values |= {"gauge kv_cache_usage_perc": 0, "counter num_preemptions_total": 0}
        label = f'{{engine="0",model_name="{self._model}"}}'
        kinds = ((*name.split(), value) for name, value in values.items())
        return "".join(f"# TYPE vllm:{name} {kind}\nvllm:{name}{label} {value}.0\n" for kind, name, value in kinds)

    def _reply(self, connection: Connection, status: str, body: str) -> None:
        kind = "application/json" if body.startswith("{") else "text/plain; version=0.0.4; charset=utf-8"
        close = "connection: close\r\n" if connection.closes else ""
        head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n{close}\r\n"
        if not connection.write((head + body).encode()) or connection.closes:
            self._end(connection)

    def _write_due(self) -> None:
        """Write the tokens that are due, at most WRITES_A_TURN times. This is the hot path."""
        clock, first, later, truth, itl_ns = time.perf_counter_ns, self._first, self._later, self._truth, self._itl_ns
        for _ in range(WRITES_A_TURN):
            queue = later if later and not (first and first[0].due_ns < later[0].due_ns) else first
            now_ns = clock()
            if not queue or queue[0].due_ns > now_ns:
                return
            connection = queue.popleft()
            if not connection.streaming:  # the client has left
                continue
            late_ns, sent, tokens = now_ns - connection.due_ns, connection.sent, connection.answer.tokens
            if late_ns < itl_ns:
                data, count = tokens[sent], 1
            else:  # all of the stream that is due goes out in one write
                count = min(1 + late_ns // itl_ns, len(tokens) - sent)
                data = b"".join(tokens[sent : sent + count])
                truth.together(late_ns, count, itl_ns)
            if sent:
                truth.gaps.append(now_ns - connection.last_ns)
            else:
                connection.first_ns = now_ns
                truth.ttfts.append(now_ns - connection.asked_ns)
                if connection.answer.before:
                    connection.write(connection.answer.before)
            truth.lates.append(late_ns)
            connection.last_ns = now_ns
            connection.sent = sent = sent + count
            connection.due_ns += count * itl_ns
            if not connection.write(data):
                self._end(connection)
            elif sent < len(tokens):
                later.append(connection)
            else:
                self._finish(connection)

    def _finish(self, connection: Connection) -> None:
        connection.streaming = False
        self._active -= 1
        gaps = max(1, connection.sent - 1)
        mean_gap_ns = (connection.last_ns - connection.first_ns) // gaps
        self._truth.answered(connection.last_ns, mean_gap_ns, idle=not self._active)
        if connection.closes and not connection.blocked:
            self._end(connection)

    def _end(self, connection: Connection) -> None:
        """Close a connection. Its stream ends at once: the queues skip connections that do not stream."""
        if connection.streaming:
            self._active -= 1
            self._truth.abandoned(time.perf_counter_ns(), idle=not self._active)
        self._connections.pop(connection.fd, None)
        connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ttft-ms", type=float, default=50)
    parser.add_argument("--itl-ms", type=float, default=10)
    parser.add_argument("--model-name", default="tiny")
    options = parser.parse_args()
    gc.disable()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    Path("/proc/self/timerslack_ns").write_text("1")  # the kernel otherwise adds 50 microseconds to every sleep
    with contextlib.suppress(PermissionError):  # only root may: whatever else runs on this core has to wait
        os.nice(-20)
    server = TruthServer(options.port, int(options.ttft_ms * 1e6), int(options.itl_ms * 1e6), options.model_name)
    print(f"http://127.0.0.1:{server.port}", flush=True)
    server.serve()


if __name__ == "__main__":
    main()
