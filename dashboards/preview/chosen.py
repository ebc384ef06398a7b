"""What `kneewatch dashboards` was told of pages: from options as they were written to a checked choice.

Every ConfigError names the option it is about.
"""

from dataclasses import dataclass

from pydantic import ValidationError

from probe.config.models import Config, PrometheusConfig
from probe.core.errors import ConfigError
from probe.core.text import one_line

_LONGEST_H = 24 * 366.0


@dataclass(frozen=True, slots=True)
class Chosen:
    """What to show: a Prometheus, and values for the dashboards' variables; None leaves it to the dashboard."""

    url: str
    target: str
    workload: str | None = None
    hours: float | None = None


def chosen(
    config: Config, url: str | None, *, target: str | None, workload: str | None, hours: float | None
) -> Chosen | None:
    """The choice, None where no page is wanted; without a target the first of the configuration. Raises ConfigError."""
    if url is None:
        given = {"--target": target, "--workload": workload, "--hours": hours}
        for option in (name for name, value in given.items() if value is not None):
            raise ConfigError(f"{option}: goes with --preview only; Grafana has drop-downs for it")
        return None
    if hours is not None and not 0 < hours <= _LONGEST_H:
        raise ConfigError(f"--hours {hours:g}: expected a number above 0 and at most {_LONGEST_H:g}, such as 3")
    one = config.targets[0] if target is None else config.target(target)
    return Chosen(_address(url), one.name, config.workload_name(workload), hours)


def _address(url: str) -> str:
    """Without a slash at its end."""
    try:
        return PrometheusConfig(url=url).url
    except ValidationError:
        if "@" in url:  # a password, perhaps
            raise ConfigError("--preview (hidden): expected an address without credentials") from None
        raise ConfigError(f"--preview {one_line(url)}: expected an address such as http://prometheus:9090") from None
