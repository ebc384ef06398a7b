"""The lengths of requests that were sent: as they asked for, and as the server counted them. Pure."""

from collections.abc import Iterable, Sequence
from statistics import fmean

from probe.core.percentiles import percentile
from probe.core.request import Outcome, RequestRecord
from probe.core.token_counts import SentTokens, TokenCounts


def sent_tokens(records: Sequence[RequestRecord]) -> SentTokens:
    """Return the token counts of these requests, and those of the answered ones by the server's account."""
    ok = [record for record in records if record.outcome is Outcome.OK]
    return SentTokens(
        prompts=_counts(record.spec.prompt_tokens for record in records),
        answers=_counts(record.spec.output_tokens for record in records),
        counted_prompts=_counts(record.prompt_tokens for record in ok),
        counted_answers=_counts(record.output_tokens for record in ok),
        answered_prompts=fmean(record.spec.prompt_tokens for record in ok) if ok else None,
        answered_answers=fmean(record.spec.output_tokens for record in ok) if ok else None,
    )


def _counts(tokens: Iterable[int]) -> TokenCounts:
    ordered = sorted(tokens)
    if not ordered:
        return TokenCounts()
    p50, p95, p99 = (float(percentile(ordered, share)) for share in (0.5, 0.95, 0.99))
    return TokenCounts(fmean(ordered), p50, p95, p99)
