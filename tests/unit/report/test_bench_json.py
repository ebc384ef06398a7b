"""Load levels in the JSON of `vllm bench serve`."""

import json
from dataclasses import replace
from pathlib import Path

from example_records import result, step

from probe.core.step import Arrivals, StepPlan
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


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    opened = replace(step(4), plan=StepPlan(concurrency=512, seconds=15, arrivals=Arrivals(rate_rps=2.5)))
    file = tmp_path / "bench.json"
    file.write_text(bench_lines([result(steps=[step(4), step(8), opened])]))
    found = read_measured(file)
    assert list(found.sections) == ["concurrency 4", "concurrency 8", "rate 2.5 (poisson)"]
    values = found.sections["concurrency 4"].values
    assert values["TTFT p95"].value == 0.2
    assert values["goodput"].value == 10.0
