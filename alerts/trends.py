"""What the Fleet dashboard shows over time, noted every four minutes by target, as recording rules. Pure.

A month of raw samples of fifty targets takes a Prometheus some seconds to read, for each panel; of these notes there
are a sixteenth, at a scrape every 15 s. No alert needs them.
"""

from alerts import sli
from alerts.rules import Recording, RuleGroup
from alerts.windows import duration
from exporters import names
from exporters.names import PREFIX, Series

UP = f"target:{PREFIX}up:min"
BUDGET = f"target:{PREFIX}error_budget_left_ratio:min"
HEADROOM = f"target:{names.HEADROOM.name}:min"
SHIFT = f"target:{names.KNEE_SHIFT.name}:min"
KV_CACHE = f"target:{names.SERVER_KV.name}:max"
WAITING = f"target:{names.SERVER_WAITING.name}:avg"
RECORDS = (UP, BUDGET, HEADROOM, SHIFT, KV_CACHE, WAITING)

# Under 5 minutes, where a sample would count as stale. Two scrapes have to lie in it, also in a rehearsal.
_EVERY_S, _AT_LEAST_S = 240.0, 15.0
_MEASURED, _FORECAST = '{mode!="forecast"}', '{mode="forecast"}'


def up(since: str = "") -> str:
    """1 or 0, by target: 0 if it was down once `since` so long. One without canaries is up while its page is read."""
    canaries, readings = (_over("max", "min", s, since) for s in (names.TARGET_UP, names.SERVER_UP))
    return f"({canaries} or on (target) {readings})"


def budget() -> str:
    """What is left of the error budget that a target has least of; below 0: of one that is overspent."""
    records = "|".join(one.budget_record for one in (*sli.CANARIES, *sli.USERS))
    return f'min by (target) ({{__name__=~"{records}"}})'


def headroom(since: str = "") -> str:
    """The least, as load has measured the capacity; as it was forecast where nothing has."""
    measured, forecast = (_over("min", "min", names.HEADROOM, since, mode=mode) for mode in (_MEASURED, _FORECAST))
    return f"({measured} or on (target) {forecast})"


def shift(since: str = "") -> str:
    """The last measured capacity over its baseline, less 1."""
    return _over("min", "min", names.KNEE_SHIFT, since, mode=_MEASURED)


def kv_cache(since: str = "") -> str:
    """The share of the KV cache in use."""
    return _over("max", "max", names.SERVER_KV, since)


def waiting(since: str = "") -> str:
    """Requests in the server's queue."""
    # Several Kneewatches may read one server: each of its reasons counts once.
    return f"sum by (target) ({_over('max', 'avg', names.SERVER_WAITING, since, by='target, reason')})"


def trends_group(scale: float = 1.0) -> RuleGroup:
    """The rules; `scale` shortens how often they are noted."""
    every_s = max(_AT_LEAST_S, _EVERY_S * scale)
    every = duration(every_s)
    rules = (
        (UP, up(every)),
        (BUDGET, budget()),
        (HEADROOM, headroom(every)),
        (SHIFT, shift(every)),
        (KV_CACHE, kv_cache(every)),
        (WAITING, waiting(every)),
    )
    return RuleGroup("kneewatch-fleet", every_s, [Recording(name, expr) for name, expr in rules])


def _over(merge: str, function: str, series: Series, since: str, *, mode: str = "", by: str = "target") -> str:
    """The gauge now or, with `since`, its least, greatest or mean over so long."""
    value = f"{series.name}{mode}"
    return f"{merge} by ({by}) ({f'{function}_over_time({value}[{since}])' if since else value})"
