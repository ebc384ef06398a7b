"""Which prompts begin alike, and how a request's body is compared."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.mock_server.profiles import PROFILES
from probe.mock_server.prompts import BYTES_PER_TOKEN, PromptHistory
from probe.mock_server.request_parser import ParsedRequest, read_chat, read_completion

CACHING = replace(PROFILES["tiny"], prefix_caching=True)


def _ask(body: dict[str, Any], *, chat: bool = False, profile: Any = CACHING) -> ParsedRequest:
    read = read_chat if chat else read_completion
    return read(json.dumps(body).encode(), "application/json", model="m", profile=profile)


def _content(tokens: list[int]) -> bytes:
    return _ask({"prompt": tokens}).content


def test_a_beginning_is_common_in_whole_blocks() -> None:
    seen = PromptHistory(4, 100)
    assert seen.match_and_add(_content([1, 2, 3, 4, 5, 6, 7, 8, 9])) == 0
    assert seen.match_and_add(_content([1, 2, 3, 4, 5, 6, 7, 8, 9])) == 8
    assert seen.match_and_add(_content([1, 2, 3, 4, 5, 6, 0, 8, 9])) == 4
    assert seen.match_and_add(_content([0, 2, 3, 4, 5, 6, 7, 8, 9])) == 0, "the same block elsewhere is another"
    assert seen.match_and_add(_content([1, 2, 3])) == 0
    assert seen.match_and_add(b"") == 0


tokens = st.lists(st.integers(0, 1), max_size=12)


@given(st.lists(tokens, max_size=20))
def test_a_shared_prefix_is_the_longest_of_any_earlier_prompt(prompts: list[list[int]]) -> None:
    seen = PromptHistory(2, 10_000)
    for n, prompt in enumerate(prompts):
        whole = [prompt[:end] for end in range(0, len(prompt) + 1, 2)]
        expected = max(len(p) for p in whole if not p or any(e[: len(p)] == p for e in prompts[:n]))
        assert seen.match_and_add(b"".join(n.to_bytes(BYTES_PER_TOKEN, "little") for n in prompt)) == expected


def test_it_remembers_a_limited_number_of_blocks_and_forgets_beginnings_last() -> None:
    seen = PromptHistory(1, 4)
    seen.match_and_add(_content([1, 2, 3, 4]))
    seen.match_and_add(_content([9, 9]))
    assert seen.match_and_add(_content([1, 2, 3, 4])) == 2
    for n in range(100):
        seen.match_and_add(_content([n] * 50))
        assert len(seen._keys) == 4


@pytest.mark.parametrize(
    ("body", "chat"),
    [
        ({"prompt": [1, 2, 31_999]}, False),
        ({"prompt": [[1, 2, 3]]}, False),
        ({"prompt": "żółw, five"}, False),
        ({"prompt": ["a"]}, False),
        ({"messages": [{"role": "user", "content": "hello"}]}, True),
        ({"messages": [{"role": "a" * 40, "content": [{"text": "x"}]}, {"role": "user", "content": None}]}, True),
    ],
)
def test_a_prompt_is_as_many_bytes_as_it_has_tokens(body: dict[str, Any], chat: bool) -> None:  # noqa: FBT001
    ask = _ask(body, chat=chat)
    assert len(ask.content) == BYTES_PER_TOKEN * ask.prompt_tokens
    assert _ask(body, chat=chat, profile=PROFILES["tiny"]).content == b"", "nobody would look at it"


def test_chats_that_begin_alike_have_that_in_common() -> None:
    seen = PromptHistory(4, 1000)
    system = {"role": "system", "content": "x" * 160}
    for question, common in (("one", 0), ("two", 44), ("two again", 44)):
        ask = _ask({"messages": [system, {"role": "user", "content": question}]}, chat=True)
        assert seen.match_and_add(ask.content) // 44 * 44 == common
