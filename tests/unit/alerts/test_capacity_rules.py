"""Which targets the alert on stale capacity speaks for."""

from typing import Any

import pytest
import yaml

from alerts import build
from probe.config.config import Config
from probe.config.config_file import config_from

pytestmark = pytest.mark.slow


def _config(**crons: str | None) -> Config:
    """Return targets by name with the schedule of their capacity runs, or None where nothing measures it."""
    return config_from(
        {
            "objectives": {"chat": {"availability": 0.999}},
            "targets": [
                {
                    "name": name,
                    "base_url": "http://x:1",
                    "objectives": "chat",
                    "capacity": {"mode": "verify", "schedule": {"cron": cron}} if cron else {"mode": "off"},
                }
                for name, cron in crons.items()
            ],
        },
        "test",
    )


def _stale(config: Config) -> list[dict[str, Any]]:
    groups = yaml.safe_load(build.render(config)[build.FILE])["groups"]
    return [rule for group in groups for rule in group["rules"] if rule.get("alert") == "KneewatchCapacityStale"]


def test_one_alert_speaks_for_all_that_are_measured_every_day() -> None:
    (rule,) = _stale(_config(b="0 4 * * *", a="*/30 2-5 * * *", never=None))
    assert rule["expr"].count('target=~"a|b"') == 2
    assert "never" not in rule["expr"]


@pytest.mark.parametrize("cron", ["0 4 * * 1", "0 4 * * mon-fri", "0 4 1 * *", "0 4 * 6 *"])
def test_a_schedule_rarer_than_daily_is_left_out_and_the_file_says_so(cron: str) -> None:
    config = _config(weekly=cron)
    assert _stale(config) == []
    remarks = [line for line in build.render(config)[build.FILE].splitlines() if line.startswith("# Left out: ")]
    assert any("KneewatchCapacityStale of weekly" in line and cron in line for line in remarks)


def test_where_nothing_is_measured_nothing_is_stale_and_nothing_left_out() -> None:
    config = _config(a=None)
    assert _stale(config) == []
    assert "KneewatchCapacityStale" not in build.render(config)[build.FILE]
