"""Pages of replicas, or of data-parallel engines, that serve at a constant rate."""

from collections.abc import Mapping
from dataclasses import dataclass

from probe.core.snapshot import ServerSnapshot
from probe.scrape.engines import parse
from probe.scrape.replicas import merged

NOW_S = 1_700_000_000.0
OLD_S = NOW_S - 86_400


@dataclass(frozen=True)
class Engine:
    """How an engine serves: requests at any moment, KV cache use, output tokens/s, TTFT and ITL (s), requests/s."""

    running: float = 12
    waiting: float = 0
    kv: float = 0.5
    tokens: float = 600
    ttft: float = 0.2
    itl: float = 0.02
    requests: float = 3
    started_s: float = OLD_S
    fetched: float | None = None


def _lines(engine: Engine, at_s: float, label: str = "0") -> str:
    name = f'model_name="m",engine="{label}"'
    done, tokens = engine.requests * at_s, engine.tokens * at_s
    fetched = "" if engine.fetched is None else f"vllm:nixl_xfer_time_seconds_count{{{name}}} {engine.fetched * at_s}\n"
    return f"""vllm:num_requests_running{{{name}}} {engine.running}
vllm:num_requests_waiting{{{name}}} {engine.waiting}
vllm:kv_cache_usage_perc{{{name}}} {engine.kv}
vllm:generation_tokens_total{{{name}}} {tokens}
vllm:time_to_first_token_seconds_bucket{{{name},le="+Inf"}} {done}
vllm:time_to_first_token_seconds_sum{{{name}}} {done * engine.ttft}
vllm:inter_token_latency_seconds_bucket{{{name},le="+Inf"}} {tokens}
vllm:inter_token_latency_seconds_sum{{{name}}} {tokens * engine.itl}
{fetched}"""


def replicas(engines: Mapping[str, Engine], at_s: float) -> ServerSnapshot:
    """Return the pages of replicas, `at_s` after they began to serve."""
    pages = {
        address: parse(
            _lines(one, at_s) + f"process_start_time_seconds {one.started_s}\n", round(at_s * 1e9), NOW_S + at_s
        )
        for address, one in engines.items()
    }
    return merged(pages)


def ranks(engines: Mapping[str, Engine], at_s: float) -> ServerSnapshot:
    """Return the page of a data-parallel server."""
    text = "".join(_lines(one, at_s, label) for label, one in zip("0123", engines.values(), strict=False))
    return parse(f"{text}process_start_time_seconds {OLD_S}\n", round(at_s * 1e9), NOW_S + at_s)
