"""`kneewatch run` beside users whose requests are longer than the named workload's: both capacities on every page."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from monitor import Monitor, Sim
from process import eventually
from users import Users

pytestmark = [pytest.mark.long, pytest.mark.alone]

_NAME = "kneewatch_capacity_requests_per_second"
_WITHIN_S = 220.0  # forecasts at 0, 60, 120 and 180 s


def _config(server: Sim) -> dict[str, object]:
    promised = {"ttft": {"ratio": 0.95, "within": "500ms"}, "tpot": {"ratio": 0.95, "within": "50ms"}}
    target = {
        "name": "a",
        "base_url": server.base_url,
        "scrape": "1s",
        "canary": {"workload": "short", "every": "5s"},
        "capacity": {"forecast_every": "1m", "server": {"max_num_seqs": 8}},
    }
    workloads = {"short": {"prompt_tokens": 64, "output_tokens": 32}}
    return {"objectives": {"default": promised}, "workloads": workloads, "targets": [target]}


def _forecasts(monitor: Monitor) -> dict[str, float]:
    """Return the exported forecasts by workload."""
    series = re.findall(rf"^{_NAME}{{(.*)}} (\S+)$", monitor.page("/metrics"), re.MULTILINE)
    found = [(dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value)) for labels, value in series]
    return {labels["workload"]: value for labels, value in found if labels["mode"] == "forecast"}


def _words(page: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


def test_what_users_send_has_a_capacity_beside_the_named_workload(tmp_path: Path) -> None:
    with (
        Sim(tmp_path / "sim", "tiny") as sim,
        Monitor(_config(sim), tmp_path / "monitor") as monitor,
        Users(sim.base_url, 4, prompt_tokens=64, output_tokens=32, think_s=0.4),
        Users(sim.base_url, 3, prompt_tokens=300, output_tokens=120, think_s=0.6),
    ):
        try:
            eventually(lambda: len(_forecasts(monitor)) > 1, within_s=_WITHIN_S, what="two forecasts", every_s=2.0)
        except AssertionError as error:
            error.add_note(_words(monitor.page("/targets/a")))
            raise
        rates = _forecasts(monitor)
        api: dict[str, Any] = json.loads(monitor.page("/api/v1/targets/a"))
        words, overview = _words(monitor.page("/targets/a")), _words(monitor.page("/"))
    assert rates.keys() == {"short", "users"}
    assert rates["users"] < rates["short"]
    named, users = api["forecast"], api["forecast_for_users"]
    assert (named["workload"], users["workload"]) == ("short", "users")
    assert users["requests_per_second"] == pytest.approx(rates["users"], rel=1e-3)
    assert "for users, forecast" in words
    assert "for workload users" in words
    assert re.search(r"; for users: forecast [\d.]+ req/s", overview)
