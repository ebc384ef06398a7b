"""The columns of result tables: what each takes from a result and one of its steps. Pure."""

from collections.abc import Callable
from dataclasses import dataclass

from probe.capacity.trend.measurement import ComparisonSection, Measurement
from probe.capacity.trend.replica_count import Price, gpus_of
from probe.core.result import CapacityResult
from probe.core.step import Distribution, StepSummary
from probe.report.figures import number
from probe.report.steps import step_verdict

Cell = str | float | None


@dataclass(frozen=True, slots=True)
class Row:
    """A result, and one of its steps; None: no step could be judged."""

    result: CapacityResult
    step: StepSummary | None


@dataclass(frozen=True, slots=True)
class ForeignRow:
    """A measurement of another benchmark, and one of its loads by name; None: the measurement as a whole."""

    measured: Measurement
    load: str | None = None

    @property
    def section(self) -> ComparisonSection:
        """Return the values at the load; none without one."""
        return ComparisonSection() if self.load is None else self.measured.sections[self.load]


@dataclass(frozen=True, slots=True)
class Column:
    """A column. `title` is its Markdown heading; None: in CSV only. `scale`: of the number in Markdown.

    `foreign`: what it takes from another benchmark, the name of a value or a function; None: nothing.
    """

    name: str
    value: Callable[[Row], Cell]
    title: str | None = None
    scale: float = 1.0
    optional: bool = False  # no column of a Markdown table where no row has a value
    foreign: str | Callable[[ForeignRow], Cell] | None = None

    def cell(self, row: Row | ForeignRow) -> Cell:
        """Return the value in a row."""
        if isinstance(row, Row):
            return self.value(row)
        if isinstance(self.foreign, str):
            found = row.section.values.get(self.foreign)
            return None if found is None else found.value
        return None if self.foreign is None else self.foreign(row)


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


def _workload(row: Row) -> Cell:
    return str(row.result.context.workload["name"])


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


def _percentile(latency: str, percentile: str, *, in_markdown: bool = True) -> Column:
    """Return the column of a percentile of TTFT, ITL, TPOT or E2E."""

    def value(step: StepSummary) -> Cell:
        found: Distribution = getattr(step, f"{latency.lower()}_s")
        return getattr(found, percentile)  # type: ignore[no-any-return]

    return Column(
        f"{latency.lower()}_{percentile}_seconds",
        _of_step(value),
        f"{latency} {percentile} ms" if in_markdown else None,
        1000,
        foreign=f"{latency} {percentile}",
    )


def _total(rate: Callable[[StepSummary], float]) -> Callable[[Row], Cell]:
    """Return what gets the tokens of a step by their rate."""
    return _of_step(lambda step: rate(step) * step.seconds)


def _stream_rate(row: Row) -> Cell:
    tpot_s = row.step.tpot_s.p50 if row.step is not None else None
    return 1 / tpot_s if tpot_s else None


def _foreign_stream_rate(row: ForeignRow) -> Cell:
    tpot = row.section.values.get("TPOT p50")
    return 1 / tpot.value if tpot is not None and tpot.value else None


def _foreign_length(name: str) -> Callable[[ForeignRow], Cell]:
    return lambda row: row.measured.lengths.get(name)


def _foreign_verdict(row: ForeignRow) -> Cell:
    failed = row.section.values.get("failed")
    return f"{failed.value:.1%} failed" if failed is not None and failed.value else None


