"""When the knee has shifted, when it has not, and what the baseline is."""

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from probe.capacity.trend.change_detection import (
    METHODS,
    _replay,
    detect_shift,
    largest_u,
    needs_confirmation,
    pairs_above,
)
from probe.core.shift import CapacitySample, Shift

NOISE = (1.01, 0.99, 1.02, 1.0, 0.98)  # a month's, over and over


def figures(rps: Iterable[float], *, width: float | None = 0.05, **other: object) -> list[CapacitySample]:
    """Return one run a day with an interval of plus and minus `width`, or None for a lower bound."""
    made = [
        CapacitySample(
            at_s=day * 86400.0,
            requests_per_second=value,
            lower=value if width is None else value / (1 + width),
            upper=None if width is None else value * (1 + width),
            mode="verified",
            fingerprint="f",
            run=f"{day}",
        )
        for day, value in enumerate(rps)
    ]
    return [replace(figure, **other) for figure in made]  # type: ignore[arg-type]


def month(level: float = 40.0, days: int = 33) -> list[float]:
    """Return undisturbed runs: 28 for the baseline and five after them."""
    return [level * NOISE[day % len(NOISE)] for day in range(days)]


def judged(rps: Iterable[float], **other: object) -> Shift:
    found = detect_shift(figures(rps, **other))  # type: ignore[arg-type]
    assert found is not None
    return found


def fired(found: Shift | None) -> set[str]:
    assert found is not None
    assert tuple(found.fired) == METHODS
    return {method for method, said in found.fired.items() if said}


# What fires.


def test_a_quiet_month_is_no_shift() -> None:
    found = judged(month())
    assert fired(found) == set()
    assert found.since_s is None
    assert found.ratio == pytest.approx(0.0, abs=0.03)
    assert (found.baseline.count, found.baseline.since_s) == (28, 0.0)
    assert found.baseline.requests_per_second == pytest.approx(40.0)


@pytest.mark.parametrize("bad", [[32.5], [35.5, 35.5]])
def test_a_bad_night_or_two_are_no_shift(bad: list[float]) -> None:
    assert fired(judged([*month(), *bad])) == set()


def test_two_runs_at_fifteen_percent_less_are_one() -> None:
    assert fired(judged([*month(), 34.0, 34.0])) == {"median_of_3"}
    assert fired(judged([*month(), 34.0, 40.0, 34.0])) == set()


@pytest.mark.fault(
    "TR47",
    "A capacity that is lower by a fifth, so that chance decides which runs are 20 % below the baseline",
    area="Truth",
    users_see="KneewatchKneeDown in the first or second night",
    stays="a low run is measured again until three in a row were low, or the shift is said",
)
def test_a_run_that_is_low_by_twice_the_limit_is_measured_again() -> None:
    night = figures([*month(), 33.0])
    assert needs_confirmation(night)
    assert not needs_confirmation(figures([*month(), 35.5]))
    again = replace(night[-1], run="again", confirms=night[-1].run)
    assert needs_confirmation([*night, again])
    said = [*night, again, replace(night[-1], run="later")]
    assert fired(detect_shift(said)) == {"median_of_3"}
    assert not needs_confirmation(said)


def test_three_runs_at_ten_percent_less_are_one() -> None:
    found = judged([*month(), 36.0, 36.4, 35.6])
    assert fired(found) == {"median_of_3"}
    assert found.since_s == 33 * 86400.0
    assert found.ratio == pytest.approx(35.6 / 40 - 1)


def test_two_bad_nights_around_a_good_one_are_none() -> None:
    assert fired(judged([*month(), 34.0, 40.0, 34.0])) == set()


def test_five_runs_at_six_percent_less_are_one_by_their_ranks() -> None:
    assert fired(judged([*month(), *[37.5] * 4])) == set()
    assert fired(judged([*month(), *[37.5] * 5])) == {"mann_whitney"}


def test_ten_percent_more_is_a_rise_and_nothing_else() -> None:
    found = judged([*month(), 44.0, 44.4, 44.0])
    assert fired(found) == {"rise"}
    assert found.ratio == pytest.approx(0.1)


def test_a_third_less_in_three_runs_in_a_row_is_a_page_and_in_two_is_not() -> None:
    assert fired(judged([*month(), 27.0])) == set()
    assert "confirmed_drop" not in fired(judged([*month(), 27.0, 28.0]))
    assert "confirmed_drop" not in fired(judged([*month(), 27.0, 28.0, 38.0, 27.0, 28.0]))
    assert "confirmed_drop" in fired(judged([*month(), 27.0, 28.0, 27.0]))


