import promql_parser
import pytest

from alerts import sli


@pytest.mark.parametrize("one", sli.ALL, ids=lambda one: one.objective)
def test_every_expression_is_promql(one: sli.Sli) -> None:
    for expr in (one.bad("1h"), one.good_ratio("5m", 'target="a"'), one.error_ratio("5m", 'target="a",workload=~".*"')):
        promql_parser.parse(expr)


def test_what_we_aborted_counts_for_nobody() -> None:
    assert 'outcome!="aborted"' in sli.AVAILABILITY.total("1h")


def test_latency_judges_the_requests_that_succeeded() -> None:
    assert all('outcome="ok"' in one.total("1h") for one in (sli.TTFT, sli.TPOT))


def test_a_selector_narrows_good_and_all_requests_alike() -> None:
    selector = 'target="a"'
    assert sli.TTFT.good_ratio("5m", selector).count(selector) == 3
