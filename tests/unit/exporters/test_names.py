"""The list of series: well-formed, documented, and each name once."""

import re
from pathlib import Path

import pytest
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st

from exporters import names
from exporters.names import Series, with_bounds
from exporters.reference import reference, unit

ROOT = Path(__file__).parents[3]


# Their exporters follow from the rows.
OF_ROWS = {
    *names.SERVER.values(),
    *names.ENGINE.values(),
    *names.ENGINE_LATENCIES.values(),
    *names.USERS_LATENCIES.values(),
    *(check.series for check in names.CHECKS),
}
DECLARED = {value: name for name, value in vars(names).items() if isinstance(value, Series) and value not in OF_ROWS}
OURS = [series for series in names.ALL if series not in (*names.GPU, *names.STANDARD_PROCESS)]


@for_each(OURS, lambda series: series.name)
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
    assert set(OURS) == {*DECLARED, *OF_ROWS}


@for_each(names.GPU, lambda series: series.name)
def test_a_gpus_series_is_none_of_dcgm_exporters_and_names_the_one_it_is_read_from(series: Series) -> None:
    """A Prometheus that scrapes both would count each GPU twice in a sum over a name of theirs."""
    assert series.name.startswith("kneewatch_gpu_")
    assert re.search(r" \(DCGM_FI_(DEV|PROF)_[A-Z0-9_]+\)$", series.help)
    assert series.labels[0] == "target"
    assert (series.kind == "counter") == series.name.endswith("_total")


@for_each([s for s in names.ALL if s.kind == "histogram"], lambda series: series.name)
def test_buckets_rise(series: Series) -> None:
    assert list(series.buckets) == sorted(set(series.buckets))


@given(st.lists(st.floats(0.0001, 100.0), max_size=5))
def test_every_threshold_is_a_bound_and_no_bound_is_lost(thresholds: list[float]) -> None:
    bounds = with_bounds(names.TTFT, thresholds)
    assert set(bounds) == {*names.TTFT.buckets, *thresholds}
    assert list(bounds) == sorted(bounds)


def test_every_label_is_explained_and_every_explanation_is_of_one() -> None:
    assert {label for series in names.ALL for label in series.labels} == set(names.LABELS)


def test_every_series_names_its_source() -> None:
    assert {series.source for series in names.ALL} == set(names.SOURCES)


@pytest.mark.parametrize("name", DECLARED.values())
def test_every_series_is_exported(name: str) -> None:
    exporters = Path(names.__file__).parent
    sources = [path.read_text() for path in exporters.glob("*.py") if path.name not in {"names.py", "reference.py"}]
    assert any(re.search(rf"\bnames\.{name}\b", source) for source in sources)


def test_the_documentation_is_that_of_the_list() -> None:
    assert (ROOT / "docs/metrics.md").read_text() == reference(), "run `make generate` and commit"


def test_the_documentation_has_every_series_once() -> None:
    rows = re.findall(r"^\| `([A-Za-z0-9_]+)` \|.*\|.*\|.*\|.*\|", reference(), re.MULTILINE)
    assert sorted(rows) == sorted(series.name for series in names.ALL)


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        (names.TTFT, "seconds"),
        (names.REQUESTS, ""),
        (names.TOKENS, "tokens"),
        (names.SERVER["kv_cache_usage"], "ratio"),
        (names.LAST_SUCCESS, "seconds since 1970"),
        (names.CAPACITY_RPS_LOWER, "requests per second"),
        (names.SERVER["estimated_read_bytes"], "bytes"),
    ],
)
def test_units_are_those_of_the_names(series: Series, expected: str) -> None:
    assert unit(series) == expected
