import re
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from alerts import build
from alerts.objectives import objective_rules
from alerts.rules import Recording
from alerts.windows import duration
from benchmarks.alerts.rules import selectors
from probe.config.config import Config
from probe.config.config_file import config_from
from probe.core.errors import ConfigError

pytestmark = pytest.mark.slow

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


def _conditions(config: Config, *words: str) -> list[dict[str, Any]]:
    """Return the rules that record where a budget burns, if their names have these words."""
    return [rule for rule in _rules(config) if all(word in rule.get("record", "") for word in ("_burn:", *words))]


def _windows(rule: dict[str, Any]) -> tuple[str, ...]:
    """Return the windows of a condition, shortest first."""
    ranges = {s.range_s for s in selectors(rule["expr"]) if s.range_s and s.name.endswith(":increase1m")}
    return tuple(duration(seconds) for seconds in sorted(ranges))


def _pairs(rule: dict[str, Any]) -> list[str]:
    """Return the condition of each pair of windows."""
    return rule["expr"].removeprefix("(\n").removesuffix("\n)").split("\n)\nor\n(\n")


def _targets(rule: dict[str, Any]) -> set[str]:
    return set(re.findall(r'target=~"([^"]*)"', rule["expr"]))


def test_hundreds_of_targets_make_as_many_rules_as_one() -> None:
    many = _config({"chat": CHAT}, {f"llama-{i}": "chat" for i in range(300)})
    assert len(_rules(many)) == len(_rules(_config({"chat": CHAT}, {"llama": "chat"})))
    assert len(build.render(many)[build.FILE]) < 250_000


def test_an_alert_speaks_for_the_targets_with_its_objectives_and_no_others() -> None:
    config = _config({"chat": CHAT, "batch": {"availability": 0.99}}, {"a": "chat", "b": "batch", "c": "chat"})
    named = {(rule["labels"]["slo"], re.findall(r'target=~"([^"]*)"', rule["expr"])[0]) for rule in _burns(config)}
    assert named == {("chat", "a|c"), ("batch", "b")}


def test_a_dot_in_a_name_is_a_dot_and_not_any_character() -> None:
    (burn, *_) = _burns(_config({"chat": CHAT}, {"qwen-2.5": "chat"}))
    assert 'target=~"qwen-2\\\\.5"' in burn["expr"]


def test_an_objective_that_is_not_set_has_no_rules() -> None:
    config = _config({"fast": {"availability": None, "ttft": {"ratio": 0.95, "within": "1s"}}}, {"a": "fast"})
    assert [(rule["alert"], rule["labels"]["severity"]) for rule in _burns(config)] == [
        ("KneewatchTTFTBurn", "page"),
        ("KneewatchTTFTBurn", "ticket"),
    ]


def test_one_alert_of_an_objective_speaks_for_canaries_and_users() -> None:
    for rule in _burns(_config({"chat": CHAT}, {"a": "chat"})):
        read = [selector.name for selector in selectors(rule["expr"])]
        assert [name.split("_burn")[0].rpartition("_")[0] for name in read] == [
            "target_workload:kneewatch_canary",
            "target:kneewatch_users",
        ]
        assert rule["expr"].startswith("max by (cluster, namespace, target) (")
        assert rule["labels"].keys() == {"severity", "group", "slo", "objective"}


