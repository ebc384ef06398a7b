"""The simulator schedules as vLLM's own scheduler does, step by step (benchmarks/timed/twin_steps.py)."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.vllm, pytest.mark.long]


def test_every_step_is_vllms(vllm_python: str, tmp_path: Path) -> None:
    size = '{"max_position_embeddings": 4096}'
    build = [vllm_python, str(ROOT / "tests/integration/tiny_model.py"), str(tmp_path), size]
    subprocess.run(build, check=True, timeout=120)
    compare = [vllm_python, "-m", "benchmarks.timed.twin_steps", "--model", str(tmp_path), "--requests", "50"]
    compare += ["small-kv", "long-prompts"]  # preemptions of decoding requests; chunks of prompts
    for how in ([], ["--ahead"]):
        done = subprocess.run([*compare, *how], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
        found = re.findall(r"(\d+) equal steps, (\d+) preemptions; all$", done.stdout, re.MULTILINE)
        assert done.returncode == 0, done.stdout + done.stderr[-2000:]
        assert [int(steps) > 150 and int(preemptions) > 0 for steps, preemptions in found] == [True, True], found
