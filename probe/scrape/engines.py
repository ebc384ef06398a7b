"""Which engine a metrics page is of, where it is, and what it says. Pure."""

from dataclasses import replace

from probe.core.snapshot import ServerSnapshot
from probe.scrape import litellm, nim, sglang, tgi, triton, trtllm, vllm
from probe.scrape import metrics_parser as page
from probe.scrape.metrics_parser import EngineMetrics

# vLLM first: what stands in front of a server may relay its page beside its own.
ENGINES = (vllm.ENGINE, sglang.ENGINE, tgi.ENGINE, trtllm.ENGINE, triton.ENGINE, nim.ENGINE, litellm.ENGINE)
NAMES = tuple(each.name for each in ENGINES)
_PATH = "/metrics"  # of most
_STARTED = "process_start_time_seconds"  # on the page of every process that prometheus_client writes alone


class NotMetricsError(ValueError):
    """A page of no engine that is read, or of another one than was said."""


def path(engine: str | None) -> str:
    """Where the page of that engine is beside its API; None: it is not known which one it is."""
    return _PATH if engine is None else _named(engine).path


def parse(text: str, at_ns: int, wall_s: float, version: str = "unknown", engine: str | None = None) -> ServerSnapshot:
    """The snapshot of one page, read as that engine's, where it is told which. Raises ValueError where it is not
    Prometheus text, NotMetricsError where it is no engine's, or not that one's.
    """
    seems = next((each for each in ENGINES if _signed(text, each)), None)
    reader = seems if engine is None else _named(engine)
    if reader is None:
        raise NotMetricsError(f"no series of {', '.join(NAMES)} on the page")
    try:
        told = page.samples(text, reader.wanted | {_STARTED})
        started = told.pop(_STARTED, None)
        if not told:
            raise _nothing(reader, seems, is_its_own=_signed(text, reader))
        found = reader.snapshot(told)
    except (LookupError, ArithmeticError) as error:  # a bucket without `le`, an integer beyond any float, ...
        raise ValueError(f"a damaged page: {error!r}") from None
    started_s = started[0].value if started and len(started) == 1 else None
    return replace(found, at_ns=at_ns, wall_s=wall_s, engine=reader.name, version=version, started_s=started_s)


def _nothing(reader: EngineMetrics, seems: EngineMetrics | None, *, is_its_own: bool) -> ValueError:
    if is_its_own:
        return ValueError(f"no series of {reader.name} that says anything")
    if seems is None:
        return NotMetricsError(f"no series of {reader.name} on the page, nor of any other engine")
    return NotMetricsError(f"no series of {reader.name} on the page, which seems to be {seems.name}'s; mend engine")


def _named(name: str) -> EngineMetrics:
    return ENGINES[NAMES.index(name)]


def _signed(text: str, engine: EngineMetrics) -> bool:
    return any(text.startswith(sign) or f"\n{sign}" in text for sign in engine.signs)
