"""Thresholds of alerts that are for those to decide who are called: their defaults, limits and reasons. Pure.

`kneewatch alerts --set NAME=VALUE`, the mixin's `_config`, the chart's `prometheusRule.thresholds` and a table in
docs/alerts.md have these rows. The mixin and the chart have the rules with a token such as <<headroom>> in place of
each value, so a threshold stands in rules and their texts as it is: as "0.15", never calculated with.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from probe.capacity.trend.reference import DROP_RATIO


@dataclass(frozen=True, slots=True)
class Threshold:
    """A threshold, from `least` to `most`. `alert`: what it decides. `means`: what is compared. `why`: the default."""

    name: str
    default: float
    least: float
    most: float
    alert: str
    means: str
    why: str

    @property
    def token(self) -> str:
        return f"<<{self.name}>>"


PREEMPTION_SHARE = Threshold(
    "preemption_share", 0.1, 0.001, 1, "KneewatchPreemptionStorm",
    "preemptions for each request that finishes, at least ten in ten minutes",
    "above one in ten, requests that are computed twice set the 90th percentile of TPOT. From 0.01 on, preemptions show"
    " that the KV cache fills up; a well used server lives with that and keeps its objectives, so that ticket is off",
)  # fmt: skip
KV_CACHE_USAGE = Threshold(
    "kv_cache_usage", 1, 0.5, 1, "KneewatchKVCacheNearlyFull",
    "share of the KV cache in use, on average over a quarter of an hour",
    "1 is never exceeded: a full cache is good use of memory, and KneewatchKVCachePressure finds requests that suffer."
    " Set 0.95 to hear of it before they do",
)  # fmt: skip
HEADROOM = Threshold(
    "headroom", 0.15, 0.01, 0.9, "KneewatchHeadroomLow",
    "share of the capacity that users leave free",
    "a measured capacity is within 8 % of the truth: less than twice that may be nothing",
)  # fmt: skip
HEADROOM_FALLING = Threshold(
    "headroom_falling", 0.3, 0.01, 1, "KneewatchHeadroomLow",
    "the same while it falls, will be gone within two hours, and is below its minimum of the last week",
    "twice as early, since it takes hours to add a server",
)  # fmt: skip
CAPACITY_DROP = Threshold(
    "capacity_drop", DROP_RATIO, DROP_RATIO, 0.9, "KneewatchKneeDropped",
    "how far the capacity is below its baseline",
    "runs of an unchanged server differ by less. The monitor confirms drops from here on; KneewatchKneeDown has smaller"
    " ones",
)  # fmt: skip
FORECAST_ERROR = Threshold(
    "forecast_error", 0.3, 0.05, 10, "KneewatchForecastDisagrees",
    "difference between forecast and measured capacity",
    "a measured capacity is within 8 % of the truth, and a forecast fit for planning within 20 %",
)  # fmt: skip
QUEUE_REQUESTS = Threshold(
    "queue_requests", 5, 1, 100_000, "KneewatchQueueGrowth",
    "requests that wait at every moment, and by which the queue has grown at least",
    "fewer than a small server admits in one step",
)  # fmt: skip
THRESHOLDS = (
    PREEMPTION_SHARE,
    KV_CACHE_USAGE,
    HEADROOM,
    HEADROOM_FALLING,
    CAPACITY_DROP,
    FORECAST_ERROR,
    QUEUE_REQUESTS,
)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What the rules have for each threshold, by name: a number in figures, or a token for one."""

    texts: Mapping[str, str]

    def __getitem__(self, threshold: Threshold) -> str:
        return self.texts[threshold.name]

    def share(self, threshold: Threshold) -> str:
        """Return a template that shows the share as a percentage."""
        return f'{{{{ "{self[threshold]}" | humanizePercentage }}}}'


TOKENS = Thresholds({each.name: each.token for each in THRESHOLDS})


def thresholds(**values: float) -> Thresholds:
    """Return the defaults, but for these values."""
    return Thresholds({each.name: f"{values.get(each.name, each.default):.12g}" for each in THRESHOLDS})


DEFAULTS = thresholds()


def percent(threshold: Threshold) -> str:
    """Return the default of a share, for a page."""
    return f"{threshold.default * 100:g} %"
