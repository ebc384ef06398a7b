"""What of a configuration the rules do not cover as one expects, each in one line: what, where, expected, fix. Pure."""

from collections.abc import Iterator

from alerts.budget import BUDGET_WINDOWS_S
from alerts.capacity import RAREST_SCHEDULE_S
from alerts.windows import DAY_S, HOUR_S, MIN_BAD_EVENTS, PAIRS, can_fire, duration, multiple
from probe.config.config import Config
from probe.config.messages import dotted
from probe.config.targets import TargetConfig, WatchConfig, canary_keys
from probe.core import objectives as slo
from probe.core.durations import format_duration
from probe.core.objectives import Objectives
from probe.runtime.cron import longest_interval_s

_SLOWEST = PAIRS[-1]  # has the lowest multiple


def uncovered(config: Config) -> list[str]:
    """Return a line for each objective and schedule that has no alert, each window without a budget, and each target
    that notifies of an outage apart from another one of its server.
    """
    lines: dict[str, None] = {}  # ordered
    for i, target in enumerate(config.targets):
        objectives, where = config.objectives_of(target), f"targets[{i}]"
        for keys, kind in canary_keys(target):
            every_s = 0.0 if target.passive else kind.canary.every
            for objective in slo.promised(objectives):
                found = _never_fires(objectives, objective, every_s, f"{where}.{dotted(keys)}.every")
                lines.update(dict.fromkeys(found))
        lines.update(dict.fromkeys(_rare_beside_others(target, where)))
        lines.update(dict.fromkeys(_without_budget(objectives)))
        cron = target.capacity.schedule.cron
        if target.capacity.mode == "verify" and longest_interval_s(cron) > RAREST_SCHEDULE_S:
            line = (
                f"{where}.capacity.schedule.cron: {cron!r} has more than {duration(RAREST_SCHEDULE_S)} between two"
                " runs, so no alert notices that they find nothing; make it more frequent, or watch it yourself"
            )
            lines[line] = None
    return [*lines, *_apart(config)]


def _rare_beside_others(target: WatchConfig, where: str) -> Iterator[str]:
    """Yield the kinds of canaries that the fast page would have covered, were they the only ones.

    Its second pair of windows is for rare canaries. The interval of a target is the shortest of its kinds.
    """
    (rarer_s, most_s) = next(pair.every_s for pair in PAIRS if pair.every_s is not None)
    shortest_s = min(kind.canary.every for kind in target.kinds)
    for keys, kind in canary_keys(target):
        every_s = kind.canary.every
        if shortest_s <= rarer_s < every_s <= most_s:
            yield (
                f"{where}.{dotted(keys)}.every: {format_duration(every_s)} is too rare compared with canaries every"
                f" {format_duration(shortest_s)} for the page of the first hour, if only this kind fails; expected"
                f" {duration(rarer_s)} or less; make it more frequent, or give it a target of its own in the same group"
            )


def _apart(config: Config) -> Iterator[str]:
    """Yield each target with alerts outside the group of the first target with the same metrics page."""
    first: dict[str, str] = {}
    for i, target in enumerate(config.targets):
        if isinstance(target, TargetConfig):
            name, other = target.name, first.setdefault(target.metrics_page, target.name)
            if name.partition("/")[0] != other.partition("/")[0]:
                yield (
                    f"targets[{i}].name: {name!r} and {other!r} have the same metrics page, and each notifies of an"
                    f" outage of that server; expected one group; name them GROUP/{other.rpartition('/')[2]} and"
                    f" GROUP/{name.rpartition('/')[2]}"
                )


def _without_budget(objectives: Objectives) -> Iterator[str]:
    if objectives.window_s not in BUDGET_WINDOWS_S:
        known = ", ".join(duration(window_s) for window_s in BUDGET_WINDOWS_S)
        yield (
            f"objectives.{objectives.name}.window: no rule records the budget left over"
            f" {format_duration(objectives.window_s)}; alerts work; expected one of {known} for the panels on budgets"
        )


def _never_fires(objectives: Objectives, objective: str, every_s: float, where: str) -> Iterator[str]:
    """Yield why no pair of windows can fire, if none can. `where`: the configuration key that sets `every_s`."""
    ratio, window_s = slo.promised(objectives)[objective], objectives.window_s
    if any(can_fire(pair, ratio, window_s, every_s) for pair in PAIRS):
        return
    section = f"objectives.{objectives.name}"
    over = duration(window_s)
    if window_s < HOUR_S:
        yield (
            f"{section}.window: {over} is shorter than the shortest window of an alert, so none can ever fire;"
            " expected 1h or more; make it longer"
        )
        return
    # The slowest window can detect a miss of any ratio above 0, unless the objective's window is long.
    if any(can_fire(pair, ratio, window_s, 0.0) for pair in PAIRS):
        rarest_s = min(window_s, 3 * DAY_S) / MIN_BAD_EVENTS
        yield (
            f"{where}: {format_duration(every_s)} is too rare for any alert on {section}.{objective};"
            f" expected {duration(rarest_s)} or less; make it more frequent, or set that objective to null"
        )
        return
    key = f"{section}.{objective}" + ("" if objective == slo.AVAILABILITY else ".ratio")
    least = multiple(_SLOWEST, window_s)
    yield (
        f"{key}: {ratio:g} over {over} can never be broken fast enough for an alert, {least * (1 - ratio):.0%} of the"
        f" requests would have to be bad; expected more than {1 - 1 / least:.3g}; raise it, or shorten {section}.window"
    )
