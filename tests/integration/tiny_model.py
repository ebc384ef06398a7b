"""Builds the tiny model that the real vLLM serves in tests: `python tiny_model.py FOLDER`.

`python tiny_model.py FOLDER '{"num_hidden_layers": 8}'` makes a larger one.

Run by vLLM's own Python, which has `tokenizers`. The weights are random (vLLM's --load-format dummy), so
there is only a configuration and a byte-level BPE tokenizer, trained on Python's standard library: the
same Python makes the same folder, in about two seconds.
"""

import json
import sys
import sysconfig
from pathlib import Path

from tokenizers import (  # type: ignore[import-not-found]
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    trainers,
)

VOCABULARY = 4096
MAX_LENGTH = 1024
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TRAINING_FILES = 200

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# Two layers: fast enough for two cores, and still saturates at a concurrency of about eight.
CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "torch_dtype": "float32",
}

TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "eos_token": SPECIAL[0],
    "pad_token": SPECIAL[0],
    "model_max_length": MAX_LENGTH,
    "chat_template": CHAT_TEMPLATE,
}


def build(folder: Path, other: dict[str, object] | None = None) -> None:
    """Write config.json with `other` values, tokenizer.json and tokenizer_config.json."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    texts = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:TRAINING_FILES]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train([str(text) for text in texts], trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(TOKENIZER_CONFIG))
    (folder / "config.json").write_text(json.dumps({**CONFIG, **(other or {})}))


if __name__ == "__main__":
    build(Path(sys.argv[1]), json.loads(sys.argv[2]) if sys.argv[2:] else None)
