"""Rows: what stands in the events: token counts, choices, finish reasons, kinds of tokens."""

from typing import Any

from hostile_server import event

from probe.client.api_request import RequestShape
from probe.core.request import Api, Omittable, Outcome
from wire_cases.wire import (
    DONE,
    FOUR,
    GOOD,
    UNCOUNTED,
    VLLM,
    WireCase,
    chat,
    comp,
    counts,
    failed,
    final,
    stream,
)

_NO_OPTIONS = RequestShape(omitted=frozenset({Omittable.STREAM_OPTIONS}))
_NO_EOS = RequestShape(omitted=frozenset({Omittable.IGNORE_EOS}))


def _with(usage: object) -> tuple[bytes, ...]:
    """Return a good answer whose tokens' events have this usage, which says nothing, and the right one at the end."""
    texts = [comp(text, None, "length" if text == "d" else None, usage=usage) for text in "abcd"]
    return (*texts, final(counts(4)), DONE)


def _counted(*each: object) -> tuple[bytes, ...]:
    """Return an answer with these as the usage of its events."""
    last = len(each) - 1
    return (*(comp("x", None, "length" if i == last else None, usage=usage) for i, usage in enumerate(each)), DONE)


def _said(*deltas: dict[str, Any]) -> tuple[bytes, ...]:
    """Return a chat answer of four tokens with the running usage."""
    return (*(chat(delta, i + 1, "length" if i == 3 else None) for i, delta in enumerate(deltas)), DONE)


_NO_COUNTS: tuple[tuple[object, str, str], ...] = (
    (None, "null", "OpenAI: null but in the last chunk"),
    ({}, "empty", "livekit/agents #6595"),
    ({"prompt_tokens": None, "completion_tokens": None}, "of nulls", "openfox #236, livekit/agents #6596"),
    ({"prompt_tokens": 8, "total_tokens": 8}, "of the prompt alone", "vercel/ai #2763, LiteLLM before vLLM"),
    ({"prompt_tokens": 8, "completion_tokens": None}, "with a null output", "livekit/agents #6595"),
    ({"prompt_tokens": -1, "completion_tokens": -1}, "of negative numbers", "gateways that count later"),
    ({"prompt_tokens": 10**30, "completion_tokens": 2**63}, "of absurd numbers", "overflow"),
    ({"prompt_tokens": 0.5, "completion_tokens": 1.5}, "of fractions", "gateways that estimate"),
    ({"prompt_tokens": True, "completion_tokens": False}, "of truth values", "hostile"),
    ({"prompt_tokens": "many", "completion_tokens": ""}, "of words", "hostile"),
    ([1, 2], "that is a list", "hostile"),
    ("none", "that is a word", "hostile"),
)

