"""Files of traces: each format, what is left out, and the line that says what is wrong."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.core.errors import ConfigError
from probe.core.trace import Trace, TraceRequest, trace_of
from probe.load import trace_file
from probe.load.trace_file import read_trace, trace_lines
from probe.report.workload_text import trace_words

# Each format as its publisher documents it, cut to a few records.
MOONCAKE = """\
{"timestamp": 0, "input_length": 6755, "output_length": 500, "hash_ids": [0, 1, 2, 3]}
{"timestamp": 3052, "input_length": 2287, "output_length": 316, "hash_ids": [0, 42, 43, 44, 45]}
"""
BAILIAN = """\
{"chat_id": 159, "timestamp": 61.114, "input_length": 33, "output_length": 132, "hash_ids": [7, 8, 9]}
{"chat_id": 160, "timestamp": 63.5, "input_length": 50, "output_length": 1, "hash_ids": [7, 8, 1, 2]}
"""
BURSTGPT = """\
\ufeffTimestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
118,GPT-4,417,276,693,Conversation log
"""
AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""
AZURE_2024 = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:01.017335+00:00,2399,6
"""
GATEWAY = '{"startTime": "2026-01-01T00:00:00Z", "prompt_tokens": 5, "completion_tokens": 2, "model": "m"}\n' * 2
SHAREGPT = json.dumps(
    [
        {
            "id": "a",
            "conversations": [
                {"from": "human", "value": 'say "}{" \\ éé'},
                {"from": "gpt", "value": "}{"},
                {"from": "human", "value": "more"},
            ],
        },
        {"id": "b", "conversations": [{"from": "gpt", "value": "an answer to nothing"}]},
        {
            "id": "c",
            "conversations": [
                {"from": "system", "value": "x"},
                {"from": "user", "value": "12345678"},
                {"from": "assistant", "value": "1"},
            ],
        },
    ],
    indent=2,
)
CUSTOM = '{"prompt": "What is the capital of India?", "output_tokens": 10}\n\n{"prompt": "hi", "output_tokens": 1520}\n'
WITH_TEXT = """\
{"timestamp": 5, "prompt": "xxxx", "prompt_tokens": 900, "output_tokens": 20}
{"timestamp": 7, "prompt": "xxxx", "completion_tokens": 20}
"""


def _read(tmp_path: Path, text: str | bytes) -> Trace:
    file = tmp_path / "trace"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_trace(file, "--trace")


def _refusal(tmp_path: Path, text: str | bytes) -> str:
    with pytest.raises(ConfigError) as refused:
        _read(tmp_path, text)
    (line,) = str(refused.value).splitlines()
    assert line.startswith(f"--trace {tmp_path}/trace: ")
    return line.removeprefix(f"--trace {tmp_path}/trace: ")


@pytest.mark.parametrize(
    ("text", "lengths", "times"),
    [
        (MOONCAKE, [(6755, 500, 512), (2287, 316, 512)], [0.0, 3.052]),
        (BAILIAN, [(33, 132, 32), (50, 1, 32)], [0.0, 2.386]),
        (BURSTGPT, [(472, 18, 0), (417, 276, 0)], [0.0, 113.0]),
        (AZURE, [(374, 44, 0), (396, 109, 0)], [0.0, 4.314579]),
        (AZURE_2024, [(2162, 5, 0), (2399, 6, 0)], [0.0, 1.007405]),
        (GATEWAY, [(5, 2, 0), (5, 2, 0)], [0.0, 0.0]),
        (SHAREGPT, [(4, 1, 0), (2, 1, 0)], [None, None]),
        (CUSTOM, [(8, 10, 0), (1, 1520, 0)], [None, None]),
        (WITH_TEXT, [(900, 20, 0), (1, 20, 0)], [0.0, 2.0]),
    ],
)
def test_each_format_is_read_for_its_times_and_lengths(
    tmp_path: Path, text: str, lengths: list[tuple[int, int, int]], times: list[float | None]
) -> None:
    found = _read(tmp_path, text).requests
    assert [(one.prompt_tokens, one.output_tokens, one.shared_tokens) for one in found] == lengths
    for one, at_s in zip(found, times, strict=True):
        assert one.at_s == (None if at_s is None else pytest.approx(at_s, abs=1e-5))


def test_what_has_no_prompt_or_no_answer_is_left_out_and_counted(tmp_path: Path) -> None:
    assert [_read(tmp_path, text).skipped for text in (BURSTGPT, SHAREGPT, MOONCAKE)] == [1, 1, 0]


@given(
    st.lists(
        st.builds(
            TraceRequest,
            prompt_tokens=st.integers(64, 10**6),
            output_tokens=st.integers(1, 10**6),
            at_s=st.integers(0, 10**6).map(lambda ms: ms / 1000),
            blocks=st.lists(st.integers(0, 3), max_size=4).map(tuple),
            block_tokens=st.just(16),
        ),
        min_size=1,
        max_size=9,
    )
)
def test_a_trace_that_was_written_reads_as_the_same(
    tmp_path_factory: pytest.TempPathFactory, sent: list[TraceRequest]
) -> None:
    trace = trace_of(sent)
    text = "".join(trace_lines(trace))
    again = _read(tmp_path_factory.getbasetemp(), text)
    assert "".join(trace_lines(again)) == text
    assert again.digest == trace.digest


