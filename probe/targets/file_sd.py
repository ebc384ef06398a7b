"""Servers listed in files, in the format of Prometheus' file_sd: YAML or JSON, read again every few seconds.

A file that cannot be read or is half written keeps what it said last; one that has gone takes its servers with it. A
ConfigMap's swap of links and an editor's rename are seen like any other change, since the files are read, not watched.
"""

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path

import yaml

from probe.config_discover import FileDiscovery
from probe.targets import groups
from probe.targets.following import Told, polled
from probe.targets.found import State, state_of

_MAX_BYTES = 16 * 1024 * 1024


class FileSource:
    """The servers of all files that the patterns match."""

    def __init__(self, config: FileDiscovery, scheme: str, path: str, told: Told) -> None:
        self._patterns = config.files
        self._every_s = config.every
        self._scheme, self._path = scheme, path
        self._told = told
        self._read: dict[Path, State] = {}

    def states(self) -> AsyncGenerator[State, None]:
        return polled(self._ask, self._every_s, self._told)

    async def _ask(self) -> State:
        self._read, problems = await asyncio.to_thread(self._look, self._read)
        if problems:
            self._told.problem("; ".join(problems))
        else:
            self._told.well()
        return state_of(found for path in sorted(self._read) for found in self._read[path])

    def _look(self, before: dict[Path, State]) -> tuple[dict[Path, State], list[str]]:
        """What every file says now, or said before where it cannot be read, and what is wrong."""
        now: dict[Path, State] = {}
        problems: list[str] = []
        for pattern in self._patterns:
            paths = _matching(pattern)
            if not paths:
                problems.append(f"{pattern}: there is no such file")
            for path in paths:
                try:
                    now[path], left_out = groups.read(_document(path), self._scheme, self._path)
                    problems += [f"{path}: {words}" for words in left_out]
                except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
                    now[path] = before.get(path, ())
                    problems.append(f"{path}: {_words(error)}; what it said before holds")
        return now, problems


def _matching(pattern: str) -> list[Path]:
    path = Path(pattern)
    try:
        return sorted(one for one in path.parent.glob(path.name) if one.is_file())
    except OSError:
        return []


def _document(path: Path) -> object:
    with path.open("rb") as file:
        text = file.read(_MAX_BYTES + 1)
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
