"""Capacity results as tables: a row for each result, or for each load level. Pure.

As Markdown, to read and to keep in a repository; as CSV in base units (seconds, ratios), to compute with.
"""

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from probe.core.result import CapacityResult
from probe.core.step import StepSummary
from probe.core.text import one_line
from probe.report.figures import MISSING, number
from probe.report.markdown import cell
from probe.report.steps import step_verdict

Cell = str | float | None
_FORMULA = ("=", "+", "-", "@", "\t")


@dataclass(frozen=True, slots=True)
class _Row:
    """A result, and one of its load levels; None: it has none that could be judged."""

    result: CapacityResult
    step: StepSummary | None


@dataclass(frozen=True, slots=True)
class _Column:
    """A column. `title` is its Markdown heading; None: in CSV only. `scale`: of the number in Markdown."""

    name: str
    value: Callable[[_Row], Cell]
    title: str | None = None
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class ResultTable:
    """Columns, and the rows that they are taken from."""

    columns: Sequence[_Column]
    rows: Sequence[_Row]


def capacity_table(results: Iterable[CapacityResult]) -> ResultTable:
    """Return a row for each result; its latencies are those of the highest load level that met the objectives."""
    return ResultTable((*_RUN, *_CAPACITY), [_Row(each, _highest_held(each)) for each in results])


def step_table(results: Iterable[CapacityResult]) -> ResultTable:
    """Return a row for each load level of each result."""
    return ResultTable((*_RUN, *_STEP), [_Row(each, step) for each in results for step in each.steps])


