"""Which engine a metrics page is of, and what it says. Pure."""

from dataclasses import replace

from probe.records import ServerSnapshot
from probe.server import litellm, nim, page, sglang, tgi, triton, trtllm, vllm
from probe.server.page import Engine

# vLLM first: what stands in front of a server may relay its page beside its own.
ENGINES = (vllm.ENGINE, sglang.ENGINE, tgi.ENGINE, trtllm.ENGINE, triton.ENGINE, nim.ENGINE, litellm.ENGINE)


def parse(text: str, at_ns: int, wall_s: float, version: str = "unknown") -> ServerSnapshot:
    """The snapshot of one page. Raises ValueError where it is not Prometheus text, or no engine's."""
    engine = _of(text)
    if engine is None:
        raise ValueError(f"no series of {', '.join(each.name for each in ENGINES)} on the page")
    try:
        told = page.samples(text, engine.wanted)
        if not told:
            raise ValueError(f"no series of {engine.name} that says anything")
        found = engine.snapshot(told)
    except (LookupError, ArithmeticError) as error:  # a bucket without `le`, an integer beyond any float, ...
        raise ValueError(f"a damaged page: {error!r}") from None
    return replace(found, at_ns=at_ns, wall_s=wall_s, engine=engine.name, version=version)


def _of(text: str) -> Engine | None:
    lined = "\n" + text
    return next((each for each in ENGINES if any(f"\n{sign}" in lined for sign in each.signs)), None)
