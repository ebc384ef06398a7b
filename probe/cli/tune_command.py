"""`kneewatch tune`: its options, and the command."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from probe.cli.output import NAME
from probe.cli.parameters import Api, ApiKeyFile, CaFile, Header, Json, Model, Note, Timeout, duration_option, grouped


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """The options of `kneewatch tune`."""

    knob: Annotated[
        list[str],
        typer.Option(
            "--knob",
            metavar="NAME=BASE,VALUE,...",
            help="A setting and its values, the present one first: max_num_seqs, max_num_batched_tokens,"
            " gpu_memory_utilization, kv_cache_dtype, enable_prefix_caching, or any other flag of the engine; true and"
            " false switch one, default leaves it out. Can be repeated; settings are tuned one after the other.",
            rich_help_panel="Settings",
        ),
    ]
    together: Annotated[
        bool,
        typer.Option(
            "--together", help="Tune two settings together: measure each pair of values.", rich_help_panel="Settings"
        ),
    ] = False
    gpu_hour_price: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Price of a GPU hour: choose by the price of a token, not by capacity alone.",
            metavar="PRICE",
            rich_help_panel="Settings",
        ),
    ] = None
    gpus: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10_000,
            help="With --gpu-hour-price: GPUs of the server. Default: by the parallel sizes that are set, or 1.",
            rich_help_panel="Settings",
        ),
    ] = None
    start: Annotated[
        str | None,
        typer.Option(
            help="Command that starts the server, with {port}. Settings are added as vLLM's flags, or replace"
            " placeholders such as {max_num_seqs}. It runs without a shell, and is stopped after each measurement.",
            metavar="COMMAND",
            rich_help_panel="Server",
        ),
    ] = None
    apply: Annotated[
        list[str] | None,
        typer.Option(
            "--apply",
            metavar="COMMAND",
            help="Command that changes a server that runs elsewhere, with {value} or placeholders such as"
            " {max_num_seqs}, and returns when the change is done. Can be repeated, such as for a command that waits."
            " With --base-url.",
            allow_from_autoenv=False,
            rich_help_panel="Server",
        ),
    ] = None
    base_url: Annotated[
        str | None,
        typer.Option(help="Address of the server that --apply changes.", metavar="URL", rich_help_panel="Server"),
    ] = None
    port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            help="Port for --start. Default: one that is free.",
            allow_from_autoenv=False,
            rich_help_panel="Server",  # Kubernetes sets such names for services
        ),
    ] = None
    any_host: Annotated[
        bool,
        typer.Option(
            "--any-host", help="Allow --start to run a server that other machines can reach.", rich_help_panel="Server"
        ),
    ] = False
    ready_url: Annotated[
        str | None,
        typer.Option(
            help="Address that answers 200 when the server is ready. Default: its /health.",
            metavar="URL",
            rich_help_panel="Server",
        ),
    ] = None
    start_timeout: Annotated[
        str,
        typer.Option(
            help="Time for the server to come up, or to change.", metavar="DURATION", rich_help_panel="Server"
        ),
    ] = "10m"
    out: Annotated[
        Path,
        typer.Option(
            "-o",
            "--out",
            help="New folder for the record, each result, and the server's output.",
            metavar="DIR",
            rich_help_panel="Result",
        ),
    ] = Path("kneewatch-tune")
    plan_only: Annotated[
        bool,
        typer.Option(
            "--plan-only",
            help="Start and send nothing: print the predictions, and what a run would cost.",
            rich_help_panel="Settings",
        ),
    ] = False
    result: Annotated[
        Path | None,
        typer.Option(
            help="With --plan-only: a `ramp --json` result of the base, to predict from.", rich_help_panel="Settings"
        ),
    ] = None
    measure_all: Annotated[
        bool,
        typer.Option(
            "--measure-all", help="Measure even values that are predicted to lose clearly.", rich_help_panel="Settings"
        ),
    ] = False
    tolerance: Annotated[
        str,
        typer.Option(
            help="Changes of capacity up to this size count as equal.", metavar="SHARE", rich_help_panel="Settings"
        ),
    ] = "5%"
    workload: Annotated[
        str | None, typer.Option(help="Workload preset, as in `ramp`.", metavar="NAME", rich_help_panel="Requests")
    ] = None
    prompt_tokens: Annotated[
        int | None, typer.Option(help="Prompt length in tokens. Default: 256.", rich_help_panel="Requests")
    ] = None
    output_tokens: Annotated[
        int | None, typer.Option(help="Output length in tokens. Default: 128.", rich_help_panel="Requests")
    ] = None
    ttft: Annotated[
        str | None,
        typer.Option(help="TTFT objective. Default: 500ms.", metavar="DURATION", rich_help_panel="Objectives"),
    ] = None
    tpot: Annotated[
        str | None,
        typer.Option(help="TPOT objective. Default: 50ms.", metavar="DURATION", rich_help_panel="Objectives"),
    ] = None
    e2e: Annotated[
        str | None, typer.Option(help="E2E objective. Default: none.", metavar="DURATION", rich_help_panel="Objectives")
    ] = None
    ratio: Annotated[
        str | None,
        typer.Option(
            help="Share of requests that must meet each latency objective. Default: 0.95.",
            metavar="SHARE",
            rich_help_panel="Objectives",
        ),
    ] = None
    model: Model = None
    api: Api = None
    api_key_file: ApiKeyFile = None
    header: Header = None
    ca_file: CaFile = None
    observe: Annotated[
        float | None,
        duration_option(
            "How long to watch live traffic before each run adds load.", least="0s", most="1h", panel="Load"
        ),
    ] = None
    max_seconds: Annotated[
        float | None,
        duration_option("Budget of each run: wall time. Default: 5m.", least="1s", panel="Limits"),
    ] = None
    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=1, help="Budget of each run: prompt and output tokens. Default: 5000000.", rich_help_panel="Limits"
        ),
    ] = None
    timeout: Timeout = None
    seed: Annotated[int, typer.Option(help="Seed of the prompt lengths.", rich_help_panel="Load")] = 0
    note: Note = None
    as_json: Json = False


@grouped
def tune(context: typer.Context, options: TuneOptions) -> None:
    """Find the best value of a vLLM setting: predict, measure each value as `ramp` does, and write why.

    For a server of your own. The base is measured first and last. Ctrl-C stops the server and leaves the record so far.
    Exit status: 0 decided, 1 unclear or interrupted, 2 could not measure.
    """
    from datetime import UTC, datetime

    from probe.cli.command_line import command_line, variables_of
    from probe.cli.options import price_of, share
    from probe.cli.tune_knobs import knobs_of
    from probe.cli.tune_run import make_folder, print_plan, print_record, run_of
    from probe.cli.tune_run import tune as run_tune
    from probe.cli.tuning import settings_of
    from probe.report.tune_record import TuneRecord
    from probe.runtime.logs import configure_logs

    configure_logs(quiet=True)
    knobs = knobs_of(options.knob, together=options.together)
    tolerance, price = share(options.tolerance, "--tolerance"), price_of(options.gpu_hour_price, options.gpus)
    made_by = command_line(NAME, context.obj or (), os.environ, variables_of(context.command))
    run = run_of(options, knobs, made_by)
    if options.plan_only:
        print_plan(run, options.result, None if options.measure_all else tolerance)
        return
    make_folder(options.out)
    record = TuneRecord(datetime.now(UTC), made_by, tolerance, settings_of(knobs), price=price)
    record = run_tune(run, record, on_stderr=options.as_json)
    print_record(record, options.out, as_json=options.as_json)
    raise typer.Exit(0 if record.is_decided else 1)
