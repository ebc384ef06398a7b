"""Lengths of requests: means and typical values of a workload, and whether live traffic differs from it. Pure."""

import math
from collections.abc import Iterable
from dataclasses import replace

from probe.capacity.model.windows import MetricsWindow
from probe.core.request import RequestRecord, tokens_spent
from probe.core.token_length import LognormalLength, TokenLength, mean_length, quantile
from probe.core.workload import Workload

MIN_REQUESTS = 10  # of live traffic, to compare its lengths
_QUANTILES = 20
_SAME_LENGTHS = 0.15


def prompt_lengths(workload: Workload, count: int = _QUANTILES, cached_ratio: float = 0.0) -> list[float]:
    """Return equally likely prompt lengths, without the tokens that a prefix cache holds."""
    prompt = workload.prompt_tokens
    cached = float(workload.shared_tokens) if cached_ratio > 0 else 0.0
    if isinstance(prompt, int):
        return [max(prompt - cached, 1.0)]
    return [max(quantile(prompt, (i + 0.5) / count) - cached, 1.0) for i in range(count)]


def different_lengths(traffic: MetricsWindow, workload: Workload) -> Workload | None:
    """Return a workload with the measured mean lengths; None if they are near the workload's, or requests too few."""
    if traffic.prompts < MIN_REQUESTS:
        return None
    prompt, output = traffic.prompt_tokens / traffic.prompts, traffic.generation_tokens / traffic.prompts
    if _is_near(prompt, workload.prompt_tokens) and _is_near(output, workload.output_tokens):
        return None
    prompts, outputs = _chat_lengths(prompt), _chat_lengths(output)
    return replace(workload, prompt_tokens=prompts, output_tokens=outputs, shared_tokens=0, parts=None)


def without_probes(traffic: MetricsWindow, probes: Iterable[RequestRecord]) -> MetricsWindow:
    """Return the traffic without the probe requests that got their first token in that time."""
    begin_ns, end_ns = traffic.begin_s * 1e9, traffic.end_s * 1e9
    begun = [tokens_spent(r) for r in probes if len(r.events) and begin_ns < r.events.at_ns[0] <= end_ns]
    return replace(
        traffic,
        prompts=max(traffic.prompts - len(begun), 0.0),
        prompt_tokens=max(traffic.prompt_tokens - sum(prompt for prompt, _ in begun), 0.0),
        generation_tokens=max(traffic.generation_tokens - sum(output for _, output in begun), 0.0),
    )


def _is_near(mean: float, tokens: TokenLength) -> bool:
    return abs(mean / mean_length(tokens) - 1) < _SAME_LENGTHS


def _chat_lengths(mean: float) -> LognormalLength:
    """Return lengths of that mean, with the spread of a chat."""
    sigma = 0.5
    median = max(round(mean * math.exp(-(sigma**2) / 2)), 1)
    return LognormalLength(median, sigma, 4 * median)
