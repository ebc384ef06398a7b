"""The command line: it parses, calls and prints.

Exit status: 0 done, or objectives met; 1 objectives missed, no knee found, or worse than the base; 2 could not do it
(one line on standard error says why). Heavy imports are made inside the commands, so that --help is quick.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from alerts.links import RUNBOOKS, Links
from alerts.output_options import (
    RulesFormat,
    check_address,
    check_uid_prefix,
    check_window_scale,
    prometheus_rule,
)
from probe import __version__
from probe.core.errors import ConfigError, KneewatchError, TargetError
from probe.core.text import one_line

_NAME = "kneewatch"
# What a wrong command line raises, of whichever click Typer uses: newer versions bring their own, older ones import it.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]

app = typer.Typer(
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="SLO monitor and capacity probe for live vLLM deployments.",
)
config_app = typer.Typer(help="Look at a configuration.")
app.add_typer(config_app, name="config")

ConfigFile = Annotated[Path, typer.Option("-c", "--config", help="Configuration file (YAML).")]
MaybeConfigFile = Annotated[Path | None, typer.Option("-c", "--config", help="Configuration file (YAML).")]
BaseUrl = Annotated[str | None, typer.Option("--base-url", help="A server instead of a configuration.")]
Model = Annotated[
    str | None, typer.Option("--model", help="Model name, with --base-url; auto, if left out, asks the server.")
]
ApiKeyFile = Annotated[
    Path | None, typer.Option("--api-key-file", help="File with the server's API key, with --base-url.")
]
OneTarget = Annotated[
    str | None, typer.Option("--target", help="Target of the configuration; needed where it has several.")
]
Out = Annotated[Path, typer.Option("-o", "--out", help="Directory to write to; made where it is missing.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def main(arguments: Sequence[str] | None = None) -> None:
    """The `kneewatch` command, with these arguments; else with those of the process. Ends in SystemExit."""
    try:
        sys.exit(app(arguments, prog_name=_NAME, standalone_mode=False))
    except KneewatchError as error:
        _say_error(error)
        sys.exit(2)
    except _UsageError as error:
        _say_usage(error)
        sys.exit(2)
    except typer.Abort:
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(1)


@app.callback()
def kneewatch(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        typer.echo(f"{_NAME} {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), nl=False)
        raise typer.Exit(2)


@app.command()
def run(
    config: ConfigFile,
    total_shards: Annotated[
        int,
        typer.Option(min=1, max=1000, help="Share the targets among so many Kneewatches, each with its own --shard."),
    ] = 1,
    shard: Annotated[
        int | None,
        typer.Option(min=0, help="Which share is ours, from 0; left out, the number at the end of the host's name."),
    ] = None,
) -> None:
    """Watch the configured targets until told to stop. SIGHUP takes the configuration anew."""
    import asyncio

    import uvloop

    from probe.cli.options import shard_of
    from probe.config.models import load_config
    from probe.core.clock import SystemClock
    from probe.monitor.app import App
    from probe.runtime.logs import configure_logs

    configure_logs()
    ours = shard_of(shard, total_shards)
    loaded = load_config(config)

    async def serve() -> None:
        await App(loaded, SystemClock(), config, ours).run(asyncio.Event())

    uvloop.run(serve())


@app.command()
def check(
    config: MaybeConfigFile = None,
    target: Annotated[
        str | None, typer.Option("--target", help="Target of the configuration; all of them if left out.")
    ] = None,
    base_url: BaseUrl = None,
    model: Model = None,
    api_key_file: ApiKeyFile = None,
    api: Annotated[
        str | None, typer.Option("--api", help="completions or chat, with --base-url; completions if left out.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: a list with an entry for each target.")] = False,
) -> None:
    """One canary round. Exit status: 0 objectives met, 1 missed, 2 could not measure."""
    import uvloop

    from probe.cli.commands import check_target
    from probe.cli.options import ServerOptions, configuration, located
    from probe.core import objectives as slo
    from probe.core.clock import SystemClock
    from probe.core.request import Outcome
    from probe.report.record_json import record_json, unmeasured_json
    from probe.report.terminal import canary_words

    loaded = configuration(config, base_url, ServerOptions(model=model, api_key_file=api_key_file, api=api))
    chosen = [loaded.target(target)] if target is not None else located(loaded)
    clock = SystemClock()
    answers: list[dict[str, object]] = []
    missed = failed = False
    for one in chosen:
        objectives = loaded.objectives_of(one)
        try:
            record = uvloop.run(check_target(loaded, one, clock))
        except TargetError as error:
            failed = True
            _say_error(error, f"{one.name}: " if len(chosen) > 1 else "")
            answers.append({"target": one.name, "model": None, **unmeasured_json(error, clock.wall_s()), "met": {}})
            continue
        good = slo.met(record, objectives)
        missed = missed or record.outcome is not Outcome.OK or not good[slo.ALL]
        answers.append({"target": one.name, "model": record.model, **record_json(record), "met": dict(good)})
        if not as_json:
            typer.echo(canary_words(record, objectives))
    if as_json:
        _print_json(answers)
    raise typer.Exit(2 if failed else 1 if missed else 0)


@app.command()
def ramp(
    config: MaybeConfigFile = None,
    target: OneTarget = None,
    base_url: BaseUrl = None,
    model: Model = None,
    api_key_file: ApiKeyFile = None,
    concurrency: Annotated[
        str | None, typer.Option(help="Fixed steps, such as 1,2,4,8: so many requests in flight (closed loop).")
    ] = None,
    rates: Annotated[
        str | None,
        typer.Option(
            help="Fixed steps, such as 0.5,1,2: so many requests a second (open loop, Poisson). Without these and"
            " --concurrency, and where the configuration has no steps either, the knee is searched."
        ),
    ] = None,
    observe: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=3600,
            help="The search only: seconds to watch live traffic before load is added; 30 unless the configuration"
            " says.",
        ),
    ] = None,
    step_seconds: Annotated[
        float | None,
        typer.Option(
            min=1,
            max=3600,
            help="How long a fixed step sends, up to three times as long where fewer than 20 requests were sent;"
            " 15 unless the configuration says.",
        ),
    ] = None,
    requests_per_step: Annotated[
        int | None, typer.Option(min=1, help="End a fixed step after so many requests instead of after --step-seconds.")
    ] = None,
    workload: Annotated[str | None, typer.Option(help="Workload of the configuration.")] = None,
    prompt_tokens: Annotated[int | None, typer.Option(help="Prompt length, with --base-url; 256 if left out.")] = None,
    output_tokens: Annotated[int | None, typer.Option(help="Output length, with --base-url; 128 if left out.")] = None,
    ttft: Annotated[str | None, typer.Option(help="TTFT objective, with --base-url; 500ms if left out.")] = None,
    tpot: Annotated[str | None, typer.Option(help="TPOT objective, with --base-url; 50ms if left out.")] = None,
    ratio: Annotated[
        str | None,
        typer.Option(help="Share of requests that has to meet them, with --base-url; 0.95 if left out."),
    ] = None,
    max_seconds: Annotated[
        float | None, typer.Option(min=1, help="Budget: wall time; 300 unless the configuration says.")
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Budget: prompt and output tokens; 500000 unless the configuration says."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the prompt lengths; prompts are new in every run.")] = 0,
    workers: Annotated[
        int | None, typer.Option(min=1, max=64, help="Processes the load comes from; as the cores allow if left out.")
    ] = None,
    guard: Annotated[bool, typer.Option(help="Stop when the server queues, preempts or errs.")] = True,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the result to this file.")] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", help="Write the report to this file: one page for a browser.")
    ] = None,
) -> None:
    """Find the knee now: guarded step-up load, also for a target without scheduled load.

    Ctrl-C stops the load at once, and so does the loss of the server's Lease; what was measured by then is printed.
    Exit status: 0 found, 1 not found, 2 could not measure.
    """
    import uvloop

    from probe.capacity.run.runner import Budget
    from probe.cli.commands import RampRequest, ramp_target
    from probe.cli.options import (
        ServerOptions,
        StepOptions,
        check_writable,
        configuration,
        one_target,
        steps,
    )
    from probe.core.clock import SystemClock
    from probe.report.progress import following
    from probe.report.result_json import dumps
    from probe.report.result_text import result_words

    server = ServerOptions(
        model=model,
        api_key_file=api_key_file,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        ttft=ttft,
        tpot=tpot,
        ratio=ratio,
    )
    loaded = configuration(config, base_url, server)
    chosen = one_target(loaded, target)
    capacity, budget = chosen.capacity, chosen.capacity.budget
    asked = RampRequest(
        steps=steps(StepOptions(concurrency, rates, step_seconds, requests_per_step, observe), capacity),
        workload=loaded.workload_name(workload) or capacity.workload or chosen.canary.workload,
        budget=Budget(
            tokens=max_tokens or budget.tokens_per_run,
            seconds=max_seconds or budget.seconds,
            # Somebody who switches the guard off wants to see what lies beyond the knee.
            over_objective_seconds=budget.over_objective_seconds if guard else max_seconds or budget.seconds,
        ),
        guarded=guard,
        seed=seed,
        workers=workers,
    )
    check_writable(json_file)
    check_writable(html_file, "--html")
    with following() as follow:
        run = ramp_target(loaded, chosen, asked, SystemClock(), follow.step, on_doing=follow.doing, on_lost=_say_error)
        result = uvloop.run(run)
    if json_file:
        json_file.write_text(dumps(result, indent=1) + "\n")
    if html_file:
        from probe.report.html import report

        html_file.write_bytes(report(result).encode("utf-8", "replace"))
    follow.console.print(f"\n{result_words(result)}", markup=False)
    raise typer.Exit(0 if result.capacity.requests_per_second is not None else 1)


@app.command()
def forecast(
    config: MaybeConfigFile = None,
    target: OneTarget = None,
    base_url: BaseUrl = None,
    model: Model = None,
    api_key_file: ApiKeyFile = None,
    seconds: Annotated[float, typer.Option(min=15, max=86400, help="How long live traffic is watched.")] = 120.0,
    history: Annotated[
        str | None, typer.Option(help="Learn from so much of Prometheus' history instead, such as 6h; with -c.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Forecast capacity from live traffic, without any load.

    Exit status: 0 a forecast, 1 not enough evidence for one, 2 could not look.
    """
    import uvloop

    from probe.cli.commands import forecast_target
    from probe.cli.options import ServerOptions, configuration, duration_of, one_target
    from probe.core.clock import SystemClock
    from probe.report.progress import following
    from probe.report.result_json import dumps
    from probe.report.result_text import forecast_words

    loaded = configuration(config, base_url, ServerOptions(model=model, api_key_file=api_key_file))
    chosen = one_target(loaded, target)
    past_s = duration_of(history, "--history") if history is not None else None
    with following() as follow:
        result = uvloop.run(
            forecast_target(loaded, chosen, SystemClock(), watch_s=seconds, history_s=past_s, on_doing=follow.doing)
        )
    typer.echo(dumps(result, indent=1) if as_json else forecast_words(result))
    raise typer.Exit(0 if result.capacity.requests_per_second is not None else 1)


