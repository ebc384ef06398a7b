"""The rules on error budgets: what they read, how often, and how many there are."""

import re
from typing import Any

import promql_parser
import pytest
import yaml

from alerts import build, sli
from alerts.budget import BUDGET_WINDOWS_S
from alerts.burn_conditions import PAGE_KEEP_S
from alerts.windows import duration
from benchmarks.alerts.rules import seconds_of, selectors
from exporters import names

pytestmark = pytest.mark.slow

GROUPS: dict[str, dict[str, Any]] = {
    group["name"]: group for group in yaml.safe_load(build.render()[build.FILE])["groups"] if "-slo-" in group["name"]
}
RULES = [rule for group in GROUPS.values() for rule in group["rules"]]
BURNS = [rule for rule in RULES if rule.get("alert", "").endswith("Burn")]


def _windows(rule: dict[str, Any]) -> set[str]:
    """Return the windows over recorded minutes that the rule reads."""
    read = selectors(rule["expr"])
    return {duration(s.range_s) for s in read if s.range_s and s.name.endswith("_errors:increase1m")}


def _conditions(who: str) -> list[dict[str, Any]]:
    return [rule for rule in RULES if re.search(rf"_{who}_\w+_burn:", rule.get("record", ""))]


def test_no_rule_names_a_target_or_a_set_of_objectives() -> None:
    matched = {name for rule in RULES for s in selectors(rule["expr"]) for name, _, _ in s.matchers}
    assert matched == {"traffic", "outcome", "objective", "task"}
    assert not any(rule["labels"].keys() & {"slo", "target"} for rule in BURNS)


def test_an_objective_has_one_page_and_one_ticket() -> None:
    again = [rule["alert"] for rule in BURNS if "again" in rule["labels"]]
    assert again == [f"Kneewatch{name}Burn" for name in ("TTFT", "TPOT", "E2E", "ITL")]  # KneewatchTargetDown is one
    once = [rule for rule in BURNS if "again" not in rule["labels"]]
    reported = sorted((rule["alert"], rule["labels"]["severity"], rule["labels"]["objective"]) for rule in once)
    assert reported == [
        (f"Kneewatch{name}Burn", severity, objective)
        for name, objective in (
            *(("Availability", "availability"), ("E2E", "e2e")),
            *(("ITL", "itl"), ("TPOT", "tpot"), ("TTFT", "ttft")),
        )
        for severity in ("page", "ticket")
    ]


def test_the_label_of_the_objectives_comes_from_their_series() -> None:
    for rule in BURNS:
        assert "group_left (slo) (target_slo:kneewatch_objective_window:seconds" in rule["expr"]
        assert "The objective '{{ $labels.slo }}' allows" in rule["annotations"]["description"]


@pytest.mark.parametrize(
    ("who", "page"),
    [
        # The pair of an hour, and what begins or goes on. Canaries with an interval above 150 s need a longer window.
        ("canary", {"5m", "1h", "10m", "20m", "40m"}),
        ("users", {"5m", "1h", "10m", "20m"}),
    ],
)
def test_pairs_of_windows(who: str, page: set[str]) -> None:
    found = {rule["record"].rpartition(":")[2]: _windows(rule) for rule in _conditions(who)}
    sustained = {"20m", "1h", "6h"}
    assert found == {"page": page, "sustained": sustained, "steady": set(), "ticket": {"2h", "1d", "6h", "3d"}}


def test_a_page_begins_by_nothing_that_the_windows_remember_of_the_last_one() -> None:
    for rule in [*_conditions("canary"), *_conditions("users")]:
        name = rule["record"]
        if name.endswith((":page", ":sustained")):
            told = {duration(s.range_s) for s in selectors(rule["expr"]) if s.name.endswith("burn:page") and s.range_s}
            assert told == ({"1h"} if name.endswith(":page") else {"6h"})


