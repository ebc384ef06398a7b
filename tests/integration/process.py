"""A program under test: its own process group, its output in a file, gone when the test run is.

Every program here listens on 127.0.0.1 only, on a port that was free a moment before.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

# Timings are only worth comparing when server and client do not share a core.
_CORES = sorted(os.sched_getaffinity(0))
SERVER_CORE, CLIENT_CORE = _CORES[0], _CORES[-1]


def pinned(command: Sequence[str], core: int) -> list[str]:
    """Return `command` pinned to this core; unchanged on a machine with one core."""
    return [*command] if len(_CORES) == 1 else ["taskset", "-c", str(core), *command]


def eventually(check: Callable[[], object], *, within_s: float, what: str, every_s: float = 0.25) -> None:
    """Wait until `check()` is true. Raises AssertionError after `within_s`."""
    end = time.monotonic() + within_s
    while not check():
        assert time.monotonic() < end, f"not within {within_s:.0f} s: {what}"
        time.sleep(every_s)


class Process:
    """A running program; `log` collects what it prints."""

    def __init__(self, command: Sequence[str], log: Path, *, env: Mapping[str, str] | None = None) -> None:
        self.log = log
        # setpriv: should the test run itself be killed, the kernel ends the program.
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def alive(self) -> bool:
        return self._popen.poll() is None

    def ready(self, check: Callable[[], bool], *, within_s: float) -> None:
        """Wait until `check()` is true. Otherwise end the program and fail with its last output."""
        end = time.monotonic() + within_s
        while self.alive and time.monotonic() < end:
            if check():
                return
            time.sleep(0.1)
        state = "was not ready in time" if self.alive else f"ended with status {self._popen.returncode}"
        self.kill()
        raise AssertionError(f"{self.log.stem} {state}; its output ends with:\n{self.tail()}")

    def tail(self, size: int = 4000) -> str:
        return self.log.read_text(errors="replace")[-size:]

    def terminate(self, within_s: float = 30.0) -> int:
        """Send SIGTERM and return the exit status. Raises AssertionError if the program does not end."""
        self._popen.send_signal(signal.SIGTERM)
        try:
            return self._popen.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.log.stem} ignored SIGTERM for {within_s:.0f} s:\n{self.tail()}") from None
        finally:
            self.kill()

    def kill(self) -> None:
        """Send SIGKILL to the whole process group, including children that the program left behind."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()