@app.command()
def compare(
    base: Annotated[Path, typer.Argument(help="The measurement to compare with.")],
    new: Annotated[Path, typer.Argument(help="The measurement to judge.")],
    tolerance: Annotated[
        str, typer.Option(help="Change that is too small to matter; 0% lets the intervals alone decide.")
    ] = "5%",
    force: Annotated[bool, typer.Option("--force", help="Compare what is not comparable, and say so.")] = False,
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
            mend = "; compare them all the same with --force" if found.rows else ""
            _say_error(ConfigError(f"not comparable: {one_line(problem, 400)}{mend}"))
        raise typer.Exit(2)
    if as_json:
        _print_json(comparison_json(found, before, after, allowed))
    else:
        console = Console(width=None if sys.stdout.isatty() else 150, highlight=False)
        console.print(comparison_table(found, before, after))
        console.print(comparison_words(found, allowed), markup=False)
    raise typer.Exit(1 if found.regressed else 0)


@app.command()
def dashboards(
    config: ConfigFile,
    out: Out,
    uid_prefix: Annotated[
        str, typer.Option(help="Put before each dashboard's uid, to have those of several teams in one Grafana.")
    ] = "",
    configmap: Annotated[
        bool,
        typer.Option("--configmap", help="Write manifests instead: ConfigMaps that Grafana's sidecar finds."),
    ] = False,
    namespace: Annotated[str | None, typer.Option(help="Namespace of the ConfigMaps.")] = None,
    runbooks: Annotated[str, typer.Option(help="Address under which each alert has its page.")] = RUNBOOKS,
    preview: Annotated[
        str | None,
        typer.Option(
            help="Address of a Prometheus: write each dashboard as a page too, HTML for a browser, with what Prometheus"
            " answers now."
        ),
    ] = None,
    target: Annotated[str | None, typer.Option(help="Target of the pages; the first of the configuration.")] = None,
    workload: Annotated[str | None, typer.Option(help="Workload of the pages; all of them.")] = None,
    hours: Annotated[float | None, typer.Option(help="Hours that pages show; as each dashboard has it.")] = None,
) -> None:
    """Write the Grafana dashboards: kneewatch-fleet.json, -target, -capacity and -probe."""
    from dashboards.build import render, write
    from dashboards.preview.chosen import chosen
    from probe.config.models import load_config

    address = check_address(runbooks, "--runbooks", "https://example.org/runbooks/")
    loaded = load_config(config)
    pages = chosen(loaded, preview, target=target, workload=workload, hours=hours)
    files = write(loaded, out, uid_prefix=uid_prefix, configmap=configmap, namespace=namespace, runbooks=address)
    if pages is not None:
        from dashboards.preview.write import write_pages

        files += write_pages(render(loaded, uid_prefix=uid_prefix, runbooks=address), pages, out)
    _say_written(files)


@app.command()
def alerts(
    config: ConfigFile,
    out: Out,
    written: Annotated[
        RulesFormat,
        typer.Option(
            "--format",
            help="prometheus: kneewatch.rules.yml; operator: a PrometheusRule, kneewatch.prometheusrule.yml.",
        ),
    ] = RulesFormat.PROMETHEUS,
    namespace: Annotated[str | None, typer.Option(help="Namespace of the PrometheusRule.")] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(help="key=value, once for each label of the PrometheusRule: what your ruleSelector asks for."),
    ] = None,
    runbooks: Annotated[str, typer.Option(help="Address under which each alert has its page.")] = RUNBOOKS,
    grafana: Annotated[
        str, typer.Option(help="Grafana's address, for the links to dashboards; left out, they are paths on it.")
    ] = "",
    uid_prefix: Annotated[str, typer.Option(help="As given to `kneewatch dashboards`.")] = "",
    window_scale: Annotated[
        float,
        typer.Option(
            help="To rehearse only: multiplies every window and waiting time, so that 0.01 has a page of an hour's"
            " window in half a minute. Thresholds stay. Not for rules that are to watch something."
        ),
    ] = 1.0,
) -> None:
    """Write the Prometheus rules, kneewatch.rules.yml or kneewatch.prometheusrule.yml."""
    from alerts.build import write
    from probe.config.models import load_config

    links = Links(
        runbooks=check_address(runbooks, "--runbooks", "https://example.org/runbooks/"),
        grafana=grafana and check_address(grafana, "--grafana", "https://grafana.example.org"),
        uid_prefix=check_uid_prefix(uid_prefix),
    )
    manifest = prometheus_rule(written, namespace, label or [])
    scale = check_window_scale(window_scale)
    _say_written(write(load_config(config), out, window_scale=scale, links=links, manifest=manifest))


