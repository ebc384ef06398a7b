"""What the groups pressure, GPU and health have in common: series, scale, links, severities, and what XIDs mean."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import promql_parser
import pytest

from alerts.alert_labels import PLAIN_LABELS
from alerts.gpu import FATAL_XIDS, OTHER_XIDS, gpu_group, gpu_tickets_group, xid_meaning
from alerts.health import health_group, instrument_group
from alerts.links import DEFAULT
from alerts.pressure import pressure_group, stalled_group
from alerts.rules import RuleGroup
from exporters import names
from probe.gpu import fields

ROOT = Path(__file__).parents[3]
GROUPS: tuple[Callable[[float], RuleGroup], ...] = (
    pressure_group,
    stalled_group,
    gpu_group,
    gpu_tickets_group,
    health_group,
    instrument_group,
)


def _rules(scale: float = 1.0) -> list[dict[str, Any]]:
    groups: Any = [group(scale).as_yaml(DEFAULT, PLAIN_LABELS) for group in GROUPS]
    return [rule for group in groups for rule in group["rules"]]


RULES = _rules()
ALERTS = [rule for rule in RULES if "alert" in rule]


def _seconds(text: str) -> float:
    return promql_parser.parse_duration(text).total_seconds()


@pytest.mark.parametrize("scale", [1.0, 0.05, 0.01, 0.001])
def test_every_expression_is_promql_at_every_scale(scale: float) -> None:
    for rule in _rules(scale):
        promql_parser.parse(rule["expr"])


def test_the_queries_in_the_texts_are_promql() -> None:
    for rule in ALERTS:
        for query in re.findall(r"printf `([^`]*)`", " ".join(rule["annotations"].values())):
            promql_parser.parse(re.sub(r"%(\[\d+\])?q", '"a"', query))


def _queries(page: str) -> Iterator[str]:
    """Return a runbook's queries, one per line, with their indented continuation lines."""
    for block in re.findall(r"^ *```promql\n(.*?)^ *```", page, re.MULTILINE | re.DOTALL):
        yield from re.sub(r"\n\s+", " ", dedent(block)).splitlines()


@pytest.mark.parametrize("name", sorted({rule["alert"] for rule in ALERTS}))
def test_the_queries_of_a_runbook_are_promql_of_series_that_there_are(name: str) -> None:
    page = (ROOT / "docs/runbooks" / f"{name}.md").read_text()
    for query in _queries(page):
        promql_parser.parse(query)
    assert set(re.findall(r"(?:[a-z_]+:)?kneewatch_[\w:]*", page)) <= _known()


def _known() -> set[str]:
    known = {series.name for series in names.ALL}
    known |= {f"{series.name}_{part}" for series in names.ALL for part in ("bucket", "sum", "count")}
    return known | {rule["record"] for rule in RULES if "record" in rule}


def test_every_series_is_one_that_is_exported_or_recorded() -> None:
    for rule in RULES:
        texts = " ".join([rule["expr"], *rule.get("annotations", {}).values()])
        used = set(re.findall(r"(?:[a-z_]+:)?kneewatch_[\w:]*", texts))
        assert used <= _known()


def test_recorded_series_are_named_by_level_metric_and_operation() -> None:
    recorded = [rule["record"] for rule in RULES if "record" in rule]
    assert recorded
    assert all(
        re.fullmatch(r"(?:target|instance|job)[a-z_]*:[A-Za-z_]+:[a-z_]+([0-9]+[mhd])?", record) for record in recorded
    )


def test_a_scale_shortens_every_window_and_every_wait() -> None:
    whole, tenth = _rules(), _rules(0.1)
    for before, after in zip(whole, tenth, strict=True):
        for field in ("for", "keep_firing_for"):
            if field in before:
                assert _seconds(after[field]) == pytest.approx(0.1 * _seconds(before[field]), abs=0.001)
        windows = [[_seconds(text) for text in re.findall(r"\[(\w+)[\]:]", rule["expr"])] for rule in (before, after)]
        # A reading a minute old is still the newest where one in between has failed.
        least = 15.0 if before.get("alert") == "KneewatchEngineStalled" else 0.0
        assert windows[1] == pytest.approx([max(0.1 * window, least) for window in windows[0]], abs=0.001)


def test_thresholds_of_shares_stay() -> None:
    shares = [re.findall(r"[<>]=? (0\.\d+)", " ".join(rule["expr"] for rule in _rules(scale))) for scale in (1.0, 0.1)]
    assert shares[0] == shares[1]
    assert {"0.5", "0.1"} <= set(shares[0])


def test_a_standstill_is_not_called_sooner_than_a_long_step_takes_in_any_rehearsal() -> None:
    (expr,) = (rule["expr"] for rule in _rules(0.01) if rule.get("alert") == "KneewatchEngineStalled")
    assert expr.endswith("> 30")


def test_alerts_of_one_name_differ_in_their_labels() -> None:
    """Prometheus takes two with the same labels for one series, and stops with an error."""
    reported = [(rule["alert"], *sorted(rule["labels"].items())) for rule in ALERTS]
    assert len(reported) == len(set(reported))


def test_a_gpu_value_is_found_by_its_name() -> None:
    assert all(names.gpu(field.name).name == f"kneewatch_gpu_{field.series}" for field in fields.FIELDS)
    with pytest.raises(KeyError):
        names.gpu("DCGM_FI_DEV_NO_SUCH_THING")


def test_an_xid_is_a_page_or_a_ticket_and_not_both() -> None:
    assert not set(FATAL_XIDS) & set(OTHER_XIDS)
    page, ticket = (rule["expr"] for rule in ALERTS if rule["alert"] == "KneewatchGPUXid")
    numbers = re.findall(r'"([\d|]+)"', page)
    assert numbers == re.findall(r'"([\d|]+)"', ticket) == ["|".join(map(str, FATAL_XIDS))]
    assert {79, 95, 119, 154} <= set(FATAL_XIDS)
    assert {13, 31, 43, 45, 94} <= set(OTHER_XIDS)


def test_equal_numbers_are_reported_once() -> None:
    assert xid_meaning({1: "one", 2: "two", 3: "two"}) == (
        '{{ if eq $labels.xid "1" }}one{{ else if eq $labels.xid "2" "3" }}two'
        "{{ else }}see NVIDIA's catalogue of XID errors{{ end }}"
    )


def test_the_arithmetic_finds_the_bits_that_a_computer_finds() -> None:
    """As the expression has it, with Python's floor and remainder, which are PromQL's for what is not negative."""
    (expr,) = (rule["expr"] for rule in ALERTS if rule["alert"] == "KneewatchGPUThrottling")
    slowed, capped = (
        next(part for part in re.findall(r"avg_over_time\(\((.*?)\)\[", expr) if sign in part)
        for sign in ("/ 32", "/ 4)")
    )

    def value(promql: str, reasons: int) -> float:
        python = promql.replace("kneewatch_gpu_throttle_reasons", str(reasons)).replace("> bool", ">")
        return float(eval(python, {"floor": int}))  # noqa: S307 - the rule's own text

    for reasons in range(1024):
        assert value(slowed, reasons) == bool(reasons & (0x08 | 0x20 | 0x40 | 0x80)), reasons
        assert value(capped, reasons) == bool(reasons & 0x04), reasons
