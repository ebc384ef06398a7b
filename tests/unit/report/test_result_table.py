"""Results as a table: a row for each, or for each of their steps; to read as Markdown, to compute with as CSV."""

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from example_records import result, step

from probe.core.provenance import Provenance
from probe.core.result import Capacity, CapacityResult, Stopped
from probe.core.step import Distribution, GpuUse, ServerPeaks
from probe.report.measured_file import read_any
from probe.report.result_columns import GpuPrice
from probe.report.result_table import as_csv, as_markdown, capacity_table, result_section, step_table, sweep_findings

BENCHMARKS = Path(__file__).parents[2] / "golden" / "benchmarks"
WORKLOAD = {"name": "long-prefill", "prompt_tokens": 2048, "output_tokens": 128, "shared_tokens": 0}
FOUND = Capacity(
    mode="empirical", requests_per_second=10.0, lower=10.0, upper=12.5, output_tokens_per_second=1280.0, limiting="ttft"
)


def _result(**values: Any) -> CapacityResult:
    one = result(steps=[step(4, rps=8.0), step(8, rps=10.0), step(16, rps=11.0, broken=("ttft",))], capacity=FOUND)
    return replace(one, context=replace(one.context, workload=WORKLOAD), **values)


def _rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines()]


def _read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_a_result_is_a_row_with_the_latencies_of_the_highest_level_that_held() -> None:
    head, _, row = _rows(as_markdown(capacity_table([_result()])))
    cells = dict(zip(head, row, strict=True))
    assert (cells["workload"], cells["prompt"], cells["answer"]) == ("long-prefill", "2,048", "128")
    assert (cells["requests/s"], cells["interval"]) == ("10", "10 to 12.5")
    assert (cells["limited by"], cells["how"], cells["note"]) == ("ttft", "empirical", "-")
    (values,) = _read(as_csv(capacity_table([_result()])))
    held = step(8, rps=10.0)
    assert float(values["capacity_requests_per_second"]) == 10.0
    assert float(values["ttft_p95_seconds"]) == held.ttft_s.p95
    assert (values["upper_requests_per_second"], values["stopped_by"]) == ("12.5", "done")


def test_a_run_without_a_capacity_is_a_row_with_the_reason() -> None:
    none = _result(capacity=Capacity(mode="empirical", reason="no request was answered"), steps=())
    head, _, row = _rows(as_markdown(capacity_table([none])))
    cells = dict(zip(head, row, strict=True))
    assert (cells["requests/s"], cells["TTFT p95 ms"], cells["note"]) == ("-", "-", "no request was answered")
    (values,) = _read(as_csv(capacity_table([none])))
    assert (values["capacity_requests_per_second"], values["ttft_p95_seconds"]) == ("", "")


def test_a_lower_bound_is_not_an_exact_number() -> None:
    least = _result(capacity=replace(FOUND, upper=None))
    head, _, row = _rows(as_markdown(capacity_table([least])))
    assert dict(zip(head, row, strict=True))["interval"] == "at least 10"


def test_load_levels_are_rows_in_their_order() -> None:
    table = step_table([_result(), _result(stopped=Stopped("guard", "queue"))])
    head, _, *rows = _rows(as_markdown(table))
    assert len(rows) == 6
    assert [dict(zip(head, row, strict=True))["load"] for row in rows[:3]] == [
        "4 in flight",
        "8 in flight",
        "16 in flight",
    ]
    assert dict(zip(head, rows[2], strict=True))["verdict"] == "broke ttft"
    values = _read(as_csv(table))
    assert [each["concurrency"] for each in values[:3]] == ["4", "8", "16"]
    assert [each["rate_requests_per_second"] for each in values[:3]] == ["", "", ""]


def test_a_step_has_the_percentiles_of_every_latency_and_its_streams_rate() -> None:
    own = replace(step(4), itl_s=Distribution(count=9, mean=0.012, p50=0.01, p95=0.02, p99=0.03))
    head, _, row, *_ = _rows(as_markdown(step_table([_result(steps=(own,))])))
    cells = dict(zip(head, row, strict=True))
    found = {name: cells[f"ITL {name} ms"] for name in ("p50", "p95", "p99")}
    assert found == {"p50": "10", "p95": "20", "p99": "30"}
    assert {f"{latency} {name} ms" for latency in ("TTFT", "TPOT", "E2E") for name in ("p50", "p95", "p99")} <= set(
        head
    )
    assert cells["tokens/s a stream"] == "11.1"  # 1 / 90 ms
    (values,) = _read(as_csv(step_table([_result(steps=(own,))])))
    assert (values["itl_mean_seconds"], values["output_tokens_sum"]) == ("0.012", "9600.0")