@app.command()
def sim(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    profile: Annotated[str, typer.Option(help="Which server to imitate; --list shows them.")] = "llama-8b",
    model: Annotated[str, typer.Option(help="Model name to serve.")] = "stand-in",
    seed: Annotated[int, typer.Option(help="Seed of its noise.")] = 0,
    listed: Annotated[bool, typer.Option("--list", help="Print which servers it can imitate, and end.")] = False,
) -> None:
    """Serve the stand-in for a vLLM server: its API and metrics, made-up timings."""
    import asyncio

    from probe.mock_server.listing import table
    from probe.mock_server.profiles import PROFILES
    from probe.mock_server.server import serve

    if listed:
        typer.echo(table(PROFILES.values()))
        return
    if profile not in PROFILES:
        from probe.config.messages import did_you_mean

        hint = did_you_mean(profile, list(PROFILES))
        raise ConfigError(f"--profile {profile}: unknown{hint}; expected one of those that kneewatch sim --list shows")

    def ready(bound: int) -> None:
        typer.echo(f"stand-in {profile} serves {model} on http://{host}:{bound}")

    try:
        asyncio.run(serve(PROFILES[profile], host=host, port=port, model=model, seed=seed, ready=ready))
    except OSError as error:
        why = (error.strerror or str(error)).partition(" (while")[0]  # create_server repeats the address
        raise ConfigError(f"--host {host} --port {port}: cannot be listened on ({why}); choose another") from None


