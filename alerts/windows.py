"""Pairs of windows for an objective, with the burn rate of each. Pure.

In: an objective's ratio and window, and how often there is something new to judge. Out: the windows that can fire,
and a line for each that cannot. The table is "Multiwindow, Multi-Burn-Rate Alerts" of the SRE
Workbook (https://sre.google/workbook/alerting-on-slos/), with the one-day ticket that Sloth and the Kubernetes rules
add: a long window, a short one that ends the alert soon after the fault ends, and the share of the error budget spent
in the long one.

The Workbook's slow page (six hours and 30 minutes at 6) is changed. At 99.9 % and a canary every 15 s, a server that
fails 1 % has one failure in 30 minutes, by chance none or three, and the page would end and begin all day; and after
an outage, two failures hours later would page again, because six hours remember the outage. So its short window is an
hour with a third of the burn rate, and the burn must be sustained: over that lower rate in the median hour of the six.
It fires if the rate of six hours exceeded the threshold in the last twelve, because a steady 1 % crosses it all day.
This misses nothing: a shorter burn that spends as much in six hours exceeds 18 times the budget's pace, and the fast
page fires at 14.4. `python -m benchmarks.alerts.rings` compares the designs.
"""

from dataclasses import dataclass

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S

# One or two slow or failed canaries may be chance. At one canary every 15 s and an availability of 99.9 %, the fast
# window's burn rate alone would page at the fourth failure in an hour; at one a minute, at the first.
MIN_BAD_EVENTS = 3

_UNITS_MS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))


@dataclass(frozen=True, slots=True)
class BurnWindow:
    """A pair of windows that fires when errors burn the budget at `burn` times the allowed rate over the long one.

    `short_burn`: the rate in the short window. `is_sustained`: the median of the short window's rates over the long
    one must exceed it too. `share`: the share of the whole budget that errors at `burn` spend in the long window.
    """

    severity: str  # page or ticket
    long_s: float
    short_s: float
    burn: float
    short_burn: float
    is_sustained: bool
    share: float


@dataclass(frozen=True, slots=True)
class _Row:
    severity: str
    long_s: float
    short_s: float
    budget_share: float
    is_sustained: bool = False


_WORKBOOK = (
    _Row("page", 1 * HOUR_S, HOUR_S / 12, 0.02),
    _Row("page", 6 * HOUR_S, HOUR_S, 0.05, is_sustained=True),
    _Row("ticket", 1 * DAY_S, 2 * HOUR_S, 0.10),
    _Row("ticket", 3 * DAY_S, 6 * HOUR_S, 0.10),
)
_SUSTAINED_SHARE = 1 / 3


@dataclass(frozen=True, slots=True)
class WindowChoice:
    """The windows that can fire, and the reason for each that cannot."""

    windows: tuple[BurnWindow, ...]
    left_out: tuple[str, ...]


def choose(
    *, ratio: float, slo_window_s: float, every_s: float, scale: float = 1.0, judged: str = "a canary"
) -> WindowChoice:
    """Return the windows for an objective of `ratio` over `slo_window_s`, with `judged` every `every_s`.

    `scale` shortens the windows only, so that a rehearsal takes minutes.
    """
    windows: list[BurnWindow] = []
    left_out: list[str] = []
    for row in _WORKBOOK:
        window = _window(row, slo_window_s, every_s, scale)
        problem = _never(window, row, ratio, slo_window_s)
        if problem is None and (window.long_s < MIN_BAD_EVENTS * every_s or window.short_s > window.long_s):
            problem = f"too short for {judged} every {duration(every_s)}"
        if problem is None:
            windows.append(window)
        else:
            name = f"{window.severity} at {window.burn:g}x over {duration(window.long_s)}"
            left_out.append(f"{name}: {problem}")
    return WindowChoice(tuple(windows), tuple(left_out))


def _window(row: _Row, slo_window_s: float, every_s: float, scale: float) -> BurnWindow:
    # Below 1, a service that meets its objective would be reported: short objectives get 1 instead.
    burn = max(1.0, row.budget_share * slo_window_s / row.long_s)
    return BurnWindow(
        severity=row.severity,
        long_s=row.long_s * scale,
        # A short window with nothing in it has no ratio, and the pair would never fire.
        short_s=max(row.short_s * scale, 2 * every_s),
        burn=round(burn, 6),
        short_burn=round(max(1.0, burn * _SUSTAINED_SHARE) if row.is_sustained else burn, 6),
        is_sustained=row.is_sustained,
        share=burn * row.long_s / slo_window_s,
    )


def _never(window: BurnWindow, row: _Row, ratio: float, slo_window_s: float) -> str | None:
    errors = window.burn * (1 - ratio)
    if errors >= 1:
        return f"cannot fire, {errors:.0%} of the requests would have to be bad"
    if row.long_s > slo_window_s:
        return f"longer than the objective's window of {duration(slo_window_s)}"
    return None


def duration(seconds: float) -> str:
    """Return a duration in PromQL's notation: a whole number of the largest unit that fits, such as 36h."""
    ms = max(1, round(seconds * 1000))
    unit, size = next((unit, size) for unit, size in _UNITS_MS if ms % size == 0)
    return f"{ms // size}{unit}"