def test_other_benchmarks_are_rows_of_the_same_table_and_together_a_sweep() -> None:
    files = [read_any(BENCHMARKS / "guidellm.json"), read_any(BENCHMARKS.parent / "vllm-0.32" / "bench-serve.json")]
    head, _, *rows = _rows(as_markdown(step_table([*files, _result()])))
    cells = [dict(zip(head, row, strict=True)) for row in rows]
    assert [each["load"] for each in cells[:4]] == ["concurrency 1", "concurrency 2", "concurrency 2", "4 in flight"]
    assert (cells[0]["TTFT p50 ms"], cells[0]["ITL p50 ms"], cells[0]["preemptions"]) == ("21.5", "-", "-")
    assert (cells[2]["model"], cells[2]["workload"], cells[2]["ITL p99 ms"]) == ("tiny", "vllm bench serve", "15.8")
    findings = sweep_findings(files)
    assert "- Growth: from 1 to 2 in flight: output tokens/s 1.67x (214 to 356)" in findings
    assert "## tiny, guidellm" in result_section(files[0])


@pytest.mark.fault(
    "SE34",
    "Markup, links, images, pipes and formulas in names of a result that becomes a table or a decision record",
    area="Security",
    users_see="shown as text",
    stays="a Markdown cell is one cell, a CSV cell no formula",
)
def test_text_of_a_server_is_no_markup() -> None:
    hostile = _result(model="<b>x</b> ![i](http://e/p) \\| y")
    (*_, row) = as_markdown(capacity_table([hostile])).splitlines()
    assert "&lt;b>x&lt;/b> !\\[i](http://e/p) \\\\\\| y" in row


@pytest.mark.fault("SE34")
def test_text_of_a_server_neither_breaks_a_row_nor_is_a_formula() -> None:
    hostile = _result(model="=cmd|' /C calc'!A1\n| x |")
    text = as_markdown(capacity_table([hostile]))
    assert len(text.splitlines()) == 3
    assert len({line.replace("\\|", "").count("|") for line in text.splitlines()}) == 1
    (values,) = _read(as_csv(capacity_table([hostile])))
    assert values["model"].startswith("'=")


def test_a_section_has_the_conditions_and_the_load_levels() -> None:
    made = Provenance("0.1.0", "kneewatch ramp", 0, "laptop", {"driver": "595.58.03"})
    text = result_section(replace(result(), provenance=made))
    lines = text.splitlines()
    assert lines[1].startswith("## 2026-09-21 ")
    assert lines[1].endswith(" UTC, m, short")
    assert "| Engine | vllm unknown |" in lines
    assert "| Workload | prompt_tokens 8 |" in lines
    assert any(line.startswith("| Capacity | 10 requests/s") for line in lines)
    assert "| Facts | driver 595.58.03 |" in lines
    assert any(line.startswith("| Not known | image, commit,") for line in lines)
    assert sum(line.startswith("| m | short |") for line in lines) == 2


def test_power_prefix_hits_and_price_are_columns_where_they_are_known() -> None:
    busy = replace(
        step(4),
        server=ServerPeaks(prefix_hit_ratio=0.9),
        gpu=GpuUse(power_w=320.0, gpus=2, utilization_peak=1.0, memory_peak_bytes=40 * 2**30, dram_active=0.7),
    )
    text = result_section(result(steps=[busy]), GpuPrice(2.5, 2))
    head, _, row = (line.strip("| ").split(" | ") for line in text.splitlines()[-3:])
    cells = dict(zip(head, row, strict=True))
    assert (cells["prefix hits %"], cells["GPU peak %"], cells["GPU memory peak GiB"]) == ("90", "100", "40")
    assert (cells["GPU memory active %"], "tensor active %" in cells) == ("70", False)
    assert (cells["GPUs W"], cells["tokens/J"]) == ("640", "1")
    assert cells["per million accepted tokens"] == "2.17"  # 2 GPUs x 2.5 / (640 tokens/s x 3600 s) x 1e6
    plain = result_section(result(steps=[step(4)]))
    assert "tokens/J" not in plain
    assert "prefix hits" not in plain