def test_a_shift_ends_when_the_knee_is_back_more_than_half_the_way() -> None:
    """Around the threshold one alert stays one alert."""
    shifted = [*month(), 36.0, 36.0, 36.0]
    assert "median_of_3" in fired(judged([*shifted, 38.3, 38.3]))
    assert fired(judged([*shifted, 39.5, 39.5, 39.5])) == set()


def test_a_page_ends_when_a_run_is_back_by_more_than_half_the_way() -> None:
    page = [*month(), 30.0, 30.0, 30.0]
    assert "confirmed_drop" in fired(judged([*page, 33.0]))
    assert "confirmed_drop" not in fired(judged([*page, 37.0]))
    assert "confirmed_drop" not in fired(judged([*page, 37.0, 33.0]))


def test_a_run_at_the_baseline_ends_the_ticket_with_the_page() -> None:
    """Nobody is told of a lower capacity when it is there again; and a new fall is told anew."""
    low = [*month(), *[27.0] * 5]
    assert fired(judged(low)) == {"confirmed_drop", "median_of_3", "mann_whitney"}
    assert fired(judged([*low, 40.0])) == set()
    assert fired(judged([*low, 40.0, 40.0])) == set()
    assert judged([*low, 40.0, 40.0]).since_s is None
    assert fired(judged([*low, 37.0])) == {"median_of_3", "mann_whitney"}, "the page ends, the ticket stays"
    assert fired(judged([*low, 40.0, 36.0, 36.0, 36.0])) == {"median_of_3"}


def test_a_short_baseline_asks_for_more() -> None:
    lower = [37.1] * 3
    assert fired(judged([*month(), *lower])) == {"median_of_3"}
    assert fired(judged([*month(days=7), *lower])) == set()
    assert fired(judged([*month(days=7), *[36.0] * 3])) == {"median_of_3"}


def test_a_noisy_baseline_asks_for_more() -> None:
    quiet, noisy = month(), [40.0 * (1.0 + 0.08 * math.sin(2 * day)) for day in range(33)]
    assert fired(judged([*quiet, 36.0, 36.0, 36.0])) == {"median_of_3"}
    assert judged(noisy).baseline.noise_ratio > 0.05
    assert fired(judged([*noisy, 36.0, 36.0, 36.0])) == set()


def test_outliers_in_the_baseline_do_not_spoil_it() -> None:
    spoilt = month()
    for day in (3, 9, 14, 20, 26):
        spoilt[day] = 4.0 if day % 2 else 400.0
    found = judged([*spoilt, 36.0, 36.0, 36.0])
    assert found.baseline.requests_per_second == pytest.approx(40.0, rel=0.02)
    assert fired(found) == {"median_of_3"}


# The further runs of a night.


def test_a_drop_of_a_fifth_asks_for_a_second_run_and_a_third_before_it_is_a_page() -> None:
    night = figures([*month(), 31.0])
    assert needs_confirmation(night)
    again = replace(night[-1], at_s=night[-1].at_s + 300, run="again", confirms=night[-1].run)
    assert needs_confirmation([*night, again])
    assert fired(detect_shift([*night, again])) == set()
    later = replace(night[-1], at_s=night[-1].at_s + 3900, run="later")
    assert not needs_confirmation([*night, again, later])
    assert "confirmed_drop" in fired(detect_shift([*night, again, later]))


@pytest.mark.parametrize("repeated", [36.0, 40.0])
def test_a_run_that_contradicts_a_drop_ends_the_questions(repeated: float) -> None:
    night = figures([*month(), 31.0])
    again = figures([repeated], at_s=night[-1].at_s + 300, run="again", confirms=night[-1].run)
    assert not needs_confirmation([*night, *again])
    low = figures([31.0], at_s=night[-1].at_s + 86400)
    assert needs_confirmation([*night, *again, *low])
    assert "confirmed_drop" not in fired(detect_shift([*night, *again, *low]))


