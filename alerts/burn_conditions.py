"""Conditions of burn alerts in PromQL: the bad requests of an SLI burn an error budget too fast. Pure.

They read the objectives from series (budget.py), so they are the same for every target. A pair of windows that
cannot fire, because more than all requests would have to be bad, does not.

Canaries are few and evenly spaced; users come in bursts and hardly at night. So users need more bad requests.
"""

from alerts import sli
from alerts.alert_labels import on
from alerts.budget import (
    ON_TARGET,
    WINDOW,
    allowed,
    bad,
    least,
    limit,
    minutes,
    padded_total,
    sum_s,
    total,
    total_of_window,
)
from alerts.rules import Recording
from alerts.sli import Sli
from alerts.windows import MIN_BAD_EVENTS, PAIRS, BurnWindow, duration
from exporters import names

# The long window remembers a fault for hours, and in the short one a single failure exceeds most limits by itself: one
# of 120 canaries is 0.8 %. Without requiring a second one, an outage that is over would page again.
# A ticket's windows are longer, so that in most of them two single failures of a day meet.
_MIN_BAD_LATELY = {"page": 2, "ticket": MIN_BAD_EVENTS}
# More than one burst of one user (a batch, an agent's parallel calls), and twice the probe requests that may be counted
# as users' in the short window: with a canary in flight at every scrape, one a minute (docs/numbers.md).
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
_SUSTAINED = "sustained"


def condition(one: Sli, severity: str, scale: float) -> Recording:
    """Return the rule that records where any of the pairs burns. Its value is a multiple of the allowed ratio."""
    pairs = (pair for pair in PAIRS if pair.severity == severity and (pair.every_s is None or one in sli.CANARIES))
    burns = (one.burn_record(_SUSTAINED) if pair.is_sustained else f"(\n{_pair(one, pair, scale)}\n)" for pair in pairs)
    return Recording(one.burn_record(severity), "\nor\n".join(burns))


def burning(one: Sli, severity: str, scale: float, matcher: str = "") -> str:
    """Return where the recorded condition holds: of a page now, of a ticket when it was last evaluated."""
    record = f"{one.burn_record(severity)}{matcher}"
    # Twice the interval: one evaluation may fail.
    return f"last_over_time({record}[{duration(2 * sum_s(scale))}])" if severity == "ticket" else record


def sustained(one: Sli, scale: float) -> Recording:
    """Return the rule that records where the pair that must be sustained burns, which `condition` reads."""
    (pair,) = (pair for pair in PAIRS if pair.is_sustained)
    return Recording(one.burn_record(_SUSTAINED), _pair(one, pair, scale))


def _pair(one: Sli, pair: BurnWindow, scale: float) -> str:
    """Return the condition of a pair of windows. Its value is the short window's multiple of the allowed ratio."""
    long_s, short_s = pair.long_s * scale, pair.short_s * scale
    at_least = MIN_BAD_USERS if one in sli.USERS else MIN_BAD_EVENTS
    missed = bad(one, long_s, scale)
    if pair.is_sustained:
        burns = f"{_sustained(one, pair, scale)}\nand {missed} >= {at_least}"
    else:
        lately = bad(one, short_s, scale)
        if one not in sli.USERS:
            lately = f"({lately} >= {_MIN_BAD_LATELY[pair.severity]})"
        # Without padding, three failures in a target's first ten minutes would be 7 % of six hours.
        whole = f"({missed} >= {at_least}) / ({padded_total(one, long_s, scale)})"
        exceeds = f"/ {ON_TARGET} {allowed(one.objective)} > {ON_TARGET} {limit(pair)}"
        burns = f"{lately} / {total(one, short_s, scale)}\n  {exceeds}\nand {whole}\n  "
        if pair.least and one in sli.CANARIES:
            most = f"{limit(pair)} * {ON_TARGET} {allowed(one.objective)}"
            burns += f"> {ON_TARGET} clamp_min({most}, {pair.least:.4g})"
        else:
            burns += exceeds
    if pair.every_s is not None:
        above_s, most_s = (every_s * scale for every_s in pair.every_s)
        burns += f'\nand {on("target")} {names.TASK_INTERVAL.name}{{task="canary"}} > {above_s:g} <= {most_s:g}'
    few = _few(one, pair, scale)
    return f"{burns}\nunless {missed} < {few}" if few else burns


def _few(one: Sli, pair: BurnWindow, scale: float) -> str | None:
    """Return the number of bad requests below which they matter little; None: the ratio is of all requests."""
    at_limit = f"{QUIET:g} * {allowed(one.objective)} * {on('target')} {limit(pair)}"
    if one in sli.USERS:
        share = f"{pair.long_s:g} / {on('target')} {WINDOW}"
        return f"{total_of_window(one, scale)} * {ON_TARGET} ({at_limit} * {share})"
    if one is not sli.AVAILABILITY:
        return f"{total(sli.AVAILABILITY, pair.long_s * scale, scale)} * {ON_TARGET} ({at_limit})"
    return None


def _sustained(one: Sli, pair: BurnWindow, scale: float) -> str:
    """Return the condition of a pair that must be sustained. Its value is the long window's multiple.

    A steady burn near the threshold crosses it several times a day. So that it did counts for some hours, and the
    alert lasts while most hours burn, the last ones too.
    """
    long_s, short_s = pair.long_s * scale, pair.short_s * scale
    long, ratio = one.error_record(duration(long_s)), allowed(one.objective)
    crossed = f"max_over_time({long}[{duration(_REMEMBERED * long_s)}])"
    median = f"quantile_over_time(0.5, {one.error_record(duration(short_s))}[{duration(long_s)}])"
    known = total(one, long_s, scale, "count_over_time")
    return (
        f"{long} / {ON_TARGET} {ratio} > {ON_TARGET} {least(pair)}\n"
        f"and {crossed} / {ON_TARGET} {ratio} > {ON_TARGET} {limit(pair)}\n"
        f"and {median} / {ON_TARGET} {ratio} > {ON_TARGET} {least(pair)}\n"
        f"and {known} >= {_KNOWN_SHARE * minutes(long_s, scale):.6g}\n"
        f"and {bad(one, 2 * short_s, scale)} > 0"
    )
