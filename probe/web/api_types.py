"""Types of the API's answers, also the source of its OpenAPI document, and their construction."""

import time
from collections.abc import Sequence

from typing_extensions import TypedDict

from exporters.discovery import exported_labels
from probe.core.canary_history import CanaryHistory
from probe.core.failure_log import FailureGroup
from probe.core.result import CapacityResult, Correction, Roofline
from probe.core.snapshot import CrossChecks, Gpu, ServerSnapshot, UserLoad
from probe.report.cross_check_text import Finding
from probe.report.figures import iso
from probe.report.result_json import RecordJson, record_json
from probe.web import overview
from probe.web.history import PERIODS, budgets_left, uptime
from probe.web.state import ASLEEP


class ServerJson(TypedDict):
    """A server's metrics at the last scrape. null: not exposed."""

    engine: str
    version: str
    running: float | None
    waiting: float | None
    kv_cache_usage_ratio: float | None
    kv_cache_tokens: float | None
    kv_cache_bytes: float | None  # on each GPU
    preemptions: float | None
    at: str


class CapacityJson(TypedDict):
    """A capacity in requests/s of user and probe traffic. null, with a `reason`, if none was found.

    `workload`: the name of its workload; `users` for the requests that users send.
    """

    started: str
    ended: str
    workload: str
    mode: str
    requests_per_second: float | None
    lower: float | None
    upper: float | None
    output_tokens_per_second: float | None
    knee_concurrency: int | None
    limiting: str | None
    bottleneck: str | None
    reason: str | None
    advice: str | None
    learnt_from: tuple[float, float] | None
    bottleneck_gain: float | None
    roofline: Roofline | None
    prefill_tokens_per_second: float | None
    correction: Correction | None


class MeasuredJson(CapacityJson):
    """A capacity measured with load, and its run."""

    run: str


class FailureGroupJson(TypedDict):
    """Failures in a row with one outcome and HTTP status. `recovered` is null until a canary has succeeded again."""

    outcome: str
    http_status: int | None
    detail: str | None
    count: int
    first: str
    last: str
    recovered: str | None


class TargetJson(TypedDict):
    """The current state of a target. Times in seconds, shares from 0 to 1.

    `state_since`: when the trouble of a failing or slow target began, or since when it is good or asleep; null if
    unknown. `because`: why it is slow. `doubts`: why its values may be wrong.
    `failed_share`, `late_share`: of its last 20 canaries, or of
    users' requests in five minutes, whichever is larger; a failed one is late, too. `server` is null while its page
    cannot be read. `since`: when the target went up or down, or its first canary; null while `up` is null. `uptime`:
    the share of canaries answered in the last 24 h, 7 d and 30 d; null without canaries. `budgets`: the share of each
    error budget that is left; below 0: overspent. `asleep_since`: the first scrape that showed the server asleep; null
    while the server is awake or does not report it. `up` is null while the server sleeps. `discovery` and `labels`: the
    discovery that found the target, and its labels; null and {} for a configured target.
    """

    name: str
    base_url: str
    model: str
    state: str
    state_since: str | None
    because: str | None
    failed_share: float
    late_share: float
    up: bool | None
    asleep_since: str | None
    passive: bool
    good_share: float | None
    headroom_ratio: float | None
    wrong: Sequence[str]
    doubts: Sequence[str]
    how_much_more: str
    canaries: Sequence[RecordJson]
    failures: Sequence[RecordJson]
    failure_groups: Sequence[FailureGroupJson]
    since: str | None
    uptime: dict[str, float | None]
    budgets: dict[str, float]
    server: ServerJson | None
    server_error: str | None
    users: UserLoad | None
    checks: CrossChecks
    gpus: Sequence[Gpu] | None
    gpu_error: str | None
    findings: Sequence[Finding]
    capacity: MeasuredJson | None
    forecast: CapacityJson | None
    forecast_for_users: CapacityJson | None
    capacity_state: str | None
    discovery: str | None
    labels: dict[str, str]


class ErrorJson(TypedDict):
    """An error."""

    error: str


def target_json(row: overview.TargetRow) -> TargetJson:
    """Return a target for the API."""
    status, now_s = row.status, time.time()
    history = status.history or CanaryHistory()
    return {
        "name": status.name,
        "base_url": status.base_url,
        "model": status.model,
        "state": row.state,
        "state_since": None if row.since is None else iso(row.since.at_s),
        "because": row.because or None,
        "failed_share": row.shares.failed,
        "late_share": row.shares.late,
        "up": None if row.state == ASLEEP else status.up,
        "asleep_since": iso(status.asleep_since_s) if status.asleep_since_s is not None else None,
        "passive": status.passive,
        "good_share": row.good,
        "headroom_ratio": row.headroom,
        "wrong": row.wrong,
        "doubts": row.doubts,
        "how_much_more": row.how_much,
        "canaries": [record_json(record) for record in status.recent],
        "failures": [record_json(record) for record in status.failures],
        "failure_groups": [_failure_group(group) for group in status.failure_groups],
        "since": None if status.since is None or row.state == ASLEEP else iso(status.since.at_s),
        "uptime": {name: uptime(history, now_s, slots) for name, slots, _ in PERIODS},
        "budgets": budgets_left(history, status.objectives, now_s),
        "server": None if status.server is None else _server(status.server),
        "server_error": status.server_error,
        "users": status.users,
        "checks": status.checks,
        "gpus": None if status.gpus is None else status.gpus.gpus,
        "gpu_error": status.gpu_error,
        "findings": row.findings,
        "capacity": None if status.capacity is None else {**_capacity(status.capacity), "run": status.capacity.id},
        "forecast": None if status.forecast is None else _capacity(status.forecast),
        "forecast_for_users": None if status.for_users is None else _capacity(status.for_users),
        "capacity_state": status.capacity_state,
        "discovery": status.discovery,
        "labels": dict(exported_labels(status.labels)),
    }


def _failure_group(group: FailureGroup) -> FailureGroupJson:
    return {
        "outcome": group.outcome.value,
        "http_status": group.http_status,
        "detail": group.detail,
        "count": group.count,
        "first": iso(group.first_s),
        "last": iso(group.last_s),
        "recovered": None if group.recovered_s is None else iso(group.recovered_s),
    }


def _server(server: ServerSnapshot) -> ServerJson:
    return {
        "engine": server.engine,
        "version": server.version,
        "running": server.running,
        "waiting": server.waiting,
        "kv_cache_usage_ratio": server.kv_cache_usage,
        "kv_cache_tokens": server.kv_cache_tokens,
        "kv_cache_bytes": server.value("kv_cache_bytes"),
        "preemptions": server.preemptions,
        "at": iso(server.wall_s),
    }


def _capacity(result: CapacityResult) -> CapacityJson:
    found = result.capacity
    return {
        "started": result.started.isoformat(),
        "ended": iso(result.ended_s),
        "workload": str(result.context.workload["name"]),
        "mode": found.mode,
        "requests_per_second": found.requests_per_second,
        "lower": found.lower,
        "upper": found.upper,
        "output_tokens_per_second": found.output_tokens_per_second,
        "knee_concurrency": found.knee_concurrency,
        "limiting": found.limiting,
        "bottleneck": found.bottleneck,
        "reason": found.reason,
        "advice": found.advice,
        "learnt_from": found.learnt_from,
        "bottleneck_gain": found.bottleneck_gain,
        "roofline": found.roofline,
        "prefill_tokens_per_second": found.prefill_tokens_per_second,
        "correction": found.correction,
    }