def test_a_written_trace_has_no_text_and_no_hash_of_any(tmp_path: Path) -> None:
    text = "".join(trace_lines(_read(tmp_path, MOONCAKE.replace("[0,", "[987654321,"))))
    assert [json.loads(line) for line in text.splitlines()] == [
        {"at_s": 0.0, "prompt_tokens": 6755, "output_tokens": 500, "blocks": [0], "block_tokens": 512},
        {"at_s": 3.052, "prompt_tokens": 2287, "output_tokens": 316, "blocks": [0], "block_tokens": 512},
    ]
    assert "capital" not in "".join(trace_lines(_read(tmp_path, CUSTOM)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no request; expected at least one with a prompt and an answer"),
        ("a,b\n1,2\n", "line 1: expected a header with columns such as timestamp"),
        ("time,prompt_tokens,output_tokens\n1,2\n", "line 2: expected as many columns as the header has, found 2"),
        ("time,prompt_tokens,output_tokens\nnow,2,3\n", "line 2: expected the time to be a number"),
        ("prompt_tokens,output_tokens\n2,3\n2,3.5\n", "line 3: expected output tokens to be a whole"),
        ('{"prompt_tokens": true, "output_tokens": 1}', "line 1: expected prompt_tokens to be a whole"),
        ('{"prompt_tokens": 1e400, "output_tokens": 1}', "line 1: expected prompt_tokens to be a whole"),
        ('{"input_length": 5}', "line 1: expected output_length to be a whole number"),
        ('{"x": 1}', "line 1: expected prompt_tokens and output_tokens"),
        ('{"prompt": "x"}', "line 1: expected output_tokens as well as prompt"),
        ('{"prompt": "x", "output_tokens": 1}\n{"prompt"', "line 2: it is not JSON"),
        ('{"input_length": 5, "output_length": 1, "hash_ids": ["a"]}', "line 1: expected blocks (hash_ids)"),
        (
            '{"prompt_tokens": 5, "output_tokens": 1, "blocks": [1], "block_tokens": 0}',
            "line 1: expected block_tokens above",
        ),
        ('[{"conversations": [1, 2', "element 1: the file ends in the middle of it"),
        ('[{"prompt_tokens": 5, "output_tokens": 1}, ', "element 2: the file ends before the array does"),
        ('[{"prompt_tokens": 5, "output_tokens": 1}\n', "element 2: the file ends before the array does"),
        ("[", "element 1: the file ends before the array does"),
        ("[]", "holds no request"),
        ('[{"conversations": {}}]', "element 1: expected conversations"),
        (
            '[{"conversations": [{"from": "human", "value": 1}, {"from": "gpt", "value": "x"}]}]',
            "element 1: expected the",
        ),
        ('{"x": ' + "[" * 50 + "]" * 50 + "}", "line 1: it is nested deeper than 16"),
        (b"time,prompt_tokens,output_tokens\n1,\xff,3\n", "line 2: expected UTF-8"),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path: Path, text: str | bytes, words: str) -> None:
    assert _refusal(tmp_path, text).startswith(words)


_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_KEYS = ["timestamp", "at_s", "input_length", "output_length", "hash_ids", "prompt", "prompt_tokens", "output_tokens"]
_RECORD = st.dictionaries(st.sampled_from([*_KEYS, "blocks", "block_tokens", "conversations"]), _VALUE, max_size=6)
_TURNS = st.lists(st.fixed_dictionaries({"from": st.sampled_from(["human", "gpt", 1]), "value": _VALUE}), max_size=3)


@given(
    st.binary(max_size=200)
    | st.lists(_RECORD, max_size=3).map(lambda them: "\n".join(map(json.dumps, them)).encode())
    | st.lists(_TURNS, max_size=3).map(lambda them: json.dumps([{"conversations": one} for one in them]).encode())
    | st.binary(max_size=60).map(lambda row: b"time,prompt_tokens,output_tokens\n" + row)
)
def test_any_bytes_are_a_trace_or_one_line(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    found = None
    words = ""
    try:
        found = _read(tmp_path_factory.getbasetemp(), data)
    except ConfigError as error:
        words = str(error)
    assert words.isprintable()
    if found is None:
        return
    assert all(one.prompt_tokens > 0 < one.output_tokens for one in found.requests)
    assert found.seconds is None or 0 < found.seconds < float("inf")


def test_a_file_that_never_ends_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "trace")
    with pytest.raises(ConfigError, match="is not a regular file"):
        read_trace(tmp_path / "trace", "--trace")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_trace(tmp_path / "none", "--trace")


def test_a_trace_without_times_names_every_way_to_send_it(tmp_path: Path) -> None:
    assert "no times: use --rates, --concurrency or a search" in trace_words(_read(tmp_path, CUSTOM))


@pytest.mark.parametrize("piece", [1, 7, 64])
def test_objects_are_found_wherever_a_piece_of_the_file_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr(trace_file, "_PIECE", piece)
    assert [one.prompt_tokens for one in _read(tmp_path, SHAREGPT).requests] == [4, 2]
