"""The targets that a command is for: configured ones, or those that a discovery finds now."""

from probe.cli.scrapers import first_state
from probe.config.config import Config
from probe.config.targets import TargetConfig, TemplateConfig, only_located
from probe.core.errors import ConfigError, TargetError
from probe.core.request import Outcome
from probe.monitor.desired_targets import DesiredTarget, DesiredTargets
from probe.runtime import event_loop

_NAMED = 10  # servers that an error line names


def configured_targets(config: Config) -> list[TargetConfig]:
    """Return the targets with an address that may be probed. Raise ConfigError if there is none."""
    found = [target for target in config.servers if not target.passive]
    if not found:
        raise ConfigError(
            "the configuration has no target that can be probed (all are passive or discovered);"
            " name a discovery or one of its targets with --target, or use --base-url URL"
        )
    return found


def named_targets(config: Config, name: str) -> list[TargetConfig]:
    """Return the target with this name, or all targets of the discovery with this name.

    Raise ConfigError if there is none, TargetError if the discovery does not answer.
    """
    template = _template(config, name)
    if template is None:
        return [config.target(name)]
    return [found.config for found in event_loop.run(_discover(config, template, name))]


def one_target(config: Config, name: str | None, *, adds_load: bool = False) -> TargetConfig:
    """Return the target with this name, or the only target, with the first of its canaries.

    `adds_load`: only if the server may be loaded now.

    Raise ConfigError if there is none, TargetError if its discovery does not answer or the server may not be loaded.
    """
    if name is None:
        if len(config.targets) > 1:
            names = ", ".join(target.known_as for target in config.targets)
            raise ConfigError(f"--target: the configuration has several targets; expected one of {names}")
        return only_located(config.targets[0]).kinds[0]
    template = _template(config, name)
    if template is None or name == template.name:
        return config.target(name).kinds[0]
    (found,) = event_loop.run(_discover(config, template, name))
    if adds_load and found.inhibited_by is not None:
        raise TargetError(f"{name}: no load was sent, {found.inhibited_by}; retry when that is over", Outcome.REJECTED)
    return found.config.kinds[0]


def _template(config: Config, name: str) -> TemplateConfig | None:
    """Return the template of a discovery's name, or of the name of one of its targets."""
    return next((template for template in config.templates if template.name == name.partition("/")[0]), None)


async def _discover(config: Config, template: TemplateConfig, name: str) -> list[DesiredTarget]:
    """Return the target with this name, or all of the template's for the template's own name."""
    words = f"--target {name}: the discovery {template.name} found no servers"
    servers = await first_state(template.discover, words)
    desired = DesiredTargets(config, None)
    desired.discovered(template.name, servers)
    found = [target for target in desired.by_name().values() if target.discovery == template.name]
    chosen = [target for target in found if name in (target.name, template.name)]
    if not found:
        raise ConfigError(f"--target {name}: the discovery {template.name} finds no servers; check its selection")
    if not chosen:
        names = ", ".join(target.name for target in found[:_NAMED]) + (", ..." if len(found) > _NAMED else "")
        raise ConfigError(f"--target {name}: the discovery {template.name} does not find it; expected one of {names}")
    return chosen
