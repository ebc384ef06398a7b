"""How far away a server is, by what its histogram grew by."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from probe.core.snapshot import Histogram
from probe.observe.distance import UNKNOWN, Distance

S = 10**9
BOUNDS = (0.04, 0.06, 0.08, 0.1, 0.25, inf)


def grown(*ttfts_s: float) -> Histogram:
    return Histogram(tuple((le, float(sum(ttft <= le for ttft in ttfts_s))) for le in BOUNDS), sum(ttfts_s))


def learned(*growths: tuple[Histogram, list[float]], now_s: float = 0.0) -> tuple[float, float]:
    distance = Distance()
    for histogram, ttfts_s in growths:
        distance.add(0, histogram, ttfts_s)
    return distance.range_s(round(now_s * S))


def test_nothing_is_known_before_the_first_comparison() -> None:
    assert learned() == UNKNOWN
    assert learned((grown(), [0.1])) == UNKNOWN, "the server has not counted it"


def test_of_requests_that_were_alone_it_is_exact_but_for_jitter() -> None:
    assert learned((grown(0.05), [0.12])) == (pytest.approx(0.065), pytest.approx(0.075))
    several = [(grown(0.05), [0.12]), (grown(0.05, 0.07), [0.12, 0.142]), (grown(0.09), [0.162])]
    assert learned(*several) == (pytest.approx(0.069), pytest.approx(0.073))


def test_beside_users_it_lies_between_what_the_buckets_allow() -> None:
    """The canary took 45 ms at the server, and users 45 to 70: no bucket below 40 ms or above 80 ms has grown."""
    assert learned(*[(grown(0.045, 0.05, 0.07), [0.115])] * 3) == (pytest.approx(0.035), pytest.approx(0.075))


def test_where_every_bucket_grows_next_to_nothing_is_known() -> None:
    assert learned(*[(grown(0.01, 0.05, 0.07, 0.2, 3.0), [0.115])] * 3) == (0.0, pytest.approx(0.115))


def test_a_slow_users_bucket_hides_it_only_while_there_is_one() -> None:
    with_slow, without = (grown(0.05, 0.2), [0.115]), (grown(0.05, 0.05), [0.115])
    assert learned(*[with_slow] * 30, without)[0] == 0.0, "one in ten may be an outlier"
    assert learned(*[with_slow] * 30, *[without] * 10)[0] == pytest.approx(0.055)


def test_what_varies_spans_a_range() -> None:
    near, far = (grown(0.05, 0.05), [0.055]), (grown(0.05, 0.05), [0.155])
    least, most = learned(*[near] * 10, *[far] * 10)
    assert least <= 0.015
    assert most >= 0.095


def test_a_server_that_measures_more_than_the_client_is_not_nearer_than_none() -> None:
    assert learned((grown(0.2), [0.1])) == UNKNOWN


def test_it_is_forgotten_after_an_hour() -> None:
    assert learned((grown(0.05), [0.12]), now_s=3601) == UNKNOWN


@given(
    delay_s=st.floats(0.0, 0.2),
    each=st.lists(
        st.tuples(st.floats(0.001, 2.0), st.lists(st.floats(0.001, 2.0), max_size=4)), min_size=3, max_size=12
    ),
)
@examples(80)
def test_a_constant_delay_is_within_its_range(delay_s: float, each: list[tuple[float, list[float]]]) -> None:
    growths = [(grown(own, *users), [own + delay_s]) for own, users in each]
    least, most = learned(*growths)
    assert least - 1e-9 <= delay_s <= most + 1e-9
