"""The tables of the documentation that rows of the code say: `python -m benchmarks.doc_tables`, by `make generate`.

A page has a pair of comments for each of its tables, and what is between them is written here:

    <!-- generated: NAME -->
    <!-- end -->
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fault_table import rows_by_area
from probe.gpu.peak_specs import NAMES, gpu

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Table:
    """A generated part of a page: the page's path, the part's name in it, and a function for its Markdown."""

    page: str
    name: str
    markdown: Callable[[], str]


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; a `|` in a cell is escaped."""
    lines = [head, ["---"] * len(head), *rows]
    cells = ([" ".join(cell.split()).replace("|", "\\|") for cell in line] for line in lines)
    ruled = [f"| {' | '.join(line)} |" for line in cells]
    ruled[1] = f"|{'---|' * len(head)}"
    return "\n".join(ruled) + "\n"


def faults() -> str:
    """Return a section for each area of faults, with a line for each fault."""
    head = ("ID", "fault", "what users see", "what stays")
    return "\n".join(f"## {area}\n\n{markdown_table(head, rows)}" for area, rows in rows_by_area())


def gpus() -> str:
    """Return the peaks of every GPU that `kneewatch roofline` knows."""
    head = ("GPU", "memory GB/s", "BF16 TFLOP/s", "FP8 TFLOP/s", "memory GiB")
    rows = [
        (
            each.name if each.sure else f"{each.name} (unconfirmed)",
            f"{each.bandwidth_gb_s:,g}",
            f"{each.bf16_tflop_s:,g}",
            f"{each.fp8_tflop_s:,g}" if each.fp8_tflop_s else "-",
            f"{each.memory_gib:g}" if each.memory_gib else "-",
        )
        for each in filter(None, map(gpu, NAMES))
    ]
    return markdown_table(head, rows)


TABLES = (
    Table("docs/reliability.md", "faults", faults),
    Table("docs/results.md", "gpus", gpus),
)


def written(text: str, table: Table) -> str:
    """Return the page's text with the table in it. Raises ValueError unless the page has exactly one place for it."""
    place = re.compile(rf"(<!-- generated: {re.escape(table.name)} -->\n).*?(<!-- end -->)", re.DOTALL)
    if len(place.findall(text)) != 1:
        raise ValueError(f"{table.page}: expected once <!-- generated: {table.name} --> and then <!-- end -->")
    content = table.markdown().strip("\n")
    return place.sub(lambda found: f"{found[1]}\n{content}\n\n{found[2]}", text)


def main() -> None:
    """Write every table to its page."""
    for table in TABLES:
        page = ROOT / table.page
        page.write_text(written(page.read_text(), table))


if __name__ == "__main__":
    main()
