"""Rows: tokens without text, several tokens an event, and the times that are known of them."""

from typing import Any

from hostile_server import event

from probe.core.request import Api, Outcome
from wire_cases.wire import DONE, VLLM, WireCase, chat, comp, counts, failed, final, stream

_CHAT: dict[str, Any] = {"api": Api.CHAT}


def _texts(*texts: str) -> tuple[bytes, ...]:
    """Return an event for each token, with the running usage."""
    last = len(texts)
    return (*(comp(text, i, "length" if i == last else None) for i, text in enumerate(texts, 1)), DONE)


def _deltas(*deltas: dict[str, Any]) -> tuple[bytes, ...]:
    last = len(deltas)
    return (*(chat(delta, i, "length" if i == last else None) for i, delta in enumerate(deltas, 1)), DONE)


def _bursts(*sizes: int) -> tuple[bytes, ...]:
    """Return events of several tokens each, with the running usage."""
    events, total = [], 0
    for size in sizes:
        total += size
        events.append(comp("x" * size, total, "length" if total == sum(sizes) else None))
    return (*events, DONE)


TOKENS: tuple[WireCase, ...] = (
    WireCase("no token has text", "vllm #5895: logit_bias on EOS under ignore_eos", stream(*_texts("", "", "", ""))),
    WireCase("no token of chat has text", "vllm #5895", stream(*_deltas({}, {"content": ""}, {}, {})), **_CHAT),
    WireCase(
        "no token has text, counted at the end only",
        "SGLang, llama.cpp: EOS under ignore_eos",
        stream(*(comp("") for _ in "abc"), comp("", None, "length"), final(counts(4)), DONE),
    ),
    WireCase(
        "no token of chat has text, counted at the end only",
        "vLLM without continuous_usage_stats; logprobs alone",
        stream(
            chat({"role": "assistant", "content": ""}),
            *(chat({"content": ""}) for _ in "abc"),
            chat({"content": ""}, None, "length"),
            final(counts(4)),
            DONE,
            first=80,
        ),
        **_CHAT,
    ),
    WireCase(
        "the first tokens have no text, counted at the end only",
        "SGLang",
        stream(comp(""), comp(""), comp("x"), comp("", None, "length"), final(counts(4)), DONE),
        visible=140.0,
    ),
    WireCase(
        "the first tokens have no text",
        "FastDeploy #8113, genai-bench #81, mlcommons/endpoints #380",
        stream(*_texts("", "", "", "x")),
        visible=160.0,
    ),
    WireCase("half a character, then the whole", VLLM, stream(*_texts("", "\u00e9", "", "\u00e9")), visible=120.0),
    WireCase("the last tokens have no text", VLLM, stream(*_texts("x", "x", "", ""))),
    WireCase(
        "hidden tokens, counted with the first text",
        "sglang #36272: hidden reasoning; most tokens came with the first event, so TPOT is unknown",
        stream(comp("c", 3), comp("d", 4, "length"), DONE, gap=20),
        tokens=(3, 1),
        tpot=None,
        itls=0,
    ),
    WireCase(
        "speculative decoding",
        "vllm #50677, llama-benchy #11",
        stream(*_bursts(1, 2, 1), gap=30),
        tokens=(1, 2, 1),
        itls=2,
    ),
    WireCase("one event for all tokens", "proxies", stream(*_bursts(4)), tokens=(4,), tpot=None, itls=0),
    WireCase(
        "several tokens an event, counted at the end only: TPOT is 20 or 40",
        "SGLang, TGI, llama.cpp with speculative decoding",
        stream(comp("ab"), comp("cd", None, "length"), final(counts(4)), DONE, gap=40),
        tokens=(2, 2),
        tpot=None,
        itls=1,
    ),
    WireCase(
        "harmony's channel in front of the first reasoning",
        "gpt-oss on vLLM: <|channel|>analysis<|message|> has no delta",
        stream(
            chat({"role": "assistant", "content": ""}, 0),
            chat({"reasoning": "a"}, 3),
            chat({"reasoning": "b"}, 4, "length"),
            DONE,
            first=80,
        ),
        tokens=(3, 1),
        tpot=None,
        itls=0,
        **_CHAT,
    ),
    WireCase(
        "harmony: reasoning, then an answer",
        "gpt-oss on vLLM 0.32",
        stream(*_deltas({"reasoning": "a"}, {"reasoning": "b"}, {}, {"content": "c"})),
        **_CHAT,
    ),
    WireCase(
        "a role chunk with a count of one",
        "LMDeploy",
        stream(chat({"role": "assistant"}, 0), *_deltas(*({"content": x} for x in "abcd")), first=80),
        **_CHAT,
    ),
    WireCase(
        "a function's arguments, in the old form",
        "OpenAI before tools",
        stream(*_deltas(*({"function_call": {"arguments": x}} for x in "abcd"))),
        **_CHAT,
    ),
    WireCase("a refusal", "OpenAI", stream(*_deltas(*({"content": None, "refusal": x} for x in "abcd"))), **_CHAT),
    WireCase(
        "a null among the tool calls",
        "odysseus #2356: MiniMax",
        stream(*_deltas(*({"tool_calls": [None]} for _ in "abcd"))),
        **_CHAT,
    ),
    WireCase(
        "null choices among the tokens of chat",
        "odysseus #2356",
        stream(event({"choices": [None]}), *_deltas(*({"content": x} for x in "abcd")), first=80),
        **_CHAT,
    ),
    failed(
        "only the end of the text, and nothing else",
        "a model that answers nothing",
        stream(comp("", 0, "stop"), DONE),
        Outcome.WRONG_ANSWER,
        "",
        usage=(8, 0),
    ),
)
