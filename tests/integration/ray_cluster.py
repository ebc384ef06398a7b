"""A Ray cluster of two nodes on loopback; where the machine lets us, the second one's clock is another than ours."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from process import Process, eventually

from probe.runtime.kept_program import free_port

HEAD, OTHER = "127.0.0.2", "127.0.0.3"
AHEAD_S = 1000
# Set in the nodes' environment, and so in that of all they start.
_MARK = "KNEEWATCH_TEST_RAY"


class RayCluster:
    """`address` for who is on a node, `client_address` for who is not."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._env = {_MARK: str(folder), "RAY_USAGE_STATS_ENABLED": "0", "GRPC_ENABLE_FORK_SUPPORT": "0"}
        self._port, self._client_port = free_port(), free_port()
        self.address, self.client_address = f"{HEAD}:{self._port}", f"ray://{HEAD}:{self._client_port}"
        self._head: Process | None = None
        self.other: Process | None = None

    def start(self) -> None:
        """Start both nodes."""
        ports = ["--port", str(self._port), "--ray-client-server-port", str(self._client_port)]
        pages = ["--include-dashboard=false", "--dashboard-port", str(free_port())]
        self._head = self._node(HEAD, "--head", *ports, *pages, "--temp-dir", str(self._folder))
        self.start_other()

    def start_other(self) -> None:
        """Start the second node, again if it died."""
        self.other = self._node(OTHER, "--address", self.address, inside=_shifted())

    def _node(self, ip: str, *options: str, inside: tuple[str, ...] = ()) -> Process:
        ray = str(Path(sys.executable).with_name("ray"))
        common = ("--num-cpus", "2", "--object-store-memory", "80000000", "--disable-usage-stats")
        any_port = (
            "--min-worker-port",
            "0",
            "--max-worker-port",
            "0",
            "--dashboard-agent-listen-port",
            str(free_port()),
        )
        log = self._folder / f"node-{ip}.out"
        log.write_text("")
        command = [*inside, ray, "start", "--block", "--node-ip-address", ip, *options, *common, *any_port]
        node = Process(command, log, env=self._env)
        node.ready(lambda: "Ray runtime started" in log.read_text(), within_s=60)
        return node

    def processes(self, words: str = "") -> set[int]:
        """Return the nodes' running processes that have these words in their command line."""
        return {
            pid for pid in _pids() if _has(pid, "environ", f"{_MARK}={self._folder}") and _has(pid, "cmdline", words)
        }

    def of_other(self, words: str = "") -> set[int]:
        """Return the processes that Ray itself started on the second node."""
        assert self.other is not None
        return {pid for pid in self.processes(words) if _session(pid) == self.other.pid}

    def mentions(self, text: str) -> list[Path]:
        """Return Ray's files that contain this text."""
        files = [path for path in self._folder.rglob("*") if path.is_file()]
        assert len(files) > 5
        return [path for path in files if text.encode() in path.read_bytes()]

    def end(self) -> None:
        """Stop both nodes. Raises AssertionError if a process of theirs survives."""
        for node in (self.other, self._head):
            if node is not None:
                node.kill()
        eventually(lambda: not self.processes(), within_s=10, what="everything of Ray has ended")


@contextmanager
def ray_cluster() -> Iterator[RayCluster]:
    """Run both nodes until the block ends, and check that nothing of them is left."""
    folder = Path(tempfile.mkdtemp(prefix="kw-ray-", dir="/tmp"))
    cluster = RayCluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        try:
            cluster.end()
        finally:
            for pid in cluster.processes():
                os.kill(pid, signal.SIGKILL)
            shutil.rmtree(folder, ignore_errors=True)


def shifts_clocks() -> bool:
    """Report whether a process can have its own monotonic clock here: as root, on Linux 5.6 and later."""
    return bool(_shifted())


def _shifted() -> tuple[str, ...]:
    command = ("unshare", "--time", "--monotonic", str(AHEAD_S), "--fork", "--kill-child")
    works = (
        shutil.which("unshare") and subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0
    )
    return command if works else ()


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def _has(pid: int, file: str, words: str) -> bool:
    try:
        return words.encode() in Path(f"/proc/{pid}/{file}").read_bytes()
    except OSError:
        return False