def test_a_drop_that_is_known_asks_for_no_more_runs() -> None:
    """Else a page would double the load of every night until somebody mends the server."""
    assert needs_confirmation(figures([*month(), 30.0]))
    assert needs_confirmation(figures([*month(), 30.0, 30.0]))
    assert not needs_confirmation(figures([*month(), 30.0, 30.0, 30.0]))
    assert not needs_confirmation(figures([*month(), 30.0, 30.0, 30.0, 30.0]))
    assert needs_confirmation(figures([*month(), 30.0, 40.0, 30.0]))


def test_a_night_that_was_measured_twice_counts_once_with_its_second_run() -> None:
    """Else one bad hour would be two bad nights of three."""
    history = figures([*month(), 36.0, 30.0, 36.0])
    low = history[-2]
    second = replace(low, requests_per_second=40.0, lower=39.0, upper=41.0, run="second", confirms=low.run)
    assert fired(detect_shift([*history[:-2], low, second, history[-1]])) == set()
    assert fired(detect_shift(history)) == {"median_of_3"}
    twice = figures([*month(), 35.0, 31.0, 33.0])
    assert fired(detect_shift([*twice[:-1], replace(twice[-1], confirms=twice[-2].run)])) == set()
    assert fired(detect_shift(twice)) == {"median_of_3"}


def test_a_drop_that_has_become_the_baseline_asks_for_no_more_runs() -> None:
    lasting = figures([*month(), *month(30.0, 14)])
    assert detect_shift(lasting).baseline.follows_shift  # type: ignore[union-attr]
    assert not needs_confirmation(lasting)


def test_without_a_baseline_nothing_asks_for_a_second_run() -> None:
    assert not needs_confirmation([])
    assert not needs_confirmation(figures([40.0, 10.0]))


# Intervals.


def test_a_sample_that_is_only_at_least_is_no_drop() -> None:
    low = figures([30.0] * 5, width=None)
    history = [*figures(month()), *[replace(f, at_s=f.at_s + 33 * 86400) for f in low]]
    assert fired(detect_shift(history)) == set()
    assert not needs_confirmation(history)


def test_above_a_baseline_that_is_only_at_least_nothing_has_risen() -> None:
    assert fired(judged([*month(), *[50.0] * 5], width=None)) == set()


def _steps(values: Sequence[float], upper: float) -> list[CapacitySample]:
    return [
        CapacitySample(day * 86400.0, value, value, value * upper, "empirical", "f") for day, value in enumerate(values)
    ]


def test_a_knee_that_hops_by_one_step_is_no_shift() -> None:
    """Steps that double: the knee is known to within a factor of two, and lies at the edge of a step."""
    assert fired(detect_shift(_steps([*month(), *[20.5] * 5], upper=2.0))) == set()


def test_a_knee_that_falls_by_more_than_its_step_is() -> None:
    assert fired(detect_shift(_steps([*month(), *[14.0] * 5], upper=2.0))) >= {"median_of_3", "confirmed_drop"}
    assert fired(detect_shift(_steps([*month(), *[85.0] * 5], upper=2.0))) == {"rise"}


# What is compared with what.


def test_too_few_runs_are_no_baseline() -> None:
    assert detect_shift([]) is None
    assert detect_shift(figures(month(days=9))) is None
    found = detect_shift(figures(month(days=10)))
    assert found is not None
    assert found.baseline.count == 5


def test_another_fingerprint_starts_a_baseline_and_the_old_one_is_there_after_a_roll_back() -> None:
    old = figures(month())
    new = [replace(f, fingerprint="g", at_s=f.at_s + 33 * 86400) for f in figures([20.0] * 9)]
    assert detect_shift([*old, *new]) is None
    back = [replace(f, at_s=f.at_s + 50 * 86400) for f in figures([36.0] * 3)]
    found = detect_shift([*old, *new, *back])
    assert fired(found) == {"median_of_3"}
    assert found is not None
    assert found.baseline.requests_per_second == pytest.approx(40.0)


@pytest.mark.fault(
    "TR43",
    "Every run at a lower level is unverified",
    area="Truth",
    users_see="KneewatchKneeDropped, as from verified runs",
    stays="an interval that reaches up to the baseline's neighbourhood shows no drop",
)
@pytest.mark.parametrize("mode", ["unverified", "empirical"])
def test_runs_with_load_are_compared_whatever_they_lack_to_be_verified(mode: str) -> None:
    low = [replace(one, at_s=one.at_s + 33 * 86400, mode=mode) for one in figures([24.0] * 3)]
    assert needs_confirmation([*figures(month()), *low[:1]])
    assert "confirmed_drop" in fired(detect_shift([*figures(month()), *low]))
    wide = [replace(one, lower=12.0, upper=36.0) for one in low]
    assert "confirmed_drop" not in fired(detect_shift([*figures(month()), *wide]))


