"""Servers listed in files, in the format of Prometheus' file_sd: YAML or JSON, read again every few seconds.

A file that cannot be read, is empty or is no list keeps what it said last; one that has gone takes its servers with it.
Half of a list may be a list too: a file that would lose servers, or is gone, is believed when it is still the same a
moment later. A ConfigMap's swap of links and an editor's rename are seen like any other change, since the files are
read, not watched.
"""

import asyncio
import json
import os
import stat
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import yaml

from probe.config.discovery import FileDiscovery
from probe.discovery import target_groups as groups
from probe.discovery.polling import ProblemReporter, polled
from probe.discovery.types import State, state_of

_MAX_BYTES = 16 * 1024 * 1024
# Whoever writes a file in place does not pause for as long between two pieces.
_SETTLED_S = 1.0
_LOOKS = 3
_Signature = tuple[int, int, int]


class FileSource:
    """The servers of all files that the patterns match."""

    def __init__(self, config: FileDiscovery, scheme: str, path: str, told: ProblemReporter) -> None:
        self._patterns = config.files
        self._every_s = config.every
        self._scheme, self._path = scheme, path
        self._told = told
        self._read: dict[Path, State] = {}  # what each file says, as far as it is believed
        self._doubted: dict[Path, _Signature | None] = {}  # how those were that lost servers at the last look

    def states(self) -> AsyncGenerator[State, None]:
        return polled(self._ask, self._every_s, self._told)

    async def _ask(self) -> State:
        problems = await asyncio.to_thread(self._look)
        for _ in range(_LOOKS - 1):
            if not self._doubted:
                break
            await asyncio.sleep(_SETTLED_S)
            problems = await asyncio.to_thread(self._look)
        problems += [f"{path}: it is being written; what it said before holds" for path in self._doubted]
        if problems:
            self._told.problem("; ".join(problems))
        else:
            self._told.well()
        return state_of(found for path in sorted(self._read) for found in self._read[path])

    def _look(self) -> list[str]:
        """Reads every file. Returns what is wrong."""
        problems: list[str] = []
        doubted: dict[Path, _Signature | None] = {}
        paths = set(self._matching(problems))
        for path in sorted(paths | set(self._read)):
            try:
                signature, servers = self._file(path, problems) if path in paths else (_signature(path), ())
            except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
                self._read.setdefault(path, ())
                problems.append(f"{path}: {_words(error)}; what it said before holds")
                continue
            before = self._read.get(path, ())
            loses = {one.id for one in before} - {one.id for one in servers}
            if loses and (path not in self._doubted or self._doubted[path] != signature):
                doubted[path] = signature
            elif path in paths:
                self._read[path] = servers
            else:
                del self._read[path]
        self._doubted = doubted
        return problems

    def _matching(self, problems: list[str]) -> Iterator[Path]:
        for pattern in self._patterns:
            paths = _matching(pattern)
            if not paths:
                problems.append(f"{pattern}: there is no such file")
            yield from paths

    def _file(self, path: Path, problems: list[str]) -> tuple[_Signature, State]:
        """How a file is, and what it says."""
        with path.open("rb") as file:
            signature = _of(os.fstat(file.fileno()))
            text = file.read(_MAX_BYTES + 1)
        servers, left_out = groups.read(_document(path, text), self._scheme, self._path)
        problems += [f"{path}: {words}" for words in left_out]
        return signature, servers


def _matching(pattern: str) -> list[Path]:
    path = Path(pattern)
    try:
        return sorted(one for one in path.parent.glob(path.name) if one.is_file())
    except OSError:
        return []


def _signature(path: Path) -> _Signature | None:
    """None: it has gone. Raises OSError where that cannot be told."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _of(found) if stat.S_ISREG(found.st_mode) else None


def _of(found: os.stat_result) -> _Signature:
    return found.st_ino, found.st_mtime_ns, found.st_size


def _document(path: Path, text: bytes) -> object:
    if len(text) > _MAX_BYTES:
        raise ValueError(f"it is larger than {_MAX_BYTES >> 20} MiB")
    if path.suffix == ".json":
        return json.loads(text) if text.strip() else None
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - either is a safe loader


def _words(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or "it cannot be read"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{error.problem or 'no YAML'} (line {error.problem_mark.line + 1})"
    return str(error)
