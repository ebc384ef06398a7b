"""A result as a section of a file of benchmarks."""

from dataclasses import replace

from example_records import result, step

from probe.core.provenance import Provenance
from probe.core.step import GpuUse, ServerPeaks
from probe.report.result_columns import GpuPrice
from probe.report.result_markdown import result_section


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
        gpu=GpuUse(power_w=320.0, gpus=2, utilization_peak=1.0, memory_peak_bytes=40 * 2**30),
    )
    text = result_section(result(steps=[busy]), GpuPrice(2.5, 2))
    head, _, row = (line.strip("| ").split(" | ") for line in text.splitlines()[-3:])
    cells = dict(zip(head, row, strict=True))
    assert (cells["prefix hits %"], cells["GPU peak %"], cells["GPU memory peak GiB"]) == ("90", "100", "40")
    assert (cells["GPUs W"], cells["tokens/J"]) == ("640", "1")
    assert cells["per million accepted tokens"] == "2.17"  # 2 GPUs x 2.5 / (640 tokens/s x 3600 s) x 1e6
    plain = result_section(result(steps=[step(4)]))
    assert "tokens/J" not in plain
    assert "prefix hits" not in plain
