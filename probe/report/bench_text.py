"""What `vllm bench serve` and `sglang.bench_serving` print, as the JSON that they write (bench_file.py). Pure.

A log may have several of these blocks between other lines. They name neither model nor API, and older ones no failures.
Labels: vllm/benchmarks/serve.py (0.32), before it benchmark_serving.py, and sglang's bench_serving (0.5).
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

_HEAD = re.compile(r"^=+ +Serving Benchmark Result +=+\s*$", re.MULTILINE)
_END = re.compile(r"^={20,}\s*$", re.MULTILINE)
_LINE = re.compile(r"^(?P<label>[A-Za-z][^:]*):\s+(?P<value>-?[0-9.]+(?:e[+-]?[0-9]+)?|nan|inf)\s*$", re.MULTILINE)
_LATENCY = re.compile(r"(mean|median|p[0-9.]+) (ttft|tpot|itl|e2el|e2e latency) \(ms\)")
_KEYS = {
    "successful requests": "completed",
    "failed requests": "failed",
    "maximum request concurrency": "max_concurrency",
    "max request concurrency": "max_concurrency",
    "request rate configured (rps)": "request_rate",
    "traffic request rate": "request_rate",
    "benchmark duration (s)": "duration",
    "total input tokens": "total_input_tokens",
    "total generated tokens": "total_output_tokens",
    "request throughput (req/s)": "request_throughput",
    "request goodput (req/s)": "request_goodput",
    "output token throughput (tok/s)": "output_throughput",
}
_COUNTS = ("completed", "failed", "max_concurrency", "total_input_tokens", "total_output_tokens")


def is_bench_text(text: str) -> bool:
    """Return whether one of the two has printed this."""
    return _HEAD.search(text) is not None


def documents(text: str) -> Sequence[dict[str, Any]]:
    """Return a document for each block."""
    blocks = [block for block in _HEAD.split(text)[1:] if block.strip()]
    return [dict(_values(_END.split(block, maxsplit=1)[0])) for block in blocks]


def _values(block: str) -> Iterator[tuple[str, Any]]:
    yield from {"model_id": None, "failed": None}.items()
    for line in _LINE.finditer(block):
        label, value = line["label"].strip().lower(), float(line["value"])
        if (key := _KEYS.get(label)) is not None:
            yield key, int(value) if key in _COUNTS else value
        elif (latency := _LATENCY.fullmatch(label)) is not None:
            yield f"{latency[1]}_{latency[2].replace('e2e latency', 'e2el')}_ms", value
