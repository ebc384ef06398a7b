"""`kneewatch roofline`, in one process."""

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from example_records import result, step

from probe.cli.main import main
from probe.config.workloads import PRESETS
from probe.core.workload import lengths
from probe.monitor.wiring import workload
from probe.report.result_json import dumps

LLAMA = {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}


def _run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[Any, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["roofline", *map(str, arguments)])
    out, err = capsys.readouterr()
    return ended.value.code or 0, out, err


def test_it_prints_bounds_from_a_gpu_a_size_and_a_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA))
    status, out, _ = _run(capsys, "--gpu", "H100", "--params", "8B", "--model-config", config)
    assert status == 0
    assert "H100 SXM: 3,350 GB/s" in out
    assert "131,072 bytes a token" in out
    assert "1,218 requests of 384" in out
    by_hand = _run(capsys, "--gpu", "H100", "--params", "8B", "--layers", 32, "--kv-heads", 8, "--head-dim", 128)
    assert by_hand[1] == out


def test_as_json_it_has_base_units(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = _run(capsys, "--gpu", "L4", "--params", "8B", "--workload", "long-prefill", "--json")
    found = json.loads(out)
    assert (status, found["gpu"], found["prompt_tokens"], found["kv_tokens"]) == (0, "L4", 2048.0, None)
    assert found["loads"][0]["tpot_s"] == pytest.approx(16 / 300)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_the_mean_lengths_of_its_requests(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = _run(capsys, "--gpu", "H100", "--params", "8B", "--workload", name, "--json")
    found = json.loads(out)
    drawn = list(islice(lengths(workload(name, PRESETS[name].with_parts(PRESETS))), 2000))
    assert status == 0
    assert found["prompt_tokens"] == pytest.approx(fmean(prompt for prompt, _, _ in drawn), rel=0.1)
    assert found["output_tokens"] == pytest.approx(fmean(output for _, output, _ in drawn), rel=0.1)


def test_it_says_what_it_assumes_and_how_much_of_a_prompt_is_shared(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = _run(capsys, "--gpu", "H100", "--params", "8B", "--workload", "prefix-warm")
    assert "256 tokens of 4,096 (the rest is shared) take at least 4.1 ms" in out
    assert "Assumes:  BF16 or FP8 compute, full attention, no speculative decoding" in out
    _, out, _ = _run(capsys, "--gpu", "H100", "--params", "8B", "--workload", "prefix-cold")
    assert "4,096 tokens take at least" in out


def test_load_levels_of_a_result_stand_beside_the_bounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = result(steps=[step(4)])
    workload = {"name": "w", "api": "completions", "prompt_tokens": 256, "output_tokens": 128, "shared_tokens": 0}
    file = tmp_path / "sweep.json"
    file.write_text(dumps(_with(one, workload)))
    status, out, _ = _run(capsys, "--gpu", "L4", "--params", "700M", "--result", file)
    assert status == 0
    row = out.splitlines()[-1].split()
    assert row[:5] == ["4", "90.0", "ms", "3.0", "ms"]  # TTFT p50 of the level, and 256 tokens at 121 TFLOP/s
    assert row[5:7] == ["90.0", "ms"]  # TPOT p50
    assert "Warning" not in out
    assert "5.19 %" in out  # 4.67 ms to read 1.4 GB at 300 GB/s


def test_a_measurement_of_another_benchmark_that_no_such_gpu_can_reach_is_warned_of(
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = Path(__file__).parents[2] / "golden" / "vllm-0.32" / "bench-serve.json"
    status, out, _ = _run(capsys, "--gpu", "L4", "--params", "8B", "--result", file)
    assert status == 0
    assert "Prefill:  at most 7,562 tokens/s: 384 tokens take" in out  # the lengths that it counted
    assert "Warning: the measurement passes the bound (900 %)" in out


def test_peaks_that_are_given_replace_those_of_a_name_or_the_name(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = _run(capsys, "--bandwidth", 600, "--flops", 125, "--memory", "24GiB", "--params", "8B")
    assert "GPU as given: 600 GB/s, 125 TFLOP/s, 24 GiB" in out
    assert "a step takes at least 26.7 ms with one request" in out
    _, out, _ = _run(capsys, "--gpu", "L4", "--bandwidth", 250, "--params", "8B")
    assert "L4: 250 GB/s, 121 TFLOP/s, 24 GiB" in out


def test_blocks_of_a_kv_cache_beside_weights_and_activations(capsys: pytest.CaptureFixture[str]) -> None:
    memory = ("--memory", "80GB", "--weights", "32.499GB", "--activations", "2GB", "--kv-token-bytes", 327_500)
    _, out, _ = _run(capsys, "--gpu", "A100 SXM 80GB", "--gpus", 4, "--params", "70B", *memory)
    assert "or 28,626 blocks of 16 (458,016 tokens)" in out


def _with(one: Any, workload: dict[str, object]) -> Any:
    return replace(one, context=replace(one.context, workload=workload))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--gpu", "H1000", "--params", "8B"), "--gpu H1000: expected a GPU listed in docs/results.md"),
        (("--gpu", "H100", "--params", "many"), "--params many: "),
        (("--gpu", "H100", "--params", "8B", "--layers", "3"), "expected all three"),
        (("--gpu", "H100", "--params", "8B", "--model-config", "missing.json"), "cannot be read"),
        (
            ("--gpu", "H100", "--params", "8B", "--active-params", "9B"),
            "--active-params 9B: more than --params 8B; expected at most all of them",
        ),
        (("--params", "8B"), "--gpu: missing; name a GPU, or give --bandwidth and --flops"),
        (("--gpu", "L4", "--memory", "80", "--params", "8B"), "--memory 80: expected a size with its unit, such as"),
        (("--gpu", "L4", "--params", "8B", "--layers", "3", "--kv-token-bytes", "9"), "expected one way"),
        (("--gpu", "H100", "--params", "8B", "--weight-bits", "5"), "expected 4, 8 or 16 bits"),
        (("--gpu", "H100", "--params", "8B", "--workload", "mixed", "--prompt-tokens", "9"), "one source of lengths"),
    ],
)
def test_what_makes_no_sense_is_one_line(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = _run(capsys, *arguments)
    (line,) = err.splitlines()
    assert (status, out) == (2, "")
    assert said in line
