import re
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from alerts import build
from alerts.links import CAPACITY, Links
from alerts.rules import Alert
from benchmarks.alerts.rules import seconds_of
from exporters import names
from probe.config.config_file import load_config

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
CONFIG = load_config(ROOT / "deploy/examples/kneewatch.yml")
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(build.render()[build.FILE])["groups"] for rule in group["rules"]
]
ALERTS = [rule for rule in RULES if "alert" in rule]


def test_the_committed_example_is_what_the_generator_makes() -> None:
    for name, text in build.render().items():
        assert (ROOT / "alerts/generated" / name).read_text() == text, "run `make generate`"


def test_write_puts_the_rendered_files_into_a_new_folder(tmp_path: Path) -> None:
    paths = build.write(tmp_path / "a" / "b")
    assert {path.name: path.read_text() for path in paths} == build.render()


def test_every_expression_is_promql() -> None:
    for rule in RULES:
        promql_parser.parse(rule["expr"])


def test_every_aggregation_keeps_the_cluster() -> None:
    for rule in RULES:
        clauses = re.findall(r"\b(?:by|on) \(([^)]+)\)", rule["expr"])
        assert all(clause.startswith("cluster,") for clause in clauses), rule["expr"]


def test_the_queries_in_a_text_are_of_the_alerts_own_cluster() -> None:
    """A target of another cluster may have the same name."""
    texts = " ".join(text for rule in ALERTS for text in rule["annotations"].values())
    queries = re.findall(r"printf `([^`]*)`", texts)
    assert len(queries) > 50
    for query in queries:
        assert len(re.findall(r"\b(?:target|instance|discovery)=%", query)) == query.count("cluster=%") > 0, query


def test_every_series_in_a_rule_is_one_that_is_exported_or_recorded() -> None:
    known = {series.name for series in names.ALL} | {rule["record"] for rule in RULES if "record" in rule}
    known |= {f"{s.name}{part}" for s in names.ALL if s.kind == "histogram" for part in ("_bucket", "_sum", "_count")}
    for rule in RULES:
        texts = " ".join([rule["expr"], *rule.get("annotations", {}).values()])
        used = set(re.findall(rf"(?:[a-z_]+:)?{names.PREFIX}[\w:]+", texts))
        assert used <= known


def test_runbooks_query_no_recorded_series_that_the_rules_lack() -> None:
    recorded = {rule["record"] for rule in RULES if "record" in rule}
    for page in (ROOT / "docs/runbooks").glob("*.md"):
        assert set(re.findall(rf"\b\w+:{names.PREFIX}\w+:\w+", page.read_text())) <= recorded, page


def test_a_scale_shortens_the_windows_and_leaves_thresholds_alone() -> None:
    whole, short = (build.render(window_scale=scale)[build.FILE] for scale in (1.0, 0.1))
    assert "ratio_rate1h" in whole
    assert "ratio_rate6m" in short
    assert "ratio_rate1h" not in short
    assert len(re.findall(r"clamp_min\(0\.02 \* ", whole)) == len(re.findall(r"clamp_min\(0\.02 \* ", short)) == 1


def test_a_rehearsal_says_so_at_its_head() -> None:
    whole, short = (build.render(window_scale=scale)[build.FILE] for scale in (1.0, 0.01))
    assert "REHEARSAL" not in whole
    assert short.splitlines()[1].startswith("# REHEARSAL: windows and waiting times are 0.01 times their length.")


def test_the_links_lead_to_grafana_and_to_the_dashboards_as_they_were_written() -> None:
    links = Links(grafana="https://grafana.example/g/", uid_prefix="team-")
    rules = yaml.safe_load(build.render(links=links)[build.FILE])["groups"]
    urls = {rule["annotations"]["dashboard_url"] for group in rules for rule in group["rules"] if "alert" in rule}
    assert all(url.startswith("https://grafana.example/g/d/team-kneewatch-") for url in urls)
    place = "".join(
        f"{{{{ with $labels.{label} }}}}&var-{label}={{{{ . }}}}{{{{ end }}}}" for label in ("cluster", "namespace")
    )
    one = f"{{{{ with $labels.target }}}}?var-target={{{{ . }}}}{place}{{{{ end }}}}"
    assert {f"https://grafana.example/g/d/team-kneewatch-{name}{one}" for name in ("target", "capacity")} <= urls


@pytest.mark.parametrize("scale", [0.0, -1.0])
def test_a_scale_that_is_no_scale_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        build.render(window_scale=scale)


def test_nothing_is_used_that_prometheus_2_42_does_not_know() -> None:
    groups = yaml.safe_load(build.render()[build.FILE])["groups"]
    assert all(set(group) == {"name", "interval", "rules"} for group in groups)
    known = {"alert", "record", "expr", "for", "keep_firing_for", "labels", "annotations"}
    assert all(set(rule) <= known for rule in RULES)


def test_a_page_is_evaluated_every_minute_or_more_often() -> None:
    """But for one on the capacity, which a run of minutes measures at night."""
    pages = [
        (group, rule)
        for group in build.groups()
        for rule in group.rules
        if isinstance(rule, Alert) and rule.severity == "page" and rule.dashboard != CAPACITY
    ]
    assert len(pages) > 10
    assert all(group.interval_s <= 60 for group, _ in pages)


def test_an_alert_is_evaluated_before_its_last_sample_is_stale() -> None:
    """Otherwise queries of ALERTS, such as that of the status page, find it for five minutes of each interval."""
    slow = {
        rule["alert"]
        for group in yaml.safe_load(build.render()[build.FILE])["groups"]
        for rule in group["rules"]
        if "alert" in rule and seconds_of(group["interval"]) >= 300
    }
    assert slow == set()


def test_a_record_that_is_stale_before_the_next_one_is_read_over_a_range() -> None:
    """But by the rules of its own group, which come right after it."""
    groups = yaml.safe_load(build.render()[build.FILE])["groups"]
    pages = [page.read_text() for page in (ROOT / "docs/runbooks").glob("*.md")]
    for slow in (group for group in groups if seconds_of(group["interval"]) >= 300):
        others = [rule for group in groups if group is not slow for rule in group["rules"]]
        texts = [" ".join([rule["expr"], *rule.get("annotations", {}).values()]) for rule in others] + pages
        for record in {rule["record"] for rule in slow["rules"]}:
            read = re.findall(rf"{record}(?![\w:])(?:{{[^}}]*}})?(.)", " ".join(texts), re.DOTALL)
            assert set(read) <= {"["}, record
