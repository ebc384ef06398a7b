"""Recording rules for the Fleet dashboard: its values by target, every four minutes. Pure.

Reading a month of raw samples of fifty targets takes a Prometheus seconds for each panel. These records are a
sixteenth of the samples of a 15 s scrape interval. No alert needs them.
"""

from alerts import sli
from alerts.alert_labels import by, on
from alerts.rules import Recording, RuleGroup
from alerts.windows import duration
from exporters import names
from exporters.names import PREFIX, Series
from probe.observe.user_mix import USERS

UP = f"target:{PREFIX}up:min"
BUDGET = f"target:{PREFIX}error_budget_left_ratio:min"
HEADROOM = f"target:{names.HEADROOM.name}:min"
SHIFT = f"target:{names.KNEE_SHIFT.name}:min"
KV_CACHE = f"target:{names.SERVER['kv_cache_usage'].name}:max"
WAITING = f"target:{names.SERVER['waiting_by_reason'].name}:avg"
RECORDS = (UP, BUDGET, HEADROOM, SHIFT, KV_CACHE, WAITING)

# Less than 5 minutes, when a sample becomes stale. Long enough for two scrapes, also in a rehearsal.
_EVERY_S = 240.0
_AT_LEAST_S = 15.0
_MEASURED, _FORECAST, _FOR_USERS = 'mode!="forecast"', 'mode="forecast"', f'workload="{USERS}"'
_CAPACITIES = (f"{_FOR_USERS},{_MEASURED}", f"{_FOR_USERS},{_FORECAST}", _MEASURED, _FORECAST)


def up(since: str = "") -> str:
    """Return 1 or 0 by target: 0 if it was down within `since`. Without canaries, up means that scrapes succeed."""
    canaries, scrapes = (_over("max", "min", s, since) for s in (names.TARGET_UP, names.SERVER_UP))
    return f"({canaries} or {_on(since)} {scrapes})"


def budget(since: str = "") -> str:
    """Return the smallest remaining error budget of each target; below 0 it is overspent."""
    records = "|".join(one.budget_record for one in (*sli.CANARIES, *sli.USERS))
    return f'min {_by(since)} ({{__name__=~"{records}"}})'


def headroom(since: str = "") -> str:
    """Return the lowest headroom for what users send, or else for the workload of the capacity.

    Of each, that by a measured capacity comes before that by a forecast.
    """
    each = (_over("min", "min", names.HEADROOM, since, mode=f"{{{which}}}") for which in _CAPACITIES)
    return f"({f' or {_on(since)} '.join(each)})"


def shift(since: str = "") -> str:
    """Return the last measured capacity relative to its baseline, minus 1."""
    return _over("min", "min", names.KNEE_SHIFT, since, mode=f"{{{_MEASURED}}}")


def kv_cache(since: str = "") -> str:
    """Return the share of the KV cache in use."""
    return _over("max", "max", names.SERVER["kv_cache_usage"], since)


def waiting(since: str = "") -> str:
    """Return the number of requests in the server's queue."""
    # Several Kneewatches may read one server: count each of its reasons once.
    each = _over("max", "avg", names.SERVER["waiting_by_reason"], since, more=("reason",))
    return f"sum {_by(since)} ({each})"


def trends_group(scale: float = 1.0) -> RuleGroup:
    """Return the rules; `scale` shortens their interval."""
    every_s = max(_AT_LEAST_S, _EVERY_S * scale)
    every = duration(every_s)
    rules = (
        (UP, up(every)),
        (BUDGET, budget(every)),
        (HEADROOM, headroom(every)),
        (SHIFT, shift(every)),
        (KV_CACHE, kv_cache(every)),
        (WAITING, waiting(every)),
    )
    return RuleGroup("kneewatch-fleet", every_s, [Recording(name, expr) for name, expr in rules])


def _over(merge: str, function: str, series: Series, since: str, *, mode: str = "", more: tuple[str, ...] = ()) -> str:
    """Return the gauge now or, with `since`, its minimum, maximum or mean over that time."""
    value = f"{series.name}{mode}"
    return f"{merge} {_by(since, *more)} ({f'{function}_over_time({value}[{since}])' if since else value})"


def _by(since: str, *more: str) -> str:
    """Return the grouping clause. Records keep the labels of clusters; a dashboard has one row for a target."""
    return by("target", *more) if since else f"by ({', '.join(('target', *more))})"


def _on(since: str) -> str:
    return on("target") if since else "on (target)"
