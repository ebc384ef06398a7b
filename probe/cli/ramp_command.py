"""`kneewatch ramp`: its options."""

import os
from pathlib import Path
from typing import Annotated

import typer

from probe.cli.output import NAME
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
    Note,
    OneTarget,
    OutputTokens,
    PromptTokens,
)
from probe.core.errors import ConfigError


def ramp(
    context: typer.Context,
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
            help="Fixed load levels in requests/s (open loop), such as 0.5,1,2. Default: the configuration's; if it has"
            " none either, Kneewatch searches for the knee."
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Send the requests of this file: their lengths and, without --rates or --concurrency, at their times."
            " JSONL of `kneewatch trace`, Mooncake, ShareGPT or vLLM's custom data sets; CSV of BurstGPT or Azure."
        ),
    ] = None,
    speeds: Annotated[
        str | None,
        typer.Option(
            help="With --trace: how many times as fast as recorded, such as 0.5,1,2; a load level each. Default: 1."
        ),
    ] = None,
    arrivals: Annotated[
        str | None,
        typer.Option(
            help="With --rates: poisson, constant, or ramp, whose rate rises from 0 in the first sixth of a load level."
            " Default: the configuration's, or poisson."
        ),
    ] = None,
    burstiness: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            max=100,
            help="With --rates: gamma-distributed gaps of this shape; below 1 requests come in bursts, 1 is poisson.",
        ),
    ] = None,
    max_concurrency: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1024,
            help="With --rates: at so many in flight further requests wait for an answer, and the wait counts in TTFT."
            " Default: the configuration's; without, 512 in flight end a load level.",
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
            " Default: the configuration's, or 15; of a trace at its times, all of it.",
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
            help="Workload in the configuration, or a preset: short-chat, long-prefill, long-decode, mixed,"
            " prefix-cold, prefix-warm, varied-chat, conversation or production; or users: lengths as the server's"
            " metrics show them."
        ),
    ] = None,
    prompt_tokens: PromptTokens = None,
    output_tokens: OutputTokens = None,
    ttft: Annotated[str | None, typer.Option(help="TTFT objective, with --base-url. Default: 500ms.")] = None,
    tpot: Annotated[str | None, typer.Option(help="TPOT objective, with --base-url. Default: 50ms.")] = None,
    e2e: Annotated[str | None, typer.Option(help="E2E objective, with --base-url. Default: none.")] = None,
    itl: Annotated[
        str | None, typer.Option(help="Objective for a request's longest gap, with --base-url. Default: none.")
    ] = None,
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
    note: Note = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Write the result as JSON to this file; - is standard output.")
    ] = None,
    as_json: Json = False,
    html_file: Annotated[
        Path | None, typer.Option("--html", help="Write an HTML report to this file; - is standard output.")
    ] = None,
) -> None:
    """Find the knee now, with guarded step-up load. Works for targets without scheduled load too.

    Ctrl-C, SIGTERM, a closed terminal or the loss of the server's Kubernetes Lease stops the load at once; the results
    so far are printed and written.
    Exit status: 0 found, 1 not found, 2 could not measure.
    """
    from probe.cli.command_line import command_line, facts_of, variables_of
    from probe.cli.options import ServerOptions, configuration
    from probe.cli.ramp import RampOptions, ResultFiles, json_output, measure, ramp_request
    from probe.cli.step_options import StepOptions
    from probe.cli.targets import one_target
    from probe.runtime.logs import configure_logs

    configure_logs(quiet=True)
    files = ResultFiles(json_output(out, context.args, as_json=as_json), html_file, base_url)
    if workload is not None and (prompt_tokens is not None or output_tokens is not None):
        raise ConfigError("--workload, --prompt-tokens, --output-tokens: a workload has its lengths; remove one side")
    if stream_guard and not guard:
        raise ConfigError("--stream-guard, --no-guard: remove one of them")
    if trace is not None and (workload, prompt_tokens, output_tokens) != (None, None, None):
        raise ConfigError("--trace: has its lengths; remove --workload, --prompt-tokens and --output-tokens")
    server = ServerOptions.of(locals())
    loaded = configuration(config, base_url, server)
    chosen = one_target(loaded, target, adds_load=True)
    steps = StepOptions(
        concurrency=concurrency,
        rates=rates,
        speeds=speeds,
        arrivals=arrivals,
        burstiness=burstiness,
        max_concurrency=max_concurrency,
        step_seconds=step_seconds,
        requests_per_step=requests_per_step,
        observe=observe,
        confirm_seconds=confirm_seconds,
    )
    made_by = command_line(NAME, context.obj or (), os.environ, variables_of(context.command))
    facts = facts_of(note or ())
    options = RampOptions(workload, max_seconds, max_tokens, seed, workers, guard, stream_guard, made_by, facts, trace)
    request = ramp_request(loaded, chosen, steps, options)
    is_found = measure(loaded, chosen, request, files)
    raise typer.Exit(0 if is_found else 1)
