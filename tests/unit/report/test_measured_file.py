"""Files as they come: ours, those of `vllm bench serve`, and all kinds of others."""

import json
from pathlib import Path
from typing import Any

import pytest
from example_records import no_knee, result

from probe.capacity.trend.measurement import HIGHER, LOWER, RATE, SECONDS, Value, of_result
from probe.core.errors import ConfigError
from probe.report.measured_file import paired_files, read_measured, result_files
from probe.report.result_json import dumps

# Of real runs, as docs/results.md says, but for details; those of genai-perf (issue 298 of
# triton-inference-server/perf_analyzer), inference-perf (its demos) and llmperf (its benchmarks) are their projects'.
OTHERS = Path(__file__).parents[2] / "golden/benchmarks"
BENCH = Path(__file__).parents[2] / "golden/vllm-0.32/bench-serve.json"  # of a real run


def _file(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "it.json"
    file.write_text(text)
    return file


def _bench(tmp_path: Path, **changed: Any) -> Path:
    return _file(tmp_path, json.dumps({**json.loads(BENCH.read_text()), **changed}))


def test_a_kneewatch_result_is_read_unchanged(tmp_path: Path) -> None:
    for one in (result(), result(capacity=no_knee())):
        file = _file(tmp_path, dumps(one, indent=1))
        assert read_measured(file) == of_result(str(file), one)


def test_a_result_of_vllm_bench_serve_is_one_step() -> None:
    found = read_measured(BENCH)
    assert (found.kind, found.name) == ("vllm bench serve", str(BENCH))
    assert found.parts == {"model": "tiny", "workload.api": "completions"}
    assert found.lengths == {"prompt tokens": 384.0, "output tokens": 64.0}
    (step,) = found.sections
    values = found.sections[step].values
    assert step == "concurrency 2"
    assert values["throughput"] == Value(pytest.approx(4.7173, abs=1e-4), RATE, HIGHER)  # type: ignore[arg-type]
    assert values["TTFT p50"] == Value(pytest.approx(0.02682, abs=1e-5), SECONDS, LOWER)  # type: ignore[arg-type]
    assert set(values) == {
        "failed", "throughput", "output", *(f"{name} {p}" for name in ("TTFT", "TPOT", "ITL") for p in ("p50", "p99")),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "load"),
    [
        ({"max_concurrency": 16}, "concurrency 16"),
        ({"request_rate": 2.5}, "rate 2.5 (poisson)"),
        ({"request_rate": 2.5, "burstiness": 0.5}, "rate 2.5 (gamma)"),
        ({"ramp_up_strategy": "linear", "ramp_up_start_rps": 1, "ramp_up_end_rps": 9}, "rate 1 to 9 (ramp)"),
        ({"max_concurrency": None}, "60 requests at once"),
    ],
)
def test_its_load_is_named_as_in_kneewatch_results(tmp_path: Path, changed: dict[str, object], load: str) -> None:
    assert list(read_measured(_bench(tmp_path, **changed)).sections) == [load]


def test_more_percentiles_are_taken_and_numbers_that_are_none_are_not(tmp_path: Path) -> None:
    file = _bench(tmp_path, p95_ttft_ms=40.0, median_e2el_ms=500.0, p99_itl_ms=float("nan"), request_goodput=4.0)
    (step,) = read_measured(file).sections.values()
    assert step.values["TTFT p95"].value == 0.04
    assert step.values["E2E p50"].value == 0.5
    assert step.values["goodput"].value == 4.0
    assert "ITL p99" not in step.values


def test_where_no_request_was_answered_there_are_no_latencies(tmp_path: Path) -> None:
    """It writes zeros, which would be the best latencies ever."""
    (step,) = read_measured(_bench(tmp_path, completed=0, failed=60)).sections.values()
    assert set(step.values) == {"failed"}
    assert step.values["failed"].value == 1.0


