"""The columns of result tables: what each takes from a result and one of its steps. Pure."""

from collections.abc import Callable
from dataclasses import dataclass

from probe.capacity.trend.replica_count import Price, gpus_of
from probe.core.result import CapacityResult
from probe.core.step import StepSummary
from probe.report.figures import number
from probe.report.steps import step_verdict

Cell = str | float | None


@dataclass(frozen=True, slots=True)
class Row:
    """A result, and one of its steps; None: no step could be judged."""

    result: CapacityResult
    step: StepSummary | None


@dataclass(frozen=True, slots=True)
class Column:
    """A column. `title` is its Markdown heading; None: in CSV only. `scale`: of the number in Markdown."""

    name: str
    value: Callable[[Row], Cell]
    title: str | None = None
    scale: float = 1.0
    optional: bool = False  # no column of a Markdown table where no row has a value


@dataclass(frozen=True, slots=True)
class GpuPrice:
    """Price of a GPU hour in any currency, and the GPUs of a replica; None: by the server's flags."""

    gpu_hour: float
    gpus: int | None = None

    def of_tokens(self, result: CapacityResult, accepted_tokens_per_second: float | None) -> float | None:
        """Return the price of a million accepted output tokens; None where none are."""
        if not accepted_tokens_per_second:
            return None
        return Price(self.gpu_hour, self.gpus or gpus_of(result)).of_tokens(1, accepted_tokens_per_second, 1.0)


def priced(price: GpuPrice | None) -> tuple[Column, ...]:
    """Return the column with the price of accepted output tokens, from requests that met every objective."""

    def value(row: Row) -> Cell:
        accepted = row.step.accepted_tokens_per_second if row.step is not None else None
        return price.of_tokens(row.result, accepted) if price is not None else None

    return () if price is None else (Column("price_per_million_accepted_tokens", value, "per million accepted tokens"),)


def _fact(name: str) -> Callable[[Row], Cell]:
    """Return what gets a fact about the server: from the flags, or as it was told."""

    def value(row: Row) -> Cell:
        made = row.result.provenance
        return row.result.context.flags.get(name) or (made.facts.get(name) if made is not None else None)

    return value


def _interval(row: Row) -> str | None:
    found = row.result.capacity
    if found.lower is None or found.upper is None:
        return f"at least {number(found.lower)}" if found.lower is not None else None
    return f"{number(found.lower)} to {number(found.upper)}"


def _length(name: str) -> Callable[[Row], Cell]:
    """Return what gets a length of the workload: tokens, or words for lengths that vary."""

    def value(row: Row) -> Cell:
        length = row.result.context.workload.get(name)
        if length is None or isinstance(length, int):
            return length
        return f"median {length['median']}" if isinstance(length, dict) and "median" in length else "varying"

    return value


def _of_step(value: Callable[[StepSummary], Cell]) -> Callable[[Row], Cell]:
    return lambda row: value(row.step) if row.step is not None else None


def _load_words(step: StepSummary) -> str:
    if step.plan.is_pulse:
        return f"{step.plan.concurrency} at once"
    if step.plan.arrivals is None:
        return f"{step.plan.concurrency} in flight"
    return f"{number(step.plan.arrivals.rate_rps)} req/s"


