"""The list of series: well-formed, documented, and each name once."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporters import names
from exporters.names import Series, with_bounds


@pytest.mark.parametrize("series", names.ALL, ids=lambda s: s.name)
def test_a_series_is_named_as_prometheus_wants_it(series: Series) -> None:
    assert re.fullmatch(r"kneewatch_[a-z][a-z0-9_]*[a-z0-9]", series.name)
    assert series.kind in {"counter", "gauge", "histogram"}
    assert series.name.endswith("_total") == (series.kind == "counter")
    assert not series.name.endswith(("_bucket", "_sum", "_count", "_created"))
    assert series.stability in {"stable", "experimental"}
    assert len(set(series.labels)) == len(series.labels)
    assert not {"job", "instance", "le", "quantile"} & set(series.labels), "Prometheus has its own meaning for these"
    assert len(series.help) > 10
    assert "\n" not in series.help
    assert not series.help.endswith(".")


def test_each_name_is_there_once_and_all_of_them_are_in_all() -> None:
    every = [series.name for series in names.ALL]
    assert len(every) == len(set(every))
    assert set(names.ALL) == {value for value in vars(names).values() if isinstance(value, Series)}


@pytest.mark.parametrize("series", [s for s in names.ALL if s.kind == "histogram"], ids=lambda s: s.name)
def test_buckets_rise(series: Series) -> None:
    assert list(series.buckets) == sorted(set(series.buckets))


@given(st.lists(st.floats(0.0001, 100.0), max_size=5))
def test_every_threshold_is_a_bound_and_no_bound_is_lost(thresholds: list[float]) -> None:
    bounds = with_bounds(names.TTFT, thresholds)
    assert set(bounds) == {*names.TTFT.buckets, *thresholds}
    assert list(bounds) == sorted(bounds)
