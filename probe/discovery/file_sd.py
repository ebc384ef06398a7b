"""Discovery by files in the format of Prometheus' file_sd: YAML or JSON, read again every few seconds.

A file that cannot be read, is empty or is not a list keeps its last servers; removing a file removes its servers. Half
of a list may also be a list: a file that would lose servers, or is gone, takes effect if it is the same a moment later.
The files are polled, not watched, so a ConfigMap's swap of links and an editor's rename work like any other change.
"""

import asyncio
import os
import stat
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import yaml

from probe.config.discovery import FileDiscovery
from probe.core.foreign_json import ForeignJsonError, read_json
from probe.discovery import target_groups as groups
from probe.discovery.polling import ProblemReporter, polled
from probe.discovery.target_groups import LIMITS, read_yaml
from probe.discovery.types import State, state_of

# Longer than the pause between two writes of a program that rewrites a file in place.
_SETTLED_S = 1.0
_LOOKS = 3
_Signature = tuple[int, int, int]


class FileSource:
    """The servers of all files that the patterns match."""

    def __init__(self, config: FileDiscovery, scheme: str, path: str, reporter: ProblemReporter) -> None:
        self._patterns = config.files
        self._every_s = config.every
        self._scheme, self._path = scheme, path
        self._reporter = reporter
        self._read: dict[Path, State] = {}  # the accepted servers of each file
        self._doubted: dict[Path, _Signature | None] = {}  # files that would lose servers, as of the last look

    def states(self) -> AsyncGenerator[State, None]:
        return polled(self._ask, self._every_s, self._reporter)

    async def _ask(self) -> State:
        problems = await asyncio.to_thread(self._look)
        for _ in range(_LOOKS - 1):
            if not self._doubted:
                break
            await asyncio.sleep(_SETTLED_S)
            problems = await asyncio.to_thread(self._look)
        problems += [f"{path}: it is being written; its last servers are kept" for path in self._doubted]
        if problems:
            self._reporter.problem("; ".join(problems))
        else:
            self._reporter.well()
        return state_of(found for path in sorted(self._read) for found in self._read[path])

    def _look(self) -> list[str]:
        """Read every file. Return the problems."""
        problems: list[str] = []
        doubted: dict[Path, _Signature | None] = {}
        paths = set(self._matching(problems))
        for path in sorted(paths | set(self._read)):
            try:
                signature, servers = self._file(path, problems) if path in paths else (_signature(path), ())
            except (OSError, ValueError, yaml.YAMLError) as error:
                self._read.setdefault(path, ())
                problems.append(f"{path}: {_words(error)}; its last servers are kept")
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
                problems.append(f"{pattern}: no file matches")
            yield from paths

    def _file(self, path: Path, problems: list[str]) -> tuple[_Signature, State]:
        """Return a file's signature and servers. Append a line to `problems` for what is left out."""
        # Not blocking: it may meanwhile be a FIFO, which nothing writes to.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise ValueError("it is not a regular file")
            signature, text = _signature_from(found), file.read(LIMITS.max_bytes + 1)
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
    """Return a file's signature, or None if it is gone. Raise OSError if neither can be determined."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _signature_from(found) if stat.S_ISREG(found.st_mode) else None


def _signature_from(found: os.stat_result) -> _Signature:
    return found.st_ino, found.st_mtime_ns, found.st_size


def _document(path: Path, text: bytes) -> object:
    if path.suffix == ".json":
        return read_json(text, LIMITS) if text.strip() else None
    return read_yaml(text)


def _words(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or "it cannot be read"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{error.problem or 'it is not YAML'} (line {error.problem_mark.line + 1})"
    return f"it {error}" if isinstance(error, ForeignJsonError) else str(error)
