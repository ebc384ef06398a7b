"""A row a step, printed as it comes, on consoles of any width."""

import io
from collections.abc import Sequence
from dataclasses import replace

import pytest
from example_records import step
from rich.console import Console

from probe.core.snapshot import UserLoad
from probe.core.step import Arrivals, Distribution, GpuUse, StepPlan, StepSummary
from probe.report.steps import PIPED_WIDTH, StepRows, step_rows

NARROW, USUAL, WIDE = 80, 120, 200


def _lines(steps: Sequence[StepSummary], width: int = PIPED_WIDTH) -> list[str]:
    console = Console(file=io.StringIO(), width=width, highlight=False, force_terminal=False)
    console.print(step_rows(steps, width))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(text, str)
    return text.splitlines()


def _at(rate_rps: float, *, users: UserLoad | None = None, broken: tuple[str, ...] = ()) -> StepSummary:
    plan = StepPlan(512, 15.0, loop="open", arrivals=Arrivals(rate_rps=rate_rps))
    return replace(step(broken=broken), plan=plan, users=users or UserLoad())


def _words(lines: Sequence[str]) -> str:
    return " ".join(" ".join(lines).split())


def test_in_a_pipe_a_step_is_one_line_under_one_head() -> None:
    lines = _lines([step(1), step(2, broken=("ttft", "tpot")), step(4, reason="cut_short")])
    rows = [line.split() for line in lines if line.split()[0].isdigit()]
    assert [row[0] for row in rows] == ["1", "2", "4"]
    assert len(lines) == 2 + 1 + len(rows)
    for word in ("flight", "req/s", "tok/s", "p50/p95/p99", "KV", "wait", "pre-", "GPU", "verdict"):
        assert word in " ".join(lines[:2])
    three = ["90.0/200/300"] * 4
    assert rows[0] == ["1", "10", "640", "1,280", *three, "10", "40%", "0", "0", "-", "passed"]


@pytest.mark.parametrize("width", [NARROW, 81, 100, USUAL, PIPED_WIDTH, WIDE])
def test_no_line_is_wider_than_the_terminal_and_nothing_is_lost(width: int) -> None:
    lines = _lines([step(1), _at(12.5, broken=("ttft",))], width)
    assert max(map(len, lines)) <= width
    words = _words(lines)
    for word in ("90.0", "200", "300", "40%", "1,280", "12.5", "passed", "broke ttft", "p99"):
        assert word in words


def test_a_row_is_printed_without_knowing_the_next() -> None:
    steps = [step(1), step(1024, rps=12_345.6), step(2)]
    rows = StepRows(PIPED_WIDTH)
    console = Console(file=io.StringIO(), width=PIPED_WIDTH)
    for one in steps:
        console.print(rows.row(one))
    assert console.file.getvalue().splitlines() == _lines(steps)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (step(), "passed"),
        (replace(step(), is_late=True), "passed, though late"),
        (step(broken=("ttft", "tpot")), "broke ttft, tpot"),
        (
            replace(step(broken=("e2e", "itl")), stall_s=Distribution(p95=0.142)),
            "broke e2e, itl (longest gaps p95 142 ms)",
        ),
        (step(reason="too_few_requests"), "not judged: too few requests"),
        (replace(step(reason="cut_short"), tripped="queue"), "stopped: queue"),
    ],
)
@pytest.mark.parametrize("width", [NARROW, PIPED_WIDTH])
def test_a_verdict_in_words(one: StepSummary, words: str, width: int) -> None:
    assert words in _words(_lines([one], width))


def test_a_rate_includes_users_with_the_probes_share_in_brackets() -> None:
    assert "14.6 (12.5)" in _words(_lines([_at(12.5, users=UserLoad(2.1, 100.0))]))
    assert "14.6" in _words(narrow := _lines([_at(12.5, users=UserLoad(2.1, 100.0))], NARROW))
    assert "(12.5)" in _words(narrow)
    alone = _words(_lines([_at(12.5, users=UserLoad(0.0, 0.0)), _at(25.0)]))
    assert "rate" in alone
    assert "(12.5)" not in alone
    assert "(25)" not in alone


def test_an_unknown_value_is_a_dash() -> None:
    empty = replace(step(reason="cut_short"), ttft_s=Distribution(), server=replace(step().server, waiting_peak=None))
    row = _lines([empty])[-1].split()
    assert row[4] == "-"
    assert row[-5] == "-"


def test_how_busy_the_gpus_were_has_a_column() -> None:
    busy = replace(step(), gpu=GpuUse(utilization=0.87))
    assert _lines([busy])[-1].split()[-2] == "87%"
