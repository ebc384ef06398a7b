"""llama.cpp's /metrics page (`llama-server --metrics`) to a ServerSnapshot: the only file with "llamacpp:" names. Pure.

Tokens are counted when a request ends, decode calls at each step. There are no latencies and no count of requests, so
users' traffic is known as tokens only. The page names no model.
"""

from probe.core.snapshot import ServerSnapshot
from probe.scrape.metrics_parser import EngineMetrics, Samples, total

_RUNNING, _WAITING = "llamacpp:requests_processing", "llamacpp:requests_deferred"
_PROMPT, _OUTPUT = "llamacpp:prompt_tokens_total", "llamacpp:tokens_predicted_total"
_DECODES = "llamacpp:n_decode_total"
_USAGE = "llamacpp:kv_cache_usage_ratio"  # until 2025
_DRAFTS, _DRAFT_TOKENS = "llamacpp:spec_decode_num_drafts_total", "llamacpp:spec_decode_num_draft_tokens_total"
_ACCEPTED = "llamacpp:spec_decode_num_accepted_tokens_total"


def _snapshot(found: Samples) -> ServerSnapshot:
    drafts = total(found, _DRAFTS) or None  # zero without speculation
    return ServerSnapshot(
        at_ns=0,
        wall_s=0.0,
        running=total(found, _RUNNING),
        waiting=total(found, _WAITING),
        kv_cache_usage=total(found, _USAGE),
        prompt_tokens=total(found, _PROMPT),
        generation_tokens=total(found, _OUTPUT),
        progress=total(found, _DECODES),
        drafts=drafts,
        draft_tokens=total(found, _DRAFT_TOKENS) if drafts is not None else None,
        accepted_tokens=total(found, _ACCEPTED) if drafts is not None else None,
    )


ENGINE = EngineMetrics(
    "llamacpp",
    ("llamacpp:",),
    frozenset((_RUNNING, _WAITING, _PROMPT, _OUTPUT, _DECODES, _USAGE, _DRAFTS, _DRAFT_TOKENS, _ACCEPTED)),
    _snapshot,
)
