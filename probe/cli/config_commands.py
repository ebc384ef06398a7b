"""Commands about a configuration file: config check, config show, config schema."""

from typing import TYPE_CHECKING

import typer

from probe.cli.output import NAME, print_json
from probe.cli.parameters import ConfigFile

if TYPE_CHECKING:
    from probe.config.targets import TargetConfig, TemplateConfig


def check(config: ConfigFile) -> None:
    """Check the configuration file. Report on stderr what no alert can cover."""
    from alerts.coverage import uncovered
    from probe.config.config_file import load_config

    loaded = load_config(config)
    names = ", ".join(target.known_as for target in loaded.targets)
    typer.echo(f"{config}: valid; {len(loaded.targets)} target(s): {names}")
    for target in loaded.targets:
        if target.capacity.mode != "off":
            typer.echo(f"{target.known_as}: startup flags of the server: {_flags(target)}")
    for line in uncovered(loaded):
        typer.echo(f"{NAME}: alerts: {line}", err=True)


def _flags(target: "TargetConfig | TemplateConfig") -> str:
    """Return the startup flags that are known without asking the server, and where each is from."""
    from probe.config.capacity import PROCESS
    from probe.config.targets import TargetConfig
    from probe.scrape.local_process import flags_of_local_server

    server = target.capacity.server
    if isinstance(target, TargetConfig):
        server = server.with_flags(flags_of_local_server(target.base_url), PROCESS)
    sources = server.flag_sources
    known = ", ".join(f"{name}={value} ({sources[name]})" for name, value in server.startup_flags.items())
    return known or "none known here; read from /server_info and the pod while it is watched"


def show(config: ConfigFile) -> None:
    """Print the effective configuration, secrets hidden."""
    from probe.config.config_file import load_config
    from probe.config.config_file import show as shown

    typer.echo(shown(load_config(config)), nl=False)


def schema() -> None:
    """Print the JSON Schema of the configuration."""
    from probe.config.reference import json_schema

    print_json(json_schema())
