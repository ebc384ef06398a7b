"""Commands that read results: compare, table."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from probe.cli.output import print_error, print_json
from probe.cli.parameters import Json
from probe.core.errors import ConfigError
from probe.core.text import one_line


def compare(
    base: Annotated[Path, typer.Argument(help="The measurement to compare with, or a folder of them.")],
    new: Annotated[Path, typer.Argument(help="The measurement to judge, or a folder: files of one name are compared.")],
    tolerance: Annotated[
        str, typer.Option(help="Changes up to this size count as equal; with 0% only the intervals decide.")
    ] = "5%",
    force: Annotated[
        bool, typer.Option("--force", help="Compare even results that are not comparable, and name the differences.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare results of `ramp --json`, vllm bench serve, sglang.bench_serving, guidellm or aiperf.

    A metric is unclear where it has changed by more than the tolerance, but the intervals overlap.
    Exit status: 0 nothing is worse, 1 something is, 2 not comparable.
    """
    from rich.console import Console

    from probe.capacity.trend import compare as comparing
    from probe.cli.options import share
    from probe.report.comparison import comparison_json, comparison_table, comparison_words
    from probe.report.measured_file import paired_files, read_measured

    allowed = share(tolerance, "--tolerance")
    files, alone = paired_files(base, new)
    for file in alone:
        typer.echo(f"{file}: not compared, since the other folder has no file of this name", err=True)
    pairs = [(read_measured(one), read_measured(other)) for one, other in files]
    judged = [(before, after, comparing.compare(before, after, allowed)) for before, after in pairs]
    told = [each for each in judged if not each[2].problems or (force and each[2].rows)]
    for _, _, found in judged:
        hint = "; to compare them anyway, use --force" if found.rows else ""
        for problem in () if force and found.rows else found.problems:
            print_error(ConfigError(f"not comparable: {one_line(problem, 400)}{hint}"))
    if as_json and told:
        found_json = [comparison_json(found, before, after, allowed) for before, after, found in told]
        print_json(found_json if base.is_dir() else found_json[0])
    elif told:
        console = Console(width=None if sys.stdout.isatty() else 150, highlight=False)
        for before, after, found in told:
            console.print(comparison_table(found, before, after))
            console.print(comparison_words(found, allowed), markup=False)
    if any(found.has_regressed for _, _, found in told):
        raise typer.Exit(1)
    raise typer.Exit(0 if len(told) == len(judged) else 2)


def table(
    results: Annotated[list[Path], typer.Argument(help="Files of `ramp --json`, or folders of them.")],
    steps: Annotated[bool, typer.Option("--steps", help="A row for each load level, not for each result.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="CSV in base units; without it, Markdown.")] = False,
    as_bench: Annotated[
        bool, typer.Option("--bench-json", help="A line for each load level, in the JSON of vllm bench serve.")
    ] = False,
    append: Annotated[
        Path | None,
        typer.Option(help="Add to this Markdown file instead: for each result its conditions and its load levels."),
    ] = None,
    gpu_hour_price: Annotated[
        float | None, typer.Option(min=0, help="Price of a GPU hour, for the price of accepted output tokens.")
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(min=1, max=10_000, help="GPUs of the server. Default: by the server's flags, or 1.")
    ] = None,
) -> None:
    """Print results of `ramp --json` as one table, a row for each in the order of the files.

    Exit status: 0 done, 2 a file is not a result.
    """
    from probe.report import result_table
    from probe.report.bench_json import bench_lines
    from probe.report.files import append_file
    from probe.report.measured_file import read_result, result_files
    from probe.report.result_columns import GpuPrice
    from probe.report.result_markdown import result_section

    if sum((as_csv, as_bench, append is not None)) > 1:
        raise ConfigError("--csv, --bench-json, --append: expected one of them; remove the others")
    if gpus is not None and gpu_hour_price is None:
        raise ConfigError("--gpus: has no effect without --gpu-hour-price; add it, or remove --gpus")
    price = GpuPrice(gpu_hour_price, gpus) if gpu_hour_price is not None else None
    read = [read_result(file) for path in results for file in result_files(path)]
    if append is not None:
        append_file(append, "".join(result_section(each, price) for each in read), "--append")
        return
    if as_bench:
        typer.echo(bench_lines(read), nl=False)
        return
    rows = (result_table.step_table if steps else result_table.capacity_table)(read, price)
    typer.echo(result_table.as_csv(rows) if as_csv else result_table.as_markdown(rows), nl=False)
