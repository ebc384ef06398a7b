"""A served vLLM of known timing (benchmarks/timed): its steps take as long as the case's law says."""

import json
from pathlib import Path

import pytest
from kneewatch_command import kneewatch

from benchmarks.timed.cases import CASES
from benchmarks.timed.served import configuration, served

pytestmark = [pytest.mark.vllm, pytest.mark.long]


def test_a_served_answer_takes_what_the_law_says(vllm_python: str, tmp_path: Path) -> None:
    case, file = CASES["long-prompts"], tmp_path / "result.json"
    with served(case, vllm_python, tmp_path) as base_url:
        config = configuration(case, base_url, tmp_path)
        load = ("--concurrency", "1", "--requests-per-step", "5", "--confirm-seconds", "0", "--no-guard")
        done = kneewatch("ramp", "-c", config, *load, "--json", file, within_s=120)
    assert file.exists(), done.out + done.err
    (step,) = json.loads(file.read_text())["steps"]
    assert step["requests"] == {"ok": 5, "failed": 0, "aborted": 0}
    law_s = case.law.mean_s(1, 1, case.prompt_tokens + case.output_tokens // 2)
    # On top is the work of the engine itself, which a busy machine draws out.
    assert 0.97 * law_s < step["tpot_s"]["p50"] < 3 * law_s
