"""Commands that ask servers: run, check, doctor, forecast."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import urlsplit

import typer

from probe.cli.output import print_json, print_written
from probe.cli.parameters import (
    NO_GPUS,
    NO_LENGTHS,
    NO_OBJECTIVES,
    NO_PAST,
    NO_SERVER,
    Address,
    BaseUrl,
    ConfigFile,
    GpuOptions,
    Json,
    LengthOptions,
    MaybeConfigFile,
    ObjectiveOptions,
    OneTarget,
    PastOptions,
    ServerOptions,
    Timeout,
    duration_option,
    given_options,
    grouped,
)

if TYPE_CHECKING:
    from probe.report.diagnosis import Diagnosis


def run(
    config: ConfigFile,
    total_shards: Annotated[
        int,
        typer.Option(min=1, max=1000, help="Number of instances that share the targets, each with its own --shard."),
    ] = 1,
    shard: Annotated[
        int | None,
        typer.Option(min=0, help="This instance's shard, from 0. Default: the number at the end of the host name."),
    ] = None,
) -> None:
    """Watch the configured targets until stopped. SIGHUP reloads the configuration."""
    import asyncio

    import structlog

    from alerts.coverage import uncovered
    from probe.cli.options import shard_of
    from probe.config.config_file import load_config
    from probe.config.time_limits import too_short
    from probe.core.clock import SystemClock
    from probe.monitor.app import App
    from probe.runtime import event_loop
    from probe.runtime.logs import configure_logs
    from probe.runtime.process import raise_descriptor_limit

    output = configure_logs()
    raise_descriptor_limit()
    own_shard = shard_of(shard, total_shards)
    loaded = load_config(config)
    for line in too_short(loaded):
        structlog.get_logger().warning("a time limit is too short", what=line)
    for line in uncovered(loaded):
        structlog.get_logger().warning("limit of the alerts", what=line)

    async def serve() -> None:
        await App(loaded, SystemClock(), config, own_shard, output).run(asyncio.Event())

    event_loop.run(serve())


@grouped
def check(
    url: Address = None,
    config: MaybeConfigFile = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            help="A target, or a discovery to check all it finds. Default: all targets with an address.",
            metavar="NAME",
        ),
    ] = None,
    base_url: BaseUrl = None,
    server: ServerOptions = NO_SERVER,
    lengths: LengthOptions = NO_LENGTHS,
    timeout: Timeout = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: a list with an entry for each canary.")] = False,
) -> None:
    """Send one canary of each kind to each target, and the question of canary.known_answer.

    Exit status: 0 objectives met, 1 missed, 2 could not measure.
    """
    from probe.cli.check import check_one, with_timeout
    from probe.cli.options import configuration, timeout_of
    from probe.cli.server_address import server_address
    from probe.cli.targets import configured_targets, named_targets
    from probe.runtime.logs import configure_logs

    configure_logs(quiet=True)
    limit_s = timeout_of(timeout)
    where = server_address(url, base_url, config)
    loaded = configuration(config, where, server, lengths)
    chosen = named_targets(loaded, target) if target is not None else configured_targets(loaded)
    address = urlsplit(where).netloc if where else None
    kinds = [
        (with_timeout(kind, limit_s), f"{one.name}, {kind.canary.workload}" if one.canaries else address)
        for one in chosen
        for kind in one.kinds
    ]
    checks = [
        check_one(loaded, kind, named, is_printed=not as_json, is_named_in_errors=len(kinds) > 1)
        for kind, named in kinds
    ]
    if as_json:
        print_json([answer for answer, _ in checks])
    raise typer.Exit(max(status for _, status in checks))


@grouped
def forecast(
    url: Address = None,
    config: MaybeConfigFile = None,
    target: OneTarget = None,
    base_url: BaseUrl = None,
    server: ServerOptions = NO_SERVER,
    seconds: Annotated[
        float, duration_option("How long to watch live traffic.", least="15s", most="1d", default="2m")
    ] = 120.0,
    history: Annotated[
        str | None,
        typer.Option(help="Use this much history from Prometheus instead, such as 6h; needs -c.", metavar="DURATION"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Forecast capacity from live traffic, without adding load.

    Exit status: 0 forecast made, 1 not enough evidence, 2 could not measure.
    """
    from probe.cli.forecasting import forecast_target
    from probe.cli.options import configuration, duration_of
    from probe.cli.server_address import server_address
    from probe.cli.targets import one_target
    from probe.core.clock import SystemClock
    from probe.report.forecast_text import forecast_words
    from probe.report.progress import following
    from probe.report.result_json import dumps
    from probe.runtime import event_loop
    from probe.runtime.logs import configure_logs

    configure_logs(quiet=True)
    loaded = configuration(config, server_address(url, base_url, config), server)
    chosen = one_target(loaded, target)
    past_s = duration_of(history, "--history") if history is not None else None
    with following() as follow:
        result = event_loop.run(
            forecast_target(loaded, chosen, SystemClock(), watch_s=seconds, history_s=past_s, on_phase=follow.phase)
        )
    typer.echo(dumps(result, indent=1) if as_json else forecast_words(result))
    raise typer.Exit(0 if result.capacity.requests_per_second is not None else 1)


