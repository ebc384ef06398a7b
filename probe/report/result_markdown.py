"""One result as a section of a Markdown file that benchmarks are collected in: its conditions, then its load levels."""

from collections.abc import Iterator, Mapping

from pydantic import ValidationError

from probe.core.result import CapacityResult
from probe.report.figures import promises
from probe.report.markdown import cell, table
from probe.report.provenance_text import provenance_lines
from probe.report.result_columns import GpuPrice
from probe.report.result_json import objectives_of
from probe.report.result_table import as_markdown, step_table
from probe.report.result_text import result_lines

_KEPT = frozenset(
    ("Knee", "No knee", "Capacity", "Note", "Limited by", "Bottleneck", "Roofline", "Failure", "Ended by")
)


def result_section(result: CapacityResult, price: GpuPrice | None = None) -> str:
    """Return the section, with an empty line before it."""
    title = f"{result.started:%Y-%m-%d %H:%M} UTC, {result.model}, {result.context.workload['name']}"
    levels = as_markdown(step_table([result], price)) if result.steps else "No load level was measured.\n"
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
