"""Places for connections: who gets one, and who loses it."""

from hypothesis import given
from hypothesis import strategies as st

from probe.web.places import Places, client_of


def test_a_client_may_take_every_place_that_no_other_needs() -> None:
    places: Places[int] = Places(3)
    assert [places.take(n, "a") for n in range(3)] == [None] * 3


def test_the_client_with_the_most_loses_what_it_used_least_recently() -> None:
    places: Places[int] = Places(4)
    for n in range(3):
        places.take(n, "a")
    places.take(10, "b")
    places.take(0, "a")  # used again
    assert places.take(11, "b") == 1
    assert places.take(12, "c") == 2, "a and b have two each, and a has used none of its own for longer"
    assert places.take(13, "c") == 10


def test_a_client_over_all_places_displaces_only_itself() -> None:
    places: Places[int] = Places(4)
    places.take(100, "b")
    assert [places.take(n, "a") for n in range(6)] == [None, None, None, 0, 1, 2]


def test_what_left_has_no_place() -> None:
    places: Places[int] = Places(2)
    places.take(1, "a")
    places.leave(1)
    places.leave(1)
    assert [places.take(n, "a") for n in (2, 3, 4)] == [None, None, 2]


@given(st.integers(1, 5), st.lists(st.tuples(st.integers(1, 9), st.booleans())))
def test_who_has_a_place_is_who_took_one_and_did_not_lose_it(most: int, steps: list[tuple[int, bool]]) -> None:
    places: Places[int] = Places(most)
    held: set[int] = set()
    for one, is_taken in steps:
        if is_taken:
            held |= {one}
            held -= {places.take(one, "abc"[one % 3])}
            assert one in held
        else:
            places.leave(one)
            held -= {one}
        assert len(held) == len(places) <= most


def test_an_ipv6_network_is_one_client() -> None:
    assert client_of("2001:db8::1") == client_of("2001:db8::ffff")
    assert client_of("2001:db8::1") != client_of("2001:db8:0:1::1")
    assert client_of("::ffff:10.0.0.1") == client_of("10.0.0.1") != client_of("10.0.0.2")
