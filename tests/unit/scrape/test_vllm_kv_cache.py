"""The size of vLLM's KV cache: of one kind of attention and of several, of several engines, and of earlier versions."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from probe.core.snapshot import ServerSnapshot
from probe.scrape import engines
from probe.scrape.replicas import merged

PAGES = Path(__file__).parents[2] / "pages"


def line(engine: str = "0", **labels: object) -> str:
    shown = {"engine": engine, "block_size": 16, **labels}
    labels = ",".join(f'{name}="{value}"' for name, value in shown.items())
    return f"vllm:cache_config_info{{{labels}}} 1.0\n"


def parse(page: str) -> ServerSnapshot:
    return engines.parse(page, at_ns=0, wall_s=0.0)


# Sources: the labels' computation in vLLM 0.32 (v1/core/kv_cache_utils.py, v1/engine/core_client.py).
@pytest.mark.parametrize(
    ("page", "tokens", "block_tokens", "longest"),
    [
        # Gemma 3's shape, as the CPU's vLLM 0.32 shows it: six groups share the blocks.
        (
            line(block_size=32, num_gpu_blocks=512, kv_cache_size_tokens=3339, kv_cache_max_concurrency=3.2611,
                 effective_attention_block_size=32),
            3339, 16_384, 3.2611,
        ),
        # vllm-project/vllm#51163, DeepSeek-V4: the smallest group's block has 4 tokens, the attention's 256.
        (
            line(block_size=4, num_gpu_blocks=1000, kv_cache_size_tokens=41_000, kv_cache_max_concurrency=5.0,
                 effective_attention_block_size=256),
            41_000, 256_000, 5.0,
        ),
        # One kind of attention: a longest request of 1,000 tokens takes 63 blocks.
        (
            line(num_gpu_blocks=630, kv_cache_size_tokens=10_000, kv_cache_max_concurrency=10.0,
                 effective_attention_block_size=16),
            10_000, 10_080, None,
        ),
        # Windows of few tokens beside long requests: one block more for each.
        (
            line(num_gpu_blocks=4097, kv_cache_size_tokens=65_536, kv_cache_max_concurrency=1.0),
            65_536, 65_552, 1.0,
        ),
        # Decode context parallelism of 4: a block holds the tokens of four.
        (
            line(num_gpu_blocks=1000, kv_cache_size_tokens=64_000, kv_cache_max_concurrency=8.0,
                 effective_attention_block_size=64),
            64_000, 64_000, None,
        ),
        # Two data-parallel engines: the blocks of both on each line, the size of one.
        (
            line("0", num_gpu_blocks=3000, kv_cache_size_tokens=8000, kv_cache_max_concurrency=2.0)
            + line("1", num_gpu_blocks=3000, kv_cache_size_tokens=8000, kv_cache_max_concurrency=2.0),
            16_000, 48_000, 4.0,
        ),
        # Groups of different block sizes: vLLM has no single one, and shows "None".
        (
            line(num_gpu_blocks=1000, kv_cache_size_tokens=9000, kv_cache_max_concurrency=2.25,
                 effective_attention_block_size="None"),
            9000, 16_000, 2.25,
        ),
        # Sliding windows only: more tokens than blocks have room for, since old ones leave.
        (
            line(num_gpu_blocks=1000, kv_cache_size_tokens=99_000, kv_cache_max_concurrency=3.0,
                 effective_attention_block_size="None"),
            99_000, 16_000, 3.0,
        ),
        # Before the labels were there, and while they are not filled in.
        (line(num_gpu_blocks=1000), 16_000, 16_000, None),
        (
            line(num_gpu_blocks=1000, kv_cache_size_tokens="None", kv_cache_max_concurrency="None",
                 effective_attention_block_size="None"),
            16_000, 16_000, None,
        ),
        # One engine of two has no size of its own.
        (
            line("0", num_gpu_blocks=1000, kv_cache_size_tokens=4000)
            + line("1", num_gpu_blocks=1000, kv_cache_size_tokens="None"),
            16_000, 16_000, None,
        ),
        (line(num_gpu_blocks=1000, kv_cache_size_tokens=0), 16_000, 16_000, None),
        (line(num_gpu_blocks=1000, kv_cache_size_tokens="inf"), 16_000, 16_000, None),
        (line(num_gpu_blocks="None", kv_cache_size_tokens=4000), 4000, None, None),
        # Ray Serve: each replica has its own engine 0.
        (
            line("a", num_gpu_blocks=1000, ReplicaId="a") + line("b", num_gpu_blocks=1000, ReplicaId="b"),
            32_000, 32_000, None,
        ),
    ],
)  # fmt: skip
def test_the_size_is_the_one_that_vllm_states(
    page: str, tokens: float, block_tokens: float | None, longest: float | None
) -> None:
    found = parse(page)
    assert found.kv_cache_tokens == tokens
    assert found.value("kv_block_tokens") == block_tokens
    assert found.value("kv_longest_requests") == longest


def test_a_recorded_hybrid_model_has_a_sixth_of_what_its_blocks_have_room_for() -> None:
    found = parse((PAGES / "vllm-hybrid.prom").read_text())
    assert found.kv_cache_tokens == 1_640_750
    assert found.value("kv_block_tokens") == 9_852_512


def test_the_size_of_replicas_is_their_sum_and_unknown_if_one_has_none() -> None:
    one = parse(line(num_gpu_blocks=1000, kv_cache_size_tokens=4000, kv_cache_max_concurrency=2.0))
    together = merged({"a": one, "b": one})
    assert (together.kv_cache_tokens, together.value("kv_longest_requests")) == (8000, 4.0)
    assert merged({"a": one, "b": parse("vllm:num_requests_running 1\n")}).kv_cache_tokens is None


@pytest.mark.parametrize(
    ("labels", "gpu_bytes"),
    [
        ({"kv_cache_memory_bytes": 4 << 30}, 4 << 30),
        ({"kv_cache_memory_bytes": "None"}, None),
        ({}, None),
        ({"kv_cache_memory_bytes": 4 << 30, "num_gpu_blocks_override": "None"}, 4 << 30),
        ({"kv_cache_memory_bytes": 4 << 30, "num_gpu_blocks_override": 64}, None),  # the blocks decide
    ],
)
def test_bytes_are_known_where_they_were_set(labels: dict[str, object], gpu_bytes: float | None) -> None:
    assert parse(line(num_gpu_blocks=1000, **labels)).value("kv_cache_bytes") == gpu_bytes


@examples(50)
@given(st.dictionaries(st.sampled_from(("num_gpu_blocks", "block_size", "kv_cache_size_tokens",
                                        "effective_attention_block_size", "kv_cache_max_concurrency")),
                       st.one_of(st.none(), st.floats(), st.text("0123456789.eE-+_ na", max_size=6))))  # fmt: skip
def test_whatever_the_labels_say_a_size_is_above_zero_or_unknown(labels: dict[str, object]) -> None:
    found = parse(line(**labels))
    for key in ("kv_cache_tokens", "kv_block_tokens", "kv_longest_requests", "kv_cache_bytes"):
        value = found.value(key)
        assert value is None or 0 < value < float("inf"), key
