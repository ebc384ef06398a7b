"""A metrics page's lines to samples: quickly, and as prometheus_client reads them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from probe.scrape.metrics_parser import by_label, histogram, largest, one_of_each, samples, total

PAGES = [path.read_text() for path in sorted((Path(__file__).parents[2] / "pages").glob("*.prom"))]
PAGES.append((Path(__file__).parents[2] / "golden/vllm-0.32/metrics.txt").read_text())


def _names(page: str) -> set[str]:
    return {line.partition("{")[0].partition(" ")[0] for line in page.split("\n") if line and line[0] != "#"}


def _told(sample: Sample) -> tuple[str, list[tuple[str, str]], float]:
    return sample.name, sorted(sample.labels.items()), float(sample.value)


def _by_library(line: str) -> list[Sample]:
    return [sample for family in text_string_to_metric_families(line + "\n") for sample in family.samples]


@pytest.mark.parametrize("page", PAGES, ids=range(len(PAGES)))
def test_it_reads_each_line_as_the_library_does(page: str) -> None:
    found = [one for its in samples(page, _names(page)).values() for one in its]
    lines = [line for line in page.split("\n") if line and line[0] != "#"]
    expected = [one for line in lines for one in _by_library(line)]
    known = [one for one in expected if 0 <= one.value < float("inf") or one.name.endswith("_sum")]
    assert sorted(map(_told, found)) == sorted(map(_told, known))
    assert len(found) > 0.9 * len(lines)


LABEL = st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=8)


@given(
    LABEL, LABEL, st.sampled_from(["1", "-2.5", "1e+06", "0.5 1700000000000", "NaN", "+Inf", "1_0", "0x1", "1.2.3", ""])
)
def test_odd_labels_and_values_are_read_as_the_library_does_or_refused(a: str, b: str, value: str) -> None:
    line = f'm{{x="{a}",y="{b}"}} {value}'
    try:
        expected = [one for one in _by_library(line) if 0 <= one.value < float("inf")]
    except Exception:  # noqa: BLE001 - it has several for a line that is none
        expected = []
    try:
        found = samples(line, {"m"}).get("m", [])
    except (ValueError, LookupError):
        return
    assert [(one.labels, one.value) for one in found] == [
        (one.labels, one.value) for one in expected if one.name == "m"
    ]


def test_it_reads_nothing_that_is_not_wanted() -> None:
    assert samples('a{x="1"} 1\nab 2\nb 3\n# a 4\n', {"a"}) == {"a": [Sample("a", {"x": "1"}, 1.0)]}


def test_of_two_lines_of_one_series_the_first_counts() -> None:
    """As for Prometheus; two pages behind each other must not look like twice the load."""
    page = 'a{x="1"} 1\na{x="2"} 2\n'
    assert samples(page + page + 'a{x="1"} 7\n', {"a"}) == samples(page, {"a"})
    assert [one.value for one in samples("a 1\na 2\n", {"a"})["a"]] == [1.0]


def test_a_value_below_zero_stands_for_one_that_is_not_known() -> None:
    assert total(samples("a -1\n", {"a"}), "a") is None
    assert total(samples('a{e="0"} -1\na{e="1"} 3\n', {"a"}), "a") == 3


def test_a_byte_order_mark_before_the_first_sample() -> None:
    assert total(samples("\ufeffa 1\na 2\n", {"a"}), "a") == 1


def test_a_line_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 16384 characters"):
        samples("a " + "x" * 20_000, {"a"})


FOUND = samples('a{k="x"} 1\na{k="y"} 2\nb{k="y",pid="1"} 3\nb{k="y",pid="2"} 5\nb{k="z",pid="1"} 7\n', {"a", "b"})


def test_values_of_the_first_name_that_has_any() -> None:
    assert total(FOUND, "none", "a", "b") == 3
    assert total(FOUND, "a", "b", k="z") == 7
    assert largest(FOUND, "b", k="y") == 5
    assert total(FOUND, "none") is largest(FOUND, "none") is None
    assert by_label(FOUND, "k", "none", "a") == {"x": 1, "y": 2}


def test_processes_with_equal_values_count_once() -> None:
    assert total(one_of_each(FOUND, ("pid",)), "b") == 5 + 7


def test_a_histogram_is_summed_over_its_label_sets() -> None:
    page = "".join(
        f'h_bucket{{e="{e}",le="1"}} {e}\nh_bucket{{e="{e}",le="+Inf"}} {2 * e}\nh_sum{{e="{e}"}} 0.5\n' for e in (1, 2)
    )
    found = samples(page, {"h_bucket", "h_sum"})
    both, one = histogram(found, "none", "h"), histogram(found, "h", e="2")
    assert both is not None
    assert one is not None
    assert (both.buckets, both.sum) == (((1.0, 3.0), (float("inf"), 6.0)), 1.0)
    assert (one.buckets, one.sum) == (((1.0, 2.0), (float("inf"), 4.0)), 0.5)
    assert histogram(found, "h", e="3") is None


def _page(*engines: dict[str, float], sums: int | None = None) -> str:
    """Return a histogram's buckets of each engine, and the sums of the first ones, all by default."""
    lines = [f'h_bucket{{e="{i}",le="{le}"}} {n}' for i, its in enumerate(engines) for le, n in its.items()]
    return "\n".join(lines + [f'h_sum{{e="{i}"}} 1' for i in range(len(engines) if sums is None else sums)])


