"""Conditions of burn alerts in PromQL: the bad requests of an SLI burn an error budget too fast. Pure.

Canaries are few and evenly spaced; users come in bursts and hardly at night. So users need more bad requests.
"""

from dataclasses import dataclass, replace

from alerts import sli
from alerts.budget import bad, minutes, padded_total, total, total_of_window
from alerts.rules import one_of
from alerts.sli import Sli
from alerts.windows import MIN_BAD_EVENTS, BurnWindow, duration
from probe.core import objectives as slo
from probe.core.objectives import Objectives

# The long window remembers a fault for hours, and in the short one a single failure exceeds most limits by itself: one
# of 120 canaries is 0.8 %. Without requiring a second one, an outage that is over would page again.
# A ticket's windows are longer, so that in most of them two single failures of a day meet.
_MIN_BAD_LATELY = {"page": 2, "ticket": MIN_BAD_EVENTS}
# More than one burst of one user (a batch, an agent's parallel calls), and twice the probe requests that may be counted
# as users' in the short window: with a canary in flight at every scrape, one a minute (docs/cross-checks.md).
MIN_BAD_USERS = 10
# At night three users may be half of the traffic. A ratio that pages by day spends the window's share of the budget; by
# night, with a tenth of the usual traffic, a tenth of that. Below this it affects a few users, and canaries still catch
# a server that is slow for everyone. After an outage, the first canaries are slow while caches are cold, and they are
# all that succeeded in the last hour: so slow canaries must matter among those that were sent.
QUIET = 0.1
# A median needs most of the window: of a target watched for an hour, an outage of 20 minutes is the median.
_KNOWN_SHARE = 0.75
# In the simulation, two days of 1 % failing page 1.2 times with a memory of 12 hours, and 1.9 times without.
_REMEMBERED = 2


@dataclass(frozen=True, slots=True)
class Watched:
    """An SLI with an objective, and the pairs of windows that watch it."""

    objectives: Objectives
    one: Sli
    windows: tuple[BurnWindow, ...]

    @property
    def allowed(self) -> float:
        """The ratio of bad requests that the objective allows."""
        return 1 - slo.promised(self.objectives)[self.one.objective]

    def of(self, severity: str) -> "Watched":
        """Return the same with the windows of one severity."""
        return replace(self, windows=tuple(window for window in self.windows if window.severity == severity))


def condition(watched: Watched, targets: list[str], scale: float, *, is_shared: bool) -> str:
    """Return the condition: any of the pairs of windows burns. Its value is a multiple of the allowed ratio.

    `is_shared`: other targets have other windows or objectives of this SLI. Otherwise only the first operand of a
    condition names the targets.
    """
    mine = f"{{{one_of(targets)}}}"
    pairs = [_pair(watched, window, (mine, mine if is_shared else ""), scale) for window in watched.windows]
    return "\nor\n".join(f"(\n{pair}\n)" for pair in pairs)


def _pair(watched: Watched, window: BurnWindow, matchers: tuple[str, str], scale: float) -> str:
    """Return the condition of a pair of windows. Its value is the short window's multiple of the allowed ratio.

    `matchers`: of the first operand and of the others.
    """
    one, allowed, other = watched.one, watched.allowed, matchers[1]
    least = MIN_BAD_USERS if one in sli.USERS else MIN_BAD_EVENTS
    missed = bad(one, window.long_s, scale, other)
    if window.is_sustained:
        burns = f"{_sustained(watched, window, matchers, scale)}\nand {missed} >= {least}"
    else:
        lately = bad(one, window.short_s, scale, matchers[0])
        if one not in sli.USERS:
            lately = f"({lately} >= {_MIN_BAD_LATELY[window.severity]})"
        # Without padding, three failures in a target's first ten minutes would be 7 % of six hours.
        whole = f"({missed} >= {least}) / ({padded_total(one, window.long_s, scale, other)} * {allowed:.6g})"
        burns = (
            f"{lately} / ({total(one, window.short_s, scale, other)} * {allowed:.6g})\n  > {window.short_burn:g}"
            f"\nand {whole}\n  > {window.burn:g}"
        )
    few = _few(watched, window, other, scale)
    return f"{burns}\nunless {missed} < {few}" if few else burns


def _few(watched: Watched, window: BurnWindow, matcher: str, scale: float) -> str | None:
    """Return the number of bad requests below which they matter little; None: the ratio is of all requests."""
    one, objectives, least = watched.one, watched.objectives, QUIET * watched.allowed
    if one in sli.USERS:
        return f"{least * window.share:.6g} * {total_of_window(one, objectives.window_s, scale)}"
    if one is not sli.AVAILABILITY and objectives.availability is not None:
        return f"{least * window.burn:.6g} * {total(sli.AVAILABILITY, window.long_s, scale, matcher)}"
    return None


def _sustained(watched: Watched, window: BurnWindow, matchers: tuple[str, str], scale: float) -> str:
    """Return the condition of a pair that must be sustained. Its value is the long window's multiple.

    A steady burn near the threshold crosses it several times a day. So that it did counts for some hours, and the
    alert lasts while most hours burn, the last ones too.
    """
    one, allowed, (first, other) = watched.one, watched.allowed, matchers
    long = duration(window.long_s)
    multiple = f"{one.error_record(long)}{first} / {allowed:.6g}"
    crossed = f"max_over_time({one.error_record(long)}{other}[{duration(_REMEMBERED * window.long_s)}])"
    median = f"quantile_over_time(0.5, {one.error_record(duration(window.short_s))}{other}[{long}])"
    known = total(one, window.long_s, scale, other, "count_over_time")
    return (
        f"{multiple} > {window.short_burn:g}\nand {crossed} > {window.burn * allowed:.6g}\n"
        f"and {median} > {window.short_burn * allowed:.6g}\n"
        f"and {known} >= {_KNOWN_SHARE * minutes(window.long_s, scale):.6g}\n"
        f"and {bad(one, 2 * window.short_s, scale, other)} > 0"
    )
