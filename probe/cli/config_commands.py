"""Commands about a configuration file: config check, config show, config schema."""

import typer

from probe.cli.output import NAME, print_json
from probe.cli.parameters import ConfigFile


def check(config: ConfigFile) -> None:
    """Check the configuration file. Report on stderr what no alert can cover."""
    from alerts.coverage import uncovered
    from probe.config.config_file import load_config

    loaded = load_config(config)
    names = ", ".join(target.known_as for target in loaded.targets)
    typer.echo(f"{config}: valid; {len(loaded.targets)} target(s): {names}")
    for line in uncovered(loaded):
        typer.echo(f"{NAME}: no alert covers this: {line}", err=True)


def show(config: ConfigFile) -> None:
    """Print the effective configuration, secrets hidden."""
    from probe.config.config_file import load_config
    from probe.config.config_file import show as shown

    typer.echo(shown(load_config(config)), nl=False)


def schema() -> None:
    """Print the JSON Schema of the configuration."""
    from probe.config.config import Config

    print_json(Config.model_json_schema())
