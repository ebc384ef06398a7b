"""llama.cpp's server with a llama of random weights: `python llama_cpp_server.py MODEL.gguf PORT`.

Runs in an environment that has xllamacpp and gguf. The tokenizer has the 256 bytes and three special tokens.
"""

import signal
import sys
from pathlib import Path

import numpy as np
import xllamacpp
from gguf import GGUFWriter, TokenType

WIDTH, LAYERS, HEADS, FEED = 64, 2, 4, 128


def write(file: Path) -> None:
    """Write the model."""
    random = np.random.default_rng(0)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    # Token ids of Kneewatch's prompts lie between 1000 and 30,000.
    tokens += [f"w{number}" for number in range(32_000 - len(tokens))]
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * 256]
    kinds += [TokenType.NORMAL] * (len(tokens) - len(kinds))
    model = GGUFWriter(file, "llama")
    model.add_context_length(4096)
    model.add_embedding_length(WIDTH)
    model.add_block_count(LAYERS)
    model.add_feed_forward_length(FEED)
    model.add_head_count(HEADS)
    model.add_head_count_kv(HEADS)
    model.add_layer_norm_rms_eps(1e-5)
    model.add_rope_dimension_count(WIDTH // HEADS)
    model.add_vocab_size(len(tokens))
    model.add_tokenizer_model("llama")
    model.add_token_list(tokens)
    model.add_token_scores([0.0] * len(tokens))
    model.add_token_types(kinds)
    model.add_bos_token_id(1)
    model.add_eos_token_id(2)
    model.add_unk_token_id(0)

    def tensor(name: str, *shape: int) -> None:
        values = random.normal(0, 0.05, shape) if len(shape) > 1 else np.ones(shape)
        model.add_tensor(name, values.astype(np.float32))

    tensor("token_embd.weight", len(tokens), WIDTH)
    tensor("output_norm.weight", WIDTH)
    tensor("output.weight", len(tokens), WIDTH)
    for layer in range(LAYERS):
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensor(f"blk.{layer}.{part}.weight", WIDTH, WIDTH)
        tensor(f"blk.{layer}.attn_norm.weight", WIDTH)
        tensor(f"blk.{layer}.ffn_norm.weight", WIDTH)
        tensor(f"blk.{layer}.ffn_gate.weight", FEED, WIDTH)
        tensor(f"blk.{layer}.ffn_up.weight", FEED, WIDTH)
        tensor(f"blk.{layer}.ffn_down.weight", WIDTH, FEED)
    model.write_header_to_file()
    model.write_kv_data_to_file()
    model.write_tensors_to_file()
    model.close()


def serve(file: Path, port: int) -> None:
    """Serve the model until a signal."""
    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    params.hostnames, params.port = ["127.0.0.1"], port
    params.n_ctx, params.n_parallel = 16_384, 4
    params.cpuparams.n_threads = 1
    params.endpoint_metrics = True
    params.model_alias = {"llama"}
    server = xllamacpp.Server(params)  # it serves in a thread of its own, as long as it is referenced
    signal.pause()
    del server


if __name__ == "__main__":
    write(Path(sys.argv[1]))
    serve(Path(sys.argv[1]), int(sys.argv[2]))
