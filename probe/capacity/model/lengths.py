"""Lengths of requests: means and typical values of a workload, and whether live traffic differs from it. Pure."""

import math
from collections.abc import Iterable
from dataclasses import replace
from statistics import NormalDist

from probe.capacity.model.windows import MetricsWindow
from probe.core.measured_length import MeasuredLength
from probe.core.request import RequestRecord
from probe.core.request_cost import tokens_spent
from probe.core.workload import LognormalLength, TokenLength, Workload

MIN_REQUESTS = 10  # of live traffic, to compare its lengths
_QUANTILES = 7
_SAME_LENGTHS = 0.15


def prompt_lengths(workload: Workload, count: int = _QUANTILES, cached_ratio: float = 0.0) -> list[float]:
    """Return equally likely prompt lengths, without the tokens that a prefix cache holds."""
    prompt = workload.prompt_tokens
    cached = float(workload.shared_tokens) if cached_ratio > 0 else 0.0
    if isinstance(prompt, int):
        return [max(prompt - cached, 1.0)]
    return [max(_quantile(prompt, (i + 0.5) / count) - cached, 1.0) for i in range(count)]


def mean_length(tokens: TokenLength) -> float:
    """Return the mean length; of a log-normal one, lengths above the maximum count as the maximum."""
    if isinstance(tokens, int):
        return float(tokens)
    if isinstance(tokens, MeasuredLength):
        return tokens.mean
    if not tokens.sigma:
        return float(min(tokens.median, tokens.maximum))
    cut = math.log(tokens.maximum / tokens.median) / tokens.sigma
    below = tokens.median * math.exp(tokens.sigma**2 / 2) * NormalDist().cdf(cut - tokens.sigma)
    return below + tokens.maximum * (1 - NormalDist().cdf(cut))


def _quantile(tokens: LognormalLength | MeasuredLength, share: float) -> float:
    if isinstance(tokens, MeasuredLength):
        return tokens.quantile(share)
    return min(tokens.median * math.exp(tokens.sigma * NormalDist().inv_cdf(share)), tokens.maximum)


def different_lengths(traffic: MetricsWindow, workload: Workload) -> Workload | None:
    """Return a workload with the measured mean lengths; None if they are near the workload's, or requests too few."""
    if traffic.prompts < MIN_REQUESTS:
        return None
    prompt, output = traffic.prompt_tokens / traffic.prompts, traffic.generation_tokens / traffic.prompts
    if _is_near(prompt, workload.prompt_tokens) and _is_near(output, workload.output_tokens):
        return None
    return replace(workload, prompt_tokens=_chat_lengths(prompt), output_tokens=_chat_lengths(output), shared_tokens=0)


def without_probes(traffic: MetricsWindow, probes: Iterable[RequestRecord]) -> MetricsWindow:
    """Return the traffic less the requests and tokens of probe requests whose first token came in that time."""
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
