import numpy as np
import pytest

from benchmarks.alerts.updates import false_pages, found, months, pages


def test_failures_page_where_enough_are_in_an_hour_and_the_last_two_in_five_minutes() -> None:
    update = [0.0, 15, 30, 45]

    def rings(times: list[float], least: int) -> bool:
        return bool(pages(np.array([[*times, np.inf, np.inf]]), least)[0])

    assert rings(update, 4)
    assert not rings(update, 5)
    assert rings([*update, 300.0], 5)
    assert not rings([*update, 346.0], 5)  # nothing else failed lately
    assert rings([*update, *(3500.0 + at for at in update)], 6)
    assert not rings([*update, *(3600.0 + at for at in update)], 6)


def test_a_month_has_a_few_single_failures_and_those_of_its_updates() -> None:
    failed = np.isfinite(months(np.random.default_rng(1), 5000)).sum(axis=1)
    # 172,800 canaries of which 4 in 100,000 fail, and four updates of four canaries of which a fifth fail on average.
    assert failed.mean() == pytest.approx(6.9 + 3.2, rel=0.03)


def test_each_further_failure_pages_less_by_chance_and_finds_fewer_burns() -> None:
    false = false_pages(np.random.default_rng(1), (4, 5), 1)
    assert false[0] > 5 > false[1]
    burns = [found(np.random.default_rng(1), least, 20.0, 2, draws=60) for least in (4, 8)]
    assert burns[0] > burns[1] + 0.2
    assert found(np.random.default_rng(1), 6, 200.0, 1, draws=5) == 1
