"""A comparison for people and for programs."""

import json
from dataclasses import replace

from example_records import no_knee, result, step
from rich.console import Console

from probe.capacity.trend.compare import Comparison, compare
from probe.capacity.trend.measurement import Measurement, of_result
from probe.core.percentiles import distribution
from probe.core.result import CapacityResult
from probe.report.comparison import comparison_json, comparison_table, comparison_verdict, comparison_words


def _compared(base: CapacityResult, new: CapacityResult) -> tuple[Comparison, Measurement, Measurement]:
    one, other = of_result("a.json", base), of_result("b.json", new)
    return compare(one, other, 0.05), one, other


def _table(base: CapacityResult, new: CapacityResult) -> list[str]:
    console = Console(width=150)
    with console.capture() as captured:
        console.print(comparison_table(*_compared(base, new), with_same=True))
    return captured.get().splitlines()


def test_the_table_has_both_sides_their_intervals_and_the_change() -> None:
    lines = _table(result(), result(steps=[replace(step(4), throughput_rps=8.0)]))
    (head,) = (line for line in lines if "metric" in line)
    assert "base: a.json" in head
    assert "new: b.json" in head
    (capacity,) = (line for line in lines if "capacity requests/s" in line)
    assert " ".join(capacity.split()) == "capacity capacity requests/s 10 (10 to 12.5) 10 (10 to 12.5) +0.0% same"
    (throughput,) = (line for line in lines if "throughput" in line)
    assert throughput.split()[-4:] == ["10", "8", "-20.0%", "worse"]
    (ttft,) = (line for line in lines if "TTFT p50 ms" in line)
    assert ttft.split()[-4:] == ["90", "90", "+0.0%", "same"]


def test_a_capacity_that_is_gone_is_shown_as_none() -> None:
    lines = _table(result(), result(capacity=no_knee()))
    (capacity,) = (line for line in lines if "capacity requests/s" in line)
    assert capacity.split()[-3:] == ["none", "-", "worse"]


def test_the_words_say_what_differs_and_how_many_are_worse() -> None:
    other = replace(result(), context=replace(result().context, version="0.33\n0", workload={"name": "short"}))
    found = _compared(result(), other)[0]
    words = comparison_words(found).splitlines()
    assert words[0] == "Differs: version: unknown -> 0.33 0"
    assert words[1] == "Not comparable: workload.prompt_tokens is 8 in a.json and not set in b.json."
    verdict = comparison_verdict(found, 0.05)
    assert verdict.startswith("Nothing is worse: 0 worse, 0 better, ")
    assert verdict.endswith("equal (within 5 % of the base), 17 not judged.")


def test_what_cannot_be_told_is_counted_and_says_what_it_takes() -> None:
    def latencies(seconds: float) -> CapacityResult:
        few = distribution([seconds + 0.001 * i for i in range(20)])
        return result(steps=[replace(step(4), ttft_s=few, e2e_s=few)])

    found = _compared(latencies(0.1), latencies(0.4))[0]
    assert "p95 needs 72, p99 368" in comparison_words(found).splitlines()[-1]
    verdict = comparison_verdict(found, 0.05)
    assert verdict.startswith("WORSE: 2 worse, ")
    assert "4 unclear (changed by more, but the intervals overlap)" in verdict


def test_the_table_is_of_changes_unless_all_is_asked_for() -> None:
    found, *names = _compared(result(), result(steps=[replace(step(4), throughput_rps=8.0)]))
    table, whole = comparison_table(found, *names), comparison_table(found, *names, with_same=True)
    assert table is not None
    assert whole is not None
    changed = [row for row in found.rows if row.verdict in ("worse", "better", "unclear")]
    assert 0 < len(changed) < len(found.rows)
    assert (table.row_count, whole.row_count) == (len(changed), len(found.rows))
    assert comparison_table(*_compared(result(), result())) is None


def test_as_json_it_is_whole() -> None:
    found, base, new = _compared(result(), result(steps=[replace(step(4), throughput_rps=8.0)]))
    written = json.loads(json.dumps(comparison_json(found, base, new, 0.05)))
    assert (written["base"], written["new"], written["tolerance"], written["regressed"]) == (
        "a.json",
        "b.json",
        0.05,
        True,
    )
    (row,) = (row for row in written["rows"] if row["verdict"] == "worse")
    assert (row["section"], row["metric"], row["base"]["value"], row["new"]["value"]) == (
        "concurrency 4", "throughput", 10.0, 8.0,
    )  # fmt: skip
