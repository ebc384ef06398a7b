"""Every command, wherever it waits, ends by a signal within two seconds, without a traceback, and leaves nothing."""

import os
import shlex
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from example_records import result, step
from kneewatch_command import COMMAND

from probe.cli.main import command
from probe.core.result import Capacity
from probe.report.result_json import dumps

pytestmark = pytest.mark.alone

WITHIN_S = 4.0  # 2 s, and the rest for a busy machine
_AT_ONCE = 4
# The first row is `run`, which reloads at a SIGHUP.
OTHERS = ((signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGINT), (signal.SIGHUP,), (signal.SIGINT,))
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9999\r\n\r\n{"
_WRITE = {"1": "0x1", "64": "0x1"}  # write(2) to standard output, on x86-64 and arm64
# What a command waits for: a server or Prometheus that hangs, one that sends a byte at times, the end of a pipe that it
# reads, a reader of its output, or a program that it started.
HANGS, DRIPS, PIPE, READER, PROGRAM = "hangs", "drips", "pipe", "reader", "program"


@dataclass(frozen=True, slots=True)
class Waiting:
    """A command that waits. `status`: its own, after a signal; None: 128 and the signal's number."""

    command: str
    waits_for: str
    arguments: str
    status: int | None = None


WAITING = (
    Waiting("run", HANGS, "-c {config}", 0),
    Waiting("check", HANGS, "--base-url {hangs}"),
    Waiting("check", DRIPS, "--base-url {drips}"),
    Waiting("doctor", HANGS, "--base-url {hangs}"),
    Waiting("ramp", HANGS, "--base-url {hangs}"),
    Waiting("ramp", DRIPS, "--base-url {drips}"),
    Waiting("forecast", HANGS, "--base-url {hangs}"),
    Waiting("compare", PIPE, "{pipe} {result}"),
    Waiting("compare", READER, "{result} {result}"),
    Waiting("table", PIPE, "{pipe}"),
    Waiting("table", READER, "{result}"),
    Waiting("plan", PIPE, "{pipe} --peak 3"),
    Waiting("plan", DRIPS, "{result} --prometheus {drips}"),
    Waiting("tune", PROGRAM, "--start '{program} {{port}}' --knob max_num_seqs=4,8 -o {out}", 1),
    Waiting("tune", PIPE, "--start 'true {{port}}' --knob max_num_seqs=4,8 --plan-only --result {pipe}"),
    Waiting("roofline", PIPE, "--gpu H100 --params 8B --model-config {pipe}"),
    Waiting("roofline", READER, "--gpu H100 --params 8B"),
    Waiting("trace", READER, "{trace}"),
    Waiting("trace", READER, "{trace} -o /dev/stdout"),
    Waiting("dashboards", READER, "-c {config} -o -"),
    Waiting("alerts", READER, "-o -"),
    Waiting("sim", READER, "--port 0", 0),
    Waiting("demo", READER, "--port 0"),
    Waiting("config check", READER, "-c {config}"),
    Waiting("config show", READER, "-c {config}"),
    Waiting("config schema", READER, ""),
)


def _commands(group: Any, name: str = "") -> set[str]:
    inner = getattr(group, "commands", {})
    return {name} if not inner else set().union(*(_commands(one, f"{name} {it}".strip()) for it, one in inner.items()))


@pytest.mark.fault("SG2")
def test_there_is_a_row_for_every_command() -> None:
    assert _commands(command()) == {one.command for one in WAITING}


@contextmanager
def _server(*, drips: bool) -> Iterator[tuple[str, list[socket.socket]]]:
    """Serve connections that get no answer, or a byte of one at times. Yields the address and the connections."""
    asked: list[socket.socket] = []
    ends = threading.Event()

    def serve(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                asked.append(listener.accept()[0])
                if drips:
                    asked[-1].recv(65536)
                    asked[-1].sendall(
                        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9999\r\n\r\n{"
                    )

    def drip() -> None:
        while not ends.wait(0.2):
            for each in [*asked]:
                with suppress(OSError):
                    each.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        if drips:
            threading.Thread(target=drip, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked
        finally:
            ends.set()
            listener.shutdown(socket.SHUT_RDWR)
            for each in asked:
                each.close()


class _Running:
    """One row as a process, in a folder of its own."""

    def __init__(self, row: Waiting, folder: Path, held: ExitStack) -> None:
        self.row, self._folder, self._held = row, folder, held
        folder.mkdir()
        (folder / "tmp").mkdir()
        self._pipe, self._program = folder / "pipe", folder / "program"
        os.mkfifo(self._pipe)
        self._program.write_text(f"#!/bin/sh\necho > {folder}/started\nsleep 300 &\nsleep 300\n")
        self._program.chmod(0o755)
        (folder / "trace").write_text('{"timestamp": 0, "input_length": 10, "output_length": 5}\n')
        capacity = Capacity("verified", 10.0, lower=9.0, upper=11.0, output_tokens_per_second=100.0)
        (folder / "result").write_text(dumps(result(capacity=capacity, steps=[step(4)])))
        url, self._asked = held.enter_context(_server(drips=row.waits_for == DRIPS))
        (folder / "config").write_text(f"listen: 127.0.0.1:0\ntargets: [{{name: a, base_url: {url}}}]\n")
        places = {name: folder / name for name in ("config", "result", "trace", "pipe", "program", "out")}
        words = [one.format(**places, hangs=url, drips=url) for one in shlex.split(row.arguments)]
        output = self._full_pipe(held) if row.waits_for == READER else subprocess.DEVNULL
        self._process = subprocess.Popen(
            ["env", "--default-signal", *COMMAND, *row.command.split(), *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=held.enter_context((folder / "stderr").open("wb")),
            env={**os.environ, "TMPDIR": str(folder / "tmp"), "KNEEWATCH_LOG_LEVEL": "error"},
        )
        held.callback(self._kill)

    def _full_pipe(self, held: ExitStack) -> int:
        read, write = os.pipe()
        held.callback(os.close, read)
        held.callback(os.close, write)
        os.set_blocking(write, False)
        with suppress(BlockingIOError):
            while True:
                os.write(write, b"x" * 4096)
        os.set_blocking(write, True)
        return write

    @property
    def waits(self) -> bool:
        """Whether it is where it waits."""
        assert self._process.poll() is None, f"{self.row}: {self.errors}"
        if self.row.waits_for in (HANGS, DRIPS):
            return bool(self._asked)
        if self.row.waits_for == PROGRAM:
            return (self._folder / "started").exists()
        if self.row.waits_for == PIPE:
            with suppress(OSError):  # nobody reads it yet
                self._held.callback(os.close, os.open(self._pipe, os.O_WRONLY | os.O_NONBLOCK))
                return True
            return False
        call, *arguments = Path(f"/proc/{self._process.pid}/syscall").read_text().split()
        return arguments[:1] == [_WRITE.get(call)]

    def send(self, numbers: Sequence[signal.Signals]) -> None:
        self._began_s = time.monotonic()
        for number in numbers:
            if self._process.poll() is None:
                self._process.send_signal(number)
            time.sleep(0.05 if len(numbers) > 1 else 0)

    def check_end(self, numbers: Sequence[signal.Signals]) -> None:
        """Assert that it has ended as it must after these signals, with all its processes."""
        while self._process.poll() is None or self._left():
            late_s = time.monotonic() - self._began_s
            assert late_s < WITHIN_S, f"{self.row}: {self._process.poll()}, {self._left()}"
            time.sleep(0.02)
        by_signal = {status for one in numbers for status in (128 + one, -one)}
        expected = by_signal if self.row.status is None else {self.row.status}
        assert self._process.returncode in expected, f"{self.row}: {self.errors}"
        assert "Traceback" not in self.errors
        assert [*(self._folder / "tmp").iterdir()] == []
        assert not [*self._folder.glob(".kneewatch-*")]

    @property
    def errors(self) -> str:
        return (self._folder / "stderr").read_text()

    def _left(self) -> list[str]:
        """Return the processes that it started."""
        mark, found = f"TMPDIR={self._folder / 'tmp'}".encode(), []
        for each in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark in (each / "environ").read_bytes():
                    found.append((each / "cmdline").read_text().replace("\0", " "))
        return found

    def _kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.mark.fault(
    "SG2",
    "SIGTERM, SIGHUP or Ctrl-C, once or twice, to any command that waits: for a server or a Prometheus that hangs or"
    " drips, a pipe, a reader of its output, or a program of its own",
    area="Signals",
    users_see="no traceback; status 129, 130 or 143, or its own",
    stays="within 2 s no process and no temporary file",
)
@pytest.mark.parametrize("others", [False, True], ids=["SIGTERM", "others"])
@pytest.mark.long
def test_a_signal_ends_it_within_two_seconds(tmp_path: Path, *, others: bool) -> None:
    rows = [(row, OTHERS[n % len(OTHERS)] if others else (signal.SIGTERM,)) for n, row in enumerate(WAITING)]
    for first in range(0, len(rows), _AT_ONCE):
        with ExitStack() as held:
            starting = [
                (_Running(row, tmp_path / str(first + n), held), numbers)
                for n, (row, numbers) in enumerate(rows[first : first + _AT_ONCE])
            ]
            end_s = time.monotonic() + 60
            while starting:
                assert time.monotonic() < end_s, [one.row for one, _ in starting]
                for one, numbers in [each for each in starting if each[0].waits]:
                    one.send(numbers)
                    one.check_end(numbers)
                    starting.remove((one, numbers))
                time.sleep(0.05)
