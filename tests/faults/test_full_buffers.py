"""Servers that read little or nothing of a ramp's requests, until the kernel's socket buffers are full."""

import fcntl
import itertools
import json
import os
import select
import shlex
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
import yaml
from foreign_server import MODELS, stream
from kneewatch_command import COMMAND, start_kneewatch
from monitor import Sim, answers
from process import eventually
from process_memory import MIB, peaks_below

from probe.runtime.kept_program import free_port

USERS = 8
GONE_S = 3.0
_GOOD = 6  # the preflight's requests and the unloaded baseline


class SlowReader:
    """An HTTP server that reads the first requests, and of the bodies of later ones nothing, or a byte at times."""

    def __init__(self, every_s: float | None) -> None:
        """`every_s`: the seconds between two bytes; None: it reads nothing."""
        self._every_s = every_s
        self._asked = itertools.count()
        self.stuck: set[socket.socket] = set()  # connections with a request that is not read
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()
        for connection in tuple(self.stuck):
            connection.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError), connection.makefile("rb", buffering=0) as file:
            while line := _line(file):
                headers = dict(iter(lambda: _line(file).lower().partition(b": ")[::2], (b"", b"")))
                path = line.split()[1]
                length = int(headers.get(b"content-length", 0))
                if path != b"/v1/completions":
                    is_known = path == b"/v1/models"
                    connection.sendall(_answer(200 if is_known else 404, "text/plain", MODELS if is_known else b"none"))
                elif next(self._asked) < _GOOD:
                    _, kind, events = stream(_exactly(file, length))
                    connection.sendall(_answer(200, kind, b"".join(events)))
                else:
                    self._stick(connection)
                    return

    def _stick(self, connection: socket.socket) -> None:
        """Hold the request until the client has gone."""
        self.stuck.add(connection)
        poll = select.poll()
        poll.register(connection, select.POLLRDHUP)
        try:
            while not poll.poll(1000 * (self._every_s or 0.05)):
                if self._every_s is not None:
                    connection.recv(1)
        finally:
            self.stuck.discard(connection)


def _line(file: socket.SocketIO) -> bytes:
    """Return a line without its end. No more than it is read from the connection."""
    line = b""
    while not line.endswith(b"\r\n") and (byte := file.read(1)):
        line += byte
    return line.removesuffix(b"\r\n")


def _exactly(file: socket.SocketIO, length: int) -> bytes:
    data = b""
    while len(data) < length and (piece := file.read(length - len(data))):
        data += piece
    return data


def _answer(status: int, kind: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status} Whatever\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


@contextmanager
def slow_reader(every_s: float | None) -> Iterator[SlowReader]:
    server = SlowReader(every_s)
    try:
        yield server
    finally:
        server.close()


