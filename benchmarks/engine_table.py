"""The table of docs/engines.md: what each engine's page says, by the engine's row in `probe/scrape`."""

from collections.abc import Callable, Iterator

from probe.scrape.engines import ENGINES
from probe.scrape.reads import Engine, Proof

_OUTCOMES = ("ok", "failed", "aborted")


def _reads(key: str) -> Callable[[Engine], str]:
    return lambda engine: "yes" if key in engine.reads else "no"


# The rows and what they say of an engine unless its `cells` do.
_ROWS: tuple[tuple[str, Callable[[Engine], str]], ...] = (
    ("running, waiting", _reads("waiting")),
    ("KV cache usage", _reads("kv_cache_usage")),
    ("preemptions", _reads("preemptions")),
    ("tokens", lambda engine: engine.facts.tokens),
    ("each data-parallel engine", lambda _: "no"),
    ("model's name", lambda _: "no"),
    ("TTFT", _reads("ttft")),
    ("ITL", _reads("itl")),
    ("progress", _reads("progress")),
    ("canary", lambda engine: "not tested" if engine.facts.proof is Proof.SOURCES else "yes"),
    ("guarded load", lambda _: "the guard sees the queue"),
    ("forecast, verified capacity", lambda _: "no"),
)
HEAD = ("", *(engine.facts.title for engine in ENGINES))


def rows() -> Iterator[tuple[str, ...]]:
    """Yield the rows, each with a cell for each engine."""
    yield ("`engine`", *(f"`{engine.name}`" for engine in ENGINES))
    yield ("versions", *(engine.facts.versions for engine in ENGINES))
    yield ("tried", *(engine.facts.proof for engine in ENGINES))
    yield ("page", *(f"`{engine.path}` {engine.facts.cells.get('page', '')}" for engine in ENGINES))
    for name, default in _ROWS:
        yield (name, *(engine.facts.cells.get(name, default(engine)) for engine in ENGINES))
    for index, outcome in enumerate(_OUTCOMES):
        yield (f"`{outcome}` requests", *(engine.facts.outcomes[index] or "not counted" for engine in ENGINES))


CELLS = {"page", *(name for name, _ in _ROWS)}
