"""Files as they come: ours, those of `vllm bench serve`, and all kinds of others."""

import json
from pathlib import Path
from typing import Any

import pytest
from example_records import no_knee, result

from probe.capacity.trend.compare import HIGHER, LOWER, RATE, SECONDS, Value, of_result
from probe.core.errors import ConfigError
from probe.report.measured_file import read_measured
from probe.report.result_json import dumps

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
        ("{}\n{}", "holds several results, as --append-result writes; split it"),
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
