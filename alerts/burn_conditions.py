"""Conditions of burn alerts in PromQL: the bad requests of an SLI burn an error budget too fast. Pure.

They read the objectives from series (budget.py), so they are the same for every target. A pair of windows that
cannot fire, because more than all requests would have to be bad, does not.

Canaries are few and evenly spaced; users come in bursts and hardly at night. So users need more bad requests.

A page is recorded as an incident: it begins where a pair burns, and goes on while requests are bad, so it ends some 20
minutes after the last one. The windows of hours still remember it then. For as long as they do, they page for nothing;
many bad requests in ten minutes do. The error budgets keep their memory.
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
from alerts.down import DOWN
from alerts.rules import Recording
from alerts.sli import Sli
from alerts.windows import HOUR_S, MIN_BAD_EVENTS, PAIRS, BurnWindow, duration
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
# A page lasts until so much time has passed without bad requests, or at twice the allowed rate: canaries of an interval
# of 15 s that fail now and then, one in fifty, do so every 13 minutes.
PAGE_KEEP_S = 1200.0
_GOES_ON = 2
# What rings within ten minutes although an hour or six remember an incident: so many canaries in ten minutes, and this
# share of them; one in 20 fails six of 40 in one of 70 such windows. Of an objective with a lower ratio, half of them.
_DENSE_S = 600.0
_DENSE, _DENSE_MOST = 0.15, 0.5
_DENSE_CANARIES = 4
# Clearly worse than ten minutes before, and than in most of the last hours.
_WORSE, _UNUSUAL = 3, 4
# Above this share a pair pages, whatever is usual. Of canaries that fail one in fifty all day, none has it in an hour.
_UNUSUAL_MOST = 0.08
_OR = "\nor\n"
_SUSTAINED, _STEADY = "sustained", "steady"
_STEADY_S = 4 * HOUR_S


def condition(one: Sli, severity: str, scale: float) -> Recording:
    """Return the rule that records where the SLI pages, or where a pair of a ticket burns.

    The value of a page is the multiple of the allowed ratio in the last minutes, which is 0 while it waits for its end.
    """
    record = one.burn_record(severity)
    pairs = [pair for pair in PAIRS if pair.severity == severity and (pair.every_s is None or one in sli.CANARIES)]
    if severity != "page":
        return Recording(record, _OR.join(f"(\n{_pair(one, pair, scale)}\n)" for pair in pairs))
    (fast, *_) = pairs
    of_hour = (f"(\n{_pair(one, pair, scale)}\n)" for pair in pairs if not pair.is_sustained)
    begins = [
        f"((\n{_OR.join(of_hour)}\n){_unless_paged(one, fast.long_s, scale)})",
        one.burn_record(_SUSTAINED),
        f"(\n{dense(one, scale)}\nand {_paged(one, fast.long_s, scale)}\n)",
        f"({record}\nand {_still_bad(one, scale)})",
    ]
    if one is sli.AVAILABILITY:
        begins.append(f"({total(one, fast.short_s * scale, scale)} and {on('target')} {DOWN})")
    lately = f"clamp_min({total(one, fast.short_s * scale, scale)}, 1)"
    pace = f"{bad(one, fast.short_s * scale, scale)} / {lately} / {ON_TARGET} {allowed(one.objective)}"
    return Recording(record, f"{pace}\nand (\n{_OR.join(begins)}\n)")


def burning(one: Sli, severity: str, scale: float, matcher: str = "") -> str:
    """Return where the recorded condition holds: of a page now, of a ticket when it was last evaluated."""
    record = f"{one.burn_record(severity)}{matcher}"
    # Twice the interval: one evaluation may fail.
    return f"last_over_time({record}[{duration(2 * sum_s(scale))}])" if severity == "ticket" else record


def sustained(one: Sli, scale: float) -> list[Recording]:
    """Return the rules for the pair that must be sustained: what is usual, where it begins, and where it lasts.

    It pages once for a burn that lasts for days: as long as most hours burn, it is the same one.
    """
    (pair,) = (pair for pair in PAIRS if pair.is_sustained)
    steady, record = one.burn_record(_STEADY), one.error_record(duration(pair.short_s * scale))
    told = f"count_over_time({steady}[{duration(_DENSE_S * scale)}])"
    begins = f"{_sustained(one, pair, scale)}{_unless_paged(one, pair.long_s, scale)}\nunless {told}"
    median = f"quantile_over_time(0.5, {record}[{duration(_STEADY_S * scale)}])"
    lasts = (
        f"{one.burn_record(_SUSTAINED)}\nor {_paged(one, 2 * HOUR_S, scale)}\n"
        f"or {steady} and {median} > {ON_TARGET} ({_GOES_ON} * {allowed(one.objective)})"
    )
    long_s = pair.long_s * scale
    known = f"{total(one, long_s, scale, 'count_over_time')} >= {_KNOWN_SHARE * minutes(long_s, scale):.6g}"
    usual = f"quantile_over_time(0.5, {record}[{duration(long_s)}])\nand {known}"
    return [
        Recording(one.usual_record, usual),
        Recording(one.burn_record(_SUSTAINED), begins),
        Recording(steady, lasts),
    ]


def worse(one: Sli, scale: float) -> str:
    """Return where requests are clearly worse than ten minutes before, and than usual, while an older page fires.

    The page, of canaries or users, has fired in all of those ten minutes, so no incident is worse than its beginning.
    """
    ten_s = _DENSE_S * scale
    ago = f" offset {duration(ten_s)}"
    paged = [other.burn_record("page") for other in (*sli.CANARIES, *sli.USERS) if other.objective == one.objective]
    older = f" or {on('target')} ".join(f"{record} offset {duration(2 * ten_s)}" for record in paged)
    now, before = (f"{bad(one, ten_s, scale, ago=each)}" for each in ("", ago))
    sent, sent_before = (f"clamp_min({total(one, ten_s, scale, ago=each)}, 1)" for each in ("", ago))
    return (
        f"{dense(one, scale)}\n"
        f"and {now} / {sent} > {_WORSE} * ({before} / {sent_before} or 0 * {now})\n"
        f"and {on('target')} ({older})\n"
        f"unless {now} / {sent} <= clamp_max({_UNUSUAL} * {one.usual_record}, {_DENSE_MOST:g})"
    )


def dense(one: Sli, scale: float) -> str:
    """Return where many requests of ten minutes were bad. Its value is their number."""
    ten_s = _DENSE_S * scale
    at_least = MIN_BAD_USERS if one in sli.USERS else _DENSE_CANARIES
    (fast, *_) = PAIRS
    share = f"clamp({limit(fast)} * {ON_TARGET} {allowed(one.objective)}, {_DENSE:g}, {_DENSE_MOST:g})"
    missed = bad(one, ten_s, scale)
    return f"{missed} >= {at_least}\nand {missed} / {total(one, ten_s, scale)} >= {ON_TARGET} {share}"


def _paged(one: Sli, window_s: float, scale: float) -> str:
    return f"count_over_time({one.burn_record('page')}[{duration(window_s * scale)}])"


def _unless_paged(one: Sli, window_s: float, scale: float) -> str:
    """Return an operand: what the window remembers has already been told."""
    return f"\nunless {_paged(one, window_s, scale)}"


def _still_bad(one: Sli, scale: float) -> str:
    lately = PAGE_KEEP_S * scale
    share = f"{bad(one, lately, scale)} / clamp_min({total(one, lately, scale)}, 1)"
    return f"{share} > {ON_TARGET} ({_GOES_ON} * {allowed(one.objective)})"


def _pair(one: Sli, pair: BurnWindow, scale: float) -> str:
    """Return the condition of a pair of windows. Its value is the short window's multiple of the allowed ratio."""
    long_s, short_s = pair.long_s * scale, pair.short_s * scale
    at_least = MIN_BAD_USERS if one in sli.USERS else MIN_BAD_EVENTS
    missed = bad(one, long_s, scale)
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
    burns = f"{burns}\nunless {missed} < {few}" if few else burns
    if pair.severity != "page":
        return burns
    usual = f"clamp_max({_UNUSUAL} * {one.usual_record}, {_UNUSUAL_MOST:g})"
    return f"{burns}\nunless {missed} / ({padded_total(one, long_s, scale)}) <= {usual}"


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
    """Return the condition of the pair that must be sustained. Its value is the long window's multiple.

    The last minutes must have a bad request, so that the page that begins lasts longer than a moment.
    """
    long_s, short_s = pair.long_s * scale, pair.short_s * scale
    ratio = allowed(one.objective)
    missed = bad(one, long_s, scale)
    at_least = MIN_BAD_USERS if one in sli.USERS else MIN_BAD_EVENTS
    lately = 1 if one in sli.USERS else _MIN_BAD_LATELY["page"]
    few = _few(one, pair, scale)
    return (
        f"{missed} / ({padded_total(one, long_s, scale)})\n"
        f"  / {ON_TARGET} {ratio} > {ON_TARGET} {limit(pair)}\n"
        f"and {one.usual_record} / {ON_TARGET} {ratio} > {ON_TARGET} {least(pair)}\n"
        f"and {missed} >= {at_least}\n"
        f"and {bad(one, short_s, scale)} >= {lately}\n"
        f"and {_still_bad(one, scale)}" + (f"\nunless {missed} < {few}" if few else "")
    )
