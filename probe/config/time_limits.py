"""The time limits of requests, as a configuration has them (core/time_limits.py), and those that are too short."""

from collections.abc import Iterator

from probe.config.canaries import MAX_CANARIES
from probe.config.config import Config
from probe.config.messages import dotted
from probe.config.targets import AnyTarget, WatchConfig, canary_keys
from probe.core.durations import format_duration
from probe.core.time_limits import TimeLimits, cannot_end

_CANARY, _CAPACITY = "canary.timeout", "capacity.timeout"


def canary_limits(config: Config, target: WatchConfig, raised_by: str = _CANARY) -> TimeLimits:
    """Return the limits of the target's canaries, of which at most MAX_CANARIES are in flight."""
    canary = target.canary
    tokens = config.workload(canary.workload).longest_answer
    most_s = MAX_CANARIES * canary.every
    return TimeLimits(config.objectives_of(target), tokens, canary.timeout, most_s, raised_by)


def capacity_limits(config: Config, target: WatchConfig, tokens: int, raised_by: str = _CAPACITY) -> TimeLimits:
    """Return the limits of the requests of capacity runs; `tokens`: the longest answer."""
    return TimeLimits(config.objectives_of(target), tokens, capacity_timeout_s(target), raised_by=raised_by)


def capacity_timeout_s(target: WatchConfig) -> float | None:
    """Return the limit of capacity runs that is set, in seconds."""
    return target.capacity.timeout or target.kinds[0].canary.timeout


def valid_s(config: Config, target: WatchConfig) -> float:
    """Return for how many seconds a canary shows whether the server is up. Later ones should have ended long before."""
    return 3 * target.canary.every + 2 * canary_limits(config, target).answer_s()


def too_short(config: Config) -> list[str]:
    """Return a line for each limit within which an answer cannot end that is as slow as its objectives allow."""
    return [line for i, target in enumerate(config.targets) for line in _too_short(f"targets[{i}]", target, config)]


def _too_short(at: str, target: AnyTarget, config: Config) -> Iterator[str]:
    for keys, kind in canary_keys(target):
        canary, limits = kind.canary, canary_limits(config, kind)
        words = cannot_end(limits.objectives, limits.tokens, limits.answer_s(), format_duration(limits.answer_s()))
        if words is not None and not target.passive:
            key = "timeout" if canary.timeout is not None else "every"
            yield f"{at}.{dotted((*keys, key))}: {words}"
    capacity, load = target.capacity, target.capacity.workload or target.kinds[0].canary.workload
    if capacity.mode != "verify":
        return
    tokens = config.workload(load).longest_answer
    for key, seconds in (("timeout", capacity_timeout_s(target)), ("budget.seconds", capacity.budget.seconds)):
        words = cannot_end(config.objectives_of(target), tokens, seconds, f"{seconds:g} s") if seconds else None
        if words is not None:
            yield f"{at}.capacity.{key}: {words}"