def test_windows_left_out_are_named_on_the_alerts_that_remain_and_at_the_files_head() -> None:
    config = _config({"lax": {"availability": 0.8}}, {"a": "lax"})
    burns = _burns(config)
    assert [rule["labels"]["severity"] for rule in burns] == ["ticket"]
    assert all("page at 6x over 6h: cannot fire, 120%" in rule["annotations"]["left_out"] for rule in burns)
    assert "# Left out: lax/availability: page at 14.4x over 1h" in build.render(config)[build.FILE]


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
        {"window": "120d", "availability": None, "ttft": {"ratio": 0.7, "within": "1s"}},
        "15s",
        (
            "objectives.slow.ttft.ratio: 0.7 over 120d can never be broken fast enough for an alert,"
            " 120% of the requests would have to be bad;"
            " expected more than 0.75; raise it, or shorten objectives.slow.window"
        ),
    ),
    "window": (
        {"window": "30m"},
        "15s",
        (
            "objectives.slow.window: 30m is shorter than the shortest window of an alert, so none could ever fire;"
            " expected 1h or more; make it longer"
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
}


@pytest.mark.parametrize(("objectives", "every", "line"), NEVER.values(), ids=NEVER)
def test_objectives_of_which_no_window_can_fire_are_refused_in_one_line(
    objectives: dict[str, Any], every: str, line: str
) -> None:
    good = {"name": "a", "base_url": "http://x:1", "objectives": "chat"}
    slow = {"name": "b", "base_url": "http://x:1", "objectives": "slow", "canary": {"every": every}}
    config = config_from({"objectives": {"chat": CHAT, "slow": objectives}, "targets": [good, slow]}, "test")
    with pytest.raises(ConfigError) as refused:
        build.render(config)
    assert str(refused.value) == line


def test_a_rehearsal_is_not_refused_for_what_it_leaves_out() -> None:
    config = _config({"chat": CHAT}, {"a": "chat"}, every="20m")
    text = build.render(config, window_scale=0.01)[build.FILE]
    assert "too short for a canary every 20m" in text
    assert "too short for an account" not in text


def test_an_objective_just_above_what_is_refused_has_a_ticket() -> None:
    config = _config({"slow": {"window": "90d", "availability": 0.67}}, {"a": "slow"})
    assert [_windows(rule) for rule in _conditions(config)] == [("6h", "3d")] * 2


def test_a_passive_target_is_judged_by_its_users_alone() -> None:
    targets = [
        {"name": "asked", "base_url": "http://a:1", "objectives": "chat"},
        {"name": "quiet", "base_url": "http://b:1", "objectives": "chat", "passive": True},
    ]
    burns = _burns(config_from({"objectives": {"chat": CHAT}, "targets": targets}, "test"))
    named = [(*sorted(_targets(rule)), len(selectors(rule["expr"]))) for rule in burns]
    assert named == [("asked", 2)] * 3 + [("quiet", 1)] * 3 + [("asked", 2)] * 3 + [("quiet", 1)] * 3
    assert all("canaries" not in rule["annotations"]["description"] for rule in burns if _targets(rule) == {"quiet"})


def test_users_windows_do_not_depend_on_how_often_the_canary_runs() -> None:
    config = _config({"chat": CHAT}, {"a": "chat"}, every="1h")
    assert [_windows(rule) for rule in _conditions(config, "users_ttft")] == [
        ("5m", "1h", "2h", "6h"),
        ("2h", "6h", "1d", "3d"),
    ]


def test_users_windows_that_can_never_fire_are_left_out_as_the_canaries_are() -> None:
    config = _config({"lax": {"availability": None, "ttft": {"ratio": 0.8, "within": "1s"}}}, {"a": "lax"})
    assert [_windows(rule) for rule in _conditions(config, "users")] == [("2h", "6h", "1d", "3d")]
    assert build.render(config)[build.FILE].count("# Left out: lax/ttft: page at 14.4x over 1h: cannot fire") == 1


def test_users_burn_counts_beside_what_the_whole_window_had() -> None:
    """A tenth of the window's share of the budget: 2 % of 5 % of what 30 days had."""
    (page, *_) = _conditions(_config({"chat": CHAT}, {"a": "chat"}), "users_ttft")
    bad = "sum_over_time(target:kneewatch_users_ttft_errors:increase1m[1h])"
    assert f"{bad} >= 10" in page["expr"]
    month = "last_over_time(target:kneewatch_users_ttft_requests:increase30d[40m])"
    assert f"{bad} < 0.0001 * {month}" in page["expr"]


def test_each_kind_of_window_has_a_budget_of_its_own_targets() -> None:
    objectives = {"chat": CHAT, "week": {"window": "7d", "availability": 0.99}}
    rules = _rules(_config(objectives, {"a": "chat", "b": "week", "c": "chat"}))
    exprs = {rule["record"]: rule["expr"] for rule in rules if "record" in rule}
    left = exprs["target_workload:kneewatch_canary_availability_budget:left_ratio"]
    of_bad = "target_workload:kneewatch_canary_availability_errors:increase"
    assert f"{of_bad}7d[40m]" in left
    assert f"{of_bad}30d[40m]" in left
    assert exprs[f"{of_bad}7d"] == f'sum_over_time({of_bad}1m{{target=~"b"}}[7d])'
    assert exprs[f"{of_bad}30d"] == f'sum_over_time({of_bad}1m{{target=~"a|c"}}[30d])'
    # Only one window is promised of TTFT, so it needs no names.
    assert "target=~" not in exprs["target:kneewatch_users_ttft_errors:increase30d"]


def test_budgets_are_recorded_under_the_five_minutes_in_which_a_sample_becomes_stale() -> None:
    config = _config({"chat": CHAT}, {"a": "chat"})
    for scale, *intervals in ((1.0, "4m", "20m", "1m"), (0.5, "2m", "10m", "30s"), (0.001, "15s", "15s", "1s")):
        groups = yaml.safe_load(build.render(config, window_scale=scale)[build.FILE])["groups"]
        found = {group["name"].removeprefix("kneewatch-slo-"): group for group in groups}
        assert [found[name]["interval"] for name in ("budget", "sums", "requests")] == intervals
        assert all(f"increase{intervals[-1]}" in rule["expr"] for rule in found["sums"]["rules"])


def test_names_of_targets_are_matched_everywhere_only_where_objectives_differ() -> None:
    (alone, *_) = _conditions(_config({"chat": CHAT}, {"a": "chat"}))
    assert alone["expr"].count('target=~"a"') == 2  # once for each pair of windows
    shared = _conditions(
        _config({"chat": CHAT, "strict": {**CHAT, "availability": 0.9999}}, {"a": "chat", "b": "strict"})
    )
    for rule in shared:
        recorded = [s for s in selectors(rule["expr"]) if "increase30d" not in s.name]
        assert all(any(name == "target" for name, _, _ in s.matchers) for s in recorded)


@pytest.mark.parametrize("sets", [1, 5])
def test_no_group_has_more_rules_than_mimir_accepts(sets: int) -> None:
    objectives = {f"chat-{i}": {**CHAT, "window": f"{30 + i}d"} for i in range(sets)}
    config = _config(objectives, {f"llama-{i}": f"chat-{i}" for i in range(sets)})
    groups = yaml.safe_load(build.render(config)[build.FILE])["groups"]
    assert all(len(group["rules"]) <= 20 for group in groups)
    assert len({group["name"] for group in groups}) == len(groups)
    slo = [group for group in groups if "-slo-" in group["name"]]
    alerts = [rule for group in slo for rule in group["rules"] if "alert" in rule]
    assert len(alerts) == 2 * 3 * sets  # a page and a ticket for each objective


def test_an_alert_reads_recorded_requests_and_no_raw_counter() -> None:
    for rule in _burns(_config({"chat": CHAT}, {"a": "chat"})):
        assert all(":" in selector.name for selector in selectors(rule["expr"]))


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
    pairs = [(rule["record"], f"({pair})") for rule in _conditions(config, "canary") for pair in _pairs(rule)]
    named = [(record.partition("burn:")[2], *_windows({"expr": x}), *_targets({"expr": x})) for record, x in pairs]
    assert named == [
        ("page", "5m", "1h", "often"),
        ("page", "2h", "6h", "often"),
        ("page", "4h", "6h", "hourly"),
        ("ticket", "2h", "1d", "hourly|often"),
        ("ticket", "6h", "3d", "hourly|often"),
    ]
    assert sorted((rule["labels"]["severity"], *_targets(rule)) for rule in _burns(config)) == [
        ("page", "hourly"),
        ("page", "often"),
        ("ticket", "hourly|often"),
    ]
    records = [rule["record"] for rule in _rules(config) if "record" in rule]
    assert len(records) == len(set(records))


def test_each_series_an_alert_reads_is_recorded_and_every_recording_is_used() -> None:
    config = _config({"chat": CHAT, "batch": {"availability": 0.99, "window": "90d"}}, {"a": "chat", "b": "batch"})
    rules = [rule for group in objective_rules(config).groups for rule in group.rules]
    records = [rule.record for rule in rules if isinstance(rule, Recording)]
    assert len(records) == len(set(records))
    read = {name for rule in rules for name in re.findall(r"target[a-z_]*:kneewatch_[\w:]+", rule.expr)}
    assert read == {name for name in records if not name.endswith("_budget:left_ratio")}
