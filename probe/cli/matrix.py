"""`kneewatch matrix`: the usual rows A to F of a benchmark plan, one run of `ramp` after the other, and one report."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from probe.cli.matrix_rows import COLD, LETTERS, ROWS, WARM, MatrixRow
from probe.cli.output import NAME, print_error
from probe.cli.parameters import (
    NO_GPUS,
    NO_OBJECTIVES,
    NO_SERVER,
    Address,
    BaseUrl,
    GpuOptions,
    MaybeConfigFile,
    Note,
    ObjectiveOptions,
    OneTarget,
    ServerOptions,
    Timeout,
    duration_option,
    grouped,
)
from probe.core.errors import ConfigError, KneewatchError
from probe.core.text import one_line

if TYPE_CHECKING:
    from probe.cli.ramp_command import RampOptions
    from probe.core.result import CapacityResult

REPORT = "report.md"


@dataclass(frozen=True, slots=True)
class MatrixOptions:
    """The options of `kneewatch matrix`."""

    url: Address = None
    config: MaybeConfigFile = None
    target: OneTarget = None
    base_url: BaseUrl = None
    server: ServerOptions = NO_SERVER
    gpus: GpuOptions = NO_GPUS
    objectives: ObjectiveOptions = NO_OBJECTIVES
    rows: Annotated[
        str,
        typer.Option(help="Rows to measure, such as A,B,E.", metavar="LETTERS", rich_help_panel="Load"),
    ] = ",".join(LETTERS)
    max_seconds: Annotated[
        float | None,
        duration_option("Budget of each row: wall time. Default: the row's, 5m to 15m.", least="1s", panel="Limits"),
    ] = None
    timeout: Timeout = None
    seed: Annotated[int, typer.Option(help="Seed of the prompt lengths.", rich_help_panel="Load")] = 0
    guard: Annotated[
        bool,
        typer.Option(help="Stop a row when the server queues, preempts or fails requests.", rich_help_panel="Limits"),
    ] = True
    note: Note = None
    gpu_hour_price: Annotated[
        float | None,
        typer.Option(
            min=0, help="Price of a GPU hour, for the price of tokens.", metavar="PRICE", rich_help_panel="Result"
        ),
    ] = None
    out: Annotated[
        Path,
        typer.Option("-o", "--out", help="New folder for the results and the report.", rich_help_panel="Result"),
    ] = Path("kneewatch-matrix")


@grouped
def matrix(context: typer.Context, options: MatrixOptions) -> None:
    """Measure the usual benchmark matrix: short chat, long prefill and decode, mixed, shared prefix, production.

    Runs `ramp` for each row, and writes each result and one report. A row that cannot be measured is left out, with the
    reason in the report. Ctrl-C ends it with the rows so far.
    Exit status: 0 every row was measured, 1 some were not or interrupted, 2 none was.
    """
    from probe.cli.command_line import command_line, variables_of
    from probe.cli.options import price_of
    from probe.report.files import write_file
    from probe.report.matrix_text import matrix_markdown
    from probe.runtime.logs import configure_logs

    configure_logs(quiet=True)
    rows, price = chosen_rows(options.rows), price_of(options.gpu_hour_price, None)
    check_folder(options.out)
    made_by = command_line(NAME, context.obj or (), os.environ, variables_of(context.command))
    measured: dict[str, CapacityResult] = {}
    failed: dict[str, str] = {}
    pair = (title(COLD), title(WARM))
    for row in rows:
        typer.echo(f"\n{title(row.workload)}: {row.shows}, {row.loads}")
        try:
            measured[title(row.workload)] = found = measured_row(options, row, made_by)
        except KneewatchError as error:
            failed[title(row.workload)] = one_line(str(error), 400)
            print_error(error)
            continue
        finally:
            write_file(options.out / REPORT, matrix_markdown(measured, failed, price, pair), "--out")
        if found.stopped.by == "interrupt":
            break
    typer.echo(f"\nwrote {options.out / REPORT}, with the result of each row")
    raise typer.Exit(2 if not measured else 0 if len(measured) == len(rows) and found.stopped.by != "interrupt" else 1)


def chosen_rows(letters: str) -> list[MatrixRow]:
    """Return the rows with these letters. Raises ConfigError."""
    wanted = {letter.strip().upper() for letter in letters.split(",")}
    if not wanted <= set(LETTERS):
        raise ConfigError(f"--rows {one_line(letters)}: expected letters of {', '.join(LETTERS)}, such as A,B,E")
    return [row for row in ROWS if row.letter in wanted]


def title(workload: str) -> str:
    """Return the name of a workload's row."""
    return next(f"{row.letter} {row.workload}" for row in ROWS if row.workload == workload)


def check_folder(folder: Path) -> None:
    """Create the folder. Raises ConfigError, also for one that has a report."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_used = (folder / REPORT).exists()
    except OSError as error:
        raise ConfigError(f"--out {folder}: cannot be created ({error.strerror}); choose another folder") from None
    if is_used:
        raise ConfigError(f"--out {folder}: has the report of another matrix; choose another folder")


def measured_row(options: MatrixOptions, row: MatrixRow, made_by: str) -> "CapacityResult":
    """Measure a row, and return its result, which is in its file too. Raises KneewatchError where it cannot be."""
    from probe.cli.check import with_timeout
    from probe.cli.options import configuration, timeout_of
    from probe.cli.ramp import ResultFiles, measure
    from probe.cli.ramp_command import run_request
    from probe.cli.server_address import server_address
    from probe.cli.targets import one_with_gpus
    from probe.report.measured_file import read_result

    asked = ramp_options(options, row)
    where = server_address(options.url, options.base_url, options.config)
    config = configuration(options.config, where, asked.server, asked.lengths, asked.objectives, asked.gpus)
    found, place = one_with_gpus(config, options.target)
    target = with_timeout(found, timeout_of(options.timeout))
    file = options.out / row.file
    measure(config, target, run_request(config, target, asked, made_by), ResultFiles(file, None, where), place)
    return read_result(file)


def ramp_options(options: MatrixOptions, row: MatrixRow) -> "RampOptions":
    """Return the options of `ramp` for a row."""
    from probe.cli.ramp_command import RampOptions

    return RampOptions(
        url=options.url,
        config=options.config,
        target=options.target,
        base_url=options.base_url,
        server=options.server,
        gpus=options.gpus,
        objectives=options.objectives,
        workload=row.workload,
        concurrency=row.concurrency,
        rates=row.rates,
        max_concurrency=row.max_concurrency,
        step_seconds=row.step_seconds,
        max_seconds=options.max_seconds or row.max_seconds,
        timeout=options.timeout,
        seed=options.seed,
        guard=options.guard,
        note=options.note,
    )
