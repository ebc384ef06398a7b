"""Results as tables in a terminal."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from probe import latency, slo
from probe.records import CapacityResult, Distribution, Objectives, Outcome, RequestRecord, StepSummary, TargetStatus
from probe.report.words import MISSING, ago, milliseconds, number, percent, promises
from probe.words import one_line

_STEP_COLUMNS = (
    "conc", "req/s", "output\ntok/s", "TTFT ms\np50/p95/p99", "ITL ms\np50/p95/p99", "E2E ms\np50/p95/p99",
    "good", "KV\npeak", "waiting\npeak", "preemp-\ntions", "error ms\nTTFT/ITL", "verdict",
)  # fmt: skip
_LINE = 500


def step_table(steps: Sequence[StepSummary]) -> Table:
    """The runbook's table: a row a step."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in _STEP_COLUMNS:
        table.add_column(column, justify="left" if column == "verdict" else "right", overflow="fold")
    for step in steps:
        server = step.server
        table.add_row(
            str(step.plan.concurrency),
            number(step.throughput_rps),
            number(step.output_tokens_per_second),
            _three(step.ttft_s),
            _three(step.itl_s),
            _three(step.e2e_s),
            percent(step.good_ratio.get(slo.ALL)),
            percent(server.kv_cache_usage_peak),
            number(server.waiting_peak),
            number(server.preemptions),
            f"{step.error_bound_s.ttft * 1000:.1f}/{step.error_bound_s.itl * 1000:.1f}",
            _verdict(step),
        )
    return table


def result_words(result: CapacityResult) -> str:
    """The knee, what it rests on, and what finding it cost."""
    capacity, cost = result.capacity, result.cost
    if capacity.requests_per_second is None:
        lines = [f"No knee: {capacity.reason}."]
    else:
        tokens = capacity.output_tokens_per_second
        bounds = f"{number(capacity.lower)} to {number(capacity.upper)}" if capacity.upper else "lower bound"
        lines = [
            f"Knee at {capacity.knee_concurrency} requests in flight ({capacity.mode}):",
            f"{number(capacity.requests_per_second)} requests/s ({bounds}), {number(tokens)} output tokens/s.",
        ]
        lines += [f"Limited by {capacity.limiting}."] if capacity.limiting else []
        lines += [f"Note: {capacity.reason}."] if capacity.reason else []
    reason = f" ({result.stopped.reason})" if result.stopped.reason else ""
    lines.append(f"Ended by {result.stopped.by}{reason}.")
    lines.append(
        f"Cost: {cost.requests} requests, {cost.tokens:,} tokens, {cost.seconds:.1f} s,"
        f" {cost.over_objective_seconds:.1f} s over an objective."
    )
    return "\n".join(one_line(line, _LINE) for line in lines)


def canary_words(record: RequestRecord, objectives: Objectives) -> str:
    """One canary round: what was measured, and which objectives it met."""
    verdicts = slo.met(record, objectives)
    words = f"{record.target} ({one_line(record.model)}): {record.outcome.value}"
    if record.outcome is not Outcome.OK:
        return f"{words}: {one_line(record.detail or '')}"
    missed = [name for name, good in verdicts.items() if not good and name != slo.ALL]
    return (
        f"{words}; TTFT {milliseconds(latency.ttft_s(record))}, TPOT {milliseconds(latency.tpot_s(record))},"
        f" E2E {milliseconds(latency.e2e_s(record))}, {record.prompt_tokens} + {record.output_tokens} tokens;"
        f" {'missed ' + ', '.join(missed) if missed else 'every objective met'} ({promises(objectives)})"
    )


def live_summary(statuses: Sequence[TargetStatus], wall_s: float) -> Table:
    """What the monitor sees now, at `wall_s`, for a terminal that is redrawn."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("target", "canaries", "good", "TTFT", "TPOT", "running", "waiting", "KV", "capacity", "limited by"):
        table.add_column(column, overflow="fold")
    for status in statuses:
        table.add_row(*(Text(one_line(cell)) for cell in _status_row(status, wall_s)))
    return table


def print_step(console: Console, step: StepSummary) -> None:
    """One line as a step ends, for runs somebody waits for."""
    console.print(
        f"  concurrency {step.plan.concurrency}: {number(step.throughput_rps)} req/s,"
        f" TTFT p95 {milliseconds(step.ttft_s.p95)}, TPOT p95 {milliseconds(step.tpot_s.p95)}, {_verdict(step)}",
        highlight=False,
    )


def _status_row(status: TargetStatus, wall_s: float) -> tuple[str, ...]:
    last = status.recent[0] if status.recent else None
    server, result = status.server, status.capacity
    capacity = result.capacity if result else None
    words = status.capacity_state or MISSING
    if result and capacity and capacity.requests_per_second is not None:
        rate = number(capacity.requests_per_second)
        words = f"{rate} req/s at {capacity.knee_concurrency}, {ago(result.ended_s, wall_s)}"
    return (
        status.name,
        f"{len(status.recent)}, last {last.outcome.value}" if last else "none yet",
        percent(slo.good_ratio(status.recent, status.objectives).get(slo.ALL)),
        milliseconds(latency.ttft_s(last) if last else None),
        milliseconds(latency.tpot_s(last) if last else None),
        number(server.running if server else None),
        number(server.waiting if server else None),
        percent(server.kv_cache_usage if server else None),
        words,
        (capacity.limiting or MISSING) if capacity else MISSING,
    )


def _verdict(step: StepSummary) -> str:
    if not step.valid:
        return f"invalid: {step.reason}"
    return f"broke {', '.join(step.broken)}" if step.broken else "held"


def _three(values: Distribution) -> str:
    if values.p50 is None or values.p95 is None or values.p99 is None:
        return MISSING
    return "/".join(
        f"{value * 1000:.1f}" if value < 1 else f"{value * 1000:.0f}" for value in (values.p50, values.p95, values.p99)
    )
