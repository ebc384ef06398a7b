"""GOAWAY frames that let the current request go on are taken out; everything else passes as it came."""

from hypothesis import given
from hypothesis import strategies as st
from memory_wire import cut_at
from property_examples import examples

from probe.client.goaway_filter import GoawayFilter

DATA, PING, GOAWAY = 0, 6, 7
ANY_STREAM = 2**31 - 1


def frame(kind: int, payload: bytes, stream: int = 0) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, 0]) + stream.to_bytes(4) + payload


def goaway(last: int, code: int = 0, words: bytes = b"") -> bytes:
    return frame(GOAWAY, last.to_bytes(4) + code.to_bytes(4) + words)


TOKEN = frame(DATA, b"data: {}\n\n", 3)
FRAMES = {
    "a token": (TOKEN, True),
    "no data": (frame(DATA, b"", 3), True),
    "a ping": (frame(PING, bytes(8)), True),
    "the begin of a shutdown": (goaway(ANY_STREAM), False),
    "this request is the last": (goaway(3), False),
    "a later one is the last, with the reserved bit and words": (goaway(5 | 2**31, words=b"bye"), False),
    "this request is not answered": (goaway(1), True),
    "an error": (goaway(3, 11, b"too_many_pings"), True),
    "too short": (frame(GOAWAY, b"\0\0\0\3"), True),
    "a data frame with the bytes of a goaway": (frame(DATA, goaway(3), 3), True),
}


def sent(pieces: list[bytes], stream: int | None = 3) -> tuple[bytes, bool]:
    """Return what passes of these pieces and the end, and whether the connection is to be closed."""
    each = GoawayFilter()
    return b"".join(each.passed(piece, stream) for piece in [*pieces, b""]), each.is_leaving


@examples(200)
@given(st.lists(st.sampled_from(sorted(FRAMES)), max_size=6), st.lists(st.integers(0, 400), max_size=12))
def test_only_what_lets_the_request_go_on_is_taken_out_however_it_is_cut(names: list[str], places: list[int]) -> None:
    whole = b"".join(FRAMES[name][0] for name in names)
    kept = b"".join(FRAMES[name][0] for name in names if FRAMES[name][1])
    assert sent(cut_at(whole, places)) == (kept, kept != whole)


@examples(100)
@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=5))
def test_bytes_that_are_no_frames_pass(data: bytes, places: list[int]) -> None:
    passed, is_leaving = sent(cut_at(data, places))
    assert passed == data or is_leaving


def test_a_frame_that_is_too_long_is_not_held() -> None:
    each = GoawayFilter()
    begin = b"\xff\xff\xff\x07\x00\x00\x00\x00\x00" + bytes(100)
    assert each.passed(begin, 3) == begin
    assert each.passed(bytes(1000), 3) == bytes(1000)


def test_without_a_request_nothing_is_taken_out() -> None:
    assert sent([goaway(ANY_STREAM), TOKEN], stream=None) == (goaway(ANY_STREAM) + TOKEN, False)
