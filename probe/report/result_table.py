"""Capacity results as tables, a row for each result or step, and as sections of a Markdown file. Pure.

As Markdown, to read and to keep in a repository; as CSV in base units (seconds, ratios), to compute with. A section is
for a file that benchmarks are collected in: the result's conditions, then its steps.
"""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from pydantic import ValidationError

from probe.capacity.trend.levels import levels_of
from probe.capacity.trend.measurement import Measurement
from probe.core.result import CapacityResult
from probe.core.step import StepSummary
from probe.core.text import one_line
from probe.report.figures import MISSING, cell, number, promises, table
from probe.report.provenance_text import provenance_lines
from probe.report.result_columns import CAPACITY, PROVENANCE, RUN, STEP, Cell, Column, ForeignRow, GpuPrice, Row, priced
from probe.report.result_json import objectives_of
from probe.report.result_text import result_lines
from probe.report.sweep_text import LABELS as SWEEP_LABELS
from probe.report.sweep_text import level_lines, sweep_lines

_FORMULA = ("=", "+", "-", "@", "\t")


@dataclass(frozen=True, slots=True)
class ResultTable:
    """Columns, and the rows that they are taken from."""

    columns: Sequence[Column]
    rows: Sequence[Row | ForeignRow]


Read = CapacityResult | Measurement  # of Kneewatch, or of another benchmark


def capacity_table(results: Iterable[Read], price: GpuPrice | None = None) -> ResultTable:
    """Return a row for each result, with latencies and price at the highest step that met the objectives."""
    columns = (*RUN, *CAPACITY, *priced(price), *PROVENANCE)
    rows = [
        Row(each, _highest_held(each)) if isinstance(each, CapacityResult) else ForeignRow(each) for each in results
    ]
    return ResultTable(columns, rows)


def step_table(results: Iterable[Read], price: GpuPrice | None = None) -> ResultTable:
    """Return a row for each step of each result."""
    columns = (*RUN, *STEP, *priced(price), *PROVENANCE)
    return ResultTable(columns, [row for each in results for row in _step_rows(each)])


def _capacity_row(each: Read) -> Row | ForeignRow:
    return Row(each, _highest_held(each)) if isinstance(each, CapacityResult) else ForeignRow(each)


def _step_rows(each: Read) -> list[Row | ForeignRow]:
    if isinstance(each, CapacityResult):
        return [Row(each, step) for step in each.steps]
    return [ForeignRow(each, load) for load in each.sections]


def as_markdown(table: ResultTable) -> str:
    """Return the table as Markdown."""
    columns = [column for column in table.columns if column.title is not None and _is_shown(column, table.rows)]
    lines = [[column.title or "" for column in columns], ["---"] * len(columns)]
    lines += [[_words(column.cell(row), column.scale) for column in columns] for row in table.rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def as_csv(table: ResultTable) -> str:
    """Return the table as CSV with a heading. Unknown values are empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(column.name for column in table.columns)
    writer.writerows([_plain(column.cell(row)) for column in table.columns] for row in table.rows)
    return text.getvalue()


def _is_shown(column: Column, rows: Sequence[Row | ForeignRow]) -> bool:
    return not column.optional or any(column.cell(row) is not None for row in rows)


def _words(value: Cell, scale: float) -> str:
    if isinstance(value, str):
        return cell(value)
    return MISSING if value is None else number(value * scale)


def _plain(value: Cell) -> str | float:
    """Return the value for CSV. Text from a server must not be a formula in a spreadsheet."""
    if isinstance(value, str):
        text = one_line(value, 300)
        return f"'{text}" if text.startswith(_FORMULA) else text
    return "" if value is None else value


def _highest_held(result: CapacityResult) -> StepSummary | None:
    held = [step for step in result.steps if step.valid and not step.broken and not step.plan.is_pulse]
    return max(held, key=lambda step: step.load, default=None)


_KEPT = frozenset(
    ("Knee", "No knee", "Capacity", "Note", "Limited by", "Bottleneck", "Roofline", "Failure", "Ended by")
) | frozenset(SWEEP_LABELS)


def sweep_findings(results: Sequence[Read]) -> str:
    """Return what the steps of each result show, as a Markdown list; measurements of other benchmarks are one sweep."""
    found = [(f"{each.model}, {each.context.workload['name']}", sweep_lines(each)) for each in results if _is_own(each)]
    for measured in _sweeps(each for each in results if isinstance(each, Measurement)):
        first = measured[0]
        name = ", ".join(filter(None, (first.parts.get("model"), first.kind)))
        found.append((name, level_lines(levels_of(measured), {})))
    told = [(cell(name), lines) for name, lines in found if lines]
    titles = {name: f"{name}: " if len(told) > 1 else "" for name, _ in told}
    items = [f"- {titles[name]}{label}: {cell(words)}\n" for name, lines in told for label, words in lines]
    return "".join(["\n", *items]) if items else ""


def _is_own(each: Read) -> TypeGuard[CapacityResult]:
    return isinstance(each, CapacityResult)


def _sweeps(measured: Iterable[Measurement]) -> Iterable[list[Measurement]]:
    """Return the measurements in groups of the same program, model and kind of load, as some write a file for each."""
    groups: dict[object, list[Measurement]] = {}
    for one in measured:
        kinds = frozenset(load.partition(" ")[0] for load in one.sections)
        groups.setdefault((one.kind, tuple(sorted(one.parts.items())), kinds), []).append(one)
    return groups.values()


def result_section(result: Read, price: GpuPrice | None = None) -> str:
    """Return the section, with an empty line before it."""
    if isinstance(result, Measurement):
        title = f"{result.parts.get('model', 'unknown model')}, {result.kind}"
        findings = sweep_findings([result])
        return "\n".join(["", f"## {cell(title)}", "", as_markdown(step_table([result], price))]) + findings
    title = f"{result.started:%Y-%m-%d %H:%M} UTC, {result.model}, {result.context.workload['name']}"
    levels = as_markdown(step_table([result], price)) if result.steps else "No step was measured.\n"
    return "\n".join(["", f"## {cell(title)}", "", *table(("", ""), _conditions(result)), "", levels])


def _conditions(result: CapacityResult) -> Iterator[tuple[str, str]]:
    context = result.context
    yield "Engine", f"{context.engine} {context.version}{f' on {context.gpu}' if context.gpu else ''}"
    if context.flags:
        yield "Flags", _pairs(context.flags)
    yield "Workload", _pairs({key: value for key, value in context.workload.items() if key != "name"})
    yield "Objectives", _promised(context.objectives)
    yield from (line for line in result_lines(result) if line[0] in _KEPT)
    yield from provenance_lines(result)


def _pairs(values: Mapping[str, object]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items())


def _promised(objectives: Mapping[str, object]) -> str:
    try:
        return promises(objectives_of(objectives))
    except ValidationError:  # written by another version
        return _pairs(objectives)
