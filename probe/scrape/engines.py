"""Detection of the engine behind a metrics page, and the parsing of the page. Pure."""

from dataclasses import replace

from probe.core.snapshot import ServerSnapshot
from probe.scrape import dynamo, litellm, llamacpp, nim, sglang, tgi, triton, trtllm, vllm
from probe.scrape import metrics_parser as page
from probe.scrape.reads import Engine
from probe.scrape.vllm import RAY_DELAY_S, as_vllm, is_of_ray

# vLLM first: a gateway may relay its server's page in addition to its own.
ENGINES = (
    vllm.ENGINE, sglang.ENGINE, tgi.ENGINE, trtllm.ENGINE, triton.ENGINE, nim.ENGINE, litellm.ENGINE, dynamo.ENGINE,
    llamacpp.ENGINE,
)  # fmt: skip
NAMES = tuple(each.name for each in ENGINES)
_PATH = "/metrics"  # most engines'
_STARTED = "process_start_time_seconds"  # on the page of every process that prometheus_client writes alone


class NotMetricsError(ValueError):
    """The page is of no supported engine, or of another one than the configured one."""


def path(engine: str | None) -> str:
    """Return the path of an engine's metrics page; None: the engine is not known."""
    return _PATH if engine is None else _named(engine).path


def parse(text: str, at_ns: int, wall_s: float, version: str = "unknown", engine: str | None = None) -> ServerSnapshot:
    """Parse one metrics page; as a page of `engine` if it is given.

    Raise ValueError if it is not Prometheus text, NotMetricsError if no engine's series are on it, or none of `engine`.
    """
    delay_s = 0.0
    if is_of_ray(text):
        text, delay_s = as_vllm(text), RAY_DELAY_S
    seems = next((each for each in ENGINES if _has_sign(text, each)), None)
    reader = seems if engine is None else _named(engine)
    if reader is None:
        raise NotMetricsError(f"no series of {', '.join(NAMES)} on the page")
    try:
        samples = page.samples(text, reader.wanted | {_STARTED})
        started = samples.pop(_STARTED, None)
        if not samples:
            raise _nothing(reader, seems, is_its_own=_has_sign(text, reader))
        found = reader.snapshot(samples)
    except (LookupError, ArithmeticError) as error:  # a bucket without `le`, an integer beyond any float, ...
        raise ValueError(f"a damaged page: {error!r}") from None
    started_s = started[0].value if started and len(started) == 1 else None
    return replace(found, version=version, started_s=started_s, at_ns=at_ns, wall_s=wall_s, delay_s=delay_s)


def _nothing(reader: Engine, seems: Engine | None, *, is_its_own: bool) -> ValueError:
    if is_its_own:
        return ValueError(f"no series of {reader.name} with a value")
    if seems is None:
        return NotMetricsError(f"no series of {reader.name} on the page, nor of any other engine")
    return NotMetricsError(f"no series of {reader.name} on the page, which seems to be {seems.name}'s; fix engine")


def _named(name: str) -> Engine:
    return ENGINES[NAMES.index(name)]


def _has_sign(text: str, engine: Engine) -> bool:
    return any(text.startswith(sign) or f"\n{sign}" in text for sign in engine.signs)
