"""The users' peak by a real Prometheus' evaluation of the query: outcomes together, other targets apart."""

import asyncio
import json
import subprocess
from pathlib import Path

from fake_prometheus import prometheus

from probe.config.prometheus import PrometheusConfig
from probe.prometheus.queries import Prometheus

# A request/s of each outcome, and ten more of those answered for ten minutes; 100 output tokens/s.
_SERIES = {
    'kneewatch_users_requests_total{target="a",outcome="ok"}': "0+60x30 1860+660x10 8520+60x30",
    'kneewatch_users_requests_total{target="a",outcome="aborted"}': "0+60x71",
    'kneewatch_users_requests_total{target="b",outcome="ok"}': "0+6000x71",
    'kneewatch_users_tokens_total{target="a",kind="output"}': "0+6000x71",
    'kneewatch_users_tokens_total{target="a",kind="prompt"}': "0+60000x71",
}


def test_the_peak_is_the_highest_five_minutes_of_all_outcomes(tmp_path: Path, promtool: str) -> None:
    empty = {"status": "success", "data": {"resultType": "vector", "result": []}}
    with prometheus(empty) as (url, queries):
        asyncio.run(Prometheus(PrometheusConfig(url=url)).users_peak("a", 3600.0))
    expected = [{"labels": f'{{of="{of}"}}', "value": value} for of, value in (("requests", 12), ("tokens", 100))]
    case = {
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in _SERIES.items()],
                "promql_expr_test": [
                    {"expr": queries[0].partition(" ")[2], "eval_time": "60m", "exp_samples": expected}
                ],
            }
        ],
    }
    (tmp_path / "peak.test.yml").write_text(json.dumps(case))
    command = [promtool, "test", "rules", "peak.test.yml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
