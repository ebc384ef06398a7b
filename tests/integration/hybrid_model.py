"""A model of Gemma 3's shape for tiny_model.py: layers with a sliding window beside those with full attention."""

from collections.abc import Mapping


def hybrid(sliding: int = 5, window: int = 256) -> Mapping[str, object]:
    """Return the configuration of a model with two layers of full attention, each after so many that slide."""
    pattern = [*["sliding_attention"] * sliding, "full_attention"]
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "num_hidden_layers": 2 * len(pattern),
        "layer_types": 2 * pattern,
        "sliding_window": window,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "query_pre_attn_scalar": 32,
        "hidden_activation": "gelu_pytorch_tanh",
        "rope_local_base_freq": 10000.0,
    }