RUN = (
    Column("started", lambda row: row.result.started.isoformat(timespec="seconds")),
    Column("target", lambda row: row.result.target),
    Column("model", lambda row: row.result.model, "model"),
    Column("engine", lambda row: row.result.context.engine),
    Column("version", lambda row: row.result.context.version),
    Column("gpu", lambda row: row.result.context.gpu),
    Column("workload", lambda row: str(row.result.context.workload["name"]), "workload"),
    Column("prompt_tokens", _length("prompt_tokens"), "prompt"),
    Column("output_tokens", _length("output_tokens"), "answer"),
    Column("shared_tokens", _length("shared_tokens")),
)
PROVENANCE = (
    *(
        Column(name, _fact(name))
        for name in ("image", "commit", "node", "driver", "cuda", "dtype", "tensor_parallel_size", "max_model_len")
    ),
    Column("client", lambda row: row.result.provenance.client if row.result.provenance else None),
    Column("seed", lambda row: row.result.provenance.seed if row.result.provenance else None),
    Column("kneewatch", lambda row: row.result.provenance.kneewatch if row.result.provenance else None),
    Column("command", lambda row: row.result.provenance.command if row.result.provenance else None),
)
_LATENCIES = (
    Column("ttft_p95_seconds", _of_step(lambda step: step.ttft_s.p95), "TTFT p95 ms", 1000),
    Column("tpot_p95_seconds", _of_step(lambda step: step.tpot_s.p95), "TPOT p95 ms", 1000),
)
CAPACITY = (
    Column("capacity_requests_per_second", lambda row: row.result.capacity.requests_per_second, "requests/s"),
    Column("lower_requests_per_second", lambda row: row.result.capacity.lower),
    Column("upper_requests_per_second", lambda row: row.result.capacity.upper),
    Column("interval", _interval, "interval"),
    Column("output_tokens_per_second", lambda row: row.result.capacity.output_tokens_per_second, "output tokens/s"),
    *_LATENCIES,
    Column("limiting", lambda row: row.result.capacity.limiting, "limited by"),
    Column("mode", lambda row: row.result.capacity.mode, "how"),
    Column("stopped_by", lambda row: row.result.stopped.by),
    Column("stopped_reason", lambda row: row.result.stopped.reason),
    Column("tokens_spent", lambda row: row.result.cost.tokens),
    Column("seconds", lambda row: row.result.cost.seconds),
    Column("note", lambda row: row.result.capacity.reason, "note"),
)
STEP = (
    Column("load", _of_step(_load_words), "load"),
    Column("concurrency", _of_step(lambda step: step.plan.concurrency if step.plan.arrivals is None else None)),
    Column(
        "rate_requests_per_second",
        _of_step(lambda step: step.plan.arrivals.rate_rps if step.plan.arrivals is not None else None),
    ),
    Column("seconds", _of_step(lambda step: step.seconds)),
    Column("requests_ok", _of_step(lambda step: step.requests.ok), "requests"),
    Column("requests_failed", _of_step(lambda step: step.requests.failed), "failed"),
    Column("requests_per_second", _of_step(lambda step: step.throughput_rps), "requests/s"),
    Column("goodput_requests_per_second", _of_step(lambda step: step.goodput_rps)),
    Column("output_tokens_per_second", _of_step(lambda step: step.output_tokens_per_second), "output tokens/s"),
    Column("prompt_tokens_per_second", _of_step(lambda step: step.prompt_tokens_per_second), "prompt tokens/s"),
    Column("total_tokens_per_second", _of_step(lambda step: step.total_tokens_per_second), "total tokens/s"),
    Column("ttft_p50_seconds", _of_step(lambda step: step.ttft_s.p50), "TTFT p50 ms", 1000),
    *_LATENCIES,
    Column("ttft_p90_seconds", _of_step(lambda step: step.ttft_s.p90)),
    Column("tpot_p90_seconds", _of_step(lambda step: step.tpot_s.p90)),
    Column("e2e_p90_seconds", _of_step(lambda step: step.e2e_s.p90)),
    Column("ttft_p99_seconds", _of_step(lambda step: step.ttft_s.p99)),
    Column("tpot_p50_seconds", _of_step(lambda step: step.tpot_s.p50)),
    Column("tpot_p99_seconds", _of_step(lambda step: step.tpot_s.p99)),
    Column("itl_p99_seconds", _of_step(lambda step: step.itl_s.p99), "ITL p99 ms", 1000),
    Column("e2e_p50_seconds", _of_step(lambda step: step.e2e_s.p50)),
    Column("e2e_p95_seconds", _of_step(lambda step: step.e2e_s.p95), "E2E p95 ms", 1000),
    Column("kv_cache_usage_peak_ratio", _of_step(lambda step: step.server.kv_cache_usage_peak), "KV peak %", 100),
    Column("running_peak", _of_step(lambda step: step.server.running_peak), "running peak"),
    Column("waiting_peak", _of_step(lambda step: step.server.waiting_peak), "waiting peak"),
    Column("preemptions", _of_step(lambda step: step.server.preemptions), "preemptions"),
    Column(
        "prefix_hit_ratio", _of_step(lambda step: step.server.prefix_hit_ratio), "prefix hits %", 100, optional=True
    ),
    Column("gpu_utilization_ratio", _of_step(lambda step: step.gpu.utilization)),
    Column(
        "gpu_utilization_peak_ratio",
        _of_step(lambda step: step.gpu.utilization_peak),
        "GPU peak %",
        100,
        optional=True,
    ),
    Column("gpu_memory_peak_ratio", _of_step(lambda step: step.gpu.memory_peak)),
    Column(
        "gpu_memory_peak_bytes",
        _of_step(lambda step: step.gpu.memory_peak_bytes),
        "GPU memory peak GiB",
        2**-30,
        optional=True,
    ),
    Column("gpu_power_watts", _of_step(lambda step: step.gpu.total_power_w), "GPUs W", 1, optional=True),
    Column("output_tokens_per_joule", _of_step(lambda step: step.tokens_per_joule), "tokens/J", 1, optional=True),
    Column("verdict", _of_step(lambda step: step_verdict(step)[1]), "verdict"),
)