@pytest.mark.fault(
    "TR44",
    "A run that repeats another one says nothing, or other runs came between them",
    area="Truth",
    users_see="-",
    stays="it counts in the place of the run that it names; what says nothing ends no confirmation",
)
def test_a_repetition_belongs_to_the_run_that_it_names() -> None:
    night = figures([*month(), 40.0, 30.0, 40.4])
    again = replace(night[-2], at_s=night[-1].at_s + 300, run="again", confirms=night[-2].run)
    detector = _replay([*night, replace(again, requests_per_second=39.6, lower=39.0, upper=40.0)])
    assert [round(math.exp(one.value), 1) for one in detector.recent][-3:] == [40.0, 40.4, 39.6]
    unknown = _replay([*night, replace(again, confirms="of another store")])
    assert len(unknown.recent) == 5
    assert [one.run for one in unknown.recent][-3:] == [night[-2].run, night[-1].run, "again"]


def test_what_says_nothing_neither_confirms_a_drop_nor_ends_it() -> None:
    low = figures([*month(), 30.0])
    silent = replace(low[-1], mode="unverified", lower=20.0, upper=None, run="silent", confirms=low[-1].run)
    assert needs_confirmation([*low, silent]), "in its place"
    assert not needs_confirmation([*low, replace(silent, confirms=None)]), "a night of its own asks for nothing"
    page = figures([*month(), 30.0, 30.0, 30.0])
    assert "confirmed_drop" in fired(detect_shift([*page, silent]))
    assert fired(detect_shift([*page, replace(silent, requests_per_second=39.0, lower=39.0)])) == set()
    assert "confirmed_drop" in fired(detect_shift([*low, silent, *figures([30.0, 30.0])]))
    assert "confirmed_drop" not in fired(detect_shift([*low, *[silent] * 4, *figures([30.0, 30.0])])), "long ago"


def test_a_wide_interval_that_was_back_ends_a_page_for_good() -> None:
    page = figures([*month(), 30.0, 30.0, 30.0])
    wide = replace(page[-1], requests_per_second=38.0, lower=22.0, upper=54.0, mode="unverified", run="wide")
    assert "confirmed_drop" not in fired(detect_shift([*page, wide]))
    assert "confirmed_drop" not in fired(detect_shift([*page, wide, wide]))


def test_a_collapse_is_a_drop_and_never_in_a_baseline() -> None:
    none = replace(figures([4.0])[0], lower=0.0, upper=4.0, mode="empirical")
    assert "confirmed_drop" in fired(detect_shift([*figures(month()), none, none, none]))
    assert detect_shift([none] * 40) is None
    above = replace(none, requests_per_second=38.0, upper=38.0)
    assert _replay([*figures(month()), above]).recent == _replay(figures(month())).recent, (
        "its lowest load was too high"
    )


# The baseline over time.


def test_a_shift_that_lasts_two_weeks_is_the_next_baseline_and_says_so() -> None:
    thirteen = judged([*month(), *month(36.0, 13)])
    assert fired(thirteen) >= {"median_of_3"}
    assert not thirteen.baseline.follows_shift
    fourteen = judged([*month(), *month(36.0, 14)])
    assert fired(fourteen) == set()
    assert fourteen.baseline.follows_shift
    assert fourteen.baseline.since_s == 33 * 86400.0
    assert fourteen.baseline.requests_per_second == pytest.approx(36.0, rel=0.01)


def test_a_week_of_trouble_is_not_learnt() -> None:
    """The baseline had twelve runs when it was reported; afterwards it goes on with those and with new ones."""
    begun = month(days=15)
    during = [judged([*begun, *[30.0] * runs]).baseline for runs in range(3, 14)]
    assert {baseline.count for baseline in during} == {12}
    assert {judged([*begun, *[30.0] * 7, *month(days=runs)]).baseline.count for runs in range(1, 7)} == {12}
    found = judged([*begun, *[30.0] * 7, *month(days=30)])
    assert fired(found) == set()
    assert found.baseline.count == 28
    assert found.baseline.requests_per_second == pytest.approx(40.0, rel=0.01)
    assert found.baseline.noise_ratio < 0.03


