"""Options for the load levels of `kneewatch ramp`. Every ConfigError names its option."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from probe.config.capacity import CapacityConfig
from probe.core.errors import ConfigError
from probe.core.text import one_line

if TYPE_CHECKING:
    from probe.capacity.run.plan import StepSettings

_MAX_CONCURRENCY = 1024
_MAX_RATE = 10_000.0


@dataclass(frozen=True, slots=True)
class StepOptions:
    """Options for the load levels of a capacity run."""

    concurrency: str | None = None
    rates: str | None = None
    step_seconds: float | None = None
    requests_per_step: int | None = None
    observe: float | None = None
    confirm_seconds: float | None = None


def steps(options: StepOptions, capacity: CapacityConfig) -> "StepSettings":
    """Return the step settings from the options and, for the rest, from the configuration.

    Raises ConfigError, also for an option that would have no effect.
    """
    from probe.capacity.run.plan import steps_of

    if options.concurrency is not None and options.rates is not None:
        raise ConfigError("--concurrency, --rates: both are set; remove one")
    settings = steps_of(capacity)
    if options.concurrency is not None:
        settings = replace(settings, concurrency=concurrency_steps(options.concurrency), rates=None)
    if options.rates is not None:
        settings = replace(settings, concurrency=None, rates=rate_steps(options.rates))
    is_search = settings.concurrency is None and settings.rates is None
    for name, value in (
        ("--step-seconds", options.step_seconds),
        ("--requests-per-step", options.requests_per_step),
        ("--confirm-seconds", options.confirm_seconds),
    ):
        if is_search and value is not None:
            raise ConfigError(
                f"{name}: requires --concurrency or --rates; a search sets the length of its load levels itself"
            )
    if not is_search and options.observe is not None:
        raise ConfigError("--observe: works with a search only, not with fixed load levels; remove it")
    return replace(
        settings,
        seconds=settings.seconds if options.step_seconds is None else options.step_seconds,
        requests=options.requests_per_step,
        confirm_s=settings.confirm_s if options.confirm_seconds is None else options.confirm_seconds,
        observe_s=settings.observe_s if options.observe is None else options.observe,
    )


def concurrency_steps(text: str) -> tuple[int, ...]:
    """Parse --concurrency. Raises ConfigError."""
    try:
        steps = tuple(int(part) for part in text.split(","))
    except ValueError:
        steps = ()
    if not steps or min(steps) < 1 or max(steps) > _MAX_CONCURRENCY or list(steps) != sorted(set(steps)):
        raise ConfigError(f"--concurrency {text}: expected rising whole numbers from 1 to 1024, such as 1,2,4,8,16")
    return steps


def rate_steps(text: str) -> tuple[float, ...]:
    """Parse --rates, in requests/s. Raises ConfigError."""
    try:
        rates = tuple(float(part) for part in text.split(","))
    except ValueError:
        rates = ()
    if not rates or not all(0 < rate <= _MAX_RATE for rate in rates) or list(rates) != sorted(set(rates)):
        raise ConfigError(
            f"--rates {one_line(text)}: expected rising numbers above 0 and at most 10000, such as 0.5,1,2"
        )
    return rates
