"""The command that examines one server without a configuration: doctor."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from probe.cli.output import print_json, print_written
from probe.cli.parameters import NO_SERVER, Json, ServerOptions, grouped


@grouped
def doctor(
    base_url: Annotated[str, typer.Option("--base-url", help="Server to examine.")],
    server: ServerOptions = NO_SERVER,
    seconds: Annotated[float, typer.Option(min=15, max=45, help="Seconds to watch live traffic.")] = 30.0,
    fail_on: Annotated[
        Literal["objectives", "problems", "never"],
        typer.Option(
            help="Exit with status 1 if a canary misses an objective, if there is also any problem, or never."
        ),
    ] = "objectives",
    write: Annotated[Path | None, typer.Option(help="Write a configuration to start with to this file.")] = None,
    as_json: Json = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print a table in Markdown, for a ticket.")] = False,
) -> None:
    """Examine a server for up to a minute: what it serves and with which flags, whether it is healthy, what users send,
    how much more it takes, and what is configured badly. Sends three canaries and no load.

    Exit status: 0 healthy, 1 not (--fail-on), 2 could not measure.
    """
    from dataclasses import replace

    from probe.cli.doctor import diagnose
    from probe.cli.options import configuration
    from probe.cli.other_api import OtherApiError
    from probe.core.clock import SystemClock
    from probe.core.errors import ConfigError
    from probe.report.diagnosis import diagnosis_json, diagnosis_markdown, diagnosis_words
    from probe.report.files import check_writable, write_file
    from probe.report.progress import following
    from probe.report.starter_config import starter_config
    from probe.runtime import event_loop
    from probe.runtime.logs import configure_logs

    configure_logs(quiet=True)
    if as_json and as_markdown:
        raise ConfigError("--json, --markdown: both are set; keep one")
    config = configuration(None, base_url, server)
    (target,) = config.servers
    if write is not None:
        if write.exists() and write.stat().st_size:
            raise ConfigError(f"--write {write}: the file exists; remove it, or name another one")
        check_writable(write, "--write")
    with following() as follow:
        try:
            found = event_loop.run(diagnose(config, target, SystemClock(), watch_s=seconds, on_phase=follow.phase))
        except OtherApiError as other:
            if server.api is not None:
                raise
            config = configuration(None, base_url, replace(server, api=other.api.value))
            (target,) = config.servers
            found = event_loop.run(diagnose(config, target, SystemClock(), watch_s=seconds, on_phase=follow.phase))
    if as_json:
        print_json(diagnosis_json(found))
    elif as_markdown:
        typer.echo(diagnosis_markdown(found))
    else:
        typer.echo(diagnosis_words(found))
    if write is not None:
        write_file(write, starter_config(config, target), "--write")
        if not (as_json or as_markdown):
            print_written([write])
    has_problem = any(finding.is_problem for finding in found.findings())
    is_bad = {"objectives": not found.is_healthy, "problems": has_problem or not found.is_healthy, "never": False}
    raise typer.Exit(1 if is_bad[fail_on] else 0)
