"""The report of `kneewatch matrix` in Markdown: a table of all rows, the prefix pair, then each row by itself. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from probe.capacity.trend.levels import IN_FLIGHT, Level, levels_of
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
    if (words := prompt_words(results)) is not None:
        lines += [f"Prompt length: {words}"]
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


def prompt_words(results: Sequence[CapacityResult]) -> str | None:
    """Return how TTFT grows with the prompt, at the lowest load of rows of a closed loop; None for one length only.

    In proportion: it is computation. Hardly: another part of TTFT is larger. A queue is no part of it at such a load.
    """
    found: dict[int, Level] = {}
    for result in results:
        length, levels = result.context.workload.get("prompt_tokens"), levels_of(result)
        if isinstance(length, int) and levels and levels[0].is_judged and levels[0].unit == IN_FLIGHT:
            found[length] = min(found.get(length, levels[0]), levels[0], key=lambda level: level.load)
    lowest = min((level.load for level in found.values()), default=0)
    known = {length: level.latencies["TTFT p50"] for length, level in sorted(found.items())
             if level.load == lowest and level.latencies.get("TTFT p50")}  # fmt: skip
    if len(known) < 2:  # noqa: PLR2004
        return None
    (short, short_s), *_, (long, long_s) = known.items()
    parts = ", ".join(f"{milliseconds(seconds)} for {number(length)} tokens" for length, seconds in known.items())
    rates = f"{number(long / short)} times the prompt takes {number(long_s / short_s)} times as long"
    return f"at {number(lowest)} in flight TTFT p50 is {parts}; {rates}."


def _judged(result: CapacityResult) -> dict[float, Level]:
    return {level.load: level for level in levels_of(result) if level.is_judged}


def _shorter(before: Level, after: Level, name: str) -> str | None:
    cold, warm = before.latencies.get(name), after.latencies.get(name)
    if not cold or not warm:
        return None
    return f"{name} is {milliseconds(cold)} cold and {milliseconds(warm)} warm, {number(cold / warm)} times as fast"
