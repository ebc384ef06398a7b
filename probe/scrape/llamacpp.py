"""llama.cpp's /metrics page (`llama-server --metrics`) to a ServerSnapshot: the only file with "llamacpp:" names. Pure.

Tokens are counted when a request ends, decode calls at each step. There are no latencies and no count of requests, so
users' traffic is known as tokens only. The page names no model.
"""

from probe.scrape.reads import Counted, Engine, Facts, Proof, Reads, beside, positive

_DRAFTS = positive("llamacpp:spec_decode_num_drafts_total")  # zero without speculation
_READS: Reads = {
    "running": ("llamacpp:requests_processing",),
    "waiting": ("llamacpp:requests_deferred",),
    "kv_cache_usage": ("llamacpp:kv_cache_usage_ratio",),  # until 2025
    "prompt_tokens": ("llamacpp:prompt_tokens_total",),
    "generation_tokens": ("llamacpp:tokens_predicted_total",),
    "progress": ("llamacpp:n_decode_total",),  # decode calls
    "drafts": _DRAFTS,
    "draft_tokens": beside(_DRAFTS, "llamacpp:spec_decode_num_draft_tokens_total"),
    "accepted_tokens": beside(_DRAFTS, "llamacpp:spec_decode_num_accepted_tokens_total"),
}
ENGINE = Engine(
    "llamacpp",
    ("llamacpp:",),
    _READS,
    facts=Facts(
        "llama.cpp",
        "b11549",
        Proof.RECORDED,
        Counted.AT_THE_END,
        cells={"page": "with `--metrics`", "KV cache usage": "until 2025", "progress": "steps"},
    ),
)