@pytest.mark.parametrize("every_s", [None, 0.02], ids=["reads-nothing", "drips"])
@pytest.mark.parametrize("by", ["SIGTERM", "guard"])
@pytest.mark.fault(
    "LO46",
    "A server accepts a run's requests and reads nothing, or a byte at times, until the kernel's socket "
    "buffers are full",
    area="Load",
    users_see="by the guard `no_first_token`, no figure; by SIGTERM `interrupt`",
    stays="load gone within 3 s: a connection is reset, and the kernel sends nothing of its request afterwards; "
    "below 384 MiB",
)
def test_a_server_that_does_not_read_a_ramp_s_requests(
    tiny: Sim, every_s: float | None, by: str, tmp_path: Path
) -> None:
    load = ("--prompt-tokens", "40000", "--output-tokens", "4", "--concurrency", str(USERS), "--step-seconds", "60")
    more = ("--max-tokens", str(10**8), "--json", tmp_path / "result.json")
    with slow_reader(every_s) as server, peaks_below() as peaks:
        guard = ("--no-guard",) if by == "SIGTERM" else ("--ttft", "1s", "--metrics-url", f"{tiny.base_url}/metrics")
        ramp = start_kneewatch("ramp", "--base-url", server.url, *load, *guard, *more, log=tmp_path / "ramp.log")
        try:
            # The guard does not wait until all users have joined.
            eventually(lambda: len(server.stuck) >= USERS // 4, within_s=60, what="the load is there", every_s=0.05)
            if by == "SIGTERM":
                time.sleep(2.0)  # the buffers are full
                ramp.terminate()
            eventually(lambda: not ramp.alive, within_s=30, what="the end of the run", every_s=0.05)
            eventually(lambda: not server.stuck, within_s=GONE_S, what="the load is gone", every_s=0.05)
        finally:
            ramp.kill()
        said = ramp.tail()
    assert "Traceback" not in said
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["capacity"]["requests_per_second"] is None
    assert ("guard (no_first_token)" if by == "guard" else "interrupt") in said, said
    assert sum(peaks.values()) < 384 * MIB


@pytest.mark.fault(
    "LO49",
    "The kernel takes 4096 bytes at a time of requests of 50 kB",
    area="Load",
    users_see="nothing",
    stays="each request arrives whole",
)
def test_requests_larger_than_the_send_buffers_arrive_whole(tmp_path: Path) -> None:
    """Run server and ramp in a network of their own, in which a socket takes 4096 bytes at a time."""
    small = "ip link set lo up && echo 4096 4096 4096 > /proc/sys/net/ipv4/tcp_wmem"
    if subprocess.run(["unshare", "--net", "sh", "-c", small], check=False, capture_output=True).returncode != 0:
        pytest.skip("a network of one's own needs root, unshare, ip, and /proc/sys that can be written")
    kneewatch, file = shlex.join(COMMAND), tmp_path / "result.json"
    at = "--base-url http://127.0.0.1:8000"
    server = f"{kneewatch} sim --port 8000 --profile llama-8b & server=$!"
    wait = f"for _ in $(seq 100); do sleep 0.2; {kneewatch} check {at}; [ $? -lt 2 ] && break; done"
    load = "--prompt-tokens 8000 --output-tokens 4 --concurrency 4 --requests-per-step 20"
    ramp = f"{kneewatch} ramp {at} {load} --confirm-seconds 0 --no-guard --json {file}; kill $server"
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", f"{small} && {server}; {wait}; {ramp}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    (step, *_) = json.loads(file.read_text())["steps"]
    assert step["requests"]["failed"] == 0, done.stdout + done.stderr
    assert step["requests"]["ok"] >= 20
    assert "Traceback" not in done.stderr


@pytest.mark.fault("ST20")
def test_a_monitor_with_a_log_that_nobody_reads_goes_on_and_tells_what_was_lost(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    dead = [
        {"name": f"dead-{i}", "base_url": f"http://127.0.0.1:{free_port()}", "capacity": {"mode": "off"}}
        for i in range(40)
    ]
    config = tmp_path / "kneewatch.yml"
    config.write_text(yaml.safe_dump({"listen": address, "targets": dead}))

    def lost() -> float:
        page = httpx.get(f"http://{address}/metrics", timeout=10).text
        return float(page.partition("\nkneewatch_log_lines_lost_total ")[2].partition("\n")[0])

    with subprocess.Popen([*COMMAND, "run", "-c", str(config)], stderr=subprocess.PIPE) as monitor:
        assert monitor.stderr is not None
        try:
            fcntl.fcntl(monitor.stderr, fcntl.F_SETPIPE_SZ, 4096)
            eventually(lambda: answers(f"http://{address}/-/healthy"), within_s=60, what="the pages")
            eventually(lambda: lost() > 0, within_s=60, what="lost lines")
            os.set_blocking(monitor.stderr.fileno(), False)
            log = b""
            while b"log lines were lost" not in log:
                eventually(lambda: select.select([monitor.stderr], [], [], 0)[0], within_s=30, what="a line")
                log += os.read(monitor.stderr.fileno(), 65536)
        finally:
            monitor.terminate()
    for line in filter(None, log.splitlines()):
        assert json.loads(line)["event"]
