"""Commands that watch servers: run, check."""

from typing import Annotated
from urllib.parse import urlsplit

import typer

from probe.cli.output import print_json
from probe.cli.parameters import (
    NO_LENGTHS,
    NO_SERVER,
    BaseUrl,
    ConfigFile,
    LengthOptions,
    MaybeConfigFile,
    ServerOptions,
    grouped,
)


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
    from probe.core.clock import SystemClock
    from probe.monitor.app import App
    from probe.runtime import event_loop
    from probe.runtime.descriptors import raise_descriptor_limit
    from probe.runtime.logs import configure_logs

    configure_logs()
    raise_descriptor_limit()
    own_shard = shard_of(shard, total_shards)
    loaded = load_config(config)
    for line in uncovered(loaded):
        structlog.get_logger().warning("limit of the alerts", what=line)

    async def serve() -> None:
        await App(loaded, SystemClock(), config, own_shard).run(asyncio.Event())

    event_loop.run(serve())


@grouped
def check(
    config: MaybeConfigFile = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target", help="A target, or a discovery for all that it finds. Default: all targets with an address."
        ),
    ] = None,
    base_url: BaseUrl = None,
    server: ServerOptions = NO_SERVER,
    lengths: LengthOptions = NO_LENGTHS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: a list with an entry for each canary.")] = False,
) -> None:
    """Send one canary of each kind to each target, and the question of canary.known_answer.

    Exit status: 0 objectives met, 1 missed, 2 could not measure.
    """
    from probe.cli.check import check_one
    from probe.cli.options import configuration
    from probe.cli.targets import configured_targets, named_targets
    from probe.runtime.logs import configure_logs

    configure_logs(quiet=True)
    loaded = configuration(config, base_url, server, lengths)
    chosen = named_targets(loaded, target) if target is not None else configured_targets(loaded)
    address = urlsplit(base_url).netloc if base_url else None
    kinds = [
        (kind, f"{one.name}, {kind.canary.workload}" if one.canaries else address)
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
