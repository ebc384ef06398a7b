"""Tokens that a request cost the server."""

from probe.core.request import Outcome, RequestRecord

# Outcomes without work for the server.
_REFUSED = (Outcome.UNREACHABLE, Outcome.UNAUTHORIZED, Outcome.NOT_FOUND, Outcome.BAD_REQUEST, Outcome.REJECTED)


def tokens_spent(record: RequestRecord) -> tuple[int, int]:
    """Return the prompt and output tokens that a request cost the server, at most.

    The server reports no count for a failed request: a cancelled one may have run to its end, a refused one cost
    nothing.
    """
    if record.prompt_tokens or record.output_tokens:
        return record.prompt_tokens, record.output_tokens
    if record.outcome in _REFUSED:
        return 0, 0
    if record.outcome is Outcome.ABORTED:
        return record.spec.prompt_tokens, record.spec.output_tokens
    return record.spec.prompt_tokens, sum(record.events.tokens)
