"""vLLM's startup flags on which a capacity depends, a row for each: its effect, and where it is read. Pure.

From the rows follow what is read from a command line (`vllm_command.py`), from /server_info and from the metrics page
(`probe/scrape`), what the plugin exports (`exporters/vllm_plugin`, compared by a test), and the table of
docs/engines.md. A test compares them with the configuration classes of the vLLM that is installed: each of its fields
has a row, or is in UNREAD, or is known to have no effect.
"""

from dataclasses import dataclass
from enum import StrEnum

MAX_NUM_SEQS, MAX_NUM_ACTIVE_SEQS = "max_num_seqs", "max_num_active_seqs"
MAX_NUM_BATCHED_TOKENS, MAX_NUM_SCHEDULED_TOKENS = "max_num_batched_tokens", "max_num_scheduled_tokens"
SPECULATIVE, KV_TRANSFER, COMPILATION = "speculative_config", "kv_transfer_config", "compilation_config"
LARGEST_GRAPH = "max_cudagraph_capture_size"


class Form(StrEnum):
    """How a command line states a flag."""

    VALUE = "value"
    SWITCH = "switch"
    PART = "part"  # of a JSON object, or of a list: vllm_command.py knows which
    NONE = "none"  # not read there


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag that is read. `name`: on the command line and in results, with underscores.

    `short`: its short form. `config`: its place in /server_info. `label`: of cache_config_info. `in_plugin`: the plugin
    exports it. `default`: a value that is left out, because a command line does not state it either (0 is also 0.0).
    """

    name: str
    effect: str
    form: Form = Form.VALUE
    short: str = ""
    config: str = ""
    label: str = ""
    in_plugin: bool = False
    default: str = ""


@dataclass(frozen=True, slots=True)
class Unread:
    """Flags that are not read, and what they change."""

    effect: str
    names: tuple[str, ...]


_S, _P = Form.SWITCH, Form.PART
# What is left out of the page: num_gpu_blocks, kv_cache_memory_bytes and what follows from them. They vary with the
# memory that is free at the start, so that every restart would be another server; and a KV cache that has shrunk is a
# cause of a lower knee, which a new baseline would hide. For the same reason /server_info does not say the second.
FLAGS: tuple[Flag, ...] = (
    Flag(MAX_NUM_SEQS, "requests that an engine runs at once; the rest wait",
         config="scheduler_config.max_num_seqs", in_plugin=True),
    Flag(MAX_NUM_ACTIVE_SEQS, "the same, from 0.32; the smaller one counts. For DFlash and DSpark drafts vLLM 0.33"
         " lowers it to max_num_batched_tokens / (draft tokens + 1)",
         config="scheduler_config.max_num_active_seqs", in_plugin=True),
    Flag(MAX_NUM_BATCHED_TOKENS, "tokens that a step computes",
         config="scheduler_config.max_num_batched_tokens", in_plugin=True),
    Flag(MAX_NUM_SCHEDULED_TOKENS, "the same; the smaller one counts",
         config="scheduler_config.max_num_scheduled_tokens", in_plugin=True),
    Flag("performance_mode", "`throughput` doubles the defaults of max_num_seqs and max_num_batched_tokens",
         config="performance_mode", default="balanced"),
    Flag("max_model_len", "the longest request", config="model_config.max_model_len", in_plugin=True),
    Flag("max_num_queued_reqs", "requests beyond it are refused with 503",
         config="scheduler_config.max_num_queued_reqs", in_plugin=True),
    Flag("max_num_queued_tokens", "prompts beyond these tokens in prefill are refused with 503",
         config="scheduler_config.max_num_queued_tokens", in_plugin=True),
    Flag("prefill_schedule_interval", "prompts are computed in one of so many steps",
         config="scheduler_config.prefill_schedule_interval", in_plugin=True, default="1"),
    Flag("long_prefill_token_threshold", "tokens of a long prompt in one step, beside other requests",
         config="scheduler_config.long_prefill_token_threshold", in_plugin=True),
    Flag("long_prefill_token_threshold_adaptive", "raises that threshold while few requests run", _S,
         config="scheduler_config.long_prefill_token_threshold_adaptive", default="False"),
    Flag("enable_chunked_prefill", "off: a prompt is computed in one step", _S,
         config="scheduler_config.enable_chunked_prefill"),
    Flag("scheduling_policy", "`priority`: requests wait by their priority", config="scheduler_config.policy"),
    Flag("scheduler_cls", "another scheduler", config="scheduler_config.scheduler_cls"),
    Flag("scheduler_reserve_full_isl", "off: prompts begin before the KV cache has room for all of them", _S,
         config="scheduler_config.scheduler_reserve_full_isl", default="True"),
    Flag("watermark", "share of the KV cache that new requests leave free", config="scheduler_config.watermark",
         default="0"),
    Flag("async_scheduling", "a step is planned before the one before it has ended", _S,
         config="scheduler_config.async_scheduling"),
    Flag("stream_interval", "tokens in an event: longer gaps for clients", config="scheduler_config.stream_interval",
         default="1"),
    Flag("disable_hybrid_kv_cache_manager", "layers with a window keep all tokens: a smaller KV cache", _S,
         config="scheduler_config.disable_hybrid_kv_cache_manager", default="False"),
    Flag("block_size", "tokens in a block of the KV cache", config="cache_config.block_size", label="block_size"),
    Flag("gpu_memory_utilization", "memory for the KV cache", config="cache_config.gpu_memory_utilization",
         label="gpu_memory_utilization"),
    Flag("kv_cache_memory_bytes", "memory for the KV cache, instead of gpu_memory_utilization"),
    Flag("num_gpu_blocks_override", "blocks of the KV cache", config="cache_config.num_gpu_blocks_override",
         label="num_gpu_blocks_override"),
    Flag("kv_cache_dtype", "bytes of a token in the KV cache", config="cache_config.cache_dtype", label="cache_dtype"),
    Flag("kv_cache_dtype_skip_layers", "layers without that type", Form.NONE, label="kv_cache_dtype_skip_layers"),
    Flag("sliding_window", "tokens that attention sees, of the model", Form.NONE, label="sliding_window"),
    Flag("enable_prefix_caching", "common beginnings of prompts are computed once", _S,
         config="cache_config.enable_prefix_caching", label="enable_prefix_caching"),
    Flag("kv_offloading_size", "memory of the host for KV caches that the GPU has dropped",
         config="cache_config.kv_offloading_size", label="kv_offloading_size"),
    Flag("kv_offloading_backend", "what stores them", config="cache_config.kv_offloading_backend",
         label="kv_offloading_backend", default="native"),
    Flag("cpu_offload_gb", "weights in the host's memory, read in each step",
         config="offload_config.uva.cpu_offload_gb", default="0"),
    Flag("kv_connector", "KV caches from other servers or a store", _P),
    Flag("kv_role", "prefill, decode or both", _P),
    Flag("tensor_parallel_size", "GPUs that share a step", short="-tp", config="parallel_config.tensor_parallel_size"),
    Flag("pipeline_parallel_size", "GPUs that a step passes through; several steps at a time", short="-pp",
         config="parallel_config.pipeline_parallel_size"),
    Flag("data_parallel_size", "engines, each with its own limits", short="-dp",
         config="parallel_config.data_parallel_size"),
    Flag("prefill_context_parallel_size", "GPUs that share a prompt", short="-pcp",
         config="parallel_config.prefill_context_parallel_size", default="1"),
    Flag("decode_context_parallel_size", "GPUs that share the KV cache: it is so many times as large", short="-dcp",
         config="parallel_config.decode_context_parallel_size", default="1"),
    Flag("enable_expert_parallel", "whole experts on each GPU", _S, "-ep", "parallel_config.enable_expert_parallel"),
    Flag("all2all_backend", "with `deepep_low_latency` or `nixl_ep`, and expert and data parallelism, the default of"
         " max_num_batched_tokens is 256", config="parallel_config.all2all_backend", default="allgather_reducescatter"),
    Flag("api_server_count", "processes of the front end", short="-asc"),
    Flag("dtype", "bits of weights and activations", config="model_config.dtype"),
    Flag("quantization", "bits of weights", short="-q", config="model_config.quantization"),
    Flag("enforce_eager", "no CUDA graphs: slower steps", _S, config="model_config.enforce_eager"),
    Flag(LARGEST_GRAPH, "tokens of the largest CUDA graph; larger steps run without one",
         config="compilation_config.max_cudagraph_capture_size"),
    Flag(SPECULATIVE, "tokens in a step of a request; of it: method, model and draft tokens", _P, short="-sc"),
    Flag("enable_log_requests", "a line in the log for each request", _S),
    Flag("enable_sleep_mode", "the server may sleep", _S, config="model_config.enable_sleep_mode"),
)  # fmt: skip
BY_NAME = {flag.name: flag for flag in FLAGS}
PLUGIN_FLAGS = tuple(flag.name for flag in FLAGS if flag.in_plugin)
SHORT_FORMS = {
    **{flag.short: flag.name for flag in FLAGS if flag.short}, "-cc": COMPILATION, "-ac": "attention_config",
}  # fmt: skip
UNREAD: tuple[Unread, ...] = (
    Unread("speed of a step, which is measured: kernels, compilation, communication",
           ("optimization_level", "attention_backend", "attention_config", "kernel_config", "moe_backend",
            "linear_backend", "mamba_backend", "mamba_config", "mamba_ssu_algorithm",
            "gdn_prefill_backend", "kda_prefill_backend", "kda_decode_backend", "sparse_indexer_topk_backend",
            "monokernel", "kv_cache_layout", "model_impl", "disable_custom_all_reduce", "enable_dbo", "ubatch_size",
            "dbo_decode_token_threshold", "dbo_prefill_token_threshold", "enable_eplb", "eplb_config",
            "expert_placement_strategy", "enable_hc_sp", "enable_batch_sharded_sampling", "dcp_comm_backend",
            "dcp_q_replicate", "distributed_executor_backend", "numa_bind", "numa_bind_nodes", "numa_bind_cpus",
            "offload_backend", "offload_group_size", "offload_num_in_group", "offload_prefetch_step",
            "offload_params", "cpu_offload_params", "offload_config", "quantization_config", "use_replayssm",
            "replayssm_buffer_len", "enable_lora", "max_loras", "max_lora_rank", "fully_sharded_loras",
            "specialize_active_lora", "kv_sharing_fast_prefill", "worker_cls", "logits_processors",
            "watermark_config", "diffusion_config", "engram_config", "enable_shm_tensor_arena", "dp_sync_interval")),
    Unread("how often the prefix cache is hit, which is measured",
           ("prefix_cache_retention_interval", "prefix_match_unit", "mamba_cache_mode", "mamba_block_size",
            "enable_mamba_shared_prefix_checkpoint", "swa_bounded_replay", "disable_sliding_window")),
    Unread("time for a prompt before the engine has it, which is measured",
           ("prefix_caching_hash_algo", "renderer_num_workers", "tokenizer_mode")),
    Unread("size of the KV cache, which the metrics page shows",
           ("mamba_cache_dtype", "mamba_ssm_cache_dtype", "enable_mamba_cache_stochastic_rounding",
            "dcp_kv_cache_interleave_size", "cp_kv_cache_interleave_size")),
    Unread("requests with images or sound, which Kneewatch does not send",
           ("disable_chunked_mm_input", "limit_mm_per_prompt", "mm_encoder_only", "mm_encoder_tp_mode",
            "mm_processor_cache_gb", "mm_ipc_gpu_memory_gb", "language_model_only", "ec_transfer_config",
            "ec_manager_config", "video_pruning_rate")),
    Unread("draft tokens by the size of the batch: fewer under load than were measured",
           ("num_speculative_tokens_per_batch_size",)),
    Unread("which engines are behind other addresses",
           ("data_parallel_size_local", "data_parallel_rank", "data_parallel_hybrid_lb", "data_parallel_external_lb",
            "data_parallel_multi_port_external_lb")),
    Unread("no metrics", ("disable_log_stats",)),
    Unread("what is in --additional-config, for other hardware", ("additional_config",)),
)  # fmt: skip
