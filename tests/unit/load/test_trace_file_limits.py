"""How much of a trace is read: requests, bytes, blocks and the size of each record."""

from collections.abc import Callable
from pathlib import Path

import pytest

from probe.core.errors import ConfigError
from probe.core.trace import Trace
from probe.load import trace_file
from probe.load.trace_file import read_trace

HASHED = '{"timestamp": 0, "input_length": 2048, "output_length": 500, "hash_ids": [0, 1, 2, 3]}\n'


def _read(tmp_path: Path, text: str) -> Trace:
    file = tmp_path / "trace"
    file.write_text(text)
    return read_trace(file, "--trace")


def _refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as refused:
        _read(tmp_path, text)
    return str(refused.value).removeprefix(f"--trace {tmp_path}/trace: ")


def test_what_is_read_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_file, "MOST_REQUESTS", 3)
    found = _read(tmp_path, '{"prompt_tokens": 5, "output_tokens": 1}\n' * 5)
    assert (len(found.requests), found.is_cut) == (3, True)
    long = "x" * (8 * 2**20)
    assert _refusal(tmp_path, f'{{"prompt": "{long}", "output_tokens": 1}}') == "line 1: it is larger than 8 MiB"
    assert _refusal(tmp_path, f'[{{"conversations": "{long}"}}]') == "element 1: it is larger than 8 MiB"


@pytest.mark.parametrize(
    "empty",
    [
        pytest.param(lambda n: '{"prompt_tokens": 0, "output_tokens": 1}' + "\n" * n, id="blank lines"),
        pytest.param(lambda n: "[" + " " * n, id="array"),
        pytest.param(lambda n: "time,prompt_tokens,output_tokens\n" + "\n" * n, id="rows"),
        pytest.param(lambda n: '{"prompt_tokens": 0, "output_tokens": 1}\n' * (n // 40), id="records left out"),
    ],
)
def test_bytes_are_bounded_where_no_request_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty: Callable[[int], str]
) -> None:
    monkeypatch.setattr(trace_file, "_MOST_BYTES", 1000)
    monkeypatch.setattr(trace_file, "_PIECE", 100)
    request = "1,5,1" if empty(0).startswith("time") else '{"prompt_tokens": 5, "output_tokens": 1}'
    assert _refusal(tmp_path, empty(2000) + request).startswith("holds no request")


def test_a_trace_above_the_byte_limit_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_file, "_MOST_BYTES", 1000)
    monkeypatch.setattr(trace_file, "_PIECE", 100)
    record = '{"prompt_tokens": 5, "output_tokens": 1}'
    for text in (f"{record}\n" * 99, f"[{','.join([record] * 99)}]", "prompt_tokens,output_tokens\n" + "5,1\n" * 999):
        found = _read(tmp_path, text)
        assert found.is_cut
        assert 20 < len(found.requests) < 300
    assert not _read(tmp_path, f"{record}\n" * 9).is_cut


def test_blocks_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_file, "_MOST_BLOCKS", 3)
    found = _read(tmp_path, HASHED * 2)
    assert (len(found.requests), found.is_cut) == (1, True)
