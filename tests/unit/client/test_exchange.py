"""A streamed answer says the same however its bytes were cut, and whichever way its events were decoded."""

import json
from dataclasses import astuple
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_wire import cut_at, recorded
from property_examples import examples

from probe.client.exchange import answer_reader
from probe.client.judgement import Transcript
from probe.core.request import Api

STREAMS = {
    name: {"chat": Api.CHAT, "responses": Api.RESPONSES, "messages": Api.MESSAGES}.get(
        name.partition("-")[0], Api.COMPLETIONS
    )
    for name in (
        "chat-stream",
        "chat-stream-continuous",
        "chat-stream-usage",
        "completions-stream",
        "completions-stream-continuous",
        "completions-stream-usage",
        "completions-one-token",
        "messages-stream",
        "responses-stream",
    )
}


def body(name: str) -> bytes:
    """Return the events without the chunks they came in."""
    _, _, rest = recorded(name).partition(b"\r\n\r\n")
    events = b""
    while size := int(rest.partition(b"\r\n")[0], 16):
        rest = rest.partition(b"\r\n")[2]
        events, rest = events + rest[:size], rest[size + 2 :]
    return events


def said(pieces: list[bytes], api: Api, portion: int = 1000) -> Transcript:
    reads = [(10 * i, 10 * i - 1, piece) for i, piece in enumerate(pieces)]
    reader = answer_reader(api)
    for first in range(0, len(reads), portion):
        reader.read(reads[first : first + portion])
    return reader.transcript(reads[-1] if reads else None)


def without_times(answer: Transcript) -> tuple[Any, ...]:
    """Return what does not depend on times; those decide in which event a token without text counts."""
    events = answer.events
    return (sum(events.tokens), events.first_visible, *astuple(answer)[1:])


@examples(200)
@given(
    st.sampled_from(list(STREAMS)),
    st.lists(st.integers(0, 5000), max_size=30),
    st.integers(1, 7),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
)
def test_every_split_of_a_recorded_stream_says_the_same(name: str, cuts: list[int], portion: int, end: bytes) -> None:
    data = body(name).replace(b"\n", end)
    whole = said([body(name)], STREAMS[name])
    assert whole.is_done
    assert len(whole.events) in (1, 3)
    pieces = said(cut_at(data, cuts), STREAMS[name], portion)
    assert without_times(pieces) == without_times(whole)
    assert list(pieces.events.at_ns) == sorted(pieces.events.at_ns)
    assert set(pieces.events.late_ns) == {1}


@pytest.mark.parametrize("name", STREAMS)
def test_a_recorded_stream_says_the_same_byte_by_byte(name: str) -> None:
    data = body(name)
    whole = without_times(said([data], STREAMS[name]))
    assert without_times(said([data[i : i + 1] for i in range(len(data))], STREAMS[name])) == whole


@pytest.mark.parametrize("name", STREAMS)
def test_an_event_has_the_time_of_the_read_that_completed_it(name: str) -> None:
    data = body(name)
    ends = [i + 2 for i in range(len(data)) if data[i : i + 2] == b"\n\n"]
    at = list(said([data[a:b] for a, b in zip([0, *ends], ends, strict=False)], STREAMS[name]).events.at_ns)
    late = said([data[: ends[0] - 1], data[ends[0] - 1 :]], STREAMS[name])
    assert at == sorted(set(at))
    assert set(late.events.at_ns) == {10}


# --- The quick way and the patient one -------------------------------------------------------------------------

NUMBERS = st.one_of(
    st.integers(-5, 20),
    st.sampled_from([2**31, 2**63 - 1, 2**63, 2**64, 10**30, -(2**63) - 1]),
    st.floats(allow_nan=True),
    st.sampled_from([1.0, 3.0, -0.0, 1e300]),
)
ODD = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.sampled_from(["", "x", "é", "\ud800", "length", "a\nb"]),
    lambda deeper: st.lists(deeper, max_size=2)
    | st.dictionaries(st.sampled_from(["a", "message", "text"]), deeper, max_size=2),
    max_leaves=4,
)  # fmt: skip
TEXT = st.sampled_from(["x", "", "é", None])


