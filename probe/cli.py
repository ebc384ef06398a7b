"""The command line: it parses, calls and prints.

Exit status: 0 done, or objectives met; 1 objectives missed, or no knee found; 2 could not do it (one line on
standard error says why). Heavy imports are made inside the commands, so that --help is quick.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from probe.config import Config, config_from, load_config, show
from probe.config_errors import did_you_mean
from probe.errors import ConfigError, KneewatchError, TargetError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="SLO monitor and capacity probe for live vLLM deployments.",
)
config_app = typer.Typer(no_args_is_help=True, help="Look at a configuration.")
app.add_typer(config_app, name="config")

ConfigFile = Annotated[Path, typer.Option("-c", "--config", help="Configuration file (YAML).")]
MaybeConfigFile = Annotated[Path | None, typer.Option("-c", "--config", help="Configuration file (YAML).")]
Target = Annotated[str | None, typer.Option("--target", help="Target of the configuration; the first if left out.")]
BaseUrl = Annotated[str | None, typer.Option("--base-url", help="A server instead of a configuration.")]
Model = Annotated[str, typer.Option("--model", help="Model name; auto asks the server.")]
ApiKeyFile = Annotated[Path | None, typer.Option("--api-key-file", help="File with the server's API key.")]
Out = Annotated[Path, typer.Option("-o", "--out", help="Directory to write to.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def main() -> None:
    """The `kneewatch` command."""
    try:
        app()
    except KneewatchError as error:
        _say_error(error)
        sys.exit(2)
    except BrokenPipeError:
        sys.exit(1)


@app.command()
def run(config: ConfigFile) -> None:
    """Watch the configured targets until told to stop."""
    from probe.app import App
    from probe.clock import SystemClock
    from probe.logs import configure_logs

    configure_logs()
    loaded = load_config(config)

    async def serve() -> None:
        await App(loaded, SystemClock()).run(asyncio.Event())

    asyncio.run(serve())


@app.command()
def check(
    config: MaybeConfigFile = None,
    target: Target = None,
    base_url: BaseUrl = None,
    model: Model = "auto",
    api_key_file: ApiKeyFile = None,
    api: Annotated[str, typer.Option("--api", help="completions or chat, with --base-url.")] = "completions",
    as_json: Json = False,
) -> None:
    """One canary round. Exit status: 0 objectives met, 1 missed, 2 could not measure."""
    from probe import slo
    from probe.clock import SystemClock
    from probe.commands import check_target
    from probe.records import Outcome
    from probe.report.record_json import record_json
    from probe.report.terminal import canary_words

    loaded = _config(config, base_url, model, api_key_file, workload={"api": api})
    chosen = [loaded.target(target)] if target else loaded.targets
    missed = False
    answers = []
    failed = False
    for one in chosen:
        objectives = loaded.objectives_of(one)
        try:
            record = asyncio.run(check_target(loaded, one, SystemClock()))
        except TargetError as error:
            _say_error(error)
            failed = True
            continue
        good = slo.met(record, objectives)
        missed = missed or record.outcome is not Outcome.OK or not good[slo.ALL]
        answers.append({"target": one.name, "model": record.model, **record_json(record), "met": dict(good)})
        if not as_json:
            typer.echo(canary_words(record, objectives))
    if as_json and answers:
        _print_json(answers if config else answers[0])
    raise typer.Exit(2 if failed else 1 if missed else 0)


@app.command()
def ramp(
    config: MaybeConfigFile = None,
    target: Target = None,
    base_url: BaseUrl = None,
    model: Model = "auto",
    api_key_file: ApiKeyFile = None,
    concurrency: Annotated[
        str | None, typer.Option(help="Requests in flight at each step; 1,2,4,8,16 unless the configuration says.")
    ] = None,
    step_seconds: Annotated[
        float | None, typer.Option(min=1, max=3600, help="How long a step sends; 15 unless the configuration says.")
    ] = None,
    requests_per_step: Annotated[
        int | None, typer.Option(min=1, help="End a step after so many requests instead of after --step-seconds.")
    ] = None,
    workload: Annotated[str | None, typer.Option(help="Workload of the configuration.")] = None,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Prompt length, with --base-url.")] = 256,
    output_tokens: Annotated[int, typer.Option(min=1, help="Output length, with --base-url.")] = 128,
    ttft: Annotated[str, typer.Option(help="TTFT objective, with --base-url.")] = "500ms",
    tpot: Annotated[str, typer.Option(help="TPOT objective, with --base-url.")] = "50ms",
    ratio: Annotated[float, typer.Option(help="Share of requests that has to meet them.")] = 0.95,
    max_seconds: Annotated[float | None, typer.Option(min=1, help="Budget: wall time; 300 if not said.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Budget: prompt and output tokens; 500000 if not said.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the prompt lengths; prompts are new in every run.")] = 0,
    guard: Annotated[bool, typer.Option(help="Stop when the server queues, preempts or errs.")] = True,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the result to this file.")] = None,
) -> None:
    """Find the knee now: guarded step-up load. Exit status: 0 found, 1 not found, 2 could not measure."""
    from rich.console import Console

    from probe.clock import SystemClock
    from probe.commands import RampRequest, ramp_target
    from probe.load.ramp import Budget
    from probe.report.progress import ramp_progress
    from probe.report.result_json import dumps
    from probe.report.terminal import result_words, step_table

    loaded = _config(
        config,
        base_url,
        model,
        api_key_file,
        workload={"prompt_tokens": prompt_tokens, "output_tokens": output_tokens},
        objectives={"ttft": {"ratio": ratio, "within": ttft}, "tpot": {"ratio": ratio, "within": tpot}},
    )
    chosen = loaded.target(target) if target else loaded.targets[0]
    capacity, budget = chosen.capacity, chosen.capacity.budget
    asked = RampRequest(
        concurrency=_concurrency(concurrency) if concurrency else capacity.concurrency,
        step_s=step_seconds or capacity.step,
        requests_per_step=requests_per_step,
        workload=_workload(workload, loaded) or capacity.workload or chosen.canary.workload,
        budget=Budget(
            tokens=max_tokens or budget.tokens_per_run,
            seconds=max_seconds or budget.seconds,
            # Somebody who switches the guard off wants to see what lies beyond the knee.
            over_objective_seconds=budget.over_objective_seconds if guard else max_seconds or budget.seconds,
        ),
        guarded=guard,
        seed=seed,
    )
    _writable(json_file)
    with ramp_progress(asked.concurrency) as on_step:
        result = asyncio.run(ramp_target(loaded, chosen, asked, SystemClock(), on_step))
    console = Console(width=None if sys.stdout.isatty() else 150, highlight=False)
    console.print(step_table(result.steps))
    console.print(result_words(result), markup=False)
    if json_file:
        json_file.write_text(dumps(result, indent=1) + "\n")
    raise typer.Exit(0 if result.capacity.requests_per_second is not None else 1)


@app.command()
def dashboards(config: ConfigFile, out: Out) -> None:
    """Write the Grafana dashboards."""
    from dashboards.build import write

    _say_written(write(load_config(config), out))


@app.command()
def alerts(config: ConfigFile, out: Out) -> None:
    """Write the Prometheus rules."""
    from alerts.build import write

    _say_written(write(load_config(config), out))


@app.command()
def sim(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    profile: Annotated[str, typer.Option(help="Which server to imitate.")] = "llama-8b",
    model: Annotated[str, typer.Option(help="Model name to serve.")] = "stand-in",
    seed: Annotated[int, typer.Option(help="Seed of its noise.")] = 0,
) -> None:
    """Serve the stand-in for a vLLM server: its API and metrics, made-up timings."""
    from probe.sim.cost import PROFILES
    from probe.sim.server import serve

    if profile not in PROFILES:
        hint = did_you_mean(profile, list(PROFILES))
        raise ConfigError(f"--profile {profile}: unknown{hint}; expected one of {', '.join(PROFILES)}")

    def ready(bound: int) -> None:
        typer.echo(f"stand-in {profile} serves {model} on http://{host}:{bound}")

    try:
        asyncio.run(serve(PROFILES[profile], host=host, port=port, model=model, seed=seed, ready=ready))
    except OSError as error:
        raise ConfigError(f"--port {port}: cannot be listened on ({error.strerror}); choose another") from None


@app.command()
def demo(
    seconds: Annotated[float, typer.Option(min=5, max=3600, help="How long to run.")] = 60.0,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the pages; 0 takes a free one.")] = 9876,
) -> None:
    """Show everything at once: a stand-in server, the monitor, canaries and a capacity run. No GPU needed."""
    from probe.demo import run_demo

    asyncio.run(run_demo(seconds, port))


@config_app.command("check")
def config_check(config: ConfigFile) -> None:
    """Say whether the configuration is valid."""
    loaded = load_config(config)
    names = ", ".join(target.name for target in loaded.targets)
    typer.echo(f"{config}: valid; {len(loaded.targets)} target(s): {names}")


@config_app.command("show")
def config_show(config: ConfigFile) -> None:
    """Print the effective configuration, secrets hidden."""
    typer.echo(show(load_config(config)), nl=False)


@config_app.command("schema")
def config_schema() -> None:
    """Print the JSON Schema of the configuration."""
    _print_json(Config.model_json_schema())


def _config(
    file: Path | None,
    base_url: str | None,
    model: str,
    api_key_file: Path | None,
    *,
    workload: dict[str, object],
    objectives: dict[str, object] | None = None,
) -> Config:
    """The configuration file's, or one made of --base-url and its companions."""
    if (file is None) == (base_url is None):
        raise ConfigError("expected either -c FILE or --base-url URL; give one of them")
    if file is not None:
        return load_config(file)
    target: dict[str, object] = {"name": "target", "base_url": base_url, "model": model}
    if api_key_file:
        target["api_key_file"] = str(api_key_file)
    raw: dict[str, object] = {"targets": [target], "workloads": {"default": workload}}
    if objectives:
        raw["objectives"] = {"default": objectives}
    return config_from(raw, "--base-url and the other options", environ={})


