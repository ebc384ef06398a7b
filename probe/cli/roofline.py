"""`kneewatch roofline` behind its options: the GPU, the model, and the lengths of requests."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from probe.capacity.model.hardware_bounds import KvShape, ModelShape
from probe.capacity.trend.levels import IN_FLIGHT, Level, levels_of
from probe.capacity.trend.measurement import Measurement
from probe.cli.result_commands import GpuPeaks, KvOptions, Lengths, MemoryUse
from probe.config.types import GpuName, Parameters
from probe.config.workloads import PRESETS
from probe.core.errors import ConfigError
from probe.core.foreign_json import ForeignJsonError, JsonLimits, read_json
from probe.core.text import one_line
from probe.core.token_length import mean_length
from probe.gpu.peak_specs import GpuSpec, gpu
from probe.monitor.wiring import workload
from probe.report.measured_file import read_any
from probe.report.result_json import workload_of

_LIMITS = JsonLimits(max_bytes=4 * 2**20, max_values=200_000)
_MOST = 10**6
_GIB = 2**30
_SIZE = re.compile(r"([0-9]*\.?[0-9]+) ?([MGT]i?B)", re.IGNORECASE)
_UNITS = {"MB": 1e6, "GB": 1e9, "TB": 1e12, "MIB": 2.0**20, "GIB": 2.0**30, "TIB": 2.0**40}


def gpu_spec(given: GpuPeaks) -> GpuSpec:
    """Return the GPU: the one of that name, with what is given instead. Raises ConfigError."""
    memory = None if given.memory is None else _size(given.memory, "--memory") / _GIB
    if given.gpu is not None:
        found = gpu(str(_validated(TypeAdapter(GpuName), given.gpu, "--gpu")))
        assert found is not None  # noqa: S101 - the type has it checked
        found = replace(found, given_memory_gib=memory)
    elif given.bandwidth is None or given.flops is None:
        raise ConfigError("--gpu: missing; name a GPU, or give --bandwidth and --flops, and --memory for its KV cache")
    else:
        found = GpuSpec("GPU as given", given.bandwidth, given.flops, given_memory_gib=memory)
    if given.bandwidth is not None:
        found = replace(found, bandwidth_gb_s=given.bandwidth)
    return found if given.flops is None else replace(found, bf16_tflop_s=given.flops, fp8_tflop_s=None)


def model_shape(
    params: str, active_params: str | None, weight_bits: int, gpus: int, kv: KvOptions, memory: MemoryUse
) -> ModelShape:
    """Return the model on its GPUs. Raises ConfigError."""
    if weight_bits not in (4, 8, 16) or kv.kv_bits not in (8, 16):
        raise ConfigError("--weight-bits, --kv-bits: expected 4, 8 or 16 bits per weight, and 8 or 16 per KV element")
    return ModelShape(
        *parameters_of(params, active_params),
        weight_bits,
        gpus,
        kv_of(kv),
        gpu_weight_bytes=None if memory.weights is None else _size(memory.weights, "--weights"),
        gpu_activation_bytes=0.0 if memory.activations is None else _size(memory.activations, "--activations"),
        block_tokens=kv.block_size,
    )


def _size(text: str, option: str) -> float:
    """Return the bytes of a size such as 80GB. Raises ConfigError."""
    found = _SIZE.fullmatch(text.strip())
    if found is None or not 0 < (value := float(found[1])) < _MOST:
        raise ConfigError(f"{option} {one_line(text)}: expected a size with its unit, such as 80GB or 74.5GiB")
    return value * _UNITS[found[2].upper()]


def kv_of(options: KvOptions) -> KvShape | None:
    """Return the shape of the KV cache; None: it was not given. Raises ConfigError."""
    numbers = (options.layers, options.kv_heads, options.head_dim)
    has_numbers = any(number is not None for number in numbers)
    if sum((options.model_config is not None, has_numbers, options.kv_token_bytes is not None)) > 1:
        raise ConfigError(
            "--model-config, --layers, --kv-heads, --head-dim, --kv-token-bytes: expected one way; remove the other"
        )
    if options.model_config is not None:
        return kv_shape(options.model_config, options.kv_bits)
    if options.kv_token_bytes is not None:
        return KvShape(1, 1, 1, options.kv_bits, given_bytes=options.kv_token_bytes)
    if options.layers is None or options.kv_heads is None or options.head_dim is None:
        if has_numbers:
            raise ConfigError("--layers, --kv-heads, --head-dim: expected all three; add what is missing")
        return None
    return KvShape(options.layers, options.kv_heads, 2 * options.head_dim, options.kv_bits)


def parameters_of(params: str, active_params: str | None) -> tuple[float, float | None]:
    """Return the parameters of a model, and those used for one token; None: all. Raises ConfigError."""
    whole = _number_of(params, "--params")
    active = None if active_params is None else _number_of(active_params, "--active-params")
    if active is not None and active > whole:
        raise ConfigError(
            f"--active-params {one_line(active_params or '')}: more than --params {one_line(params)};"
            " expected at most all of them"
        )
    return whole, active


def lengths_of(given: Lengths) -> tuple[float, float, float]:
    """Return the mean prompt and output tokens, and how many of a prompt are shared. Raises ConfigError."""
    numbers = given.prompt_tokens is not None or given.output_tokens is not None
    if sum((given.workload is not None, numbers, given.result is not None)) > 1:
        raise ConfigError("--workload, --prompt-tokens, --output-tokens, --result: expected one source of lengths")
    if given.result is not None:
        measured = read_any(given.result)
        if isinstance(measured, Measurement):
            return _mean_lengths(given.result, measured)
        try:
            load = workload_of(measured.context.workload)
        except ValidationError:
            raise ConfigError(f"--result {given.result}: its workload has no lengths; measure again") from None
    elif (preset := PRESETS.get(name := given.workload or "default")) is not None:
        load = workload(name, preset.with_parts(PRESETS))
    else:
        raise ConfigError(f"--workload {one_line(name)}: expected one of {', '.join(PRESETS)}")
    prompt, output = mean_length(load.prompt_tokens), mean_length(load.output_tokens)
    return float(given.prompt_tokens or prompt), float(given.output_tokens or output), float(load.shared_tokens)


def _mean_lengths(file: Path, measured: Measurement) -> tuple[float, float, float]:
    """Return the mean lengths that another benchmark has counted. Raises ConfigError where it has not."""
    prompt, output = (measured.lengths.get(name) for name in ("prompt tokens", "output tokens"))
    if not prompt or not output:
        raise ConfigError(f"--result {file}: it does not tell the lengths of its requests; run the benchmark again")
    return prompt, output, 0.0


def levels_of_file(file: Path) -> Sequence[Level]:
    """Return the judged levels in requests in flight. Raises ConfigError where there is none."""
    read = read_any(file)
    levels = levels_of([read] if isinstance(read, Measurement) else read)
    found = [level for level in levels if level.is_judged and level.unit == IN_FLIGHT]
    if not found:
        raise ConfigError(f"--result {file}: no judged step in requests in flight; measure with --concurrency")
    return found


def _number_of(text: str, option: str) -> float:
    """Return a number of parameters such as 8B. Raises ConfigError."""
    return float(str(_validated(TypeAdapter(Parameters), text, option)))


def _validated(kind: TypeAdapter[str] | TypeAdapter[float], text: str, option: str) -> str | float:
    try:
        return kind.validate_python(text)
    except ValidationError as error:
        message = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{option} {one_line(text)}: {one_line(message)}") from None


def kv_shape(file: Path, bits: int) -> KvShape:
    """Return the shape that a config.json states; for a multimodal model, the shape of its language model.

    Raises ConfigError.
    """
    try:
        with file.open("rb") as opened:
            whole = read_json(opened.read(_LIMITS.max_bytes + 1), _LIMITS)
    except OSError as error:
        raise ConfigError(f"--model-config {file}: cannot be read ({error.strerror}); expected a config.json") from None
    except ForeignJsonError as error:
        raise ConfigError(f"--model-config {file}: {error}; expected the model's config.json") from None
    try:
        return _shape(whole.get("text_config") or whole, bits)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"--model-config {file}: no layers and heads in it, {one_line(repr(error))}; expected the model's"
            " config.json, or give --layers, --kv-heads and --head-dim"
        ) from None


def _shape(config: Mapping[str, Any], bits: int) -> KvShape:
    layers = _count(config["num_hidden_layers"])
    if config.get("kv_lora_rank"):  # latent attention
        return KvShape(layers, 1, _count(config["kv_lora_rank"]) + _count(config["qk_rope_head_dim"]), bits)
    heads = _count(config["num_attention_heads"])
    size = _count(config.get("head_dim") or config["hidden_size"] // heads)
    return KvShape(layers, _count(config.get("num_key_value_heads") or heads), 2 * size, bits)


def _count(value: object) -> int:
    if type(value) is not int or not 0 < value <= _MOST:
        raise ValueError(f"expected a number of 1 to {_MOST}, got {value!r}")
    return value
