"""The fields of an installed vLLM's configuration classes, by its sources; and those without effect on a capacity."""

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

# The classes that are compared, with the sections of /server_info that show them.
CLASSES = {
    "engine/arg_utils.py": {"EngineArgs": None, "AsyncEngineArgs": None},
    "config/vllm.py": {"VllmConfig": ""},
    "config/scheduler.py": {"SchedulerConfig": "scheduler_config"},
    "config/cache.py": {"CacheConfig": "cache_config"},
    "config/parallel.py": {"ParallelConfig": "parallel_config"},
    "config/speculative.py": {"SpeculativeConfig": "speculative_config"},
    "config/compilation.py": {"CompilationConfig": "compilation_config"},
    "config/kv_transfer.py": {"KVTransferConfig": "kv_transfer_config"},
    "config/offload.py": {
        "OffloadConfig": "offload_config", "UVAOffloadConfig": "offload_config.uva", "PrefetchOffloadConfig": None,
    },
    "config/model.py": {"ModelConfig": "model_config"},
}  # fmt: skip
# What does not change a capacity, or is not set by whoever starts a server.
_WITHOUT_EFFECT = """
    model model_weights served_model_name tokenizer hf_config_path runner convert skip_tokenizer_init
    trust_remote_code allowed_local_media_path allowed_media_domains download_dir safetensors_load_strategy
    load_format config_format seed safetensors_prefetch_num_threads safetensors_prefetch_block_size revision
    code_revision tokenizer_revision hf_token hf_overrides model_class_overrides allow_deprecated_quantization
    model_loader_extra_config ignore_patterns use_tqdm_on_load pt_load_map_location max_parallel_loading_workers
    enable_ep_weight_filter enable_prompt_embeds master_addr master_port nnodes node_rank device_ids
    distributed_timeout_seconds cpu_distributed_timeout_seconds data_parallel_start_rank data_parallel_address
    data_parallel_rpc_port data_parallel_backend data_parallel_rank_local data_parallel_master_ip
    data_parallel_master_port data_parallel_index enable_elastic_ep elastic_ep_max_dp_size
    disable_nccl_for_dp_synchronization ray_workers_use_nsight ray_runtime_env placement_group
    assigned_physical_gpu_ids world_size rank is_moe_model enable_fault_tolerance fault_tolerance_config max_logprobs
    logprobs_mode use_fp64_gumbel enable_trace_replay enable_return_routed_experts return_sampling_mask
    aggregate_engine_logging logging_config log_level log_config_file show_hidden_metrics_for_version
    otlp_traces_endpoint collect_detailed_traces per_request_spec_decode_metrics kv_cache_metrics
    kv_cache_metrics_sample custom_histogram_buckets cudagraph_metrics enable_layerwise_nvtx_tracing
    enable_mfu_metrics enable_logging_iteration_details jit_monitor_mode jit_monitor_verbose enable_mm_processor_stats
    profiler_config observability_config kv_events_config watchdog_config instance_id shutdown_timeout tokens_only
    fail_on_environ_validation weight_transfer_config worker_extension_cls io_processor_plugin pooler_config
    structured_outputs_config reasoning_parser reasoning_parser_plugin reasoning_config generation_config
    override_generation_config aux_output_config sleep_mode_offload_cudagraph sleep_preserve_parameter_names
    sleep_mode_backend enable_cumem_allocator enable_nccl_comm_suspend disable_cascade_attn ir_op_priority
    enable_mm_embeds interleave_mm_strings media_io_kwargs mm_processor_kwargs mm_processor_cache_type
    mm_hasher_algorithm mm_shm_cache_max_object_size_mb mm_encoder_attn_backend mm_encoder_attn_dtype
    mm_encoder_fp8_scale_path mm_encoder_fp8_scale_save_path mm_encoder_fp8_scale_save_margin skip_mm_profiling
    video_pruning_method mm_tensor_ipc mm_processor_device mm_device_do_normalize multimodal_config default_mm_loras
    enable_tower_connector_lora max_lora_cls_labels model_config cache_config parallel_config scheduler_config
    device_config load_config lora_config quant_config compilation_config kv_transfer_config runner_type
    is_encoder_decoder is_multimodal_model max_num_encoder_input_tokens encoder_cache_size hf_config hf_text_config
    is_submodel_config word_embeddings_untied_by_checkpoint spec_target_max_model_len is_attention_free
    user_specified_block_size mamba_page_size_padded skip_page_size_padded use_kda_recoverssm num_gpu_blocks
    num_cpu_blocks effective_attention_block_size kv_cache_size_tokens kv_cache_max_concurrency hash_block_size
    cache_hit_alignment_tokens simple_cpu_offload_num_blocks engine_id kv_buffer_device kv_port
    kv_connector_extra_config kv_connector_module_path kv_load_failure_policy uva prefetch
"""
# Parts of objects that change how long a step takes, or how many drafts are accepted: both are measured.
_MEASURED = """
    enable_permute_local_kv enable_flashinfer_autotune mamba_cache_philox_rounds max_cpu_loras lora_dtype
    lora_target_modules enable_mixed_moe_lora_format enable_moe_shared_loras mode debug_dump_path cache_dir
    compile_cache_save_format backend custom_ops ir_enable_torch_wrap splitting_ops compile_mm_encoder
    cudagraph_mm_encoder encoder_cudagraph_token_budgets encoder_cudagraph_max_vision_items_per_batch
    encoder_cudagraph_max_frames_per_batch cudagraph_decoder_replay decoder_replay_cudagraph_capture_sizes
    decoder_replay_trim_threshold compile_sizes compile_ranges_endpoints inductor_compile_config inductor_passes
    cudagraph_mode cudagraph_num_of_warmups cudagraph_copy_inputs cudagraph_specialize_lora
    use_inductor_graph_partition pass_config dynamic_shapes_config local_cache_dir fast_moe_cold_start
    enabled_custom_ops disabled_custom_ops traced_files compilation_time encoder_compilation_time
    static_forward_context static_all_moe_layers draft_tensor_parallel_size index_share_for_mtp_iteration
    disable_padded_drafter_batch disable_eagle_block_drop use_local_argmax_reduction use_heterogeneous_vocab
    prompt_lookup_max prompt_lookup_min parallel_drafting target_model_config target_parallel_config
    draft_model_config draft_parallel_config suffix_decoding_max_tree_depth suffix_decoding_max_cached_requests
    suffix_decoding_max_spec_factor suffix_decoding_min_token_prob draft_load_config rejection_sample_method
    synthetic_acceptance_rates synthetic_acceptance_length enable_adaptive_verification draft_sample_method
    dspark_draft_topk fly_window_size fly_entropy_threshold fly_entropy_top_k xpress_topc draft_lm_head_quantization
    disable_lookahead_block_hashes offload_group_size offload_num_in_group offload_prefetch_step offload_params
"""


