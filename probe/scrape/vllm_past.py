"""PromQL for the past of every vLLM server in a Prometheus: what each showed in each five minutes. Pure.

Every question has exact metric names: Google's Managed Prometheus takes no expression for them. A server is all that
has the same labels but for those of its engines and processes; a question adds up over these.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from probe.scrape import vllm
from probe.scrape.reads import names

# How vLLM's names begin: its own; Ray's; and behind exporters that allow no colon.
PREFIXES = ("vllm:", "ray_vllm_", "vllm_")
# Labels that tell apart what is of one server: its engines, API servers, and on Ray the workers of a replica.
WITHIN = frozenset({"engine", "pid", "WorkerId", "Component", "Version"})
MODEL = "model_name"
STEP_S = 300
_ENGINE = "engine"


@dataclass(frozen=True, slots=True)
class Row:
    """What is asked of a value: `function` over five minutes, added up as `total` says, apart by the label `part`."""

    key: str
    value: str  # of server_values.VALUES
    function: str
    total: str = "sum"
    suffix: str = ""
    part: str = ""


_GAUGE, _ADDED = "gauge", "sum"  # of an API server's processes, each has all of an engine: the largest counts
ROWS: tuple[Row, ...] = (
    Row("scrapes", "running", "count_over_time", "max"),
    Row("running", "running", "avg_over_time", _GAUGE),
    Row("most_running", "running", "max_over_time", "max"),  # of one engine
    Row("waiting", "waiting", "avg_over_time", _GAUGE),
    Row("engine_running", "running", "avg_over_time", "max", part=_ENGINE),
    Row("engine_waiting", "waiting", "avg_over_time", "max", part=_ENGINE),
    Row("kv_cache_usage", "kv_cache_usage", "max_over_time", "max"),
    Row("preemptions", "preemptions", "increase"),
    Row("prompt_tokens", "prompt_tokens", "increase"),
    Row("generation_tokens", "generation_tokens", "increase"),
    Row("prefix_cache_queries", "prefix_cache_queries", "increase"),
    Row("prefix_cache_hits", "prefix_cache_hits", "increase"),
    Row("finished", "finished", "increase", part="finished_reason"),
    Row("requests", "ttft", "increase", suffix="_count"),
    Row("ttft_s", "ttft", "increase", suffix="_sum"),
    Row("queue_s", "queue", "increase", suffix="_sum"),
    Row("prefill_s", "prefill", "increase", suffix="_sum"),
    Row("gaps", "itl", "increase", suffix="_count"),
    Row("gaps_s", "itl", "increase", suffix="_sum"),
)
# Histograms that are asked for as a whole: of latencies that can have an objective, and of lengths.
LATENCIES = ("ttft", "tpot", "e2e")
LENGTHS = ("prompt_length", "output_length")


@dataclass(frozen=True, slots=True)
class Scope:
    """What is asked about: matchers in PromQL, the prefixes that vLLM's names have there, and a server's labels."""

    matchers: str = ""
    prefixes: Sequence[str] = PREFIXES
    labels: Sequence[str] = ()

    def series(self, value: str, suffix: str = "", more: str = "") -> list[str]:
        """Return selectors of a value, by each of its names."""
        matchers = ", ".join(filter(None, (self.matchers, more)))
        return [
            f"{name.replace('vllm:', prefix, 1)}{suffix}{{{matchers}}}"
            for prefix in self.prefixes
            for name in names(vllm.READS, value)
        ]

    def by(self, *more: str) -> str:
        return f"by ({', '.join((*self.labels, *more))})"


def found_query(scope: Scope, seconds: float) -> str:
    """Return an instant query for the label sets of all servers that had a scrape in these seconds."""
    return " or ".join(f"last_over_time({one}[{seconds:.0f}s])" for one in scope.series("running"))


def row_query(row: Row, scope: Scope, window_s: float) -> str:
    """Return a range query for a row."""
    more = (row.part,) if row.part else ()
    return " or ".join(
        _total(row.total, scope, f"{row.function}({one}[{window_s:.0f}s])", more)
        for one in scope.series(row.value, row.suffix)
    )


def _total(total: str, scope: Scope, each: str, more: Sequence[str]) -> str:
    if total == _GAUGE:
        return f"sum {scope.by(*more)} (max {scope.by(_ENGINE, *more)} ({each}))"
    return f"{total} {scope.by(*more)} ({each})"


def buckets_query(scope: Scope, latency: str, bounds: Iterable[str], window_s: float) -> str:
    """Return a range query, or an instant one, for what was added to the buckets with these bounds; all by default."""
    only = "|".join(bound.replace(".", "\\\\.").replace("+", "\\\\+") for bound in bounds)
    chosen = f'le=~"{only}"' if only else ""
    return " or ".join(
        f"sum {scope.by('le')} (increase({one}[{window_s:.0f}s]))" for one in scope.series(latency, "_bucket", chosen)
    )


def sum_query(scope: Scope, histogram: str, seconds: float) -> str:
    """Return an instant query for the growth of a histogram's sum."""
    return " or ".join(f"sum {scope.by()} (increase({one}[{seconds:.0f}s]))" for one in scope.series(histogram, "_sum"))


def restarts_query(scope: Scope, seconds: float) -> str:
    """Return an instant query for how often each server began to count anew."""
    return " or ".join(f"max {scope.by()} (resets({one}[{seconds:.0f}s]))" for one in scope.series("generation_tokens"))


KV_LABELS = ("num_gpu_blocks", "block_size", "cache_dtype")


def kv_query(scope: Scope, seconds: float) -> str:
    """Return an instant query for the labels that say how large each server's KV cache is."""
    return " or ".join(
        f"max {scope.by(*KV_LABELS)} (last_over_time({one}[{seconds:.0f}s]))" for one in scope.series("kv_cache_tokens")
    )


def http_errors_query(scope: Scope, jobs: Iterable[str], window_s: float) -> str:
    """Return a range query for the answers with status 5xx to requests that generate."""
    matchers = ", ".join(
        filter(None, (scope.matchers, 'status=~"5.+", method="POST", handler=~"/v1/.+|/generate.*"', _jobs(jobs)))
    )
    return f"sum {scope.by()} (increase({vllm.HTTP_ANSWERS[0]}{{{matchers}}}[{window_s:.0f}s]))"


def up_query(scope: Scope, jobs: Iterable[str], window_s: float) -> str:
    """Return a range query for the share of scrapes that succeeded."""
    matchers = ", ".join(filter(None, (scope.matchers, _jobs(jobs))))
    return f"avg {scope.by()} (avg_over_time(up{{{matchers}}}[{window_s:.0f}s]))"


def _jobs(jobs: Iterable[str]) -> str:
    named = sorted(set(filter(None, jobs)))
    escaped = ("".join(char if char.isalnum() or char in "_-/" else f"[{char}]" for char in job) for job in named)
    return f"job=~{json.dumps('|'.join(escaped))}" if named else ""
