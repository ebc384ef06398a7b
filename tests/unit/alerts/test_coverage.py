"""What of a configuration no rule covers."""

from typing import Any

import pytest

from alerts.coverage import uncovered
from probe.config.config import Config
from probe.config.config_file import config_from, load_config

CHAT = {"window": "30d", "availability": 0.999, "ttft": {"ratio": 0.95, "within": "500ms"}}


def _config(objectives: dict[str, Any], every: str = "15s", **target: Any) -> Config:
    good = {"name": "a", "base_url": "http://y:1", "objectives": "chat"}
    other = {"name": "b", "base_url": "http://x:1", "objectives": "slow", "canary": {"every": every}, **target}
    return config_from({"objectives": {"chat": CHAT, "slow": objectives}, "targets": [good, other]}, "test")


NEVER: dict[str, tuple[dict[str, Any], str, str]] = {
    "availability": (
        {"window": "90d", "availability": 0.5},
        "15s",
        (
            "objectives.slow.availability: 0.5 over 90d can never be broken fast enough for an alert,"
            " 150% of the requests would have to be bad;"
            " expected more than 0.667; raise it, or shorten objectives.slow.window"
        ),
    ),
    "latency": (
        {"window": "90d", "availability": None, "ttft": {"ratio": 0.6, "within": "1s"}},
        "15s",
        (
            "objectives.slow.ttft.ratio: 0.6 over 90d can never be broken fast enough for an alert,"
            " 120% of the requests would have to be bad;"
            " expected more than 0.667; raise it, or shorten objectives.slow.window"
        ),
    ),
    "canary": (
        {"availability": 0.99},
        "2d",
        (
            "targets[1].canary.every: 2d is too rare for any alert on objectives.slow.availability; expected 1d or"
            " less; make it more frequent, or set that objective to null"
        ),
    ),
    "window without a budget": (
        {"window": "10d", "availability": 0.99},
        "15s",
        (
            "objectives.slow.window: no rule records the budget left over 10d; alerts work;"
            " expected one of 1d, 7d, 28d, 30d, 90d for the panels on budgets"
        ),
    ),
}


@pytest.mark.parametrize(("objectives", "every", "line"), NEVER.values(), ids=NEVER)
def test_what_no_alert_can_find_is_one_line(objectives: dict[str, Any], every: str, line: str) -> None:
    assert uncovered(_config(objectives, every)) == [line]


def test_a_window_shorter_than_any_alerts_is_named_once() -> None:
    never, budget = uncovered(_config({"window": "30m", "availability": 0.99}))
    assert never == (
        "objectives.slow.window: 30m is shorter than the shortest window of an alert, so none can ever fire;"
        " expected 1h or more; make it longer"
    )
    assert "30m" in budget


@pytest.mark.parametrize(("cron", "count"), [("0 4 * * *", 0), ("0 4 * * 1", 0), ("0 4 1 * *", 1)])
def test_a_schedule_with_more_than_a_week_between_runs_is_named(cron: str, count: int) -> None:
    lines = uncovered(_config(CHAT, capacity={"mode": "verify", "schedule": {"cron": cron}}))
    assert len(lines) == count
    assert all(line.startswith(f"targets[1].capacity.schedule.cron: '{cron}' has more than 7d") for line in lines)


def test_a_passive_target_has_no_canary_that_is_too_rare() -> None:
    assert uncovered(_config({"availability": 0.99}, "2d", passive=True)) == []


def _beside(*names: str, **other: Any) -> Config:
    targets = [{"name": name, "base_url": "http://gateway:4000"} for name in names]
    return config_from({"targets": [*targets, {"name": "alone", "base_url": "http://alone:8000"}], **other}, "test")


def test_targets_of_one_metrics_page_in_several_groups_are_named() -> None:
    assert uncovered(_beside("llama", "qwen")) == [
        (
            "targets[1].name: 'qwen' and 'llama' have the same metrics page, and each notifies of an outage of that"
            " server; expected one group; name them GROUP/llama and GROUP/qwen"
        )
    ]
    assert uncovered(_beside("gateway/llama", "gateway/qwen")) == []


def test_the_shipped_configurations_are_covered(request: pytest.FixtureRequest) -> None:
    for file in sorted((request.config.rootpath / "deploy/examples").glob("*.yml")):
        if file.name not in ("alertmanager.yml", "kube-prometheus-stack.yml"):
            assert uncovered(load_config(file, environ={})) == [], file


def _kinds(*every: str) -> list[str]:
    canaries = [{"every": each, "model": f"m{i}"} for i, each in enumerate(every)]
    return uncovered(config_from({"targets": [{"name": "a", "base_url": "http://y:1", "canaries": canaries}]}, "test"))


def test_a_kind_of_canary_that_is_too_rare_beside_others_is_one_line() -> None:
    (line,) = _kinds("15s", "5m")
    assert line == (
        "targets[0].canaries[1].every: 5m is too rare compared with canaries every 15s for the page of the first hour,"
        " if only this kind fails; expected 150s or less; make it more frequent, or give it a target of its own in the"
        " same group"
    )
    assert _kinds("15s", "2m") == _kinds("5m", "10m") == []


def test_the_objectives_are_checked_at_the_interval_of_each_kind() -> None:
    found = [line.partition(";")[0] for line in _kinds("1m", "2d")]
    assert found == [
        f"targets[0].canaries[1].every: 2d is too rare for any alert on objectives.default.{name}"
        for name in ("availability", "ttft", "tpot")
    ]
