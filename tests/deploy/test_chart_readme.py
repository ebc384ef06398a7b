"""The chart's README has each of its values, with a meaning."""

import re

import helm_python
import pytest
import yaml
from chart_values import rendered

from benchmarks.chart_readme import CHART, comments, readme

TEXT = (CHART / "README.md").read_text()
ROWS = re.findall(r"^\| `(\S+)` \| (.*) \| (.*) \| (.*) \|$", TEXT, re.MULTILINE)


def test_the_table_is_up_to_date() -> None:
    assert readme(TEXT) == TEXT, "deploy/helm/kneewatch/README.md: run make generate"


def test_every_value_has_a_meaning() -> None:
    assert len(ROWS) > 100
    assert [name for name, _, _, meaning in ROWS if not meaning.strip()] == []


def test_every_top_level_value_has_a_row() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert values.keys() - {name for name, *_ in ROWS} == set()


@pytest.mark.parametrize(
    ("name", "type_", "default"),
    [
        ("replicas", "whole number", "`1`"),
        ("image", "mapping", ""),
        ("service.type", "`ClusterIP`, `NodePort`, `LoadBalancer`", '`"ClusterIP"`'),
        ("ingress.enabled", "`true` or `false`", "`false`"),
    ],
)
def test_a_row_has_type_and_default(name: str, type_: str, default: str) -> None:
    assert [(t, d) for n, t, d, _ in ROWS if n == name] == [(type_, default)]


def test_a_comment_belongs_to_the_line_below_it_or_beside_it() -> None:
    text = "# Above\n# it.\na:\n  b: 1   # beside\n  # of c\n  c: x\nd: 2\n"
    assert comments(text) == {"a": "Above it.", "a.b": "beside", "a.c": "of c", "d": ""}


def test_the_values_of_its_example_are_accepted(chart: helm_python.Chart) -> None:
    example, *_ = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    kinds = {manifest["kind"] for manifest in rendered(chart, yaml.safe_load(example))}
    assert "Ingress" in kinds