@pytest.mark.slow
def test_a_slow_decay_is_seen_because_the_baseline_stays() -> None:
    decaying = [40.0 * 0.99 ** (day / 7) for day in range(70)]
    seen = [detect_shift(figures([*month(), *decaying[:days]])) for days in range(70)]
    first = next(days for days, found in enumerate(seen) if fired(found))
    assert first < 56


# Properties.

LEVELS = st.lists(st.floats(0.5, 500.0), min_size=0, max_size=60)


@given(LEVELS, st.floats(0.01, 100.0))
def test_the_unit_does_not_matter(rps: list[float], unit: float) -> None:
    one, other = detect_shift(figures(rps)), detect_shift(figures([value * unit for value in rps]))
    if one is None or other is None:
        assert one is other
    else:
        assert one.fired == other.fired
        assert one.ratio == pytest.approx(other.ratio)


@given(LEVELS)
def test_steady_figures_never_fire_and_a_verdict_is_whole(rps: list[float]) -> None:
    found = detect_shift(figures(rps))
    assert (found is None) == (len(rps) < 10)
    if found is not None:
        assert 5 <= found.baseline.count <= 28
        assert (found.since_s is None) == (not any(found.fired.values()))
        assert found.ratio > -1
    if rps:
        assert fired(detect_shift(figures(rps[:1] * 20))) == set()


@given(st.lists(st.floats(0.97, 1.03), min_size=10, max_size=80))
def test_noise_within_three_percent_either_way_never_fires(noise: list[float]) -> None:
    assert fired(judged([40.0 * value for value in noise])) == set()


@examples(50)
@given(st.lists(st.floats(0.98, 1.02), min_size=33, max_size=60), st.floats(0.3, 0.85), st.integers(3, 9))
def test_a_drop_beyond_the_noise_fires_after_three_runs_and_goes_on(noise: list[float], drop: float, runs: int) -> None:
    found = judged([*(40.0 * value for value in noise), *[40.0 * drop] * runs])
    assert "median_of_3" in fired(found)
    assert "rise" not in fired(found)


@given(LEVELS, st.sampled_from([0.0, -1.0, math.inf, math.nan]))
def test_a_sample_that_is_none_is_left_out(rps: list[float], odd: float) -> None:
    assert detect_shift([*figures(rps), *figures([odd])]) == detect_shift(figures(rps))


@pytest.mark.slow
@given(st.randoms(use_true_random=False), st.integers(0, 60))
def test_figures_of_another_fingerprint_change_nothing(rng: random.Random, count: int) -> None:
    mine = figures(month(days=40))
    others = [replace(f, fingerprint="g") for f in figures([rng.uniform(1, 100) for _ in range(count)])]
    mixed = sorted([*others, *mine], key=lambda f: f.at_s)
    assert detect_shift(mixed if mixed[-1].fingerprint == "f" else [*mixed, mine[-1]]) is not None
    assert detect_shift([f for f in mixed if f.fingerprint == "f"]) == detect_shift([*others, *mine])


SAMPLE = st.lists(st.integers(0, 9).map(float), min_size=1, max_size=8)


@given(SAMPLE, SAMPLE)
def test_u_counts_the_pairs_and_equals_by_half(recent: list[float], before: list[float]) -> None:
    expected = sum((a > b) + (a == b) / 2 for a in recent for b in before)
    assert pairs_above(recent, sorted(before)) == expected


@given(st.integers(1, 5), st.integers(1, 7), st.sampled_from([0.001, 0.01, 0.05, 0.3]))
def test_the_largest_u_is_the_last_one_that_is_rare_enough(recent: int, before: int, p: float) -> None:
    places = range(recent + before)
    us = [
        sum(sum(1 for j in places if j < i and j not in chosen) for i in chosen) for chosen in _choices(places, recent)
    ]
    largest = largest_u(recent, before, p)
    assert sum(u <= largest for u in us) < p * len(us)
    assert sum(u <= largest + 1 for u in us) >= p * len(us)


def _choices(places: range, count: int) -> list[tuple[int, ...]]:
    return list(combinations(places, count))


@pytest.mark.parametrize(("before", "largest"), [(5, -1), (7, -1), (8, 0), (28, 12)])
def test_five_recent_runs_need_eight_before_them(before: int, largest: int) -> None:
    """The smallest p of five against seven is 1 / 792."""
    assert largest_u(5, before, 0.001) == largest
