"""The rules, over what Kneewatch exports of four replicas that are replaced one after the other."""

import json
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from alerts import build
from exporters.server import ServerExporter
from probe.core.snapshot import ServerSnapshot
from probe.scrape.engines import parse
from probe.scrape.replicas import merged

pytestmark = pytest.mark.prometheus

MINUTES = 90
OLD_S = 1_700_000_000
GROUPS = ("kneewatch-acute", "kneewatch-pressure", "kneewatch-disaggregated", "kneewatch-stalled")
# What a replica counts in a minute, and what each had counted in the weeks before. It had NaN once, long ago.
TOKENS, PREEMPTED, FINISHED, SECONDS = 60_000, 1, 120, 0.2
BEFORE = {"a": 9_000, "b": 7_000, "c": 8_000, "d": 5_000}  # minutes
NAN = {"a": 40, "b": 2}


def _page(minute: int, age: int, started_s: int, corrupted: int) -> ServerSnapshot:
    """Return the page of a replica that has served for `age` minutes."""
    name = 'model_name="m",engine="0"'
    done = FINISHED * age
    text = f"""vllm:num_requests_running{{{name}}} 3
vllm:num_requests_waiting{{{name}}} 0
vllm:num_preemptions_total{{{name}}} {PREEMPTED * age}
vllm:corrupted_requests_total{{{name}}} {corrupted}
vllm:generation_tokens_total{{{name}}} {TOKENS * age}
vllm:request_success_total{{{name},finished_reason="stop"}} {done}
vllm:time_to_first_token_seconds_bucket{{{name},le="0.1"}} 0
vllm:time_to_first_token_seconds_bucket{{{name},le="0.25"}} {done}
vllm:time_to_first_token_seconds_bucket{{{name},le="+Inf"}} {done}
vllm:time_to_first_token_seconds_sum{{{name}}} {SECONDS * done}
process_start_time_seconds {started_s}
"""
    return parse(text, minute * 60 * 10**9, OLD_S + 60 * minute, engine="vllm")


def _replicas(minute: int) -> dict[str, ServerSnapshot]:
    """Return the pages at a minute: from the twentieth on, every ten minutes a replica goes, and comes back new."""
    found = {}
    for i, (name, age) in enumerate(BEFORE.items()):
        began = 20 + 10 * i
        if minute < began:
            found[name] = _page(minute, age + minute, OLD_S - 60 * age, NAN.get(name, 0))
        elif minute >= began + 2:  # under its old address, or under a new one
            address = name if i % 2 else f"{name}-new"
            found[address] = _page(minute, minute - began - 1, OLD_S + 60 * began + 30, 0)
    return found


def _exported() -> list[dict[str, Any]]:
    """Return the series of the target with a value for each minute; Kneewatch itself restarts at the 65th."""
    exporter = ServerExporter(("llama",), ())
    found: dict[str, list[str]] = defaultdict(list)
    for minute in range(MINUTES):
        if minute == 65:
            exporter = ServerExporter(("llama",), ())
        exporter.observe("llama", merged(_replicas(minute)), 0.1, 1)
        lines = [line for line in "".join(exporter.relay.write(openmetrics=False)).splitlines() if line[0] != "#"]
        for name, _, value in (line.rpartition(" ") for line in lines):
            found[name] += ["_"] * (minute - len(found[name])) + [value]
    return [{"series": name, "values": " ".join(values)} for name, values in found.items()]


def _promtool(promtool: str, folder: Path, queries: list[tuple[str, int, float]]) -> subprocess.CompletedProcess[str]:
    groups = yaml.safe_load(build.render()[build.FILE])["groups"]
    rules = {"groups": [group for group in groups if group["name"] in GROUPS]}
    (folder / "rules.yml").write_text(json.dumps(rules))
    expected = [
        {"expr": expr, "eval_time": f"{minute}m", "exp_samples": [{"value": value}]} for expr, minute, value in queries
    ]
    pages = [
        {"expr": 'count(ALERTS{alertstate="firing"})', "eval_time": f"{minute}m", "exp_samples": []}
        for minute in range(MINUTES)
    ]
    case = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": _exported(), "promql_expr_test": [*expected, *pages]}],
    }
    (folder / "case.yml").write_text(json.dumps(case))
    command = [promtool, "test", "rules", "case.yml"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.fault(
    "TR21",
    "Replicas whose pages are read together, or engines on one page, restart, go, come with weeks of counts, are lost"
    " for some scrapes, or change their address, and then Kneewatch restarts",
    area="Truth",
    users_see="no alert",
    stays="`kneewatch_server_*` counters and buckets never fall, and grow by what was counted while it was read",
)
def test_a_rolling_update_fires_no_alert_and_its_rates_are_right(promtool: str, tmp_path: Path) -> None:
    """A sum of the pages falls at each replaced replica by all that it had counted: Prometheus would take the rest,
    some 1e9 tokens, for growth, and 40 requests with NaN of weeks ago for new ones, which is a page.
    """
    tokens, ttft = "kneewatch_server_generation_tokens_total", "kneewatch_server_ttft_seconds"
    whole = f"round(sum(rate({tokens}[10m])), 0.01)"
    queries = [
        (whole, 15, 4 * TOKENS / 60),
        (whole, 89, 4 * TOKENS / 60),
        (f"max(max_over_time(sum(rate({tokens}[5m]))[80m:1m])) <= bool {4.01 * TOKENS / 60}", 89, 1),
        (f"min(min_over_time(sum(rate({tokens}[5m]))[60m:1m])) >= bool {2.4 * TOKENS / 60}", 64, 1),
        ("sum(increase(kneewatch_server_corrupted_requests_total[85m]))", 89, 0),
        (f"histogram_quantile(0.5, sum by (le) (rate({ttft}_bucket[10m]))) > bool 0.1", 45, 1),
        (f"round(sum(increase({ttft}_sum[60m])) / sum(increase({ttft}_count[60m])), 0.001)", 89, SECONDS),
    ]
    run = _promtool(promtool, tmp_path, queries)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
