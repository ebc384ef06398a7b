"""Kneewatch's plugin with vLLM's own scheduler and statistics in virtual time; in a server: test_real_vllm.py."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.timed.cases import CASES
from probe.capacity.model.step_sums_fit import fit_steps
from probe.core.snapshot import ServerSnapshot
from probe.scrape import vllm as vllm_page
from probe.scrape.metrics_parser import samples

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.vllm


def _snapshot(page: str, at_s: float = 0.0) -> ServerSnapshot:
    found = vllm_page.ENGINE.snapshot(samples(page, vllm_page.ENGINE.wanted))
    return replace(found, at_ns=round(at_s * 1e9))


@pytest.mark.long
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
