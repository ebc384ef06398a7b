"""JSON of other programs: refused before it is parsed if over a limit, else read as json reads it."""

import json
import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from probe.core.foreign_json import ForeignJsonError, JsonLimits, check_json, read_json

WIDE = JsonLimits(2**20, 10_000)
TIGHT = JsonLimits(2**20, max_values=20, max_depth=4)

documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(alphabet='ab"\\[]{},:\n\u20ac'),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(alphabet='a"\\[{:,', max_size=3), inner, max_size=5)
    ),
    max_leaves=20,
)


def size(value: object) -> int:
    """Return the number of values in a document, keys included."""
    if isinstance(value, dict):
        return 1 + sum(1 + size(one) for one in value.values())
    return 1 + sum(map(size, value)) if isinstance(value, list) else 1


def depth(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@given(documents, st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :")]))
def test_a_document_is_refused_exactly_when_it_is_over_a_limit(value: object, separators: tuple[str, str]) -> None:
    data = json.dumps(value, separators=separators).encode()
    # An empty list or object counts like one with a value, because only what opens and separates is counted.
    if size(value) < TIGHT.max_values - data.count(b"[") - data.count(b"{") and depth(value) <= TIGHT.max_depth:
        assert read_json(data, TIGHT) == value
    if size(value) > TIGHT.max_values or depth(value) > TIGHT.max_depth:
        with pytest.raises(ForeignJsonError):
            check_json(data, TIGHT)


@given(st.text(alphabet='[]{}",:\\ 1n', max_size=60).map(str.encode))
@example(b'"\\"[[[[[["')
@example(b"]" * 5 + b"[" * 5)
@example(b"[}" * 9)
def test_a_document_of_any_form_is_refused_or_read_as_json_reads_it(data: bytes) -> None:
    try:
        expected = json.loads(data)
    except ValueError:
        with pytest.raises(ForeignJsonError):
            read_json(data, WIDE)
    else:
        assert read_json(data, WIDE) == expected


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"[" + b"{}," * 20_000 + b"{}]", "holds more than 10000 values"),
        (b'["' + b'","' * 20_000 + b'"]', "holds more than 10000 values"),
        (b"[" * 100 + b"]" * 100, "is nested deeper than 32, or its brackets do not match"),
        (b'{"a":' * 100_000, "holds more than 10000 values"),
        (b"[" * 5_000, "is nested deeper than 32, or its brackets do not match"),
        (b'"' + b"a" * 2**20 + b'"', "is larger than 1 MiB"),
        (b'{"a": [1, 2', "is not JSON (Expecting ',' delimiter: line 1 column 12 (char 11))"),
        (b"\xff\xfe[\x00]\x00", "is not JSON (it is not UTF-8)"),
        (b"[" + b"9" * 5_000 + b"]", "is not JSON (a number in it is too long)"),
        (b"", "is not JSON (Expecting value: line 1 column 1 (char 0))"),
    ],
)
@pytest.mark.fault("E06")
def test_the_message_says_which_limit_or_what_is_wrong(data: bytes, words: str) -> None:
    with pytest.raises(ForeignJsonError) as refused:
        read_json(data, WIDE)

    assert str(refused.value) == words


def test_brackets_and_commas_in_strings_count_for_nothing() -> None:
    value = ["[[[[[{{{{{,,,,,,,,,,,,,,,,,,,,,,,,,,,", '\\"[[[[[[[[', "\\"]

    assert read_json(json.dumps(value).encode(), TIGHT) == value


def test_a_byte_order_mark_is_skipped() -> None:
    assert read_json(b"\xef\xbb\xbf[1]", TIGHT) == [1]


@pytest.mark.parametrize("piece", [b"{},", b'"",', b'"a,,",', b"[[],", b'{"a":'])
def test_what_is_refused_costs_a_few_times_its_length(piece: bytes) -> None:
    data = b"[" + piece * (2**21 // len(piece))
    tracemalloc.start()
    try:
        with pytest.raises(ForeignJsonError):
            read_json(data, JsonLimits(2**22, 50_000))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 3 * len(data)
