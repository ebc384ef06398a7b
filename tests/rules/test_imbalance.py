"""The ticket for an engine with more than the others, over what Kneewatch exports of replicas' pages."""

import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from engine_pages import NOW_S, Engine, replicas

from alerts import build
from exporters.cross_checks import CrossChecksExporter
from exporters.server import ServerExporter
from probe.core.objectives import Objective, Objectives
from probe.observe.cross_checks import CrossChecker
from probe.observe.server_state import ServerState

pytestmark = [pytest.mark.prometheus, pytest.mark.slow]

MINUTES = 75
OBJECTIVES = Objectives("o", ttft=Objective(0.95, 0.5), tpot=Objective(0.9, 0.05))
EVEN, BUSY, IDLE = Engine(), Engine(running=40, waiting=20), Engine(running=0, tokens=0, requests=0, kv=0)
QUIET = Engine(running=1, tokens=60, requests=1)
PREFILL, DECODE = Engine(running=40, tokens=90, fetched=0), Engine(running=10, tokens=400, fetched=3)


def _cold(minute: int) -> dict[str, Engine]:
    """Return two replicas, one of which is replaced after ten minutes, and fills within half an hour."""
    share = min(max(minute - 12, 0) / 30, 1.0)
    old, new = Engine(running=16, tokens=800), Engine(running=16 * share, tokens=800 * share, started_s=NOW_S + 600)
    return {"a": old, "b": old} if minute < 10 else {"a": old, "c": new}


# By target: its replicas at a minute, and why a ticket is open at the end, "" for none.
CASES: Mapping[str, tuple[Callable[[int], dict[str, Engine]], str]] = {
    "busy": (lambda _: {"a": EVEN, "b": BUSY, "c": EVEN}, "load"),
    "pair": (lambda _: {"a": EVEN, "b": Engine(running=30)}, "load"),
    "full": (lambda _: {"a": Engine(kv=0.4), "b": Engine(kv=0.95)}, "kv_cache"),
    "slow-clock": (lambda _: {"a": EVEN, "b": EVEN, "c": Engine(itl=0.06)}, "itl"),
    "late": (lambda _: {"a": EVEN, "b": Engine(ttft=1.2)}, "ttft"),
    "even": (lambda _: {"a": EVEN, "b": EVEN, "c": EVEN}, ""),
    "cold": (_cold, ""),
    "drained": (lambda minute: {"a": EVEN, "b": EVEN, "c": EVEN if minute < 10 else IDLE}, ""),
    "quiet": (lambda _: {"a": QUIET, "b": Engine(running=6, tokens=300, requests=1)}, ""),
    "night": (lambda _: {"a": IDLE, "b": IDLE}, ""),
    "roles": (lambda _: {"a": PREFILL, "b": DECODE, "c": DECODE}, ""),
    "burst": (lambda minute: {"a": EVEN, "b": BUSY if 30 <= minute < 45 else EVEN}, ""),
    "one": (lambda _: {"a": BUSY}, ""),
}


def _exported(target: str, engines: Callable[[int], dict[str, Engine]]) -> list[dict[str, Any]]:
    """Return the series of a target, with a value for each minute."""
    state = ServerState()
    checker, server, checks = CrossChecker(state, OBJECTIVES), ServerExporter((target,), ()), CrossChecksExporter()
    found: dict[str, list[str]] = {}
    for minute in range(MINUTES):
        snapshot = replicas(engines(minute), 60.0 * minute)
        state.add(snapshot)
        server.observe(target, snapshot, 0.1, 1)
        checks.observe(target, checker.view())
        text = "".join([*server.relay.write(openmetrics=False), *checks.relay.write(openmetrics=False)])
        for name, _, value in (line.rpartition(" ") for line in text.splitlines() if line[0] != "#"):
            if "imbalance" in name or "server_engine_" in name:
                values = found.setdefault(name, [])
                values += ["_"] * (minute - len(values)) + [value]
    return [{"series": name, "values": " ".join(values)} for name, values in found.items()]


def test_an_uneven_load_is_a_ticket_and_what_differs_by_intention_is_none(promtool: str, tmp_path: Path) -> None:
    groups = yaml.safe_load(build.render()[build.FILE])["groups"]
    (group,) = [group for group in groups if group["name"] == "kneewatch-pressure"]
    rules = [rule for rule in group["rules"] if rule.get("alert") == "KneewatchReplicasUnbalanced"]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{**group, "rules": rules}]}))
    firing = 'count by (target, reason, severity) (ALERTS{alertstate="firing"})'
    expected = [
        {"labels": f'{{target="{target}",reason="{reason}",severity="ticket"}}', "value": 1}
        for target, (_, reason) in CASES.items()
        if reason
    ]
    case = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [one for target, (engines, _) in CASES.items() for one in _exported(target, engines)],
                "promql_expr_test": [
                    *({"expr": firing, "eval_time": f"{minute}m", "exp_samples": []} for minute in (5, 14)),
                    *({"expr": firing, "eval_time": f"{minute}m", "exp_samples": expected} for minute in (40, 50, 74)),
                ],
            }
        ],
    }
    (tmp_path / "case.yml").write_text(json.dumps(case))
    command = [promtool, "test", "rules", "case.yml"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
