"""The report of `kneewatch matrix` in Markdown: a table of all rows, the prefix pair, then each row by itself. Pure."""

from collections.abc import Iterator, Mapping

from probe.capacity.trend.levels import Level, levels_of
from probe.core.result import CapacityResult
from probe.report.figures import cell, milliseconds, number
from probe.report.result_columns import GpuPrice
from probe.report.result_table import as_markdown, capacity_table, result_section


def matrix_markdown(
    measured: Mapping[str, CapacityResult],
    failed: Mapping[str, str],
    price: GpuPrice | None = None,
    pair: tuple[str, str] | None = None,
) -> str:
    """Return the report. `measured`, `failed`: results, or why there is none, by row. `pair`: the cold and warm row."""
    results = list(measured.values())
    model = results[0].model if results else "a server"
    lines = [f"# Benchmark matrix of {cell(model)}", "", *_capacities(measured, price)]
    lines += [f"- {cell(row)} was not measured: {cell(why)}" for row, why in failed.items()]
    if pair is not None and all(row in measured for row in pair):
        lines += [
            "",
            "Prefix cache: " + (prefix_words(*(measured[row] for row in pair)) or "no load was judged in both."),
        ]
    return "\n".join(lines) + "\n" + "".join(result_section(each, price) for each in results)


def _capacities(measured: Mapping[str, CapacityResult], price: GpuPrice | None) -> Iterator[str]:
    """Yield the table of all rows, each with its letter."""
    if measured:
        head, rule, *rows = as_markdown(capacity_table(measured.values(), price)).splitlines()
        yield from (f"| row {head}", f"| --- {rule}")
        yield from (f"| {cell(row.partition(' ')[0])} {line}" for row, line in zip(measured, rows, strict=True))
        yield ""


def prefix_words(cold: CapacityResult, warm: CapacityResult) -> str | None:
    """Return by how much a cached prefix shortens TTFT and E2E at the highest load of both; None without one."""
    before, after = _judged(cold), _judged(warm)
    load = max(before.keys() & after.keys(), default=None)
    if load is None:
        return None
    parts = [
        words for name in ("TTFT p50", "E2E p50") if (words := _shorter(before[load], after[load], name)) is not None
    ]
    hits = [step.server.prefix_hit_ratio for step in warm.steps if step.load == load]
    known = [f"{ratio:.0%} of prompt tokens hit it" for ratio in hits[-1:] if ratio is not None]
    return f"at {before[load].words} {'; '.join([*parts, *known])}." if parts else None


def _judged(result: CapacityResult) -> dict[float, Level]:
    return {level.load: level for level in levels_of(result) if level.is_judged}


def _shorter(before: Level, after: Level, name: str) -> str | None:
    cold, warm = before.latencies.get(name), after.latencies.get(name)
    if not cold or not warm:
        return None
    return f"{name} is {milliseconds(cold)} cold and {milliseconds(warm)} warm, {number(cold / warm)} times as fast"