def test_users_burn_counts_beside_what_the_whole_window_had() -> None:
    """A tenth of the window's share of the budget: 2 % of 5 % of what 30 days had."""
    (page,) = (rule for rule in _conditions("users") if "users_ttft_burn:page" in rule["record"])
    bad = "sum_over_time(target:kneewatch_users_ttft_errors:increase1m[1h])"
    assert f"({bad} >= 10)" in page["expr"]
    assert (
        f"unless {bad} < last_over_time(target:kneewatch_users_ttft_requests:increase_window[40m]) * on" in page["expr"]
    )


def test_each_usual_window_has_a_budget() -> None:
    exprs = {rule["record"]: rule["expr"] for rule in RULES if "record" in rule}
    record = "target_workload:kneewatch_canary_availability_errors:increase"
    for window_s in BUDGET_WINDOWS_S:
        assert f"sum_over_time({record}20m[{duration(window_s)}])" in exprs[f"{record}_window"]
        assert f":seconds == {window_s:g}" in exprs[f"{record}_window"]
    assert {f"{one.budget_record}" for one in (*sli.CANARIES, *sli.USERS)} <= exprs.keys()


@pytest.mark.parametrize(
    ("scale", "intervals"),
    [(1.0, ("4m", "20m", "1m")), (0.5, ("2m", "10m", "30s")), (0.001, ("15s", "15s", "1s"))],
)
def test_budgets_are_recorded_under_the_five_minutes_in_which_a_sample_becomes_stale(
    scale: float, intervals: tuple[str, ...]
) -> None:
    groups = yaml.safe_load(build.render(window_scale=scale)[build.FILE])["groups"]
    found = {group["name"].removeprefix("kneewatch-slo-"): group for group in groups}
    assert tuple(found[name]["interval"] for name in ("budget", "sums", "canaries")) == intervals
    assert all(f"increase{intervals[-1]}" in rule["expr"] for rule in found["sums"]["rules"])


def test_no_group_has_more_rules_than_mimir_accepts() -> None:
    groups = yaml.safe_load(build.render()[build.FILE])["groups"]
    assert all(len(group["rules"]) <= 20 for group in groups)
    assert len({group["name"] for group in groups}) == len(groups)


def test_each_rule_of_a_minute_reads_what_the_ones_before_it_have_just_recorded() -> None:
    """Else a page would be up to a minute behind the failures, or be computed twice for each of them."""
    for name in ("canaries", "users"):
        made: list[str] = []
        group = GROUPS[f"kneewatch-slo-{name}"]
        mine = {rule["record"] for rule in group["rules"]}
        assert group["interval"] == "1m"
        for rule in group["rules"]:
            made.append(rule["record"])
            assert {s.name for s in selectors(rule["expr"])} & mine <= set(made)  # its own is that of a minute ago


def test_an_alert_and_its_conditions_read_records_and_no_raw_counter() -> None:
    for rule in [*BURNS, *_conditions("canary"), *_conditions("users")]:
        raw = {s.name for s in selectors(rule["expr"]) if ":" not in s.name}
        assert raw <= {names.TASK_INTERVAL.name}


def test_each_record_is_made_once_and_read() -> None:
    records = [rule["record"] for rule in RULES if "record" in rule]
    assert len(records) == len(set(records))
    read = {s.name for rule in RULES for s in selectors(rule["expr"])}
    shown = {one.budget_record for one in (*sli.CANARIES, *sli.USERS)}
    assert {name for name in read if ":" in name} | shown == set(records) | {name for name in read if ":" in name}
    assert set(records) <= read | shown


def test_every_expression_is_promql() -> None:
    for rule in RULES:
        promql_parser.parse(rule["expr"])


def test_a_collapse_inhibits_the_burn_that_follows_from_it_until_that_has_ended() -> None:
    found = [rule for group in yaml.safe_load(build.render()[build.FILE])["groups"] for rule in group["rules"]]
    (collapse,) = (rule for rule in found if rule.get("alert") == "KneewatchTTFTCollapse")
    assert seconds_of(collapse["keep_firing_for"]) > PAGE_KEEP_S
