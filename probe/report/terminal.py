"""Canaries and targets as text for a terminal."""

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from probe.core import latency
from probe.core import objectives as slo
from probe.core.objectives import Objectives
from probe.core.request import Outcome, RequestRecord
from probe.core.target_status import TargetStatus
from probe.core.text import one_line
from probe.report.failure_text import refusal_words
from probe.report.figures import MISSING, ago, milliseconds, number, percent, promises
from probe.report.knee_text import knee_words, limit_words
from probe.report.result_json import unknown_tpot

_WIDE = 130
_SERVER = ("running", "waiting", "KV", "KV tokens")  # columns


def canary_words(record: RequestRecord, objectives: Objectives, server: str | None = None) -> str:
    """Return the result of one canary: latencies, and the objectives it met. `server`: instead of the target's name."""
    verdicts = slo.met(record, objectives)
    of = f"{server or record.target} ({one_line(record.model)})"
    if record.outcome is not Outcome.OK:
        return f"{of}: {record.outcome.value}: {one_line(record.detail or '')}{refusal_words(record)}"
    missed = [name for name, good in verdicts.items() if not good and name != slo.ALL]
    verdict = "ok, every objective met"
    unknown = ""
    if (why := unknown_tpot(record)) is not None:
        streamed = "not streamed: " if latency.is_held_back(record) else ""
        unknown = f" ({streamed}{why}, so TPOT is unknown)"
        verdict = "ok, every objective that can be judged is met"
    words = f"{of}: {'missed ' + ', '.join(missed) if missed else verdict}{unknown}"
    visible_s, reasoned_s = latency.first_visible_s(record), latency.first_answer_s(record)
    later = ("token with text", visible_s), ("answer token after reasoning", reasoned_s)
    first = "".join(f" first {what} {milliseconds(seconds)}," for what, seconds in later if seconds is not None)
    gap = f" longest gap {milliseconds(latency.stall_s(record))}," if objectives.itl is not None else ""
    promised = f"(objectives: {promises(objectives)})"
    if not record.spec.api.generates:
        return f"{words}; E2E {milliseconds(latency.e2e_s(record))}, {record.prompt_tokens} tokens {promised}"
    return (
        f"{words}; TTFT {milliseconds(latency.ttft_s(record))},{first}"
        f" TPOT {milliseconds(latency.tpot_s(record))},{gap} E2E {milliseconds(latency.e2e_s(record))},"
        f" {record.prompt_tokens} + {record.output_tokens} tokens {promised}"
    )


def live_summary(statuses: Sequence[TargetStatus], wall_s: float, width: int = _WIDE) -> Table:
    """Return the targets' current state at `wall_s` as a table; in less than _WIDE columns without the server's own."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    columns = ("target", "canaries", "good", "TTFT", "TPOT", *_SERVER, "capacity", "limited by")
    kept = [at for at, column in enumerate(columns) if width >= _WIDE or column not in _SERVER]
    for at in kept:
        table.add_column(columns[at], overflow="fold")
    for status in statuses:
        row = _status_row(status, wall_s)
        table.add_row(*(Text(one_line(row[at])) for at in kept))
    return table


def _status_row(status: TargetStatus, wall_s: float) -> tuple[str, ...]:
    last = status.recent[0] if status.recent else None
    server, result = status.server, status.capacity
    capacity = result.capacity if result else None
    words = status.capacity_state or MISSING
    if result and capacity and capacity.requests_per_second is not None:
        words = f"{number(capacity.requests_per_second)} req/s"
        if capacity.is_lower_bound:
            words = f"at least {words}"
        elif capacity.knee_concurrency is not None:
            words = f"{words} at {knee_words(capacity)}"
        words = f"{words}, {ago(result.ended_s, wall_s)}"
    return (
        status.name,
        f"{len(status.recent)}, last {last.outcome.value}" if last else "none yet",
        percent(slo.good_ratio(status.recent, status.objectives).get(slo.ALL)),
        milliseconds(latency.ttft_s(last) if last else None),
        milliseconds(latency.tpot_s(last) if last else None),
        number(server.running if server else None),
        number(server.waiting if server else None),
        percent(server.kv_cache_usage if server else None),
        number(server.kv_cache_tokens if server else None),
        words,
        (limit_words(result) or MISSING) if result else MISSING,
    )
