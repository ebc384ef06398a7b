"""A foreign program that runs only as long as this process: whatever ends this process ends the program too.

A keeper process, `python -m probe.runtime.kept_program WORD ...`, starts the program in a session of its own and waits
for the end of its own standard input, which the starting process holds: the kernel closes it, even after a SIGKILL.
Then the keeper ends the program and all its descendants, also those that have left its session: it is their subreaper.
Should the keeper itself be killed, the kernel kills the program. `free_port` finds a port for such a program.
"""

import asyncio
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import SystemRandom
from typing import Self

GRACE_S = 20.0  # between SIGTERM and SIGKILL
NOT_STARTED = 127  # the exit status of a shell for a command that is not found
_LOOK_S = 0.1
_PACKAGES = Path(__file__).parents[2]  # what an installed Kneewatch adds to PYTHONPATH (kneewatch/__init__.py)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)


class KeptProgram:
    """A program that has been started; its output goes to a file."""

    def __init__(self, keeper: asyncio.subprocess.Process) -> None:
        self._keeper = keeper

    @classmethod
    async def start(cls, words: Sequence[str], output: Path) -> Self:
        """Start the program, without a shell, and add its output to the file. Raises OSError."""
        with open(output, "ab", opener=_private) as file:  # noqa: ASYNC230 - Path.open has no opener; a local file
            keeper = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "probe.runtime.kept_program", *words),
                stdin=asyncio.subprocess.PIPE,
                stdout=file,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for this process, which then stops the program
            )
        return cls(keeper)

    @property
    def status(self) -> int | None:
        """Return the exit status of a program that has ended, as a shell has it; None while it runs."""
        return self._keeper.returncode

    async def wait(self) -> int:
        """Wait until the program has ended by itself, and return its exit status."""
        return await self._keeper.wait()

    async def stop(self) -> None:
        """End the program and all its descendants: SIGTERM, and SIGKILL after `GRACE_S`. Done when they are gone."""
        if self._keeper.stdin is not None:
            self._keeper.stdin.close()
        try:
            async with asyncio.timeout(GRACE_S + 10.0):
                await self._keeper.wait()
        except TimeoutError:  # a keeper that is stopped; the kernel then kills the program
            with suppress(ProcessLookupError):
                self._keeper.kill()
            await self._keeper.wait()


def main(words: Sequence[str]) -> int:
    """Run the program until it ends or standard input does. Return its exit status, as a shell has it."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    ended: dict[int, int] = {}
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    try:
        program = subprocess.Popen(  # noqa: S603 - what the user typed, without a shell
            words,
            stdin=subprocess.DEVNULL,
            env=without_own_path(os.environ),
            start_new_session=True,
            preexec_fn=lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509 - this process has one thread
        )
    except OSError as error:
        sys.stderr.write(f"{words[0]}: {error.strerror}\n")
        return NOT_STARTED
    while program.pid not in ended and not asked and not _is_closed(sys.stdin.fileno()):
        _reap(ended)
    _end_all(program.pid, ended)
    status = ended.get(program.pid, -signal.SIGKILL)
    program.returncode = status
    return status if status >= 0 else 128 - status


def without_own_path(environment: Mapping[str, str], packages: Path = _PACKAGES) -> dict[str, str]:
    """Return the environment as it was before Kneewatch added its own packages, which no other program may import."""
    found = dict(environment)
    if packages.name != "_packages" or "PYTHONPATH" not in found:  # in a checkout it adds nothing
        return found
    kept = [each for each in found.pop("PYTHONPATH").split(os.pathsep) if each != str(packages)]
    return found | ({"PYTHONPATH": os.pathsep.join(kept)} if kept else {})


def _is_closed(pipe: int) -> bool:
    """Wait a moment, and return whether the other end of the pipe has been closed."""
    readable, _, _ = select.select([pipe], [], [], _LOOK_S)
    return bool(readable) and not os.read(pipe, 1)


def _reap(ended: dict[int, int]) -> bool:
    """Note the exit statuses of children that have ended. Return whether there are any others."""
    try:
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = os.waitstatus_to_exitcode(found[1])
    except ChildProcessError:
        return False
    return True


def _end_all(session: int, ended: dict[int, int]) -> None:
    """End the program's group and, as they become children of this process, all other descendants."""
    if _signalled_until_gone(signal.SIGTERM, GRACE_S, session, ended):
        return
    _signalled_until_gone(signal.SIGKILL, GRACE_S, session, ended)


def _signalled_until_gone(number: signal.Signals, within_s: float, session: int, ended: dict[int, int]) -> bool:
    """Send each descendant the signal once, SIGKILL again and again, and return whether all are gone."""
    told: set[int] = set()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(session, number)
    end_s = time.monotonic() + within_s
    while _reap(ended):
        if time.monotonic() > end_s:
            return False
        for child in _children():
            if child not in told and child != session:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(child, number)
                if number is not signal.SIGKILL:
                    told.add(child)
        time.sleep(_LOOK_S / 2)
    return True


def _children() -> list[int]:
    """Return the children of this process; none where the kernel does not list them."""
    try:
        return [int(word) for word in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:
        return []


def _private(path: str, flags: int) -> int:
    """Open a file that only its owner may read: what servers print may hold secrets."""
    return os.open(path, flags, 0o600)


# Below the ports of outgoing connections (ip_local_port_range), which may take one that was free a moment before.
_PORTS = range(10_000, 32_768)


def free_port() -> int:
    """Return a TCP port that is free on 127.0.0.1."""
    while True:
        port = SystemRandom().choice(_PORTS)
        with socket.socket() as sock, suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
