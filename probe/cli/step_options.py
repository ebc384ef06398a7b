"""Options for the load levels of `kneewatch ramp`. Every ConfigError names its option."""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from probe.config.capacity import CapacityConfig
from probe.core.errors import ConfigError
from probe.core.step import Arrivals, Pattern
from probe.core.text import one_line
from probe.core.trace import Trace

if TYPE_CHECKING:
    from probe.capacity.run.plan import StepSettings

_MAX_CONCURRENCY = 1024
_MAX_RATE, _MAX_SPEED = 10_000.0, 1000.0
_PATTERNS = ("poisson", "constant", "ramp")


@dataclass(frozen=True, slots=True)
class StepOptions:
    """Options for the load levels of a capacity run."""

    concurrency: str | None = None
    rates: str | None = None
    speeds: str | None = None
    arrivals: str | None = None
    burstiness: float | None = None
    max_concurrency: int | None = None
    step_seconds: float | None = None
    requests_per_step: int | None = None
    observe: float | None = None
    confirm_seconds: float | None = None


def steps(options: StepOptions, capacity: CapacityConfig, trace: Trace | None = None) -> "StepSettings":
    """Return the step settings from the options and, for the rest, from the configuration.

    Raises ConfigError, also for an option that would have no effect.
    """
    from probe.capacity.run.plan import steps_of

    levels = {"--concurrency": options.concurrency, "--rates": options.rates, "--speeds": options.speeds}
    given = [name for name, value in levels.items() if value is not None]
    if len(given) > 1:
        raise ConfigError(f"{', '.join(given)}: {'both' if len(given) == 2 else 'all'} are set; remove one")  # noqa: PLR2004
    settings = steps_of(capacity)
    if options.speeds is not None or (trace is not None and trace.seconds is not None and not given):
        return _replayed(options, settings, trace)
    if options.concurrency is not None:
        at_once = concurrency_steps(options.concurrency)
        settings = replace(settings, concurrency=at_once, rates=None, arrivals=Arrivals(), max_concurrency=None)
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
    settings = _with_arrivals(settings, options)
    if not is_search and options.observe is not None:
        raise ConfigError("--observe: works with a search only, not with fixed load levels; remove it")
    return replace(
        settings,
        seconds=settings.seconds if options.step_seconds is None else options.step_seconds,
        requests=options.requests_per_step,
        confirm_s=settings.confirm_s if options.confirm_seconds is None else options.confirm_seconds,
        observe_s=settings.observe_s if options.observe is None else options.observe,
    )


def _replayed(options: StepOptions, settings: "StepSettings", trace: Trace | None) -> "StepSettings":
    """Return the settings of a replay. Raises ConfigError."""
    from probe.capacity.run.replay_steps import Replay

    if trace is None or trace.seconds is None:
        lacks = (
            "--trace FILE" if trace is None else "a trace with times; this one is sent with --rates or --concurrency"
        )
        raise ConfigError(f"--speeds: requires {lacks}")
    for name, value in (
        ("--arrivals", options.arrivals),
        ("--burstiness", options.burstiness),
        ("--requests-per-step", options.requests_per_step),
        ("--confirm-seconds", options.confirm_seconds),
        ("--observe", options.observe),
    ):
        if value is not None:
            raise ConfigError(f"{name}: has no effect where a trace is sent at its times; remove it, or add --rates")
    speeds = _rising("--speeds", options.speeds or "1", _MAX_SPEED)
    rate = len(trace.requests) / trace.seconds
    if rate * speeds[-1] > _MAX_RATE:
        raise ConfigError(
            f"--trace: more than {_MAX_RATE:.0f} requests/s at --speeds {options.speeds or '1'}; expected --speeds of"
            f" at most {_rounded_down(_MAX_RATE / rate):g}"
        )
    return replace(
        settings,
        replay=Replay(trace, speeds, options.step_seconds),
        concurrency=None,
        rates=None,
        arrivals=Arrivals(),
        max_concurrency=options.max_concurrency,
    )


def _with_arrivals(settings: "StepSettings", options: StepOptions) -> "StepSettings":
    """Return the settings with the arrival pattern of the options. Raises ConfigError."""
    chosen = {"--arrivals": options.arrivals, "--burstiness": options.burstiness}
    given = [name for name, value in {**chosen, "--max-concurrency": options.max_concurrency}.items() if value]
    if given and settings.rates is None:
        raise ConfigError(f"{given[0]}: works with --rates only; add --rates, or remove it")
    if all(chosen.values()):
        raise ConfigError("--arrivals, --burstiness: both are set; remove one")
    arrivals = settings.arrivals
    if options.arrivals is not None:
        if options.arrivals not in _PATTERNS:
            raise ConfigError(f"--arrivals {one_line(options.arrivals)}: expected one of {', '.join(_PATTERNS)}")
        arrivals = Arrivals(Pattern(options.arrivals))
    if options.burstiness is not None:
        arrivals = Arrivals(Pattern.GAMMA, burstiness=options.burstiness)
    if arrivals.pattern is Pattern.RAMP and options.requests_per_step is not None:
        raise ConfigError("--requests-per-step: leaves no time for the rate to rise (--arrivals ramp); remove one")
    return replace(settings, arrivals=arrivals, max_concurrency=options.max_concurrency or settings.max_concurrency)


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
    return _rising("--rates", text, _MAX_RATE)


def _rounded_down(number: float) -> float:
    """Return the number with three digits, none above it."""
    unit = 10.0 ** (math.floor(math.log10(number)) - 2)
    return math.floor(number / unit) * unit


def _rising(option: str, text: str, most: float) -> tuple[float, ...]:
    """Parse rising numbers. Raises ConfigError."""
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or not all(0 < number <= most for number in numbers) or list(numbers) != sorted(set(numbers)):
        raise ConfigError(
            f"{option} {one_line(text)}: expected rising numbers above 0 and at most {most:.0f}, such as 0.5,1,2"
        )
    return numbers
