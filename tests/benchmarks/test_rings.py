import numpy as np
import pytest

from benchmarks.alerts.rings import (
    DESIGNS,
    OUTAGES,
    PER_MINUTE,
    burn,
    down_again,
    hear,
    kept,
    outage,
    outage_in,
    outages,
    restart,
    rings,
    steady,
    sustained,
    table,
    within,
)

CHOSEN = sustained(120, 720)
START = 12 * 60


def test_a_window_sums_its_minutes_and_those_there_are_at_the_beginning() -> None:
    assert within(np.array([1.0, 2.0, 3.0, 4.0]), 2).tolist() == [1, 3, 5, 7]
    assert burn(np.full(5, PER_MINUTE), 3) == pytest.approx(1000)


def test_a_kept_alert_ends_that_much_later_and_rings_once_for_what_comes_meanwhile() -> None:
    fires = np.array([False, True, False, False, True, False, False, False, False])
    assert rings(fires) == 2
    assert kept(fires, 3).tolist() == [False, True, True, True, True, True, True, True, False]
    assert rings(kept(fires, 3)) == 1
    assert rings(np.array([True, False])) == 1


@pytest.mark.parametrize("minutes", OUTAGES)
def test_an_outage_rings_once_in_its_first_minutes_and_is_over_two_hours_later(minutes: int) -> None:
    heard = hear(CHOSEN, outage(minutes), end=START + minutes)
    assert (heard.rings, heard.after_min) == (1, 1)
    assert heard.lasts_min <= 125


def test_strays_after_an_outage_and_a_restart_of_a_young_target_ring_no_more() -> None:
    echo = outage(20, strays=(180, 190))
    assert (hear(CHOSEN, echo).rings, hear(DESIGNS["before"], echo).rings) == (1, 3)
    assert (hear(CHOSEN, restart()).rings, hear(DESIGNS["before"], restart()).rings) == (0, 2)


@pytest.mark.parametrize("share", [0.005, 0.01, 0.02, 0.05])
def test_a_steady_burn_rings_much_less_and_is_found_as_soon(share: float) -> None:
    rng = np.random.default_rng(3)
    causes = [steady(rng, share) for _ in range(5)]
    now, before = ([hear(design, cause) for cause in causes] for design in (CHOSEN, DESIGNS["before"]))
    assert sum(each.rings for each in now) < 0.6 * sum(each.rings for each in before)
    delays = [[each.after_min or START * 10 for each in heard] for heard in (now, before)]
    assert np.median(delays[0]) <= np.median(delays[1]) + 120


def test_an_outage_soon_after_another_or_during_a_steady_burn_rings_and_a_first_one_once() -> None:
    design = down_again(60)
    rings_of = [hear(design, failures).rings for failures in (outage(20), outages(2, 20, 30), outages(2, 20, 100))]
    assert rings_of == [1, 2, 2]
    assert [hear(CHOSEN, outages(2, 20, up)).rings for up in (30, 100)] == [1, 1]
    rng = np.random.default_rng(3)
    burning = [outage_in(rng, 0.02) for _ in range(5)]
    assert all(hear(design, each).rings == hear(CHOSEN, each).rings + 1 for each in burning)


def test_a_server_that_restarts_all_day_or_fails_a_quarter_rings_no_more_for_being_down_again() -> None:
    assert hear(down_again(60), outages(8, 5, 5)).rings == 1
    assert hear(down_again(60), outages(8, 10, 30)).rings == 2
    rng = np.random.default_rng(3)
    for cause in (steady(rng, share) for share in (0.01, 0.05, 0.25)):
        assert hear(down_again(60), cause).rings == hear(CHOSEN, cause).rings


def test_the_table_has_a_row_for_each_design() -> None:
    rows = table(seeds=1).splitlines()
    assert len(rows) == 2 + len(DESIGNS)
    assert len({row.count("|") for row in rows}) == 1