INF = float("inf")


@pytest.mark.parametrize(
    ("page", "buckets"),
    [
        (_page({"0.5": 1, "+Inf": 2}, {"0.5": 3, "+Inf": 9}), ((0.5, 4), (INF, 11))),
        (_page({"0.5": 1, "1": 2, "+Inf": 2}, {"1": 3, "2": 5, "+Inf": 9}), ((1, 5), (INF, 11))),  # other buckets
        (_page({"0.5": 1, "+Inf": 2}, {"2": 5, "+Inf": 9}), ((INF, 11),)),
        (_page({"0.5": 1, "1": 4}), None),  # without the total
        (_page({"0.5": 1, "+Inf": 4}, {"0.5": 1, "1": 4}), None),  # of one engine
        (_page({"0.5": 5, "1": 4, "+Inf": 6}), None),  # counts that fall
        (_page({"0.5": -1, "+Inf": 6}), ((INF, 6),)),
        (_page({"0.5": 1, "+Inf": -1}), None),
        (_page({"0.5": 1, "+Inf": float("nan")}), None),
        (_page({"0.5": float("nan"), "+Inf": 3}), ((INF, 3),)),
        (_page({"0.5": 1, "+Inf": 3}, sums=0), None),
        (_page({"0.5": 1, "+Inf": 3}, {"0.5": 1, "+Inf": 3}, sums=1), None),
        (_page({"0.5": 1, "+Inf": 3}) + "\n" + _page({"0.5": 2, "+Inf": 4}), ((0.5, 1), (INF, 3))),  # twice
        (
            _page({"0.50": 1, "+Inf": 3}).replace("} 1\n", '} 1 # {id="x"} 0.2 17.5\n'),
            ((0.5, 1), (INF, 3)),
        ),  # exemplars
        (_page({"0.5": 1, "+Inf": 3}).replace("\n", "\r\n"), ((0.5, 1), (INF, 3))),
    ],
)
def test_a_histogram_is_right_or_unknown(page: str, buckets: tuple[tuple[float, float], ...] | None) -> None:
    found = histogram(samples(page, {"h_bucket", "h_sum"}), "h")
    assert (found and found.buckets) == buckets


@pytest.mark.fault("FA111")
def test_sums_of_what_no_server_has_counted_do_not_overflow() -> None:
    page = 'm{a="1"} 1e308\nm{a="2"} 1e308\nm{a="3"} 2\nm{a="4"} -1e308\n'
    assert total(samples(page, {"m"}), "m") == 2


@pytest.mark.slow
@pytest.mark.fault("ME12")
def test_a_page_of_several_parts_is_read_as_one_of_one_part() -> None:
    page = "".join(f'm{{a="{i}"}} {i}\n' for i in range(60_000))
    assert len(page) > 3 * 2**18
    assert total(samples(page, {"m"}), "m") == sum(range(60_000))
    assert total(samples(page.rstrip("\n"), {"m"}), "m") == sum(range(60_000))
    assert total(samples("\n" * 2**20 + "m 1", {"m"}), "m") == 1
