"""Steps of results in the JSON of `vllm bench serve --append-result`, for tools that read it. Pure.

Field names: vllm/benchmarks/serve.py (0.32). Kneewatch keeps no standard deviation of a latency, so there are none; it
has a 90th and a 95th percentile in addition to vLLM's median and 99th. vLLM's burstiness tells only Poisson and gamma
arrivals apart, so `arrivals` has the pattern of any, and burstiness is null for the others and for a closed loop.
"""

import json
import math
from collections.abc import Iterable
from typing import Any

from probe.core.request import Api
from probe.core.result import CapacityResult
from probe.core.step import Distribution, Pattern, StepSummary

_BACKENDS = {Api.COMPLETIONS.value: "openai", Api.CHAT.value: "openai-chat"}
_LATENCIES = (("ttft", "ttft_s"), ("tpot", "tpot_s"), ("itl", "itl_s"), ("e2el", "e2e_s"))


def bench_lines(results: Iterable[CapacityResult]) -> str:
    """Return a line of JSON for each step of each result, in their order."""
    return "".join(f"{json.dumps(_level(result, step))}\n" for result in results for step in result.steps)


def _level(result: CapacityResult, step: StepSummary) -> dict[str, Any]:
    arrivals, requests, api = step.plan.arrivals, step.requests, result.context.workload.get("api")
    backend = _BACKENDS.get(str(api))
    latencies = [pair for short, name in _LATENCIES for pair in _percentiles(short, getattr(step, name))]
    burstiness = arrivals.burstiness if arrivals and arrivals.pattern in (Pattern.POISSON, Pattern.GAMMA) else None
    is_limited = arrivals is None or step.plan.holds  # else it is only where the step ends
    return {
        "date": f"{result.started:%Y%m%d-%H%M%S}",
        "endpoint_type": backend,
        "backend": backend,
        "label": result.id,
        "model_id": result.model,
        "tokenizer_id": None,
        "num_prompts": requests.ok + requests.failed + requests.aborted,
        "request_rate": "inf" if arrivals is None else arrivals.rate_rps,
        "burstiness": burstiness,
        "arrivals": None if arrivals is None else arrivals.pattern.value,
        "max_concurrency": step.plan.concurrency if is_limited else None,
        "duration": step.seconds,
        "completed": requests.ok,
        "failed": requests.failed,
        "total_input_tokens": _whole(step.prompt_tokens_per_second * step.seconds),
        "total_output_tokens": _whole(step.output_tokens_per_second * step.seconds),
        "request_throughput": step.throughput_rps,
        "request_goodput": step.goodput_rps,
        "output_throughput": step.output_tokens_per_second,
        "total_token_throughput": step.total_tokens_per_second,
        **dict(latencies),
    }


def _whole(tokens: float) -> int | None:
    return round(tokens) if math.isfinite(tokens) else None


def _percentiles(name: str, found: Distribution) -> list[tuple[str, float]]:
    values = (("mean", found.mean), ("median", found.p50), ("p90", found.p90), ("p95", found.p95), ("p99", found.p99))
    return [(f"{word}_{name}_ms", value * 1000) for word, value in values if value is not None]
