"""Commands that measure, forecast and compare capacity: ramp, forecast, compare, table."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from probe.cli.output import print_error, print_json
from probe.cli.parameters import (
    Api,
    ApiKeyFile,
    BaseUrl,
    CaFile,
    Engine,
    Header,
    Json,
    MaybeConfigFile,
    MetricsUrl,
    Model,
    OneTarget,
)
from probe.core.errors import ConfigError
from probe.core.text import one_line


def ramp(
    config: MaybeConfigFile = None,
    target: OneTarget = None,
    base_url: BaseUrl = None,
    model: Model = None,
    api_key_file: ApiKeyFile = None,
    api: Api = None,
    engine: Engine = None,
    metrics_url: MetricsUrl = None,
    header: Header = None,
    ca_file: CaFile = None,
    concurrency: Annotated[
        str | None, typer.Option(help="Fixed load levels in requests in flight (closed loop), such as 1,2,4,8.")
    ] = None,
    rates: Annotated[
        str | None,
        typer.Option(
            help="Fixed load levels in requests/s (open loop, Poisson), such as 0.5,1,2. Default: the configuration's;"
            " if it has none either, Kneewatch searches for the knee."
        ),
    ] = None,
    observe: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=3600,
            help="Search only: seconds to watch live traffic before adding load. Default: the configuration's, or 30.",
        ),
    ] = None,
    step_seconds: Annotated[
        float | None,
        typer.Option(
            min=1,
            max=3600,
            help="Seconds that a fixed load level lasts, up to three times as long if fewer than 20 requests were sent."
            " Default: the configuration's, or 15.",
        ),
    ] = None,
    requests_per_step: Annotated[
        int | None,
        typer.Option(min=1, help="End a fixed load level after this many requests instead of after --step-seconds."),
    ] = None,
    confirm_seconds: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=3600,
            help="Repeat the highest fixed load level that held for this long, or 1000 requests; 0: do not. Short load"
            " levels overstate a capacity. Default: the configuration's, or 180.",
        ),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(
            help="Workload in the configuration, or a preset: short-chat, long-prefill, long-decode, mixed, prefix-cold"
            " or prefix-warm; or users: lengths as the server's metrics show them."
        ),
    ] = None,
    prompt_tokens: Annotated[
        int | None, typer.Option(help="Prompt length in tokens, with --base-url. Default: 256.")
    ] = None,
    output_tokens: Annotated[
        int | None, typer.Option(help="Output length in tokens, with --base-url. Default: 128.")
    ] = None,
    ttft: Annotated[str | None, typer.Option(help="TTFT objective, with --base-url. Default: 500ms.")] = None,
    tpot: Annotated[str | None, typer.Option(help="TPOT objective, with --base-url. Default: 50ms.")] = None,
    ratio: Annotated[
        str | None,
        typer.Option(help="Share of requests that must meet them, with --base-url. Default: 0.95."),
    ] = None,
    max_seconds: Annotated[
        float | None, typer.Option(min=1, help="Budget: wall time in seconds. Default: the configuration's, or 300.")
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Budget: prompt and output tokens. Default: the configuration's, or 5000000."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the prompt lengths; the prompts differ in every run.")] = 0,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, max=64, help="Number of processes that send the load. Default: as many as the cores allow."
        ),
    ] = None,
    guard: Annotated[bool, typer.Option(help="Stop when the server queues, preempts or fails requests.")] = True,
    stream_guard: Annotated[
        bool,
        typer.Option(
            "--stream-guard", help="Guard by the run's own answers alone, for a server without a metrics page."
        ),
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the result to this file; - is standard output.")
    ] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", help="Write an HTML report to this file; - is standard output.")
    ] = None,
) -> None:
    """Find the knee now, with guarded step-up load. Works for targets without scheduled load too.

    Ctrl-C, SIGTERM, a closed terminal or the loss of the server's Kubernetes Lease stops the load at once; the results
    so far are printed and written.
    Exit status: 0 found, 1 not found, 2 could not measure.
    """
    from probe.cli.options import ServerOptions, configuration
    from probe.cli.ramp import RampOptions, ResultFiles, measure, ramp_request
    from probe.cli.step_options import StepOptions
    from probe.cli.targets import one_target
    from probe.runtime.logs import configure_logs

    configure_logs(quiet=True)
    if workload is not None and (prompt_tokens is not None or output_tokens is not None):
        raise ConfigError("--workload, --prompt-tokens, --output-tokens: a workload has its lengths; remove one side")
    if stream_guard and not guard:
        raise ConfigError("--stream-guard, --no-guard: remove one of them")
    server = ServerOptions(
        model=model,
        api_key_file=api_key_file,
        api=api,
        engine=engine,
        metrics_url=metrics_url or None,
        header=header or None,
        ca_file=ca_file,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        ttft=ttft,
        tpot=tpot,
        ratio=ratio,
    )
    loaded = configuration(config, base_url, server)
    chosen = one_target(loaded, target, adds_load=True)
    steps = StepOptions(concurrency, rates, step_seconds, requests_per_step, observe, confirm_seconds)
    options = RampOptions(workload, max_seconds, max_tokens, seed, workers, guard, stream_guard)
    request = ramp_request(loaded, chosen, steps, options)
    is_found = measure(loaded, chosen, request, ResultFiles(json_file, html_file, base_url))
    raise typer.Exit(0 if is_found else 1)


def forecast(
    config: MaybeConfigFile = None,
    target: OneTarget = None,
    base_url: BaseUrl = None,
    model: Model = None,
    api_key_file: ApiKeyFile = None,
    engine: Engine = None,
    metrics_url: MetricsUrl = None,
    header: Header = None,
    ca_file: CaFile = None,
    seconds: Annotated[float, typer.Option(min=15, max=86400, help="Seconds to watch live traffic.")] = 120.0,
    history: Annotated[
        str | None, typer.Option(help="Use this much history from Prometheus instead, such as 6h; needs -c.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Forecast capacity from live traffic, without adding load.

    Exit status: 0 forecast made, 1 not enough evidence, 2 could not measure.
    """
    from probe.cli.forecasting import forecast_target
    from probe.cli.options import ServerOptions, configuration, duration_of
    from probe.cli.targets import one_target
    from probe.core.clock import SystemClock
    from probe.report.forecast_text import forecast_words
    from probe.report.progress import following
    from probe.report.result_json import dumps
    from probe.runtime import event_loop
    from probe.runtime.logs import configure_logs

    configure_logs(quiet=True)
    server = ServerOptions(
        model=model,
        api_key_file=api_key_file,
        engine=engine,
        metrics_url=metrics_url or None,
        header=header or None,
        ca_file=ca_file,
    )
    loaded = configuration(config, base_url, server)
    chosen = one_target(loaded, target)
    past_s = duration_of(history, "--history") if history is not None else None
    with following() as follow:
        result = event_loop.run(
            forecast_target(loaded, chosen, SystemClock(), watch_s=seconds, history_s=past_s, on_phase=follow.phase)
        )
    typer.echo(dumps(result, indent=1) if as_json else forecast_words(result))
    raise typer.Exit(0 if result.capacity.requests_per_second is not None else 1)


