"""What the alerts on headroom and on forecasts ask, beyond what promtool tries."""

import re
from typing import Any

import promql_parser
import pytest
import yaml

from alerts import build
from alerts.headroom import ALERT
from alerts.templates import value_of
from probe.config.config_file import config_from

pytestmark = pytest.mark.slow

CONFIG = config_from({"targets": [{"name": "a", "base_url": "http://x:1"}]}, "test")


def _rules(scale: float = 1.0) -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(build.render(window_scale=scale)[build.FILE])["groups"]
    (group,) = [group for group in groups if group["name"] == "kneewatch-capacity"]
    return {rule.get("alert") or rule["record"]: rule for rule in group["rules"]}


@pytest.mark.parametrize("alert", ["KneewatchHeadroomLow", "KneewatchForecastDisagrees"])
def test_the_queries_in_annotations_are_valid_promql(alert: str) -> None:
    """Of what printf is not given it makes an error, in the text of an alert at night."""
    templates = re.findall(r"printf `([^`]*)` ([^|]*) \| query", _rules()[alert]["annotations"]["description"])
    assert len(templates) >= 4
    for query, labels in templates:
        assert labels.split() == [f"$labels.{label}" for label in ALERT]
        assert {int(n) for n in re.findall(r"%\[(\d)\]q", query)} == {1, 2, 3, 4, 5}
        promql_parser.parse(re.sub(r"%\[\d\]q", '"x"', query))


def test_headroom_is_recorded_before_it_is_judged() -> None:
    names = list(_rules())
    assert names.index("target_model_workload:kneewatch_capacity_headroom_ratio:min") < names.index(
        "KneewatchHeadroomLow"
    )


def test_a_scale_shortens_every_window_and_leaves_thresholds_alone() -> None:
    whole, short = (_rules(scale)["KneewatchHeadroomLow"] for scale in (1.0, 0.1))
    assert (whole["for"], short["for"]) == ("20m", "2m")
    for text in (
        "[15m]) < 0.15",
        "[15m]) < 0.3",
        "[1h], 7200) < 0",
        "[7d] offset 2h",
        "[1d] offset 6d",
        "> time() - 3600",
    ):
        assert text in whole["expr"]
    for text in ("[90s]) < 0.15", "[90s]) < 0.3", "[6m], 720) < 0", "[1008m] offset 12m", "> time() - 360\n"):
        assert text in short["expr"]
    disagrees = _rules(0.1)["KneewatchForecastDisagrees"]
    assert "[156m]" in disagrees["expr"]
    assert "> time() - 8640\n" in disagrees["expr"]
    assert disagrees["for"] == "36m"


def test_a_figure_that_is_not_there_is_said_to_be_unknown() -> None:
    assert value_of("up{target=%q}", ("target",)) == (
        '{{ with printf `up{target=%q}` $labels.target | query }}{{ . | first | value | printf "%.2f"'
        ' | reReplaceAll "[.]?0+$" "" }}'
        "{{ else }}unknown{{ end }}"
    )
