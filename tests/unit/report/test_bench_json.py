"""Steps in the JSON of `vllm bench serve`."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from example_records import result, step

from probe.core.step import Arrivals, Pattern, StepPlan
from probe.report.bench_json import bench_lines
from probe.report.measured_file import read_measured

BENCH = Path(__file__).parents[2] / "golden/vllm-0.32/bench-serve.json"


def test_a_level_has_the_names_that_vllm_bench_serve_writes() -> None:
    (line,) = bench_lines([result(steps=[step(4)])]).splitlines()
    written = json.loads(line)
    detailed = {"latencies", "input_lens", "output_lens", "ttfts", "itls", "start_times", "generated_texts", "errors"}
    others = {name for name in json.loads(BENCH.read_text()) if not name.startswith(("std_", "max_output", "max_conc"))}
    assert others - detailed - set(written) <= {"rtfx", "queue_times"}
    assert (written["completed"], written["failed"], written["max_concurrency"]) == (150, 1, 4)
    assert written["total_token_throughput"] == written["output_throughput"] + 1280
    assert (written["median_ttft_ms"], written["p99_ttft_ms"]) == (90.0, 300.0)


@pytest.mark.parametrize(
    ("pattern", "burstiness", "load"),
    [
        (Pattern.POISSON, 1.0, "rate 2.5 (poisson)"),
        (Pattern.GAMMA, 0.25, "rate 2.5 (gamma)"),
        (Pattern.CONSTANT, None, "rate 2.5 (constant)"),
        (Pattern.RISING, None, "rate 2.5 (rising)"),
        (Pattern.REPLAY, None, "rate 2.5 (replay)"),
    ],
)
@pytest.mark.parametrize("holds", [False, True])
def test_an_open_loop_has_its_arrivals_and_only_a_limit_that_was_asked_for(
    pattern: Pattern, burstiness: float | None, load: str, tmp_path: Path, *, holds: bool
) -> None:
    arrivals = Arrivals(pattern, 2.5, burstiness=burstiness or 1.0)
    level = replace(step(4), plan=StepPlan(512, 15, loop="open", arrivals=arrivals, holds=holds))
    file = tmp_path / "bench.json"
    file.write_text(bench_lines([result(steps=[level])]))
    written = json.loads(file.read_text())
    assert (written["burstiness"], written["arrivals"]) == (burstiness, pattern.value)
    assert written["max_concurrency"] == (512 if holds else None)
    assert list(read_measured(file).sections) == [load]


def test_a_closed_loop_has_no_arrivals() -> None:
    written = json.loads(bench_lines([result(steps=[step(4)])]))
    assert (written["burstiness"], written["arrivals"], written["max_concurrency"]) == (None, None, 4)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    opened = replace(step(4), plan=StepPlan(concurrency=512, seconds=15, arrivals=Arrivals(rate_rps=2.5)))
    file = tmp_path / "bench.json"
    file.write_text(bench_lines([result(steps=[step(4), step(8), opened])]))
    found = read_measured(file)
    assert list(found.sections) == ["concurrency 4", "concurrency 8", "rate 2.5 (poisson)"]
    values = found.sections["concurrency 4"].values
    assert values["TTFT p95"].value == 0.2
    assert values["goodput"].value == 10.0