def test_the_api_is_known_only_for_openai_backends(tmp_path: Path) -> None:
    assert read_measured(_bench(tmp_path, backend="sagemaker")).parts == {"model": "tiny"}
    assert read_measured(_bench(tmp_path, backend="openai-chat")).parts["workload.api"] == "chat"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not JSON (Expecting value"),
        ("{", "is not JSON (Expecting property name"),
        ("{}\n{}", "not a result; expected the file of `kneewatch ramp --json`"),
        ("{}\n{", "is not JSON (Expecting property name"),
        ("[" * 100_000, "is nested deeper than 32"),
        ("[]", "not a result; expected the file of `kneewatch ramp --json`"),
        ("{}", "not a result; expected the file of `kneewatch ramp --json`"),
        ('{"schema": "kneewatch.result/2"}', "schema kneewatch.result/2 is not supported, expected kneewatch.result/1"),
        ('{"schema": "kneewatch.result/1"}', "invalid id: Field required"),
        ('{"request_throughput": 1, "model_id": "m"}', "the model generates no text"),
        ('{"request_throughput": 1, "model_id": "m", "total_output_tokens": 1}', "invalid, KeyError('completed')"),
    ],
)
def test_any_other_file_is_one_line_that_names_it(tmp_path: Path, text: str, said: str) -> None:
    file = _file(tmp_path, text)
    with pytest.raises(ConfigError) as raised:
        read_measured(file)
    (line,) = str(raised.value).splitlines()
    assert line.startswith(f"{file}: ")
    assert said in line


PRINTED = """INFO 11-21 15:19:37 [serve.py] starting
============ Serving Benchmark Result ============
Successful requests:                     60
Failed requests:                         0
Maximum request concurrency:             2
Benchmark duration (s):                  12.72
Total input tokens:                      23040
Total generated tokens:                  3840
Request throughput (req/s):              4.72
Output token throughput (tok/s):         301.91
Peak output token throughput (tok/s):    350.00
Total Token throughput (tok/s):          2113.37
---------------Time to First Token----------------
Mean TTFT (ms):                          28.14
Median TTFT (ms):                        26.82
P99 TTFT (ms):                           47.41
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          6.27
Median TPOT (ms):                        5.92
P99 TPOT (ms):                           8.66
---------------Inter-token Latency----------------
Mean ITL (ms):                           6.27
Median ITL (ms):                         5.63
P99 ITL (ms):                            15.80
==================================================
"""


def test_what_vllm_bench_serve_prints_is_read_as_what_it_writes(tmp_path: Path) -> None:
    printed, written = read_measured(_file(tmp_path, PRINTED)), read_measured(BENCH)
    assert printed.lengths == written.lengths
    assert (printed.kind, list(printed.sections)) == (written.kind, list(written.sections))
    (one,), (other,) = printed.sections.values(), written.sections.values()
    assert {name: pytest.approx(value.value, rel=2e-3) for name, value in other.values.items()} == {
        name: value.value for name, value in one.values.items()
    }


def test_a_log_of_several_is_a_section_each_and_failures_that_it_does_not_tell_are_unknown(tmp_path: Path) -> None:
    older = PRINTED.replace("Failed requests:                         0\n", "")
    found = read_measured(_file(tmp_path, older + older.replace("concurrency:             2", "concurrency:   4")))
    assert list(found.sections) == ["concurrency 2", "concurrency 4"]
    assert all("failed" not in each.values for each in found.sections.values())


@pytest.mark.parametrize("name", sorted(file.name for file in OTHERS.iterdir()))
def test_a_damaged_file_of_any_program_is_one_line(tmp_path: Path, name: str) -> None:
    whole = json.loads((OTHERS / name).read_text())
    for key in whole:
        for wrong in (None, "text", [], {}, [None], -1):
            file = _file(tmp_path, json.dumps({**whole, key: wrong}))
            try:
                read_measured(file)
            except ConfigError as error:
                (line,) = str(error).splitlines()
                assert line.startswith(f"{file}: ")


@pytest.mark.parametrize("changed", [{"completed": "many"}, {"total_input_tokens": None}, {"request_rate": []}])
def test_a_damaged_benchmark_is_one_line_too(tmp_path: Path, changed: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="run the benchmark again"):
        read_measured(_bench(tmp_path, **changed))


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_measured(tmp_path / "missing.json")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_measured(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="it is not UTF-8"):
        read_measured(tmp_path / "binary")


def test_a_line_of_sglangs_bench_serving_is_a_section() -> None:
    found = read_measured(OTHERS / "sglang.jsonl")
    assert (found.kind, found.parts) == ("sglang.bench_serving", {"workload.api": "completions"})
    assert found.lengths == {"prompt tokens": 128.0, "output tokens": 32.0}
    values = found.sections["concurrency 2"].values
    assert values["throughput"].value == pytest.approx(10.3619, abs=1e-4)
    assert values["E2E p50"].value == pytest.approx(0.19081, abs=1e-5)
    assert values["ITL p95"].value == pytest.approx(0.0088959, abs=1e-7)
    assert "failed" not in values, "it counts no failures without --output-details"


