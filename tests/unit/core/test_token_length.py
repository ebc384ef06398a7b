"""Lengths as a histogram shows them."""

import math
from statistics import fmean

import pytest

from probe.core.request import Api
from probe.core.token_length import MeasuredLength, stored_length
from probe.core.workload import Workload, lengths, longest_request, requests

TWO_HUMPS = MeasuredLength((100.0, 200.0, 4000.0, 8000.0), (0.0, 0.9, 0.9, 1.0))


def test_quantiles_are_geometric_between_two_lengths() -> None:
    assert TWO_HUMPS.quantile(0.0) == 100
    assert TWO_HUMPS.quantile(0.45) == pytest.approx(100 * math.sqrt(2))
    assert TWO_HUMPS.quantile(0.9) == pytest.approx(200)
    assert TWO_HUMPS.quantile(0.95) == pytest.approx(4000 * math.sqrt(2))
    assert TWO_HUMPS.quantile(1.0) == TWO_HUMPS.maximum == 8000


@pytest.mark.parametrize("most", [math.inf, 5000.0, 150.0, 50.0])
def test_the_mean_is_that_of_its_quantiles(most: float) -> None:
    drawn = fmean(min(TWO_HUMPS.quantile((i + 0.5) / 20_000), most) for i in range(20_000))
    assert TWO_HUMPS.mean_within(most) == pytest.approx(drawn, rel=1e-3)


def test_equal_lengths_are_drawn_as_often_as_their_share() -> None:
    point = MeasuredLength((7.0, 7.0), (0.0, 1.0))
    assert (point.mean, point.quantile(0.3), point.maximum) == (7.0, 7.0, 7)


def test_a_length_is_read_back_from_json_and_printed_for_people() -> None:
    values = {"tokens": list(TWO_HUMPS.tokens), "shares": list(TWO_HUMPS.shares)}
    assert stored_length(values) == TWO_HUMPS
    assert str(TWO_HUMPS) == "mean 707, p50 147, p95 5,657, p99 7,464"


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"median": 5},
        {"tokens": [1, 2], "shares": [1.0]},
        {"tokens": [1], "shares": [1.0]},
        {"tokens": [1, "2"], "shares": [0.0, 1.0]},
        {"tokens": [1, math.nan], "shares": [0.0, 1.0]},
        {"tokens": "12", "shares": "01"},
    ],
)
def test_anything_else_is_no_length(values: dict[str, object]) -> None:
    assert stored_length(values) is None


def test_requests_have_the_measured_lengths_and_fit_the_context() -> None:
    workload = Workload("users", Api.COMPLETIONS, TWO_HUMPS, TWO_HUMPS, context_tokens=8000)
    pairs = [pair for pair, _ in zip(lengths(workload), range(4000), strict=False)]
    assert fmean(prompt > 1000 for prompt, _, _ in pairs) == pytest.approx(0.1, abs=0.02)
    assert max(prompt + output for prompt, output, _ in pairs) == longest_request(workload) == 8000
    assert min(output for _, output, _ in pairs) >= 1
    first = next(requests(workload))
    assert (first.prompt_tokens, first.output_tokens) == pairs[0][:2]
