"""vLLM's startup flags from the answer of /server_info, which it serves with VLLM_SERVER_DEV_MODE=1. Pure.

The answer also holds the environment of the process and of the machine. Only the flags named here are taken.
"""

from collections.abc import Iterator, Mapping

from probe.core.foreign_json import JsonLimits, read_json
from probe.core.vllm_command import MAX_VALUE, speculation

PATH = "/server_info?config_format=json"  # without it, and before vLLM 0.11, the configuration is a text
# vLLM 0.32's answer has 26 KB, 1,400 values and a depth of 6.
_LIMITS = JsonLimits(max_bytes=1024 * 1024, max_values=20_000)
# Flags by the section of vLLM's configuration that has them; the second name is the flag's, where it is another one.
_FLAGS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "scheduler_config": (
        ("max_num_seqs", ""),
        ("max_num_batched_tokens", ""),
        ("long_prefill_token_threshold", ""),
        ("policy", "scheduling_policy"),
        ("async_scheduling", ""),
        ("enable_chunked_prefill", ""),
    ),
    "model_config": (
        ("max_model_len", ""),
        ("dtype", ""),
        ("quantization", ""),
        ("enforce_eager", ""),
        ("enable_sleep_mode", ""),
    ),
    "parallel_config": (
        ("tensor_parallel_size", ""),
        ("pipeline_parallel_size", ""),
        ("data_parallel_size", ""),
        ("enable_expert_parallel", ""),
    ),
    "cache_config": (
        ("block_size", ""),
        ("gpu_memory_utilization", ""),
        ("cache_dtype", "kv_cache_dtype"),
        ("num_gpu_blocks_override", ""),
        ("enable_prefix_caching", ""),
    ),
    "kv_transfer_config": (("kv_connector", ""), ("kv_role", "")),
}


def flags_of(answer: bytes) -> dict[str, str]:
    """Return the flags in the answer, by vLLM's names with underscores; {} if it has none. Raise ForeignJsonError."""
    document = read_json(answer, _LIMITS)
    config = document.get("vllm_config") if isinstance(document, dict) else None
    return dict(_flags(config)) if isinstance(config, dict) else {}


def _flags(config: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for section, names in _FLAGS.items():
        found = config.get(section)
        if not isinstance(found, dict):
            continue
        for name, flag in names:
            value = found.get(name)
            if isinstance(value, str | int | float) and (text := str(value)).isprintable():
                yield flag or name, text.removeprefix("torch.")[:MAX_VALUE]
    speculative = config.get("speculative_config")
    if isinstance(speculative, dict):
        yield from speculation(speculative)
