"""One run of one client against the truth server: its report, the truth, and its cost.

Input: a client, a server, how much load. Output: a Trial. Processes are pinned to cores, the server to its own.
"""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.client.peers import ROOT, Client, Load, Reading, environment

TIMEOUT_S = 300.0
_EVERY_S = 0.5  # between two looks at the memory of a client


@dataclass(frozen=True, slots=True)
class Cores:
    """The server's core, and the client's: one, or two for a client that is allowed two."""

    server: int
    client: int
    second: int

    def of(self, client: Client) -> list[int]:
        return [self.client] if client.cores == 1 else [self.client, self.second]


@dataclass(frozen=True, slots=True)
class Trial:
    """`cpu_s`: user and system time of the client with all its children. `peak_rss_mib`: the largest sum of the
    resident memory of its processes, sampled twice a second; shared pages count in each. `startup_s`: from its start to
    its first request. `error`: why there is no reading.
    """

    client: str
    concurrency: int
    requests: int
    reading: Reading | None
    truth: dict[str, float]
    cpu_s: float
    wall_s: float
    peak_rss_mib: float
    startup_s: float
    error: str = ""


def cores() -> Cores:
    """Choose three cores if there are three; otherwise the server and a client's second worker share one."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        raise SystemExit("bench-client needs two cores: one for the server, one for the client")
    return Cores(server=usable[0], client=usable[1], second=usable[2] if len(usable) > 2 else usable[0])


class Server:
    """A running truth server."""

    def __init__(self, url: str) -> None:
        self.url = url

    def reset(self) -> None:
        self._ask("/truth/reset", "POST")

    def truth(self) -> dict[str, float]:
        report: dict[str, float] = self._ask("/truth", "GET")
        return report

    def _ask(self, path: str, method: str) -> Any:  # noqa: ANN401 - JSON
        with contextlib.closing(http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=60)) as connection:
            connection.request(method, path)
            return json.load(connection.getresponse())


@contextmanager
def truth_server(core: int, *, ttft_ms: float, itl_ms: float) -> Iterator[Server]:
    command = ["taskset", "-c", str(core), sys.executable, "-m", "benchmarks.client.truth_server"]
    command += [f"--ttft-ms={ttft_ms}", f"--itl-ms={itl_ms}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            yield Server(process.stdout.readline().strip())
        finally:
            process.kill()


def run(client: Client, server: Server, pinned: Sequence[int], concurrency: int, requests: int) -> Trial:
    """Run the trial. Never raises: a client that fails is reported as such."""
    with tempfile.TemporaryDirectory(prefix="bench-client-") as name:
        load = Load(server.url, concurrency, requests, Path(name))
        command = ["taskset", "-c", ",".join(map(str, pinned)), *client.command(client.python, load)]
        server.reset()
        began_ns = time.monotonic_ns()
        with (Path(name) / "log").open("wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env=environment(),
                start_new_session=True,
            )
            cpu_s, rss_mib = _watch(process)
        wall_s = (time.monotonic_ns() - began_ns) / 1e9
        truth = server.truth()
        reading, error = None, ""
        try:
            reading = client.read(load)
        except (OSError, ValueError, LookupError, TypeError) as problem:
            tail = (Path(name) / "log").read_text(errors="replace")[-600:]
            error = f"ended with {process.returncode}, {problem!r}: {tail}"
    startup_s = (truth["first_request_ns"] - began_ns) / 1e9 if truth["first_request_ns"] else 0.0
    return Trial(client.name, concurrency, requests, reading, truth, cpu_s, wall_s, rss_mib, startup_s, error)


def _watch(process: "subprocess.Popen[bytes]") -> tuple[float, float]:
    """Wait for the end. Return the CPU seconds of the process and its children, and their peak memory in MiB."""
    peak_mib, look_s = 0.0, 0.0
    end_s = time.monotonic() + TIMEOUT_S
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        now_s = time.monotonic()
        if now_s > end_s:
            os.killpg(process.pid, signal.SIGKILL)
        if now_s - look_s >= _EVERY_S:
            peak_mib, look_s = max(peak_mib, _rss_mib(process.pid)), now_s
        time.sleep(0.02)
    process.returncode = os.waitstatus_to_exitcode(status)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # what it left behind
    return usage.ru_utime + usage.ru_stime, peak_mib


def _rss_mib(pid: int) -> float:
    """Return the resident memory of a process and all its descendants."""
    total = 0.0
    with contextlib.suppress(OSError, ValueError, IndexError):
        total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
        for task in Path(f"/proc/{pid}/task").iterdir():
            total += sum(_rss_mib(int(child)) for child in (task / "children").read_text().split())
    return total
