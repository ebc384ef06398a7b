"""The series of Kneewatch's plugin for vLLM (exporters/vllm_plugin), on vLLM's page. Pure."""

from collections.abc import Mapping

from probe.core.snapshot import StepSums
from probe.scrape.metrics_parser import Samples, by_label, first

STEPS = "kneewatch_vllm_steps_total"
_SUMS = {
    "seconds": "kneewatch_vllm_step_seconds_total",
    "requests": "kneewatch_vllm_step_requests_total",
    "decode_tokens": "kneewatch_vllm_step_decode_tokens_total",
    "prefill_tokens": "kneewatch_vllm_step_prefill_tokens_total",
    "kv_tokens": "kneewatch_vllm_step_kv_tokens_total",
}
LIMITS = "kneewatch_vllm_scheduler_limit"
NAMES = (STEPS, *_SUMS.values(), LIMITS)
_FLAGS = ("max_num_seqs", "max_num_batched_tokens", "max_model_len")
_MAX_LIMIT = 10**9


def step_sums(found: Samples) -> dict[str, StepSums]:
    """Return the sums over steps by their label, over all engines; those of which a part is missing are left out."""
    steps = by_label(found, "up_to_tokens", STEPS)
    sums = {field: by_label(found, "up_to_tokens", name) for field, name in _SUMS.items()}
    return {
        bound: StepSums(steps=count, **{field: of[bound] for field, of in sums.items()})
        for bound, count in steps.items()
        if all(bound in of for of in sums.values())
    }


def scheduler_limits(found: Samples) -> Mapping[str, int]:
    """Return the scheduler's limits by flag, those of the first engine: all engines have the same."""
    limits: dict[str, int] = {}
    for sample in first(found, (LIMITS,)):
        flag = sample.labels.get("flag", "")
        if flag in _FLAGS and 1 <= sample.value <= _MAX_LIMIT:
            limits.setdefault(flag, int(sample.value))
    return limits
