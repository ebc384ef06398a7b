"""Kneewatch's plugin in the real vLLM, and with vLLM's own scheduler and statistics in virtual time."""

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from real_vllm import MODEL, RealVllm

from benchmarks.timed.cases import CASES
from probe.capacity.model.step_sums_fit import fit_steps
from probe.core.snapshot import ServerSnapshot
from probe.scrape import vllm as vllm_page
from probe.scrape.metrics_parser import samples

ROOT = Path(__file__).parents[2]
TOKENS = 40

pytestmark = pytest.mark.vllm


def _snapshot(page: str, at_s: float = 0.0) -> ServerSnapshot:
    found = vllm_page.ENGINE.snapshot(samples(page, vllm_page.ENGINE.wanted))
    return replace(found, at_ns=round(at_s * 1e9))


def _ask(vllm: RealVllm, number: int) -> None:
    body = {"model": MODEL, "prompt": [number + 5] * (60 + 20 * number), "max_tokens": TOKENS, "ignore_eos": True}
    httpx.post(f"{vllm.base_url}/v1/completions", json=body, timeout=60, trust_env=False).raise_for_status()


def test_the_real_vllm_exports_its_steps(vllm: RealVllm) -> None:
    vllm.settled_metrics()
    before = _snapshot(httpx.get(f"{vllm.base_url}/metrics", trust_env=False).text)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: _ask(vllm, number), range(16)))
    vllm.settled_metrics()
    after = _snapshot(httpx.get(f"{vllm.base_url}/metrics", trust_env=False).text)
    assert after.scheduler_limits == {"max_num_seqs": 16, "max_num_batched_tokens": 512, "max_model_len": 1024}

    def grown(field: str) -> float:
        new, old = (sum(getattr(one, field) for one in each.step_sums.values()) for each in (after, before))
        return new - old

    assert after.generation_tokens is not None
    assert before.generation_tokens is not None
    # All tokens but the first one of each answer are decoded. Steps without a decoding request are left out.
    decoded = after.generation_tokens - before.generation_tokens - 16
    assert grown("decode_tokens") == pytest.approx(decoded, rel=0.05)
    assert 0 < grown("prefill_tokens") <= sum(60 + 20 * number for number in range(16))
    assert grown("requests") >= grown("decode_tokens")
    assert 0 < grown("seconds") / grown("steps") < 1
    assert 0 < grown("kv_tokens") / grown("requests") < 1024


def test_steps_are_those_that_vllms_scheduler_planned(vllm_python: str, tmp_path: Path) -> None:
    """Asynchronously scheduled, with prompts of several steps: none is wrong, and the case's costs are recovered."""
    build = [vllm_python, str(ROOT / "tests/integration/tiny_model.py"), str(tmp_path)]
    subprocess.run([*build, '{"max_position_embeddings": 4096}'], check=True, timeout=120)
    steps = [vllm_python, "-m", "benchmarks.timed.plugin_steps", "--model", str(tmp_path), "--rate", "4"]
    done = subprocess.run(
        [*steps, "--requests", "150", "mixed"], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["wrong"] == 0
    assert 1000 < found["planned"] == found["known"]
    cost_model = fit_steps([[_snapshot(page, at_s) for at_s, page in found["pages"]]], [CASES["mixed"].prompt_tokens])
    assert cost_model is not None
    law, cost = CASES["mixed"].law, cost_model.cost
    assert (cost.host_s + cost.weights_s) * 1e3 == pytest.approx(law.host + law.weights, rel=0.02)
    assert cost.per_token_s * 1e3 == pytest.approx(law.tok, rel=0.05)
