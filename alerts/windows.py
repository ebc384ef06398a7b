"""Pairs of windows for error budgets, with the share of the budget that each may spend. Pure.

The rules read objectives from series, so the pairs are the same for every target. The table is "Multiwindow,
Multi-Burn-Rate Alerts" of the SRE Workbook (https://sre.google/workbook/alerting-on-slos/), with the one-day ticket
that Sloth and the Kubernetes rules add: a long window, a short one that ends the alert soon after the fault ends, and
the share of the error budget spent in the long one.

The Workbook's slow page (six hours and 30 minutes at 6) is changed. At 99.9 % and a canary every 15 s, a server that
fails 1 % has one failure in 30 minutes, by chance none or three, and the page would end and begin all day; and after
an outage, two failures hours later would page again, because six hours remember the outage. So its short window is an
hour with a third of the burn rate, and the burn must be sustained: over that lower rate in the median hour of the six.
It begins once (alerts/burn_conditions.py), because a steady 1 % crosses the threshold all day.
This misses little: a shorter burn that spends as much in six hours exceeds 18 times the budget's pace, and the fast
page fires at 14.4, of canaries every 15 s at 24. `python -m benchmarks.alerts.rings` compares the designs.
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
    """A pair of windows that fires when errors burn the budget at a multiple of the allowed rate over the long one.

    `share`: the share of the whole budget that errors at that multiple spend in the long window. `is_sustained`: the
    median of the short window's rates over the long one must be high, too. `every_s`: for canaries with intervals above
    the first and up to the second; None: for all. `least`: canaries must fail for this share of the long window.
    """

    severity: str  # page or ticket
    long_s: float
    short_s: float
    share: float
    is_sustained: bool = False
    every_s: tuple[float, float] | None = None
    least: float = 0.0


# At 99.9 % over 30 days, 2 % of the budget is 52 s: a rolling update in which no connection succeeds for a minute, and
# of a canary every 15 s four, which a server that fails one in two hundred has by chance in one of thirty hours. A
# single failure or another update may come within the same hour. So a page within the hour takes 85 s of failures: six
# of those canaries (`python -m benchmarks.alerts.updates`). What lasts is 30 s later than with four, and a burn that
# stays below pages by the six hours. Seven would bring a dead server's page to more than 2.5 minutes.
_BLIP = 85 / HOUR_S

PAIRS = (
    BurnWindow("page", 1 * HOUR_S, HOUR_S / 12, 0.02, least=_BLIP),
    # Five minutes hold two canaries with an interval of 150 s, and 40 minutes those that are rarer.
    BurnWindow("page", 1 * HOUR_S, HOUR_S * 2 / 3, 0.02, every_s=(150.0, HOUR_S / 3)),
    BurnWindow("page", 6 * HOUR_S, HOUR_S, 0.05, is_sustained=True),
    BurnWindow("ticket", 1 * DAY_S, 2 * HOUR_S, 0.10),
    BurnWindow("ticket", 3 * DAY_S, 6 * HOUR_S, 0.10),
)
# The short window of a pair that must be sustained needs a multiple this many times lower.
SUSTAINED = 3


def multiple(window: BurnWindow, slo_window_s: float) -> float:
    """Return the multiple of the allowed rate for an objective over `slo_window_s`.

    Below 1, a service that meets its objective would be reported: short objectives get 1 instead.
    """
    return max(1.0, window.share * slo_window_s / window.long_s)


def can_fire(window: BurnWindow, ratio: float, slo_window_s: float, every_s: float) -> bool:
    """Report whether an objective of `ratio` can be broken so fast, with something to judge `every_s`."""
    return (
        multiple(window, slo_window_s) * (1 - ratio) < 1
        and window.long_s <= slo_window_s
        and window.long_s >= MIN_BAD_EVENTS * every_s
    )


def duration(seconds: float) -> str:
    """Return a duration in PromQL's notation: a whole number of the largest unit that fits, such as 36h."""
    ms = max(1, round(seconds * 1000))
    unit, size = next((unit, size) for unit, size in _UNITS_MS if ms % size == 0)
    return f"{ms // size}{unit}"