def as_markdown(table: ResultTable) -> str:
    """Return the table as Markdown."""
    columns = [column for column in table.columns if column.title is not None]
    lines = [[column.title or "" for column in columns], ["---"] * len(columns)]
    lines += [[_words(column.value(row), column.scale) for column in columns] for row in table.rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def as_csv(table: ResultTable) -> str:
    """Return the table as CSV with a heading. Unknown values are empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(column.name for column in table.columns)
    writer.writerows([_plain(column.value(row)) for column in table.columns] for row in table.rows)
    return text.getvalue()


def _words(value: Cell, scale: float) -> str:
    if isinstance(value, str):
        return cell(value)
    return MISSING if value is None else number(value * scale)


def _plain(value: Cell) -> str | float:
    """Return the value for CSV. Text from a server must not be a formula in a spreadsheet."""
    if isinstance(value, str):
        text = one_line(value, 300)
        return f"'{text}" if text.startswith(_FORMULA) else text
    return "" if value is None else value


def _highest_held(result: CapacityResult) -> StepSummary | None:
    held = [step for step in result.steps if step.valid and not step.broken and not step.plan.is_pulse]
    return max(held, key=lambda step: step.plan.load, default=None)


def _interval(row: _Row) -> str | None:
    found = row.result.capacity
    if found.lower is None or found.upper is None:
        return f"at least {number(found.lower)}" if found.lower is not None else None
    return f"{number(found.lower)} to {number(found.upper)}"


def _length(name: str) -> Callable[[_Row], Cell]:
    """Return what gets a length of the workload: tokens, or words for lengths that vary."""

    def value(row: _Row) -> Cell:
        length = row.result.context.workload.get(name)
        if length is None or isinstance(length, int):
            return length
        return f"median {length['median']}" if isinstance(length, dict) and "median" in length else "varying"

    return value


def _of_step(value: Callable[[StepSummary], Cell]) -> Callable[[_Row], Cell]:
    return lambda row: value(row.step) if row.step is not None else None


def _load_words(step: StepSummary) -> str:
    if step.plan.is_pulse:
        return f"{step.plan.concurrency} at once"
    if step.plan.arrivals is None:
        return f"{step.plan.concurrency} in flight"
    return f"{number(step.plan.arrivals.rate_rps)} req/s"


_RUN = (
    _Column("started", lambda row: row.result.started.isoformat(timespec="seconds")),
    _Column("target", lambda row: row.result.target),
    _Column("model", lambda row: row.result.model, "model"),
    _Column("engine", lambda row: row.result.context.engine),
    _Column("version", lambda row: row.result.context.version),
    _Column("gpu", lambda row: row.result.context.gpu),
    _Column("workload", lambda row: str(row.result.context.workload["name"]), "workload"),
    _Column("prompt_tokens", _length("prompt_tokens"), "prompt"),
    _Column("output_tokens", _length("output_tokens"), "answer"),
    _Column("shared_tokens", _length("shared_tokens")),
)
_LATENCIES = (
    _Column("ttft_p95_seconds", _of_step(lambda step: step.ttft_s.p95), "TTFT p95 ms", 1000),
    _Column("tpot_p95_seconds", _of_step(lambda step: step.tpot_s.p95), "TPOT p95 ms", 1000),
)
_CAPACITY = (
    _Column("capacity_requests_per_second", lambda row: row.result.capacity.requests_per_second, "requests/s"),
    _Column("lower_requests_per_second", lambda row: row.result.capacity.lower),
    _Column("upper_requests_per_second", lambda row: row.result.capacity.upper),
    _Column("interval", _interval, "interval"),
    _Column("output_tokens_per_second", lambda row: row.result.capacity.output_tokens_per_second, "output tokens/s"),
    *_LATENCIES,
    _Column("limiting", lambda row: row.result.capacity.limiting, "limited by"),
    _Column("mode", lambda row: row.result.capacity.mode, "how"),
    _Column("stopped_by", lambda row: row.result.stopped.by),
    _Column("stopped_reason", lambda row: row.result.stopped.reason),
    _Column("tokens_spent", lambda row: row.result.cost.tokens),
    _Column("seconds", lambda row: row.result.cost.seconds),
    _Column("note", lambda row: row.result.capacity.reason, "note"),
)
_STEP = (
    _Column("load", _of_step(_load_words), "load"),
    _Column("concurrency", _of_step(lambda step: step.plan.concurrency if step.plan.arrivals is None else None)),
    _Column(
        "rate_requests_per_second",
        _of_step(lambda step: step.plan.arrivals.rate_rps if step.plan.arrivals is not None else None),
    ),
    _Column("seconds", _of_step(lambda step: step.seconds)),
    _Column("requests_ok", _of_step(lambda step: step.requests.ok), "requests"),
    _Column("requests_failed", _of_step(lambda step: step.requests.failed), "failed"),
    _Column("requests_per_second", _of_step(lambda step: step.throughput_rps), "requests/s"),
    _Column("goodput_requests_per_second", _of_step(lambda step: step.goodput_rps)),
    _Column("output_tokens_per_second", _of_step(lambda step: step.output_tokens_per_second), "output tokens/s"),
    _Column("prompt_tokens_per_second", _of_step(lambda step: step.prompt_tokens_per_second), "prompt tokens/s"),
    _Column("ttft_p50_seconds", _of_step(lambda step: step.ttft_s.p50), "TTFT p50 ms", 1000),
    *_LATENCIES,
    _Column("ttft_p99_seconds", _of_step(lambda step: step.ttft_s.p99)),
    _Column("tpot_p50_seconds", _of_step(lambda step: step.tpot_s.p50)),
    _Column("tpot_p99_seconds", _of_step(lambda step: step.tpot_s.p99)),
    _Column("itl_p99_seconds", _of_step(lambda step: step.itl_s.p99), "ITL p99 ms", 1000),
    _Column("e2e_p50_seconds", _of_step(lambda step: step.e2e_s.p50)),
    _Column("e2e_p95_seconds", _of_step(lambda step: step.e2e_s.p95), "E2E p95 ms", 1000),
    _Column("kv_cache_usage_peak_ratio", _of_step(lambda step: step.server.kv_cache_usage_peak), "KV peak %", 100),
    _Column("running_peak", _of_step(lambda step: step.server.running_peak), "running peak"),
    _Column("waiting_peak", _of_step(lambda step: step.server.waiting_peak), "waiting peak"),
    _Column("preemptions", _of_step(lambda step: step.server.preemptions), "preemptions"),
    _Column("gpu_utilization_ratio", _of_step(lambda step: step.gpu.utilization)),
    _Column("verdict", _of_step(lambda step: step_verdict(step)[1]), "verdict"),
)
