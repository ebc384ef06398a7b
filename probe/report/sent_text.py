"""The rate and lengths that were sent, compared with the requested ones, for a workload of varying lengths."""

from pydantic import ValidationError

from probe.core.result import CapacityResult
from probe.core.step import StepSummary, TokenCounts
from probe.core.token_length import TokenLength, mean_length, quantile
from probe.report.figures import milliseconds, number
from probe.report.result_json import workload_of

_SHOWN = (0.5, 0.95, 0.99)
_COUNTED_ALIKE = 0.01  # by how much the server may count more or fewer tokens without a word about it


def sent_lines(result: CapacityResult) -> list[tuple[str, str]]:
    """Return label and text: the step with the most requests, as sent and as asked; nothing for fixed lengths."""
    try:
        workload = workload_of(result.context.workload)
    except ValidationError:  # of another version
        return []
    step = max(result.steps, key=lambda step: step.requests.ok + step.requests.failed, default=None)
    if step is None or (isinstance(workload.prompt_tokens, int) and isinstance(workload.output_tokens, int)):
        return []
    tokens = step.tokens
    parts = [
        *_rate(step),
        _lengths("prompts", tokens.prompts, workload.prompt_tokens)
        + _counted(tokens.counted_prompts.mean, tokens.answered_prompts),
        _lengths("answers", tokens.answers, workload.output_tokens)
        + _counted(tokens.counted_answers.mean, tokens.answered_answers),
    ]
    return [("Sent", "; ".join(part for part in parts if part))]


def _rate(step: StepSummary) -> list[str]:
    if step.plan.arrivals is None:
        return []
    late = f", {milliseconds(step.schedule_lag_s.p99)} late (p99)" if step.schedule_lag_s.p99 is not None else ""
    return [f"{number(step.offered_rps)} requests/s of {number(step.plan.arrivals.rate_rps)} asked{late}"]


def _lengths(name: str, sent: TokenCounts, asked: TokenLength) -> str:
    if sent.mean is None:
        return ""
    pairs = [("mean", sent.mean, mean_length(asked))]
    for share, value in zip(_SHOWN, (sent.p50, sent.p95, sent.p99), strict=True):
        pairs.append((f"p{share * 100:.0f}", value or 0.0, quantile(asked, share)))
    return f"{name} {', '.join(f'{which} {value:,.0f} of {wanted:,.0f}' for which, value, wanted in pairs)} tokens"


def _counted(counted: float | None, asked: float | None) -> str:
    """Return the server's mean count for answered requests, if it differs from what they asked for."""
    if counted is None or asked is None or abs(counted - asked) <= _COUNTED_ALIKE * asked:
        return ""
    return f"; in answered ones the server counted {counted:,.0f} of {asked:,.0f}"
