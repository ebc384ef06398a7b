"""How values read on a page, and a target as JSON. Pure but for the time of day."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from probe import latency, slo
from probe.records import CapacityResult, Objectives, Outcome, RequestRecord, TargetStatus
from probe.report import words
from probe.report.joined_words import findings
from probe.report.record_json import record_json
from probe.report.result_words import beside_measured, headroom, knee_words
from probe.report.words import iso, milliseconds, number, percent, promises, when

_BAR_WIDTH, _BAR_GAP, _CHART_HEIGHT = 6, 2, 56


@dataclass(frozen=True, slots=True)
class Bar:
    """One canary in the strip of recent ones, in pixels."""

    x: int
    y: float
    height: float
    kind: str  # good, slow or failed
    title: str


@dataclass(frozen=True, slots=True)
class Strip:
    """The recent canaries, oldest on the left, and where the TTFT objective lies."""

    bars: tuple[Bar, ...]
    width: int
    height: int
    objective_y: float | None


def filters() -> Mapping[str, Callable[..., object]]:
    """What the templates use."""
    return {
        "ms": milliseconds,
        "number": number,
        "percent": percent,
        "ago": ago,
        "when": when,
        "ttft": latency.ttft_s,
        "tpot": latency.tpot_s,
        "e2e": latency.e2e_s,
        "strip": strip,
        "good_share": good_share,
        "limits": promises,
        "knee": knee_words,
        "headroom": headroom,
        "beside": beside,
        "findings": findings,
    }


def ago(wall_s: float) -> str:
    """How long ago, in the largest unit that fits."""
    return words.ago(wall_s, time.time())


def beside(forecast: CapacityResult, measured: CapacityResult | None) -> str:
    """How far a forecast is from what was measured; "" where nothing like it was."""
    return beside_measured(forecast, measured, time.time())


def good_share(records: Sequence[RequestRecord], objectives: Objectives) -> float | None:
    """The share of recent canaries that met every objective."""
    return slo.good_ratio(records, objectives).get(slo.ALL)


def strip(records: Sequence[RequestRecord], objectives: Objectives) -> Strip:
    """The recent canaries as bars as high as their TTFT; a failed one is as high as the strip."""
    ttft = {id(r): latency.ttft_s(r) or 0.0 for r in records}
    objective = objectives.ttft.within_s if objectives.ttft else None
    top = max([*ttft.values(), (objective or 0.0) * 1.1, 1e-9])
    bars = []
    for i, record in enumerate(reversed(records)):
        failed = record.outcome is not Outcome.OK
        height = _CHART_HEIGHT * (1.0 if failed else max(ttft[id(record)] / top, 0.04))
        good = slo.met(record, objectives).get(slo.ALL, True)
        detail = record.detail or f"TTFT {milliseconds(ttft[id(record)])}, TPOT {milliseconds(latency.tpot_s(record))}"
        title = f"{when(record.done_wall_s)}: {record.outcome.value}, {detail}"
        kind = "failed" if failed else "good" if good else "slow"
        bars.append(Bar(i * (_BAR_WIDTH + _BAR_GAP), _CHART_HEIGHT - height, height, kind, title))
    line = _CHART_HEIGHT * (1 - objective / top) if objective else None
    return Strip(tuple(bars), 60 * (_BAR_WIDTH + _BAR_GAP), _CHART_HEIGHT, line)


def target_json(status: TargetStatus) -> dict[str, Any]:
    """A target in the API."""
    server = status.server
    return {
        "name": status.name,
        "base_url": status.base_url,
        "model": status.model,
        "up": status.up,
        "passive": status.passive,
        "good_share": good_share(status.recent, status.objectives),
        "canaries": [record_json(record) for record in status.recent],
        "failures": [record_json(record) for record in status.failures],
        "server": None
        if server is None
        else {
            "engine": server.engine,
            "version": server.version,
            "running": server.running,
            "waiting": server.waiting,
            "kv_cache_usage_ratio": server.kv_cache_usage,
            "preemptions": server.preemptions,
            "at": iso(server.wall_s),
        },
        "server_error": status.server_error,
        "users": None if status.users is None else asdict(status.users),
        "checks": asdict(status.checks),
        "gpus": None if status.gpus is None else [asdict(gpu) for gpu in status.gpus.gpus],
        "gpu_error": status.gpu_error,
        "findings": [asdict(finding) for finding in findings(status)],
        "capacity": None if status.capacity is None else {"run": status.capacity.id, **_capacity_json(status.capacity)},
        "forecast": None if status.forecast is None else _capacity_json(status.forecast),
        "capacity_state": status.capacity_state,
    }


def _capacity_json(result: CapacityResult) -> dict[str, Any]:
    return {"started": result.started.isoformat(), "ended": iso(result.ended_s), **asdict(result.capacity)}
