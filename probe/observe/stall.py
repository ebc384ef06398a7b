"""Detection of an engine that has requests and makes no progress. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from probe.core.snapshot import ServerSnapshot


@dataclass(frozen=True, slots=True)
class _Progress:
    """An engine's progress values, and since when they have not changed."""

    values: tuple[float | None, ...]
    since_ns: int


class StallDetector:
    """Follows the progress of each engine of one server."""

    def __init__(self) -> None:
        self._engines: dict[str, _Progress] = {}

    def add(self, snapshot: ServerSnapshot) -> float | None:
        """Return for how long (s) the worst engine has had requests without progress; None if progress is unknown."""
        stalled: list[float] = []
        for name, is_busy, values in _engines(snapshot):
            last = self._engines.get(name)
            if last is None or not is_busy or values != last.values:
                self._engines[name] = last = _Progress(values, snapshot.at_ns)
            stalled.append((snapshot.at_ns - last.since_ns) * 1e-9)
        return max(stalled, default=None)

    def clear(self) -> None:
        self._engines.clear()


def _engines(server: ServerSnapshot) -> Iterator[tuple[str, bool, tuple[float | None, ...]]]:
    """Yield each engine that the server reports separately: its name, whether it has requests, its progress values.

    The values are its tokens and its KV cache usage: while vLLM prefills a long prompt no counter moves, but the KV
    cache fills. The numbers of running and waiting requests do not count: users keep asking an engine that is stuck.
    """
    if server.by_engine:
        for name, engine in server.by_engine.items():
            if engine.generation_tokens is not None:
                yield name, bool(engine.running or engine.waiting), (engine.generation_tokens, engine.kv_cache_usage)
    elif server.progress is not None:
        values = (server.progress, server.kv_cache_usage, server.estimated_flops)
        yield "", bool(server.running or server.waiting), values