def test_sglangs_failures_and_model_are_known_where_it_writes_them(tmp_path: Path) -> None:
    once = json.loads((OTHERS / "sglang.jsonl").read_text())
    more = {"errors": ["", "HTTP 500"] + [""] * 39, "server_info": {"served_model_name": "llama"}, "backend": "sglang"}
    found = read_measured(_file(tmp_path, json.dumps({**once, **more, "request_rate": 4.0})))
    assert found.parts == {"model": "llama"}
    assert found.sections["rate 4 (poisson)"].values["failed"].value == 1 / 41


def test_a_profile_of_aiperf_is_a_section(tmp_path: Path) -> None:
    found = read_measured(OTHERS / "aiperf.json")
    assert (found.kind, found.parts) == ("aiperf", {"model": "tiny", "workload.api": "completions"})
    assert found.lengths == {"prompt tokens": 83.75, "output tokens": 32.0}, "as the server counted them"
    values = found.sections["concurrency 2"].values
    assert values["throughput"].value == pytest.approx(7.5625, abs=1e-4)
    assert values["TTFT p95"].value == pytest.approx(0.176238, abs=1e-6)
    assert values["TPOT p50"].value == pytest.approx(0.0028007, abs=1e-7)
    assert values["failed"].value == 0.0
    once = json.loads((OTHERS / "aiperf.json").read_text())
    once["input_config"]["phases"][0] = {"name": "profiling", "kind": "profiling", "type": "poisson", "rate": 2.5}
    assert list(read_measured(_file(tmp_path, json.dumps(once))).sections) == ["rate 2.5 (poisson)"]


@pytest.mark.fault(
    "TP180",
    "A benchmark's file whose latency has a name of Kneewatch's and another meaning, or that leaves failures out",
    area="Truth",
    users_see="the value is missing in the comparison",
    stays="nothing is compared with something else, and failures that were not counted are not none",
)
def test_a_profile_of_genai_perf_is_a_section(tmp_path: Path) -> None:
    found = read_measured(OTHERS / "genai-perf.json")
    assert (found.kind, found.parts) == ("genai-perf", {"model": "ensemble"})
    assert found.lengths == {"prompt tokens": 200.85, "output tokens": 2565.855}
    values = found.sections["concurrency 100"].values
    assert "failed" not in values, "unknown is not none"
    assert values["throughput"].value == pytest.approx(17.2225, abs=1e-4)
    assert values["TTFT p95"].value == pytest.approx(0.351020, abs=1e-6)
    assert values["TPOT p50"].value == pytest.approx(0.0021787, abs=1e-7)
    assert values["E2E p99"].value == pytest.approx(5.910155, abs=1e-6)
    once = json.loads((OTHERS / "genai-perf.json").read_text())
    once["input_config"] = {  # since 2025
        "model_names": ["tiny"],
        "endpoint": {"type": "chat", "streaming": False},
        "perf_analyzer": {"stimulus": {"request_rate": 2.5}},
    }
    found = read_measured(_file(tmp_path, json.dumps(once)))
    assert found.parts == {"model": "tiny", "workload.api": "chat"}
    assert set(found.sections["rate 2.5"].values) == {"throughput", "output", "E2E p50", "E2E p95", "E2E p99"}


def test_a_stage_of_inference_perf_is_a_section(tmp_path: Path) -> None:
    found = read_measured(OTHERS / "inference-perf.json")
    assert (found.kind, found.parts) == ("inference-perf", {})
    assert found.lengths == pytest.approx({"prompt tokens": 73.978, "output tokens": 116.912}, abs=1e-3)
    values = found.sections["rate 30.91"].values
    assert values["throughput"].value == pytest.approx(29.9342, abs=1e-4)
    assert values["TTFT p50"].value == pytest.approx(0.044576, abs=1e-6)
    assert values["TPOT p95"].value == pytest.approx(0.0094136, abs=1e-7)
    assert not any(name.startswith("ITL") for name in values), "a gap of 0 for each further token of a chunk"
    once = json.loads((OTHERS / "inference-perf.json").read_text())
    once["failures"]["count"] = 206
    once["load_summary"]["concurrency"] = 8
    once["successes"] |= {
        "prompt_tokens": {"total": 1854.0, "mean": 80.0},
        "goodput_metrics": {"request_goodput": 20.0},
    }
    found = read_measured(_file(tmp_path, json.dumps(once)))
    values = found.sections["concurrency 8"].values
    assert (found.lengths["prompt tokens"], values["failed"].value, values["goodput"].value) == (80.0, 0.1, 20.0)
    once["load_summary"] = {"count": 2060}
    once["successes"] = {"count": 0, "latency": {"request_latency": None}, "output_len": None}
    assert read_measured(_file(tmp_path, json.dumps(once))).sections["all stages"].is_unanswered
    with pytest.raises(ConfigError, match="not a result"):  # its file of Prometheus' metrics
        read_measured(_file(tmp_path, json.dumps({**once, "load_summary": {}})))


