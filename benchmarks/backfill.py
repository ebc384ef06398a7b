"""A real Prometheus with a past: fills one with samples made beforehand, and asks it.

In: arrays of times and values for each series. They go over remote write, which stores 1 to 2 million samples a second;
`promtool tsdb create-blocks-from openmetrics` stores a tenth of that and wants them as text first. Nothing is scraped.
"""

import http.client
import json
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Values = NDArray[Any]  # floats, or what is one as 0 and 1
# What Prometheus writes where a series has ended: the query engine shows nothing from there on.
STALE = np.array([0x7FF0000000000002], dtype=np.uint64).view(np.float64)[0]
_TICKS = 100.0  # of a second, in /proc
_MOST_POINTS = 11_000  # of a range query
_REQUEST_SAMPLES = 250_000
_FORM = {"Content-Type": "application/x-www-form-urlencoded"}
_HEADERS = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One series: its labels, `__name__` among them, and its samples. Times are in seconds since 1970, rising."""

    labels: Mapping[str, str]
    times: Floats
    values: Floats


class Prometheus:
    """Without anything to scrape. A context manager: what it stores goes when it ends.

    `block`: how much time one block of its storage spans; it accepts samples that are half of that late, so within
    `block / 2` series may be written one after the other. `storage`: blocks that are there already, and stay.
    """

    def __init__(self, *, block: str, storage: Path | None = None, binary: str = "prometheus") -> None:
        self._storage = storage
        self._command = [binary, f"--storage.tsdb.min-block-duration={block}", "--storage.tsdb.retention.time=3650d"]
        self._command += [f"--storage.tsdb.max-block-duration={block}", "--web.enable-remote-write-receiver"]
        # A query over a month outlasts the default of two minutes on a busy machine.
        self._command += ["--query.max-samples=100000000", "--query.timeout=30m", "--log.level=warn"]

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="kneewatch-bench-", ignore_cleanup_errors=True)
        folder = Path(self._folder.name)
        config = folder / "prometheus.yml"
        config.write_text("")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [*self._command, f"--config.file={config}", f"--web.listen-address=127.0.0.1:{self.port}"]
        command.append(f"--storage.tsdb.path={self._storage or folder / 'tsdb'}")
        self._log = (folder / "log").open("w+")
        self._process = subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        self._folder.cleanup()

    def load(self, rules: Path) -> None:
        """Evaluate the rules of a file from now on."""
        (Path(self._folder.name) / "prometheus.yml").write_text(json.dumps({"rule_files": [str(rules.resolve())]}))
        self._process.send_signal(signal.SIGHUP)

    def rule_groups(self) -> list[dict[str, Any]]:
        """Return the groups of rules that are loaded, with the time of their last evaluation."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/rules", timeout=60) as answer:
            groups: list[dict[str, Any]] = json.load(answer)["data"]["groups"]
        return groups

    def cpu_s(self) -> float:
        """Return the CPU seconds used."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / _TICKS

    def memory_mib(self) -> float:
        """Return the peak memory used."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return round(int(status.split("VmHWM:")[1].split()[0]) / 1024)

    def write(self, lines: Iterable[Line], *, threads: int = 2) -> int:
        """Store all lines and return the number of samples."""
        with ThreadPoolExecutor(threads) as pool:
            return sum(pool.map(self._send, _requests(lines)))

    def series(self, query: str, start_s: float, end_s: float, step_s: float) -> list[Line]:
        """Run a range query of any number of points. Return a Line for each label set, without the points in gaps."""
        found: dict[tuple[tuple[str, str], ...], tuple[list[Floats], list[Floats]]] = {}
        for first, last in _stretches(start_s, end_s, step_s):
            for each in self.ask("query_range", query=query, start=first, end=last, step=step_s)["result"]:
                points = np.array(each["values"], dtype=object)
                times, values = found.setdefault(tuple(sorted(each["metric"].items())), ([], []))
                times.append(points[:, 0].astype(np.float64))
                values.append(points[:, 1].astype(np.float64))
        return [Line(dict(key), np.concatenate(t), np.concatenate(v)) for key, (t, v) in found.items()]

    def ask(self, path: str, **parameters: object) -> Any:  # noqa: ANN401 - JSON
        """Return the data of an answer. Raises RuntimeError if Prometheus refuses the query."""
        return json.loads(self.raw(path, **parameters))["data"]

    def raw(self, path: str, **parameters: object) -> bytes:
        """Return the body of an answer."""
        return self._post(f"/api/v1/{path}", urlencode(parameters).encode(), _FORM)

    def _send(self, request: tuple[bytes, int]) -> int:
        body, samples = request
        self._post("/api/v1/write", body, _HEADERS)
        return samples

    def _post(self, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            connection.request("POST", path, body, dict(headers))
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        if answer.status >= 300:
            raise RuntimeError(f"Prometheus answered {answer.status}: {text.decode(errors='replace')[:500]}")
        return text

    def _wait(self) -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until and self._process.poll() is None:
            with suppress(OSError, RuntimeError):
                self.ask("query", query="1")
                return
            time.sleep(0.1)
        self._log.seek(0)
        raise RuntimeError(f"Prometheus did not start: {self._log.read()[-2000:]}")


def _stretches(start_s: float, end_s: float, step_s: float) -> Iterator[tuple[float, float]]:
    while start_s <= end_s:
        last = min(end_s, start_s + (_MOST_POINTS - 1) * step_s)
        yield start_s, last
        start_s = last + step_s


def _requests(lines: Iterable[Line]) -> Iterator[tuple[bytes, int]]:
    """Yield remote-write request bodies and the number of samples in each."""
    parts: list[bytes] = []
    samples = 0
    for line in lines:
        parts.append(_field(1, _labels(line.labels) + _samples(line.times, line.values)))
        samples += len(line.times)
        if samples >= _REQUEST_SAMPLES:
            yield _snappy(b"".join(parts)), samples
            parts, samples = [], 0
    if parts:
        yield _snappy(b"".join(parts)), samples


def _labels(labels: Mapping[str, str]) -> bytes:
    each = (_field(1, name.encode()) + _field(2, value.encode()) for name, value in sorted(labels.items()) if value)
    return b"".join(_field(1, label) for label in each)


_SAMPLE = np.dtype([("head", "V3"), ("value", "<f8"), ("tag", "u1"), ("time", "u1", 6)])


def _samples(times: Floats, values: Floats) -> bytes:
    """Encode `repeated Sample samples = 2`. Milliseconds since 1970 take a 6-byte varint from 2004 on, so all have one
    size.
    """
    packed = np.empty(len(times), _SAMPLE)
    packed["head"] = np.void(b"\x12\x10\x09")
    packed["value"] = values
    packed["tag"] = 0x10
    ms = np.round(times * 1000).astype(np.uint64)
    for i in range(6):
        packed["time"][:, i] = ((ms >> np.uint64(7 * i)) & np.uint64(0x7F)) | np.uint64(0x80 if i < 5 else 0)
    return packed.tobytes()


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _snappy(content: bytes) -> bytes:
    """Frame the data as Snappy literals, without compression, since nothing leaves the machine."""
    parts = [_varint(len(content))]
    for i in range(0, len(content), 1 << 24):
        literal = content[i : i + (1 << 24)]
        parts += [b"\xf8", (len(literal) - 1).to_bytes(3, "little"), literal]
    return b"".join(parts)