WITHOUT_EFFECT, MEASURED = frozenset(_WITHOUT_EFFECT.split()), frozenset(_MEASURED.split())


def sources_of(python: str) -> Path:
    """Return the folder of the vLLM of that Python, without importing it."""
    find = "import importlib.util; print(importlib.util.find_spec('vllm').submodule_search_locations[0])"
    found = subprocess.run([python, "-c", find], check=True, capture_output=True, text=True, timeout=60)
    return Path(found.stdout.strip())


def fields_of(vllm: Path) -> dict[str, dict[str, str | None]]:
    """Return the public fields of each class of CLASSES with their defaults as text; None: not a plain value."""
    return {
        name: dict(_fields(ast.parse((vllm / file).read_text()), name))
        for file, names in CLASSES.items()
        for name in names
    }


def _fields(tree: ast.Module, name: str) -> Iterator[tuple[str, str | None]]:
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    for node in found.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        if "ClassVar" not in ast.unparse(node.annotation) and not node.target.id.startswith("_"):
            yield node.target.id, _default(node.value)


def _default(value: ast.expr | None) -> str | None:
    if isinstance(value, ast.Call):
        value = next((each.value for each in value.keywords if each.arg == "default"), None)
    return str(value.value) if isinstance(value, ast.Constant) else None


def short_forms(vllm: Path) -> dict[str, str]:
    """Return the short forms of arguments, such as -tp, with the names of theirs."""
    files = [vllm / "engine/arg_utils.py", *(vllm / "entrypoints").rglob("cli_args.py")]
    calls = [node for file in files for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
    words = [[each.value for each in call.args if isinstance(each, ast.Constant)] for call in calls]
    pairs = ((a, b) for each in words for a in each for b in each if isinstance(a, str) and isinstance(b, str))
    return {a: b[2:].replace("-", "_") for a, b in pairs if b.startswith("--") and a.startswith("-") and a[1] != "-"}