def test_a_summary_of_llmperf_is_a_section(tmp_path: Path) -> None:
    found = read_measured(OTHERS / "llmperf.json")
    assert (found.kind, found.parts) == ("llmperf", {"model": "01-ai/Yi-1.5-34B-Chat"})
    assert found.lengths == {"prompt tokens": 550.0, "output tokens": 159.18}
    values = found.sections["concurrency 4"].values
    assert set(values) == {
        "failed",
        "throughput",
        "output",
        *(f"{name} p{p}" for name in ("TTFT", "E2E") for p in (50, 95, 99)),
    }
    assert values["throughput"].value == pytest.approx(0.405424, abs=1e-6)
    assert values["TTFT p50"].value == pytest.approx(2.035752, abs=1e-6)
    once = json.loads((OTHERS / "llmperf.json").read_text())
    failed = {"results_num_completed_requests": 0, "results_number_errors": 9, "results_ttft_s_mean": float("nan")}
    assert read_measured(_file(tmp_path, json.dumps({**once, **failed}))).sections["concurrency 4"].is_unanswered


def test_a_report_of_guidellm_is_a_section_for_each_of_its_loads() -> None:
    found = read_measured(OTHERS / "guidellm.json")
    assert (found.kind, found.parts) == ("guidellm", {"model": "tiny", "workload.api": "chat"})
    assert list(found.sections) == ["concurrency 1", "concurrency 2"]
    assert found.lengths["output tokens"] == 32.0
    values = found.sections["concurrency 1"].values
    assert values["throughput"].value == pytest.approx(6.6765, abs=1e-4)
    assert values["output"].value == pytest.approx(213.65, abs=1e-2)
    ttft = values["TTFT p50"]
    assert (ttft.value, ttft.lower, ttft.upper) == pytest.approx((0.021456, 0.021199, 0.021791), abs=1e-6)
    assert (values["TTFT p95"].lower, values["TTFT p95"].upper) == (None, None)
    assert values["TPOT p50"].value == pytest.approx(0.003959, abs=1e-6)
    assert values["E2E p50"].value == pytest.approx(0.14453, abs=1e-5)
    assert values["failed"].value == 0.0


def test_results_appended_to_one_file_are_sections_of_one_measurement(tmp_path: Path) -> None:
    """`vllm bench serve --append-result` writes a line for each run."""
    once = json.loads(BENCH.read_text())
    file = _file(tmp_path, "\n".join(json.dumps({**once, "max_concurrency": count}) for count in (1, 2, 4)))
    found = read_measured(file)
    assert list(found.sections) == ["concurrency 1", "concurrency 2", "concurrency 4"]
    assert found.lengths == read_measured(BENCH).lengths


def test_a_folder_is_its_result_files_by_name(tmp_path: Path) -> None:
    for name in ("b.json", "a.jsonl", "notes.md"):
        (tmp_path / name).touch()
    (tmp_path / "c.json").mkdir()
    assert [file.name for file in result_files(tmp_path)] == ["a.jsonl", "b.json"]
    assert result_files(tmp_path / "b.json") == [tmp_path / "b.json"]
    with pytest.raises(ConfigError, match="expected a folder of 1 to 1000 result files"):
        result_files(tmp_path / "c.json")


def test_folders_are_compared_by_the_names_of_their_files(tmp_path: Path) -> None:
    base, new = tmp_path / "base", tmp_path / "new"
    for folder, names in ((base, "ab"), (new, "bc")):
        folder.mkdir()
        for name in names:
            (folder / f"{name}.json").touch()
    pairs, alone = paired_files(base, new)
    assert pairs == [(base / "b.json", new / "b.json")]
    assert sorted(alone) == [base / "a.json", new / "c.json"]
    with pytest.raises(ConfigError, match="two files or two folders"):
        paired_files(base, new / "b.json")
    with pytest.raises(ConfigError, match="name them alike"):
        paired_files(base, _other(tmp_path))


def _other(tmp_path: Path) -> Path:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "z.json").touch()
    return tmp_path / "other"