CHUNKS = (
    *(WireCase(f"a usage {name}", source, stream(*_with(usage))) for usage, name, source in _NO_COUNTS),
    WireCase(
        "counts as floats", "JavaScript gateways", stream(*_counted(*(counts(float(i), 8.0) for i in (1, 2, 3, 4))))
    ),
    WireCase(
        "counts as digits", "Mistral-like gateways", stream(*_counted(*(counts(str(i), "8") for i in (1, 2, 3, 4))))
    ),
    WireCase(
        "counts of another kind in each event",
        "gateways",
        stream(*_counted(counts(1), counts(2.0), counts("3"), counts(4))),
    ),
    WireCase(
        "details beside the counts",
        "OpenAI",
        stream(
            *_counted(
                *({**counts(i), "prompt_tokens_details": {"cached_tokens": 0}, "cost": 0.1} for i in (1, 2, 3, 4))
            )
        ),
    ),
    WireCase(
        "the usage in the choice",
        "Moonshot",
        stream(
            *UNCOUNTED[:3], event({"choices": [{"text": "d", "finish_reason": "length", "usage": counts(4)}]}), DONE
        ),
    ),
    WireCase("the usage with the last text", "Mistral", stream(*UNCOUNTED[:3], comp("d", 4, "length"), DONE)),
    WireCase(
        "the usage in a chunk with null choices",
        "production-stack #873",
        stream(*UNCOUNTED, final(counts(4), None), DONE),
    ),
    WireCase(
        "the usage in a chunk without choices",
        "inference-perf #452",
        stream(*UNCOUNTED, event({"usage": counts(4)}), DONE),
    ),
    WireCase("the usage in a chunk with an empty choice", "Azure", stream(*UNCOUNTED, final(counts(4), [{}]), DONE)),
    WireCase(
        "the usage in a chunk whose choices are an object",
        "new-api #7470",
        stream(*UNCOUNTED, final(counts(4), {}), DONE),
    ),
    WireCase("the usage, and an empty one after it", "gateways", stream(*FOUR, final(counts(4)), final({}), DONE)),
    WireCase(
        "a running count that falls",
        "a gateway that retries",
        stream(comp("a", 1), comp("b", 2), comp("c", 1), comp("d", 4, "length"), DONE),
    ),
    WireCase(
        "several tokens an event",
        "vLLM --stream-interval; vllm #42661, sglang #12064",
        stream(comp("ab", 2), comp("cd", 4, "length"), DONE, gap=40),
        tokens=(2, 2),
        tpot=20,
    ),
    failed(
        "no usage",
        "TGI before 2.0",
        stream(*UNCOUNTED, DONE),
        Outcome.WRONG_ANSWER,
        "no usage (stream_options.include_usage); set request.omit: [stream_options]",
        tokens=(1, 1, 1, 1),
        ttft=100,
    ),
    WireCase("no usage, as configured", "TGI before 2.0", stream(*UNCOUNTED, DONE), shape=_NO_OPTIONS),
    failed(
        "a usage of zeros at the end",
        "NadirClaw #33",
        stream(*UNCOUNTED, final(counts(0, 0)), DONE),
        Outcome.WRONG_ANSWER,
        "no usage (stream_options.include_usage); set request.omit: [stream_options]",
        tokens=(1, 1, 1, 1),
        ttft=100,
    ),
    failed(
        "a usage of no output in front of the tokens, and none after them",
        "gateways that count the prompt",
        stream(comp("", None, None, usage=counts(0)), *UNCOUNTED, DONE, first=80),
        Outcome.WRONG_ANSWER,
        "no usage (stream_options.include_usage); set request.omit: [stream_options]",
        tokens=(1, 1, 1, 1),
        usage=(8, 0),
        ttft=100,
    ),
    failed(
        "a count that stops: the answer did not end early",
        "gateways",
        stream(comp("a", 1), *UNCOUNTED[1:3], comp("d", None, "stop"), DONE),
        Outcome.WRONG_ANSWER,
        "1 output tokens, 4 were asked for",
        tokens=(1, 1, 1, 1),
        usage=(8, 1),
        ttft=100,
        unsaid=("ignore_eos",),
    ),
    *(
        failed(
            f"given up as {reason!r}{', as configured' if shape is _NO_EOS else ''}",
            source,
            stream(*FOUR[:2], comp("c", 3, reason), DONE),
            Outcome.SERVER_ERROR,
            f"finish reason '{reason}'",
            tokens=(1, 1, 1),
            usage=(8, 3),
            ttft=100,
            shape=shape,
        )
        for shape in (RequestShape(), _NO_EOS)
        for reason, source in (
            ("insufficient_system_resource", "DeepSeek"),
            ("network_error", "Zhipu"),
            ("Cancelled", "TensorRT-LLM"),
            ("timed_out", "gateways"),
            ("ERROR_TOXIC", "Cohere"),
        )
    ),
    WireCase("a usage of zeros after the right one", "NadirClaw #33", stream(*FOUR, final(counts(0, 0)), DONE)),
    WireCase(
        "a usage of zeros in front of the first token",
        "gateways",
        stream(comp("", None, None, usage=counts(0, 0)), *GOOD, first=80),
    ),
    WireCase(
        "the usage and [DONE] in one read",
        "gateway-api-inference-extension #1626",
        stream(*FOUR, final(counts(4)) + DONE),
    ),
    WireCase(
        "an empty data line in front of the data",
        "gateway-api-inference-extension #1432",
        stream(*(b"data: \n" + each for each in GOOD)),
    ),
    # Choices and other fields.
    WireCase("no index", "gateways", stream(*(each.replace(b'"index": 0, ', b"") for each in GOOD))),
    WireCase(
        "an index that is a word", "gateways", stream(*(each.replace(b'"index": 0', b'"index": "0"') for each in GOOD))
    ),
    WireCase(
        "created as a float, and as a word",
        "sglang",
        stream(
            *(each.replace(b'"choices"', b'"created": 1.5, "choices"') for each in GOOD[:3]),
            *(each.replace(b'"choices"', b'"created": "now", "choices"') for each in GOOD[3:]),
        ),
    ),
    WireCase(
        "a null model and an empty id",
        "gateways",
        stream(*(each.replace(b'"model": "tiny"', b'"model": null, "id": ""') for each in GOOD)),
    ),
    WireCase(
        "unknown fields",
        "OpenRouter, vLLM: kv_transfer_params, token_ids, obfuscation",
        stream(
            *(each.replace(b'"choices"', b'"provider": {"a": [1]}, "obfuscation": "x", "choices"') for each in GOOD)
        ),
    ),
    WireCase(
        "null choices among the tokens",
        "inference-perf #452",
        stream(final(None, None), final(None, [None]), *GOOD, first=60),
    ),
    WireCase(
        "null error and detail",
        "gateways",
        stream(*(each.replace(b'"choices"', b'"error": null, "detail": null, "choices"') for each in GOOD)),
    ),
    WireCase(
        "a detail beside the tokens",
        "gateways that say where an answer comes from",
        stream(*(each.replace(b'"choices"', b'"detail": "cache miss", "choices"') for each in GOOD)),
    ),
    WireCase(
        "an empty error in each event",
        "Go gateways without omitempty",
        stream(*(each.replace(b'"choices"', b'"error": {"message": "", "code": 0}, "choices"') for each in GOOD)),
    ),
    WireCase(
        "an empty finish reason in each event",
        "ollama #4357, MindIE",
        stream(*(comp(x, i, "" if i < 4 else "length") for i, x in enumerate("abcd", 1)), DONE),
    ),
    WireCase(
        "no finish reason but the last",
        "vllm #19650",
        stream(*(each.replace(b', "finish_reason": null', b"") for each in GOOD)),
    ),
    WireCase(
        "the finish reason in an event of its own",
        "SGLang, TensorRT-LLM",
        stream(*(comp(x, i) for i, x in enumerate("abcd", 1)), comp("", 4, "length"), DONE),
    ),
    *(
        WireCase(f"the limit as {reason!r}", source, stream(*FOUR[:3], comp("d", 4, reason), DONE))
        for reason, source in (
            ("max_tokens", "watsonx, Anthropic behind a gateway"),
            ("MAX_TOKENS", "Gemini, Cohere behind a gateway"),
            ("LENGTH", "Triton-style gateways"),
        )
    ),
    *(
        failed(
            f"all tokens, and {reason!r} although ignore_eos is set",
            source,
            stream(*FOUR[:3], comp("d", 4, reason), DONE),
            Outcome.WRONG_ANSWER,
            "set request.omit: [ignore_eos]",
            tokens=(1, 1, 1, 1),
            usage=(8, 4),
            ttft=100,
        )
        for reason, source in (
            ("stop", "LiteLLM"),
            ("eos", "TensorRT-style gateways"),
            ("eos_token", "TGI"),
            (None, "gateways"),
        )
    ),
    *(
        failed(
            f"fewer tokens, and {reason!r}: ignore_eos is ignored",
            source,
            stream(*FOUR[:2], comp("c", 3, reason), DONE),
            Outcome.WRONG_ANSWER,
            "3 output tokens, 4 were asked for; set request.omit: [ignore_eos]",
            tokens=(1, 1, 1),
            usage=(8, 3),
            ttft=100,
        )
        for reason, source in (
            ("stop", "guidellm #477"),
            ("eos", "TensorRT-style gateways"),
            ("eos_token", "TGI"),
            ("stop_sequence", "TGI"),
            ("end_turn", "Anthropic behind a gateway"),
            (None, "gateways"),
        )
    ),
    WireCase(
        "fewer tokens, as configured",
        "guidellm #477",
        stream(*FOUR[:2], comp("c", 3, "stop"), DONE),
        tokens=(1, 1, 1),
        usage=(8, 3),
        shape=_NO_EOS,
    ),
    failed(
        "cut by the context, not by the limit",
        "vLLM",
        stream(*FOUR[:2], comp("c", 3, "length"), DONE),
        Outcome.WRONG_ANSWER,
        "3 output tokens, 4 were asked for",
        tokens=(1, 1, 1),
        usage=(8, 3),
        ttft=100,
    ),
    failed(
        "more tokens than were asked for",
        "max_tokens ignored",
        stream(*FOUR[:3], comp("de", 5, "length"), DONE),
        Outcome.WRONG_ANSWER,
        "5 output tokens, 4 were asked for",
        tokens=(1, 1, 1, 2),
        usage=(8, 5),
        ttft=100,
    ),
    failed(
        "a tokenizer that adds a token",
        "llama.cpp, guidellm: BOS",
        stream(*(each.replace(b'"prompt_tokens": 8', b'"prompt_tokens": 9') for each in GOOD)),
        Outcome.WRONG_ANSWER,
        "the server counted 9 prompt tokens of 8",
        tokens=(1, 1, 1, 1),
        usage=(9, 4),
        ttft=100,
    ),
    *(
        failed(
            f"{text!r} ended as {reason!r}, whatever is omitted",
            source,
            stream(*FOUR[: len(text) - 1], comp(text[-1], len(text), reason), DONE),
            Outcome.WRONG_ANSWER,
            "3 output tokens, 4 were asked for" if len(text) < len("abcd") else f"finish reason {reason!r}",
            tokens=(1,) * len(text),
            usage=(8, len(text)),
            ttft=100,
            unsaid=("ignore_eos]",),
        )
        for text in ("abc", "abcd")
        for reason, source in (
            ("content_filter", "Azure, OpenAI"),
            ("SAFETY", "Gemini behind a gateway"),
            ("repetition", "vLLM 0.32, FinishReason.REPETITION"),
            ("model_length", "Mistral"),
        )
    ),
    WireCase(
        "a finish reason in front of the first token",
        "open-webui #23921",
        stream(comp("", 0, "stop"), *GOOD, first=80),
    ),
    # Chat: what is a token.
    WireCase(
        "a role alone is no token",
        VLLM,
        stream(chat({"role": "assistant", "content": ""}, 0), *_said(*({"content": x} for x in "abcd")), first=80),
        api=Api.CHAT,
    ),
    WireCase(
        "a role and a text",
        "llama.cpp",
        stream(*_said({"role": "assistant", "content": "a"}, *({"content": x} for x in "bcd"))),
        api=Api.CHAT,
    ),
    WireCase(
        "reasoning",
        "vLLM 0.32: delta.reasoning",
        stream(*_said({"reasoning": "a"}, {"reasoning": "b"}, {"content": "c"}, {"content": "d"})),
        api=Api.CHAT,
    ),
    WireCase(
        "reasoning_content",
        "DeepSeek, SGLang; guidellm #737, inference-perf #559",
        stream(
            *_said(
                {"reasoning_content": "a"},
                {"reasoning_content": "b", "content": None},
                {"content": "c"},
                {"content": "d"},
            )
        ),
        api=Api.CHAT,
    ),
    WireCase(
        "tool calls",
        "OpenAI",
        stream(*_said(*({"tool_calls": [{"index": 0, "function": {"arguments": x}}]} for x in "abcd"))),
        api=Api.CHAT,
    ),
    WireCase(
        "a role with each token, of which the first two have no text",
        "TGI",
        stream(
            chat({"role": "assistant", "content": ""}),
            *(chat({"role": "assistant", "content": x}) for x in ("", "", "c")),
            chat({"role": "assistant", "content": "d"}, None, "length"),
            final(counts(4)),
            DONE,
            first=80,
        ),
        api=Api.CHAT,
        visible=140.0,
    ),
    WireCase(
        "thinking",
        "gateways before Anthropic",
        stream(
            *(chat({"thinking": x}) for x in "ab"),
            chat({"content": "c"}),
            chat({"content": "d"}, None, "length"),
            final(counts(4)),
            DONE,
        ),
        api=Api.CHAT,
    ),
    WireCase(
        "parts without text, thinking, and text",
        "Mistral: content as a list",
        stream(
            chat({"content": [{"type": "text", "text": ""}]}),
            chat({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]}),
            chat({"content": [{"type": "text", "text": "c"}]}),
            chat({"content": [{"type": "text", "text": "d"}]}, None, "length"),
            final(counts(4)),
            DONE,
        ),
        api=Api.CHAT,
        visible=120.0,
    ),
    WireCase(
        "content in parts",
        "Mistral: content as a list",
        stream(*_said(*({"content": [{"type": "text", "text": x}]} for x in "abcd"))),
        api=Api.CHAT,
    ),
    WireCase(
        "a null delta with the finish reason",
        "Azure",
        stream(*(chat({"content": x}, i) for i, x in enumerate("abcd", 1)), chat(None, 4, "length"), DONE),
        api=Api.CHAT,
    ),
)
