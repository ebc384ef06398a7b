"""The steps of a run as rows of fixed column widths, which can be printed one by one.

On a wide terminal a row is one line. On a narrower one percentiles are stacked, and on the narrowest the verdict has a
separate line.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from rich.align import VerticalAlignMethod
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from probe.core.step import Distribution, StepPlan, StepSummary
from probe.report.figures import MISSING, number

# Width for pipes and files; a terminal has its own.
PIPED_WIDTH = 160
_VERDICT = 13  # minimum width of the column
_PERCENTILES = ("p50", "p95", "p99")


@dataclass(frozen=True, slots=True)
class _Column:
    """A column; `stacked` is its width with stacked percentiles."""

    title: str
    width: int
    cell: Callable[[StepSummary], str]
    stacked: int | None = None


class StepRows:
    """The rows of one run for a console of this width. The first row includes the table's head."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._inline = _room(width, _widths(inline=True), gap=2) >= _VERDICT
        widths = _widths(inline=self._inline)
        self._gap = 2 if _room(width, widths, gap=2) >= _VERDICT else 1
        self._room = _room(width, widths, gap=self._gap)
        self._has_begun = False

    def row(self, step: StepSummary) -> RenderableType:
        """Return the row of a step."""
        parts: list[RenderableType] = [] if self._has_begun else [self._head(step.plan), Text("─" * self._width)]
        self._has_begun = True
        table = self._table("top")
        style, words = step_verdict(step)
        cells = [Text(self._stacked(column, column.cell(step))) for column in _COLUMNS]
        if self._room >= _VERDICT:
            table.add_row(*cells, Text(words, style=style))
            return Group(*parts, table)
        table.add_row(*cells)
        return Group(*parts, table, Text(f"  {words}", style=style))

    def _head(self, plan: StepPlan) -> Table:
        table = self._table("bottom")
        load = "in\nflight" if plan.arrivals is None and not plan.is_pulse else "rate\n(probe)"
        titles = [load, *(self._title(column) for column in _COLUMNS[1:])]
        verdict = ["verdict"] if self._room >= _VERDICT else []
        table.add_row(*(Text(title) for title in (*titles, *verdict)))
        return table

    def _table(self, vertical: VerticalAlignMethod) -> Table:
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, self._gap, 0, 0))
        for width in _widths(inline=self._inline):
            table.add_column(width=width, justify="right", vertical=vertical, overflow="fold")
        if self._room >= _VERDICT:
            table.add_column(width=self._room, justify="left", vertical=vertical, overflow="fold")
        return table

    def _title(self, column: _Column) -> str:
        if column.stacked is None:
            return column.title
        return column.title + "\n" + ("/" if self._inline else "\n").join(_PERCENTILES)

    def _stacked(self, column: _Column, text: str) -> str:
        return text if self._inline or column.stacked is None else text.replace("/", "\n").replace(" (", "\n(")


def step_rows(steps: Iterable[StepSummary], width: int) -> Group:
    """Return the rows of all steps."""
    rows = StepRows(width)
    return Group(*(rows.row(step) for step in steps))


def step_verdict(step: StepSummary) -> tuple[str, str]:
    """Return a step's verdict: a terminal colour and text."""
    if step.tripped is not None:
        return "red", f"stopped: {step.tripped}"
    if not step.valid:
        return "yellow", f"not judged: {(step.reason or '').replace('_', ' ')}"
    if step.broken:
        return "red", f"broke {', '.join(_broken(step))}"
    return "green", "passed, though late" if step.is_late else "passed"


def _broken(step: StepSummary) -> Iterator[str]:
    """Yield the objectives that a step broke. The column ITL is of all gaps, and its objective of the longest ones."""
    for name in step.broken:
        longest_s = step.stall_s.p95 if name == "itl" else None
        yield name if longest_s is None else f"{name} (longest gaps p95 {_milliseconds(longest_s)} ms)"


def _load(step: StepSummary) -> str:
    """Return the requests in flight, or the total rate with the probe's own in brackets if there are users."""
    arrivals, users_rps = step.plan.arrivals, step.users.requests_per_second
    if step.plan.is_pulse:
        return f"{step.plan.concurrency} at once"
    if arrivals is None:
        return str(step.plan.concurrency)
    if not users_rps:
        return number(arrivals.rate_rps)
    return f"{number(arrivals.rate_rps + users_rps)} ({number(arrivals.rate_rps)})"


def _three(values: Distribution) -> str:
    found = [value for value in (values.p50, values.p95, values.p99) if value is not None]
    return "/".join(map(_milliseconds, found)) if len(found) == len(_PERCENTILES) else MISSING


def _milliseconds(seconds: float) -> str:
    value = seconds * 1000
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"  # noqa: PLR2004 - three digits, or more before the point


def _share(ratio: float | None) -> str:
    return MISSING if ratio is None else f"{ratio:.0%}"


_COLUMNS = (
    _Column("load", 11, _load, 7),
    _Column("req/s", 5, lambda step: number(step.throughput_rps)),
    _Column("output\ntok/s", 6, lambda step: number(step.output_tokens_per_second)),
    _Column("prompt\ntok/s", 6, lambda step: number(step.prompt_tokens_per_second)),
    _Column("TTFT ms", 14, lambda step: _three(step.ttft_s), 5),
    _Column("ITL ms", 14, lambda step: _three(step.itl_s), 5),
    _Column("TPOT ms", 14, lambda step: _three(step.tpot_s), 5),
    _Column("E2E ms", 15, lambda step: _three(step.e2e_s), 5),
    _Column("good\nreq/s", 5, lambda step: number(step.goodput_rps)),
    _Column("KV\npeak", 4, lambda step: _share(step.server.kv_cache_usage_peak)),
    _Column("wait\npeak", 4, lambda step: number(step.server.waiting_peak)),
    _Column("pre-\nempt", 4, lambda step: number(step.server.preemptions)),
    _Column("GPU\nutil", 4, lambda step: _share(step.gpu.utilization)),
)


def _widths(*, inline: bool) -> list[int]:
    return [column.width if inline or column.stacked is None else column.stacked for column in _COLUMNS]


def _room(width: int, columns: list[int], *, gap: int) -> int:
    """Return the width that these columns leave for the verdict."""
    return width - sum(columns) - gap * len(columns)