def _concurrency(text: str) -> tuple[int, ...]:
    try:
        steps = tuple(int(part) for part in text.split(","))
    except ValueError:
        steps = ()
    if not steps or min(steps) < 1 or max(steps) > 1024 or list(steps) != sorted(set(steps)):  # noqa: PLR2004
        raise ConfigError(f"--concurrency {text}: expected rising whole numbers from 1 to 1024, such as 1,2,4,8,16")
    return steps


def _workload(name: str | None, config: Config) -> str | None:
    if name is None or name in config.workloads or name == "default":
        return name
    known = ", ".join(config.workloads) or "(none is defined)"
    hint = did_you_mean(name, list(config.workloads))
    raise ConfigError(f"--workload {name}: not in the configuration{hint}; expected one of {known}")


def _writable(file: Path | None) -> None:
    """Before minutes of load, whether the result can be kept."""
    if file is None:
        return
    try:
        file.open("a").close()
    except OSError as error:
        raise ConfigError(
            f"--json {file}: cannot be written ({error.strerror}); give a file in a directory that exists"
        ) from None


def _say_error(error: KneewatchError) -> None:
    for line in str(error).splitlines():
        typer.echo(f"kneewatch: {line}", err=True)


def _say_written(files: Sequence[Path]) -> None:
    for file in files:
        typer.echo(f"wrote {file}")


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2))
