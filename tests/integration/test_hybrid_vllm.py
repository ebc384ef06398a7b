"""A vLLM whose model has several kinds of attention: the KV cache size on its page, and the one that traffic shows."""

import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from hybrid_model import hybrid
from real_vllm import MODEL, RealVllm

from probe.core.snapshot import ServerSnapshot
from probe.observe.kv_size import kv_size
from probe.scrape import engines

pytestmark = [pytest.mark.vllm, pytest.mark.long]

BLOCK, BLOCKS, GROUPS, WINDOW = 32, 512, 5, 256
LIMITS = (
    "--max-model-len=1024",
    "--max-num-seqs=16",
    f"--num-gpu-blocks-override={BLOCKS}",
    "--max-num-batched-tokens=512",
    "--no-enable-prefix-caching",
)
PROMPT, OUTPUT = 300, 120


@pytest.fixture
def gemma(vllm_python: str, tmp_path: Path) -> Iterator[RealVllm]:
    server = RealVllm(vllm_python, tmp_path, LIMITS, hybrid(GROUPS, WINDOW))
    server.start()
    yield server
    server.stop()


def _page(server: RealVllm) -> ServerSnapshot:
    page = httpx.get(f"{server.base_url}/metrics", timeout=30).text
    return engines.parse(page, at_ns=time.monotonic_ns(), wall_s=time.time())


def test_the_size_of_a_hybrid_model_s_cache_is_read_and_then_learnt(gemma: RealVllm) -> None:
    """512 blocks of 32 tokens have room for 16,384 tokens of one kind of attention; six kinds share them."""
    before = _page(gemma)
    assert before.kv_cache_tokens == 3339
    assert before.value("kv_block_tokens") == BLOCKS * BLOCK
    assert before.value("kv_longest_requests") == pytest.approx(3.26, abs=0.005)
    body = {"model": MODEL, "prompt": [7] * PROMPT, "max_tokens": OUTPUT, "ignore_eos": True}
    seen = [before]
    with ThreadPoolExecutor(8) as pool:
        sent = [pool.submit(httpx.post, f"{gemma.base_url}/v1/completions", json=body, timeout=300) for _ in range(32)]
        while not all(one.done() for one in sent):
            seen.append(_page(gemma))
            time.sleep(0.1)
    assert all(one.result().status_code == httpx.codes.OK for one in sent)
    held = PROMPT + OUTPUT / 2
    found = kv_size(seen, held)
    assert found is not None
    assert (found.is_learnt, found.is_lower_bound) == (True, False)
    blocks = math.ceil(held / BLOCK) + GROUPS * (WINDOW // BLOCK + 1)
    assert found.tokens == pytest.approx(BLOCKS * held / blocks, rel=0.2)