@grouped
def doctor(
    url: Address = None,
    base_url: BaseUrl = None,
    server: ServerOptions = NO_SERVER,
    gpus: GpuOptions = NO_GPUS,
    lengths: LengthOptions = NO_LENGTHS,
    objectives: ObjectiveOptions = NO_OBJECTIVES,
    past: PastOptions = NO_PAST,
    timeout: Timeout = None,
    seconds: Annotated[
        float, duration_option("How long to watch live traffic.", least="15s", most="45s", default="30s")
    ] = 30.0,
    fail_on: Annotated[
        Literal["objectives", "problems", "never"],
        typer.Option(
            help="Exit with status 1 if a canary misses an objective, if there is any other problem too, or never."
        ),
    ] = "objectives",
    write: Annotated[Path | None, typer.Option(help="Write a starter configuration to this file.")] = None,
    as_json: Json = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print a table in Markdown, for a ticket.")] = False,
) -> None:
    """Examine a server for a minute, or as long as its answers take: what it serves and with which flags, whether it is
    healthy, what users send, how much more it takes, and which settings are wrong. Sends three canaries and no load.
    With --prometheus: the same of every vLLM server in an existing Prometheus, from its history alone.

    Exit status: 0 healthy, 1 not (--fail-on), 2 could not measure.
    """
    from probe.cli.doctor import Asked, examine
    from probe.cli.options import configuration, timeout_of
    from probe.cli.past_command import examine_past
    from probe.cli.server_address import server_address
    from probe.core.errors import ConfigError
    from probe.report.diagnosis import diagnosis_json, diagnosis_markdown, diagnosis_words
    from probe.report.files import write_file
    from probe.report.progress import following
    from probe.report.starter_config import starter_config
    from probe.runtime.logs import configure_logs

    configure_logs(quiet=True)
    if as_json and as_markdown:
        raise ConfigError("--json, --markdown: both are set; keep one")
    if past.prometheus is not None:
        beside = {"URL": url, "--base-url": base_url, "--timeout": timeout, "--write": write, "--markdown": as_markdown}
        named = [name for name, value in beside.items() if value] + given_options(server, gpus, lengths)
        raise typer.Exit(examine_past(past, objectives, named, fail_on=fail_on, as_json=as_json))
    if given := given_options(past):
        raise ConfigError(f"{given[0]}: needs --prometheus URL; give one, or remove it")
    where = server_address(url, base_url, None)
    if where is None:
        raise ConfigError("expected URL, the server to examine, such as http://localhost:8000; give it")
    asked = Asked(where, server, lengths, timeout_of(timeout), gpus, objectives)
    config = configuration(None, where, server, lengths, objectives, gpus)
    if write is not None:
        _check_new(write)
    with following() as follow:
        config, found = examine(config, asked, seconds, follow.phase)
    if as_json:
        print_json(diagnosis_json(found))
    elif as_markdown:
        typer.echo(diagnosis_markdown(found))
    else:
        typer.echo(diagnosis_words(found))
    if write is not None:
        write_file(write, starter_config(config, config.servers[0]), "--write")
        if not (as_json or as_markdown):
            print_written([write])
    has_problem = any(finding.is_problem for finding in found.findings())
    raise typer.Exit(_status(fail_on, found, has_problem=has_problem))


def _status(fail_on: str, found: "Diagnosis", *, has_problem: bool) -> int:
    """Return the exit status of doctor: 2 where this machine was too late to judge any canary."""
    if fail_on == "never":
        return 0
    if fail_on == "problems" and has_problem:
        return 1
    return 2 if not found.is_judged else int(not found.is_healthy)


def _check_new(file: Path) -> None:
    """Raise ConfigError for a file that has something in it, or cannot be written."""
    from probe.core.errors import ConfigError
    from probe.report.files import check_writable

    if file.exists() and file.stat().st_size:
        raise ConfigError(f"--write {file}: the file exists; remove it, or name another one")
    check_writable(file, "--write")
