"""Waterfall of recent canaries, as data for the page's script (page/waterfall.js). No I/O.

Each canary has its phases, from its scheduled time on, and a tick for each event that carried tokens. The phase that
missed its objective has a kind of its own: the wait if TTFT did, the tokens if another latency did.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from probe.core import latency
from probe.core import objectives as slo
from probe.core.objectives import Objectives
from probe.core.request import RequestRecord
from probe.report.figures import short, when
from probe.report.result_json import unknown_tpot

_ROWS = 20
_TICKS = 200
_LATE_S = 0.002  # a shorter delay is not visible
_NS = 1e-9


def waterfall(recent: Sequence[RequestRecord], objectives: Objectives) -> dict[str, Any] | None:
    """Return the waterfall of the newest canaries, or None if there are none."""
    if not recent:
        return None
    shown = recent[:_ROWS]
    first = [value for record in shown if (value := latency.ttft_s(record)) is not None]
    failed = sum(record.is_up is False for record in shown)
    slow = sum(bool(_missed(record, objectives)) for record in shown)
    words = f"Timing of the last {len(shown)} canaries, newest first: {failed} failed, {slow} missed an objective"
    if first:
        words += f"; first tokens after {short(min(first))} to {short(max(first))}"
    return {
        "rows": [_row(record, _missed(record, objectives)) for record in shown],
        "limit": objectives.ttft.within_s if objectives.ttft else None,
        "words": f"{words}. The table below lists each.",
    }


def _missed(record: RequestRecord, objectives: Objectives) -> Sequence[str]:
    """Return the latency objectives that an answered canary missed."""
    verdict = slo.met(record, objectives)
    return [name for name in objectives.latencies() if not verdict.get(name, True)]


def _row(record: RequestRecord, missed: Sequence[str]) -> dict[str, Any]:
    slow = f"missed {' and '.join(name.upper() for name in missed)}" if missed else ""
    return {
        "label": when(record.done_wall_s)[11:19],
        "when": f"{when(record.done_wall_s)}: {record.outcome.value}",
        "said": record.detail or slow,
        "pieces": [[kind, _rounded(start), _rounded(end)] for kind, start, end in _pieces(record, missed)],
        "tokens": [_rounded(at) for at in _ticks(record)],
        "facts": list(_facts(record)),
    }


def _pieces(record: RequestRecord, missed: Sequence[str]) -> Iterator[tuple[str, float, float]]:
    """Return the phases of a canary: kind, start and end in seconds."""
    late, done = max(latency.schedule_lag_s(record), 0.0), (record.done_ns - record.scheduled_ns) * _NS
    if late > _LATE_S:
        yield "late", 0.0, late
    else:
        late = 0.0
    first, last = latency.wait_s(record), _last_s(record)
    if not record.is_up or first is None:
        yield "failed", late, max(done, late)
        return
    is_slow = "ttft" in missed or (missed and not record.spec.api.generates)
    yield "slow_wait" if is_slow else "wait", late, first
    if last is not None and last > first:
        yield "slow_tokens" if set(missed) - {"ttft"} else "tokens", first, last


def _ticks(record: RequestRecord) -> list[float]:
    """Return the arrival times of tokens, at most about _TICKS of them."""
    stamps = record.events.at_ns
    every = max(1, -(-len(stamps) // _TICKS))
    return [(at - record.scheduled_ns) * _NS for at in stamps[::every]]


def _last_s(record: RequestRecord) -> float | None:
    return (record.events.at_ns[-1] - record.scheduled_ns) * _NS if record.events else None


def _facts(record: RequestRecord) -> Iterator[tuple[str, str]]:
    parts = latency.ttft_parts_s(record)
    known = (
        ("sent late", latency.schedule_lag_s(record)),
        ("TTFT", latency.ttft_s(record)),
        ("TTFT in the queue", parts.get("queue")),
        ("TTFT in prefill", parts.get("prefill")),
        ("TTFT outside the engine", parts.get("outside")),
        ("first token with text", latency.first_visible_s(record)),
        ("first token after reasoning", latency.first_answer_s(record)),
        ("TPOT", latency.tpot_s(record)),
        ("longest gap", latency.stall_s(record)),
        ("E2E", latency.e2e_s(record)),
    )
    yield from ((name, short(value)) for name, value in known if value is not None)
    if (why := unknown_tpot(record)) is not None:
        yield "TPOT", f"unknown: {why}"
    yield "tokens", f"{record.prompt_tokens} in, {record.output_tokens} out"


def _rounded(seconds: float) -> float:
    return round(seconds, 6)
