"""The report of a matrix: a table of all rows, why one is missing, the prefix pair, and each row's own section."""

from dataclasses import replace
from typing import Any

from example_records import result, step

from probe.core.result import CapacityResult
from probe.core.step import Arrivals, Distribution, ServerPeaks, StepPlan
from probe.report.matrix_text import matrix_markdown, prefix_words, prompt_words
from probe.report.result_columns import GpuPrice


def _row(name: str, *steps: Any) -> CapacityResult:
    one = result(steps=steps) if steps else result()
    workload = {"name": name, "prompt_tokens": 4096, "output_tokens": 256, "shared_tokens": 0}
    return replace(one, context=replace(one.context, workload=workload))


def _open(ttft_s: float, hits: float | None = None) -> Any:
    some = Distribution(count=100, mean=ttft_s, p50=ttft_s, p95=ttft_s, p99=ttft_s)
    plan = StepPlan(16, 15.0, loop="open", arrivals=Arrivals(rate_rps=4.0))
    return replace(step(), plan=plan, ttft_s=some, server=ServerPeaks(prefix_hit_ratio=hits))


def test_every_row_is_in_one_table_and_has_its_section() -> None:
    measured = {"A short-chat": _row("short-chat"), "C long-decode": _row("long-decode")}
    text = matrix_markdown(measured, {"E prefix-cold": "the model holds | 2048 tokens"}, GpuPrice(2.5))
    lines = text.splitlines()
    assert lines[0] == "# Benchmark matrix of m"
    assert lines[2].startswith("| row | model | workload |")
    assert [line.split(" | ")[2] for line in lines[4:6]] == ["short-chat", "long-decode"]
    assert [line.split(" | ")[0] for line in lines[4:6]] == ["| A", "| C"]
    assert "per million accepted tokens" in lines[2]
    assert "- E prefix-cold was not measured: the model holds \\| 2048 tokens" in lines
    assert sum(line.startswith("## ") for line in lines) == 2
    assert "| Growth |" in text


def test_the_gain_of_a_prefix_is_that_at_the_load_of_both() -> None:
    cold, warm = _row("prefix-cold", _open(0.78)), _row("prefix-warm", _open(0.2, 0.92))
    words = prefix_words(cold, warm)
    assert words == (
        "at 4 requests/s TTFT p50 is 780 ms cold and 200 ms warm, 3.9 times as fast; E2E p50 is 90.0 ms cold and"
        " 90.0 ms warm, 1 times as fast; 92% of prompt tokens hit it."
    )
    assert prefix_words(cold, _row("prefix-warm", replace(_open(0.2), valid=False))) is None
    pair = ("E prefix-cold", "E prefix-warm")
    assert f"Prefix cache: {words}" in matrix_markdown({pair[0]: cold, pair[1]: warm}, {}, None, pair)


def test_ttft_by_prompt_length_is_that_at_the_lowest_load_of_both() -> None:
    def row(length: int, load: int, ttft_s: float) -> CapacityResult:
        some = Distribution(count=100, mean=ttft_s, p50=ttft_s, p95=ttft_s, p99=ttft_s)
        one = _row("w", replace(step(load), ttft_s=some))
        return replace(one, context=replace(one.context, workload={"name": "w", "prompt_tokens": length}))

    rows = [row(256, 1, 0.04), row(2048, 1, 0.28), row(512, 4, 9.0)]
    assert prompt_words(rows) == (
        "at 1 in flight TTFT p50 is 40.0 ms for 256 tokens, 280 ms for 2,048 tokens; 8 times the prompt takes 7 times"
        " as long."
    )
    assert prompt_words(rows[:1]) is None


def test_a_report_of_nothing_says_why() -> None:
    text = matrix_markdown({}, {"A short-chat": "127.0.0.1: refused"})
    assert text == "# Benchmark matrix of a server\n\n- A short-chat was not measured: 127.0.0.1: refused\n"
