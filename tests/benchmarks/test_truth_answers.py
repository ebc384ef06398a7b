"""The truth server answers as vLLM does: its bytes beside recorded ones, and Kneewatch's own reading of them."""

import json
import re
from pathlib import Path

import pytest

from benchmarks.client.answers import HEAD, Ask, answer, read_ask
from probe.client.exchange import read_answer
from probe.client.judgement import judge
from probe.core.request import Api, Outcome, RequestSpec

GOLDEN = Path(__file__).parents[1] / "golden" / "vllm-0.32"
PLACES = (
    (r'"(cmpl|chatcmpl)-[^"]+"', "ID"),
    (r'"created":\d+', "TIME"),
    (r'"(text|content)":"[^"]+"', "WORDS"),
    (r'"model":"[^"]+"', "MODEL"),
    (r'"system_fingerprint":"[^"]+"', "PRINT"),
    # Of a prompt that is text only the model's tokenizer knows how many tokens it is.
    (r'"(prompt|total)_tokens":\d+', "PROMPT"),
)


def events(body: str) -> list[str]:
    """Return the data lines without what differs between two correct servers."""
    found = re.findall(r"(?m)^data: (.*)$", body)
    for pattern, instead in PLACES:
        found = [re.sub(pattern, instead, line) for line in found]
    return found


def body_of(asked: Ask) -> bytes:
    made = answer(asked)
    return made.before + b"".join(made.tokens)


@pytest.mark.parametrize(
    "name",
    [f"{api}-stream{usage}" for api in ("completions", "chat") for usage in ("", "-usage", "-continuous")],
)
def test_its_events_are_those_that_vllm_sends(name: str) -> None:
    asked, _, recorded = (GOLDEN / f"{name}.txt").read_text().partition("-" * 40 + "\n")
    line, _, body = asked.partition("\n\n")
    made = read_ask(line.split()[1], body.strip().encode())
    ours = body_of(made).decode()
    assert events(ours) == events(recorded)


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("tokens", [1, 2, 128])
def test_kneewatch_reads_every_token_of_it(chat: bool, tokens: int) -> None:  # noqa: FBT001
    api = Api.CHAT if chat else Api.COMPLETIONS
    body = {
        "stream": True,
        "model": "tiny",
        "max_tokens": tokens,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        **({"messages": [{"role": "user", "content": "a b c"}]} if chat else {"prompt": [1, 2, 3]}),
    }
    asked = read_ask("/v1/chat/completions" if chat else "/v1/completions", json.dumps(body).encode())
    sent = b"".join(re.findall(rb"data: .*?\n\n", body_of(asked), re.DOTALL))
    said = read_answer([(1, 1, sent)], api)
    assert judge(RequestSpec("w", api, (), 3, tokens), said) == (Outcome.OK, None)
    assert len(said.events) == tokens


def test_it_refuses_what_is_no_stream() -> None:
    with pytest.raises(ValueError, match="stream"):
        read_ask("/v1/completions", b'{"prompt": "x"}')
    assert HEAD.endswith(b"\r\n\r\n")
