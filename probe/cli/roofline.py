"""`kneewatch roofline` behind its options: the GPU, the model, and the lengths of requests."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from probe.capacity.model.hardware_bounds import KvShape
from probe.cli.result_commands import KvOptions, Lengths
from probe.config.types import GpuName, Parameters
from probe.config.workloads import PRESETS
from probe.core.errors import ConfigError
from probe.core.foreign_json import ForeignJsonError, JsonLimits, read_json
from probe.core.step import StepSummary
from probe.core.text import one_line
from probe.core.token_length import mean_length
from probe.gpu.peak_specs import GpuSpec, gpu
from probe.monitor.wiring import workload
from probe.report.measured_file import read_result
from probe.report.result_json import workload_of


def gpu_spec(name: str) -> GpuSpec:
    """Return the GPU. Raises ConfigError."""
    found = gpu(str(_validated(TypeAdapter(GpuName), name, "--gpu")))
    assert found is not None  # noqa: S101 - the type has it checked
    return found


def kv_of(options: KvOptions) -> KvShape | None:
    """Return the shape of the KV cache; None: it was not given. Raises ConfigError."""
    numbers = (options.layers, options.kv_heads, options.head_dim)
    if options.model_config is not None:
        if any(number is not None for number in numbers):
            raise ConfigError("--model-config, --layers, --kv-heads, --head-dim: expected one way; remove the other")
        return kv_shape(options.model_config, options.kv_bits)
    if options.layers is None or options.kv_heads is None or options.head_dim is None:
        if any(number is not None for number in numbers):
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
        try:
            load = workload_of(read_result(given.result).context.workload)
        except ValidationError:
            raise ConfigError(f"--result {given.result}: its workload has no lengths; measure again") from None
    elif (preset := PRESETS.get(name := given.workload or "default")) is not None:
        load = workload(name, preset.with_parts(PRESETS))
    else:
        raise ConfigError(f"--workload {one_line(name)}: expected one of {', '.join(PRESETS)}")
    prompt, output = mean_length(load.prompt_tokens), mean_length(load.output_tokens)
    return float(given.prompt_tokens or prompt), float(given.output_tokens or output), float(load.shared_tokens)


def steps_of(result: Path) -> Sequence[StepSummary]:
    """Return the steps of a result. Raises ConfigError where none has a closed loop."""
    steps = read_result(result).steps
    if not any(step.valid and step.plan.arrivals is None and not step.plan.is_pulse for step in steps):
        raise ConfigError(f"--result {result}: no judged step in requests in flight; measure with --concurrency")
    return steps


def _number_of(text: str, option: str) -> float:
    """Return a number of parameters such as 8B. Raises ConfigError."""
    return float(str(_validated(TypeAdapter(Parameters), text, option)))


def _validated(kind: TypeAdapter[str] | TypeAdapter[float], text: str, option: str) -> str | float:
    try:
        return kind.validate_python(text)
    except ValidationError as error:
        message = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{option} {one_line(text)}: {one_line(message)}") from None


_LIMITS = JsonLimits(max_bytes=4 * 2**20, max_values=200_000)
_MOST = 10**6


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
