import re
from collections.abc import Mapping
from typing import Any

import yaml

from alerts import build
from probe.config import Config, config_from

CHAT = {
    "window": "30d",
    "availability": 0.999,
    "ttft": {"ratio": 0.95, "within": "500ms"},
    "tpot": {"ratio": 0.95, "within": "50ms"},
}


def _config(objectives: Mapping[str, Any], targets: Mapping[str, str], every: str = "15s") -> Config:
    return config_from(
        {
            "objectives": dict(objectives),
            "targets": [
                {"name": name, "base_url": "http://x:1", "objectives": of, "canary": {"every": every}}
                for name, of in targets.items()
            ],
        },
        "test",
    )


def _rules(config: Config) -> list[dict[str, Any]]:
    groups = yaml.safe_load(build.render(config)[build.FILE])["groups"]
    return [rule for group in groups for rule in group["rules"]]


def _burns(config: Config) -> list[dict[str, Any]]:
    return [rule for rule in _rules(config) if rule.get("alert", "").endswith("Burn")]


def test_hundreds_of_targets_make_as_many_rules_as_one() -> None:
    many = _config({"chat": CHAT}, {f"llama-{i}": "chat" for i in range(300)})
    assert len(_rules(many)) == len(_rules(_config({"chat": CHAT}, {"llama": "chat"})))
    assert len(build.render(many)[build.FILE]) < 100_000


def test_an_alert_speaks_for_the_targets_with_its_objectives_and_no_others() -> None:
    config = _config({"chat": CHAT, "batch": {"availability": 0.99}}, {"a": "chat", "b": "batch", "c": "chat"})
    named = {(rule["labels"]["slo"], re.findall(r'target=~"([^"]*)"', rule["expr"])[0]) for rule in _burns(config)}
    assert named == {("chat", "a|c"), ("batch", "b")}


def test_a_dot_in_a_name_is_a_dot_and_not_any_character() -> None:
    (burn, *_) = _burns(_config({"chat": CHAT}, {"qwen-2.5": "chat"}))
    assert 'target=~"qwen-2\\\\.5"' in burn["expr"]


def test_what_is_not_promised_is_not_watched() -> None:
    config = _config({"fast": {"availability": None, "ttft": {"ratio": 0.95, "within": "1s"}}}, {"a": "fast"})
    assert {rule["alert"] for rule in _burns(config)} == {"KneewatchTTFTBurn"}


def test_windows_left_out_are_named_on_the_alerts_that_remain_and_at_the_files_head() -> None:
    config = _config({"lax": {"availability": 0.8}}, {"a": "lax"})
    burns = _burns(config)
    assert [rule["labels"]["severity"] for rule in burns] == ["ticket", "ticket"]
    assert all("page at 6x over 6h: cannot fire, 120%" in rule["annotations"]["left_out"] for rule in burns)
    assert "# Left out: lax/availability: page at 14.4x over 1h" in build.render(config)[build.FILE]


def test_an_objective_of_which_no_window_is_left_leaves_the_rest_intact() -> None:
    config = _config({"chat": CHAT}, {"a": "chat"}, every="2d")
    assert _burns(config) == []
    assert any(rule.get("alert") == "KneewatchProbeGone" for rule in _rules(config))


def test_canaries_at_different_paces_get_the_windows_that_suit_them() -> None:
    config = config_from(
        {
            "objectives": {"chat": {"availability": 0.999}},
            "targets": [
                {"name": "often", "base_url": "http://x:1", "objectives": "chat", "canary": {"every": "15s"}},
                {"name": "hourly", "base_url": "http://x:1", "objectives": "chat", "canary": {"every": "1h"}},
            ],
        },
        "test",
    )
    named = [
        (rule["labels"]["long"], rule["labels"]["short"], re.findall(r'target=~"([^"]*)"', rule["expr"])[0])
        for rule in _burns(config)
    ]
    assert named == [
        ("1h", "5m", "often"),
        ("6h", "30m", "often"),
        ("6h", "2h", "hourly"),
        ("1d", "2h", "hourly|often"),
        ("3d", "6h", "hourly|often"),
    ]
    records = [rule["record"] for rule in _rules(config) if "record" in rule]
    assert len(records) == len(set(records))


def test_each_recorded_ratio_an_alert_reads_is_recorded() -> None:
    rules = _rules(
        _config({"chat": CHAT, "batch": {"availability": 0.99, "window": "90d"}}, {"a": "chat", "b": "batch"})
    )
    recorded = {rule["record"] for rule in rules if "record" in rule}
    read = {name for rule in rules if "alert" in rule for name in re.findall(r"target_workload:[\w:]+", rule["expr"])}
    assert read == recorded