def compare(
    base: Annotated[Path, typer.Argument(help="The measurement to compare with.")],
    new: Annotated[Path, typer.Argument(help="The measurement to judge.")],
    tolerance: Annotated[
        str, typer.Option(help="Changes up to this size count as equal; with 0% only the intervals decide.")
    ] = "5%",
    force: Annotated[
        bool, typer.Option("--force", help="Compare even results that are not comparable, and name the differences.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare two results of `ramp --json` or of `vllm bench serve --save-result`.

    Exit status: 0 nothing is worse, 1 something is, 2 not comparable.
    """
    from rich.console import Console

    from probe.capacity.trend import compare as comparing
    from probe.cli.options import share
    from probe.report.comparison import comparison_json, comparison_table, comparison_words
    from probe.report.measured_file import read_measured

    allowed = share(tolerance, "--tolerance")
    before, after = read_measured(base), read_measured(new)
    found = comparing.compare(before, after, allowed)
    if found.problems and not (force and found.rows):
        for problem in found.problems:
            hint = "; to compare them anyway, use --force" if found.rows else ""
            print_error(ConfigError(f"not comparable: {one_line(problem, 400)}{hint}"))
        raise typer.Exit(2)
    if as_json:
        print_json(comparison_json(found, before, after, allowed))
    else:
        console = Console(width=None if sys.stdout.isatty() else 150, highlight=False)
        console.print(comparison_table(found, before, after))
        console.print(comparison_words(found, allowed), markup=False)
    raise typer.Exit(1 if found.has_regressed else 0)


def table(
    results: Annotated[list[Path], typer.Argument(help="Files of `ramp --json`.")],
    steps: Annotated[bool, typer.Option("--steps", help="A row for each load level, not for each result.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="CSV in base units; without it, Markdown.")] = False,
) -> None:
    """Print results of `ramp --json` as one table, a row for each in the order of the files.

    Exit status: 0 done, 2 a file is not a result.
    """
    from probe.report import result_table
    from probe.report.measured_file import read_result

    read = [read_result(file) for file in results]
    rows = result_table.step_table(read) if steps else result_table.capacity_table(read)
    typer.echo(result_table.as_csv(rows) if as_csv else result_table.as_markdown(rows), nl=False)
