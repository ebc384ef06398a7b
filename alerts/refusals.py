"""Objectives that no alert could ever find broken, each reported in one line: what, where, expected, fix. Pure."""

from alerts.windows import DAY_S, HOUR_S, MIN_BAD_EVENTS, choose, duration
from probe.core import objectives as slo
from probe.core.durations import format_duration
from probe.core.objectives import Objectives


def never_fires(objectives: Objectives, objective: str, every_s: float, where: str) -> str | None:
    """Return why no window can fire, or None if one can.

    `every_s`: how often there is something to judge; `where`: the configuration key that sets it.
    """
    ratio, window_s = slo.promised(objectives)[objective], objectives.window_s
    if choose(ratio=ratio, slo_window_s=window_s, every_s=every_s).windows:
        return None
    section = f"objectives.{objectives.name}"
    over = duration(window_s)
    if window_s < HOUR_S:
        return (
            f"{section}.window: {over} is shorter than the shortest window of an alert, so none could ever fire;"
            " expected 1h or more; make it longer"
        )
    # The slowest window can detect a miss of any ratio above 0, unless the objective's window is long.
    if choose(ratio=ratio, slo_window_s=window_s, every_s=0.0).windows:
        rarest_s = min(window_s, 3 * DAY_S) / MIN_BAD_EVENTS
        return (
            f"{where}: {format_duration(every_s)} is too rare for any alert on {section}.{objective};"
            f" expected {duration(rarest_s)} or less; make it more frequent, or set that objective to null"
        )
    key = f"{section}.{objective}" + ("" if objective == slo.AVAILABILITY else ".ratio")
    # The slowest window has the lowest threshold.
    least = choose(ratio=1.0, slo_window_s=window_s, every_s=0.0).windows[-1].burn
    return (
        f"{key}: {ratio:g} over {over} can never be broken fast enough for an alert, {least * (1 - ratio):.0%} of the"
        f" requests would have to be bad; expected more than {1 - 1 / least:.3g}; raise it, or shorten {section}.window"
    )