RUN = (
    Column("started", lambda row: row.result.started.isoformat(timespec="seconds")),
    Column("target", lambda row: row.result.target),
    Column("model", lambda row: row.result.model, "model", foreign=lambda row: row.measured.parts.get("model")),
    Column("engine", lambda row: row.result.context.engine),
    Column("version", lambda row: row.result.context.version),
    Column("gpu", lambda row: row.result.context.gpu),
    Column(
        "workload",
        lambda row: str(row.result.context.workload["name"]),
        "workload",
        foreign=lambda row: row.measured.kind,
    ),
    Column("prompt_tokens", _length("prompt_tokens"), "prompt", foreign=_foreign_length("prompt tokens")),
    Column("output_tokens", _length("output_tokens"), "answer", foreign=_foreign_length("output tokens")),
    Column("shared_tokens", _length("shared_tokens")),
)
PROVENANCE = (
    *(
        Column(name, _fact(name))
        for name in (
            *("image", "commit", "node", "driver", "cuda", "dtype"),
            *("tensor_parallel_size", "max_model_len", "kv_cache_tokens"),
        )
    ),
    Column("client", lambda row: row.result.provenance.client if row.result.provenance else None),
    Column("seed", lambda row: row.result.provenance.seed if row.result.provenance else None),
    Column("kneewatch", lambda row: row.result.provenance.kneewatch if row.result.provenance else None),
    Column("command", lambda row: row.result.provenance.command if row.result.provenance else None),
)
_LATENCIES = ("TTFT", "ITL", "TPOT", "E2E")
_PERCENTILES = tuple(_percentile(latency, name) for latency in _LATENCIES for name in ("p50", "p95", "p99"))
_AT_CAPACITY = (_percentile("TTFT", "p95"), _percentile("TPOT", "p95"))
CAPACITY = (
    Column("capacity_requests_per_second", lambda row: row.result.capacity.requests_per_second, "requests/s"),
    Column("lower_requests_per_second", lambda row: row.result.capacity.lower),
    Column("upper_requests_per_second", lambda row: row.result.capacity.upper),
    Column("interval", _interval, "interval"),
    Column("output_tokens_per_second", lambda row: row.result.capacity.output_tokens_per_second, "output tokens/s"),
    *_AT_CAPACITY,
    Column("limiting", lambda row: row.result.capacity.limiting, "limited by"),
    Column("mode", lambda row: row.result.capacity.mode, "how"),
    Column("stopped_by", lambda row: row.result.stopped.by),
    Column("stopped_reason", lambda row: row.result.stopped.reason),
    Column("tokens_spent", lambda row: row.result.cost.tokens),
    Column("seconds", lambda row: row.result.cost.seconds),
    Column("note", lambda row: row.result.capacity.reason, "note", foreign=lambda _: "fixed loads: see --steps"),
)
STEP = (
    Column("load", _of_step(_load_words), "load", foreign=lambda row: row.load),
    Column("concurrency", _of_step(lambda step: step.plan.concurrency if step.plan.arrivals is None else None)),
    Column(
        "rate_requests_per_second",
        _of_step(lambda step: step.plan.arrivals.rate_rps if step.plan.arrivals is not None else None),
    ),
    Column("seconds", _of_step(lambda step: step.seconds)),
    Column("requests_ok", _of_step(lambda step: step.requests.ok), "requests"),
    Column("requests_failed", _of_step(lambda step: step.requests.failed), "failed"),
    Column("requests_per_second", _of_step(lambda step: step.throughput_rps), "requests/s", foreign="throughput"),
    Column("goodput_requests_per_second", _of_step(lambda step: step.goodput_rps), foreign="goodput"),
    Column(
        "output_tokens_per_second",
        _of_step(lambda step: step.output_tokens_per_second),
        "output tokens/s",
        foreign="output",
    ),
    Column("prompt_tokens_per_second", _of_step(lambda step: step.prompt_tokens_per_second), "prompt tokens/s"),
    Column("total_tokens_per_second", _of_step(lambda step: step.total_tokens_per_second), "total tokens/s"),
    Column("prompt_tokens_sum", _total(lambda step: step.prompt_tokens_per_second)),
    Column("output_tokens_sum", _total(lambda step: step.output_tokens_per_second)),
    Column("stream_tokens_per_second", _stream_rate, "tokens/s a stream", foreign=_foreign_stream_rate),
    *_PERCENTILES,
    *(_percentile(latency, name, in_markdown=False) for latency in _LATENCIES for name in ("mean", "p90")),
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
    Column(
        "gpu_dram_active_ratio", _of_step(lambda step: step.gpu.dram_active), "GPU memory active %", 100, optional=True
    ),
    Column(
        "gpu_tensor_active_ratio", _of_step(lambda step: step.gpu.tensor_active), "tensor active %", 100, optional=True
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
    Column("verdict", _of_step(lambda step: step_verdict(step)[1]), "verdict", foreign=_foreign_verdict),
)
