"""The command that turns capacities into a number of replicas: plan."""

from math import isfinite
from pathlib import Path
from typing import Annotated

import typer

from probe.cli.output import print_json
from probe.cli.parameters import Json, MaybeConfigFile, OneTarget


def plan(
    results: Annotated[list[Path] | None, typer.Argument(help="Files of `ramp --json`, a plan for each.")] = None,
    config: MaybeConfigFile = None,
    target: OneTarget = None,
    peak: Annotated[
        float | None, typer.Option(help="Peak in requests/s, of requests like those of the result's workload.")
    ] = None,
    peak_output_tokens: Annotated[float | None, typer.Option(help="Peak in output tokens/s instead.")] = None,
    prometheus: Annotated[
        str | None,
        typer.Option(help="Prometheus to take the users' peak from instead: their highest five minutes in --weeks."),
    ] = None,
    weeks: Annotated[int, typer.Option(min=1, max=12, help="Weeks that --prometheus looks back.")] = 4,
    margin: Annotated[
        str,
        typer.Option(
            help="Share of each replica's capacity that stays free at the peak: no balancer divides requests evenly,"
            " and latencies rise steeply at the knee."
        ),
    ] = "20%",
    spare: Annotated[int, typer.Option(min=0, max=1000, help="Replicas that may be lost at the peak.")] = 1,
    gpu_hour_price: Annotated[
        float | None, typer.Option(min=0, help="Price of a GPU hour, for the price of output tokens.")
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(min=1, max=10_000, help="GPUs of a replica. Default: by the server's flags, or 1.")
    ] = None,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print a decision record in Markdown, with the server's settings.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Plan replicas for a peak, from measured or forecast capacities, and say what other settings would give.

    Takes result files, or with -c the target's last capacity in the store of the monitor. Adds no load.
    Exit status: 0 done, 2 no plan can be made.
    """
    from probe.cli.options import share
    from probe.cli.planning import PeakOptions, PlanOptions, plan_replicas, sources
    from probe.core.errors import ConfigError
    from probe.report.plan_markdown import plan_markdown
    from probe.report.progress import following
    from probe.report.replica_plan import plan_json, plan_words

    if as_markdown and as_json:
        raise ConfigError("--markdown, --json: expected one of them; remove the other")
    if gpu_hour_price is not None and not isfinite(gpu_hour_price):
        raise ConfigError(f"--gpu-hour-price {gpu_hour_price}: expected a number of at least 0")
    options = PlanOptions(share(margin, "--margin"), spare, gpu_hour_price, gpus)
    asked = PeakOptions(peak, peak_output_tokens, prometheus, weeks, target)
    asked.check()
    if target is not None and config is None and prometheus is None:
        raise ConfigError("--target: needs -c FILE or --prometheus URL; give one, or remove it")
    found = sources(results or [], config, target)
    with following() as follow:
        plans = [plan_replicas(source, result, asked.peak(result), options, follow.phase) for source, result in found]
    if as_json:
        print_json({"schema": "kneewatch.plan/1", "plans": [plan_json(each) for each in plans]})
    else:
        typer.echo("\n\n".join((plan_markdown if as_markdown else plan_words)(each) for each in plans))
