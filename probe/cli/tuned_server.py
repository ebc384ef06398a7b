"""The server that `kneewatch tune` measures with one set of settings after another: started here, or changed elsewhere.

Nothing is run but the commands that the user typed, without a shell, and each ends with this process.
"""

import asyncio
import shlex
import shutil
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import httpx

from probe.cli.tune_knobs import filled, with_settings
from probe.core.errors import ConfigError, TargetError
from probe.core.request import Outcome
from probe.core.text import one_line
from probe.runtime.kept_program import KeptProgram
from probe.scrape.local_process import is_open_to_others

Settings = Mapping[str, str]

_PORT = "{port}"
_LOOK_S = 0.5
_ANSWER_S = 5.0
_LAST_LINES = 3
_TAIL = 16_384


class StartError(TargetError):
    """A server that did not come up with some settings."""

    def __init__(self, message: str) -> None:
        super().__init__(message, Outcome.UNREACHABLE)


class TunedServer(Protocol):
    """A server that is started with changed settings."""

    def serving(self, settings: Settings, log: Path) -> AbstractAsyncContextManager[None]:
        """Run the server with these settings while the block lasts. Raises StartError."""
        ...

    @property
    def restored_within_s(self) -> float | None:
        """Return how long `restore` may take; None: the server does not go on, so there is nothing to restore."""
        ...

    async def restore(self, settings: Settings, log: Path) -> None:
        """Leave the server with these settings. Raises StartError, and ConfigError where it cannot begin."""
        ...


@dataclass(frozen=True, slots=True)
class Readiness:
    """How a server shows that it is ready: 200 at an address within a time."""

    url: str
    within_s: float

    async def wait(self, program: KeptProgram | None, log: Path, *, is_private: bool) -> None:
        """Wait until the server is ready. Raises StartError, with the last lines of its output.

        `program`: ends with the server. `is_private`: it must be reached from this machine only.
        """
        try:
            async with asyncio.timeout(self.within_s), httpx.AsyncClient(trust_env=False, timeout=_ANSWER_S) as client:
                while not await self._answers(client):
                    if program is not None and program.status is not None:
                        raise self.failed(f"ended with status {program.status} before it was ready", log)
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            raise self.failed(
                f"was not ready within {self.within_s:g} s at {self.url} (--start-timeout)", log
            ) from None
        port = urlsplit(self.url).port
        if is_private and port is not None and await asyncio.to_thread(is_open_to_others, port):
            raise ConfigError(
                f"--start: the server on port {port} can be reached from other machines; have it listen on 127.0.0.1"
                " (--host 127.0.0.1; docker: -p 127.0.0.1:{port}:8000), or allow it with --any-host"
            )

    def failed(self, what: str, log: Path) -> StartError:
        """Return the error of a server that did not come up."""
        words = " / ".join(_last_lines(log))
        return StartError(f"the server {what}; its output ends with: {one_line(words, 400) or 'nothing'} ({log})")

    async def _answers(self, client: httpx.AsyncClient) -> bool:
        try:
            async with client.stream("GET", self.url) as answer:
                return answer.is_success
        except (httpx.HTTPError, httpx.InvalidURL):
            return False


@dataclass(frozen=True, slots=True)
class StartedServer:
    """A server that is started with each set of settings, and stopped after it."""

    words: Sequence[str]
    port: int
    ready: Readiness
    any_host: bool = False

    @asynccontextmanager
    async def serving(self, settings: Settings, log: Path) -> AsyncIterator[None]:
        """See TunedServer."""
        if await asyncio.to_thread(is_taken, self.port):
            raise ConfigError(f"--port {self.port}: another program listens there; stop it, or choose another port")
        words = [word.replace(_PORT, str(self.port)) for word in with_settings(self.words, settings)]
        program = await _started(words, log)
        try:
            await self.ready.wait(program, log, is_private=not self.any_host)
            yield
        finally:
            await program.stop()

    restored_within_s = None

    async def restore(self, settings: Settings, log: Path) -> None:
        """Do nothing: it does not go on."""


@dataclass(frozen=True, slots=True)
class AppliedServer:
    """A server that runs elsewhere, such as in a cluster: commands apply settings, and wait until it has them."""

    commands: Sequence[Sequence[str]]
    ready: Readiness

    @asynccontextmanager
    async def serving(self, settings: Settings, log: Path) -> AsyncIterator[None]:
        """See TunedServer."""
        await self.restore(settings, log)
        yield

    @property
    def restored_within_s(self) -> float:
        """See TunedServer."""
        return (len(self.commands) + 1) * self.ready.within_s

    async def restore(self, settings: Settings, log: Path) -> None:
        """Apply these settings. See TunedServer."""
        for command in self.commands:
            words = filled(command, settings)
            program = await _started(words, log)
            try:
                async with asyncio.timeout(self.ready.within_s):
                    status = await program.wait()
            except TimeoutError:
                what = f"was not changed: {words[0]} did not end within {self.ready.within_s:g} s (--start-timeout)"
                raise self.ready.failed(what, log) from None
            finally:
                await program.stop()
            if status:
                raise self.ready.failed(f"was not changed: {words[0]} ended with status {status}", log)
        await self.ready.wait(None, log, is_private=False)


def words_of(text: str, option: str) -> list[str]:
    """Split a command into its words, as a shell does. Raises ConfigError."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"{option}: cannot be split into words ({error}); check its quotes") from None
    if not words or shutil.which(words[0]) is None:
        raise ConfigError(
            f"{option}: {one_line(words[0]) if words else 'nothing'} is not a command on this machine; check its path"
        )
    return words


def is_taken(port: int) -> bool:
    """Return whether a program listens on that port of this machine."""
    with socket.socket() as found:
        found.settimeout(1.0)
        return found.connect_ex(("127.0.0.1", port)) == 0


async def _started(words: Sequence[str], log: Path) -> KeptProgram:
    try:
        return await KeptProgram.start(words, log)
    except OSError as error:
        raise ConfigError(f"{log}: cannot be written, or no process can be started ({error.strerror})") from None


def _last_lines(log: Path) -> list[str]:
    """Return the last lines of a file that say something."""
    try:
        with log.open("rb") as file:
            file.seek(max(file.seek(0, 2) - _TAIL, 0))
            lines = file.read(_TAIL).decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    return [line.strip() for line in lines if line.strip()][-_LAST_LINES:]