@app.command()
def demo(
    seconds: Annotated[float, typer.Option(min=5, max=3600, help="How long to run.")] = 60.0,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the pages; 0 takes a free one.")] = 9876,
) -> None:
    """Show everything at once: a stand-in server, the monitor, canaries and a capacity run. No GPU needed."""
    import asyncio

    from probe.cli.demo import run_demo

    asyncio.run(run_demo(seconds, port))


@config_app.command("check")
def config_check(config: ConfigFile) -> None:
    """Say whether the configuration is valid."""
    from probe.config.models import load_config

    loaded = load_config(config)
    names = ", ".join(target.known_as for target in loaded.targets)
    typer.echo(f"{config}: valid; {len(loaded.targets)} target(s): {names}")


@config_app.command("show")
def config_show(config: ConfigFile) -> None:
    """Print the effective configuration, secrets hidden."""
    from probe.config.models import load_config, show

    typer.echo(show(load_config(config)), nl=False)


@config_app.command("schema")
def config_schema() -> None:
    """Print the JSON Schema of the configuration."""
    from probe.config.models import Config

    _print_json(Config.model_json_schema())


def _say_error(error: KneewatchError, about: str = "") -> None:
    for line in str(error).splitlines():
        typer.echo(f"{_NAME}: {about}{line}", err=True)


def _say_usage(error: Exception) -> None:
    """click's complaint on one line, without its usage lines and its box."""
    context: typer.Context | None = getattr(error, "ctx", None)
    command = context.command_path if context else _NAME
    message = one_line(error.format_message() if hasattr(error, "format_message") else str(error)).rstrip(".")
    typer.echo(f"{command}: {message}; see {command} --help", err=True)


def _say_written(files: Sequence[Path]) -> None:
    for file in files:
        typer.echo(f"wrote {file}")


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2))