def fields(**good: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Generate an object with any of these fields, most of them valid."""
    return st.fixed_dictionaries({}, optional={name: value | value | value | ODD for name, value in good.items()})


DELTA = fields(content=TEXT, reasoning=TEXT, reasoning_content=TEXT, tool_calls=st.lists(ODD, max_size=1), role=TEXT)
CHOICE = fields(
    text=TEXT, delta=DELTA, finish_reason=st.sampled_from([None, "length", "stop"]), index=st.integers(0, 1)
)
USAGE = fields(prompt_tokens=st.integers(0, 9), completion_tokens=st.integers(0, 9), total_tokens=st.integers(0, 9))
CHUNK = fields(
    choices=st.lists(CHOICE, max_size=2), usage=USAGE | st.none(), error=st.none(), detail=st.none(),
    object=st.sampled_from(["text_completion", "error"]), id=TEXT,
)  # fmt: skip


def encoded(value: Any, *, ascii_only: bool) -> bytes:
    return json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")


def both(events: list[bytes], api: Api, monkeypatch: pytest.MonkeyPatch) -> tuple[Transcript, Transcript]:
    """Return what the reader reports, and what it reports if it parses every event fully."""
    pieces = [b"data: " + event + b"\n\n" for event in events]
    quick = said(pieces, api)

    def refuse(_: bytes) -> None:
        raise RecursionError

    with monkeypatch.context() as patch:
        patch.setattr("probe.client.stream_parser._decode_chunk", refuse)
        patch.setattr("probe.client.typed_events._decode", refuse)
        return quick, said(pieces, api)


@pytest.mark.slow
@examples(200)
@given(st.lists(CHUNK, min_size=1, max_size=4), st.sampled_from(Api), st.booleans())
def test_both_ways_of_decoding_say_the_same(chunks: list[Any], api: Api, ascii_only: bool) -> None:  # noqa: FBT001
    with pytest.MonkeyPatch.context() as patch:
        quick, patient = both([encoded(chunk, ascii_only=ascii_only) for chunk in chunks], api, patch)
    assert quick == patient


@pytest.mark.parametrize(
    "event",
    [
        b'{"choices":[{"text":"x"}],"usage":{"prompt_tokens":1.0,"completion_tokens":1}}',
        b'{"choices":[{"text":"x"}],"usage":{"prompt_tokens":1e0,"completion_tokens":1}}',
        b'{"choices":[{"text":"x"}],"usage":{"prompt_tokens":-0,"completion_tokens":1}}',
        b'{"choices":[{"text":"x"}],"choices":[]}',
        b'{"choices":[],"choices":[{"text":"x","text":""}]}',
        b'{"choices":[{"\\u0074ext":"x"}]}',
        b'{"choices":[{"text":"\\ud800"}]}',
        b'{"choices":[{"text":"x"}]} ',
        b'\xef\xbb\xbf{"choices":[{"text":"x"}]}',
        b'{"choices":[{"text":"x"}]}x',
        b'{"choices":[{"text":"x"},5]}',
        b'{"choices":[{"text":"x"}],"error":false}',
        b'{"choices":[{"text":"x"}],"error":{}}',
        b'{"choices":[{"text":"x"}],"object":"error","message":"no"}',
        b'{"choices":[{"text":"x"}],"other":NaN}',
        b'{"choices":[{"text":"x"}],"other":01}',
        b'{"choices":[{"text":"x"}],"other":"\t"}',
        b'{"choices":[{"text":"x"}],"other":' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
)
@pytest.mark.parametrize("api", Api)
def test_both_ways_of_decoding_say_the_same_of_what_is_odd(
    event: bytes, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick, patient = both([event], api, monkeypatch)
    assert quick == patient


def test_invalid_text_does_no_harm_in_an_unused_field(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the two ways differ: the quick one does not look at it."""
    quick, patient = both([b'{"choices":[{"text":"x"}],"other":"\xff"}'], Api.COMPLETIONS, monkeypatch)
    assert (quick.malformed, len(quick.events)) == (None, 1)
    assert patient.malformed is not None
    for api in Api:
        quick, patient = both([b'{"choices":[{"text":"\xff","delta":{"content":"\xff"}}]}'], api, monkeypatch)
        assert quick == patient
        assert quick.malformed is not None
