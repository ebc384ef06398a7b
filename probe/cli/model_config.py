"""The shape of a model's KV cache from its config.json, as Hugging Face models have it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probe.capacity.model.hardware_bounds import KvShape
from probe.core.errors import ConfigError
from probe.core.foreign_json import ForeignJsonError, JsonLimits, read_json
from probe.core.text import one_line

_LIMITS = JsonLimits(max_bytes=4 * 2**20, max_values=200_000)
_MOST = 10**6


def kv_shape(file: Path, bits: int) -> KvShape:
    """Return the shape by a config.json; of a model that takes more than text, that of its language model.

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
