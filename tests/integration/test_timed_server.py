"""A served vLLM of known timing (benchmarks/timed): its steps take as long as the case's law says."""

import json
from pathlib import Path

import pytest
from kneewatch_command import kneewatch
from real_vllm import RealVllm

from benchmarks.capacity.cold import sweep_tokens, true_rps
from benchmarks.capacity.timed_cases import PREFIX, timed_case
from benchmarks.timed.cases import CASES, HYBRIDS
from benchmarks.timed.live_forecasts import of_case, snapshots
from benchmarks.timed.served import configuration, ramp, served

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


def test_a_forecast_for_a_model_with_several_kinds_of_attention(vllm_python: str, tmp_path: Path) -> None:
    """By the room of all blocks it would be more than twice as high. The server is vLLM's scheduler in virtual time."""
    case, model = HYBRIDS["hybrid"], RealVllm(vllm_python, tmp_path, (), {"max_position_embeddings": 4096}).model_folder
    truth_rps, _ = true_rps(PREFIX + case.name, {})
    shown = list(snapshots(case.name, 0.55 * truth_rps, model, vllm_python))
    assert (shown[0].kv_cache_tokens, shown[0].value("kv_block_tokens")) == (6888, 41_600)
    found = of_case(case, shown)
    assert found.requests_per_second == pytest.approx(truth_rps, rel=0.1)
    assert found.lower is not None
    assert found.upper is not None
    assert found.lower < truth_rps < found.upper
    assert "learnt from traffic; the server says 6,888" in str(found.reason)


def test_a_search_finds_what_a_served_vllm_takes(vllm_python: str, tmp_path: Path) -> None:
    """Whatever else the machine does: it may be slower than the law says, and never faster."""
    name = "small-kv"
    truth_rps, _ = true_rps(PREFIX + name, {})
    with served(CASES[name], vllm_python, tmp_path) as base_url:
        found = ramp(configuration(CASES[name], base_url, tmp_path), tmp_path, "--max-seconds", "200")
    said = found.capacity
    assert found.stopped in {"done", "budget seconds"}, found
    assert found.over_objective_s < 15, found
    assert found.tokens < 0.5 * sweep_tokens(timed_case(name).workload, truth_rps), found
    if (rps := said["requests_per_second"]) is None:
        assert said["mode"] != "verified"
        assert said["reason"], found
        return
    assert 0.5 * truth_rps < rps < 1.15 * truth_rps, found
    assert said["lower"] <= rps, found
    assert said["lower"] < 1.03 * truth_rps, found
    if said["mode"] == "verified":
        assert 0.8 * truth_rps < rps < 1.1 * truth_rps, found
        assert said["lower"] <= rps <= said["upper"] <= 1.2 * said["lower"], found
    else:
        assert said["reason"], found
