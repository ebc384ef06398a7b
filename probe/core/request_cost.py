"""The tokens that a request cost the server."""

from probe.core.request import Outcome, RequestRecord

# Outcomes of requests that the server did no work for.
_REFUSED = (Outcome.UNREACHABLE, Outcome.UNAUTHORIZED, Outcome.NOT_FOUND, Outcome.BAD_REQUEST, Outcome.REJECTED)


def tokens_spent(record: RequestRecord) -> tuple[int, int]:
    """Prompt and output tokens a request cost the server, at most.

    Of one that did not end well the server says no count: what was cancelled may have been worked on to its end,
    what was refused has not been.
    """
    if record.prompt_tokens or record.output_tokens:
        return record.prompt_tokens, record.output_tokens
    if record.outcome in _REFUSED:
        return 0, 0
    if record.outcome is Outcome.ABORTED:
        return record.spec.prompt_tokens, record.spec.output_tokens
    return record.spec.prompt_tokens, sum(record.events.tokens)
