"""Good and bad requests of each objective in PromQL: the one definition for rules and panels. Pure.

Canaries: requests that Kneewatch itself cancelled (outcome "aborted") do not count. Latency objectives judge
successful requests only, so a dead server spends the availability budget and not three budgets at once.

Users: their own requests, counted and measured by the server. Those that the client left (outcome "aborted") do not
count. The monitor counts the good ones itself: latencies at a bucket bound of the server's histograms
(kneewatch_users_objective_seconds), so no rule depends on the buckets of a version.
"""

from collections.abc import Callable
from dataclasses import dataclass

from alerts.alert_labels import by, on
from exporters import names
from exporters.names import PREFIX, Series
from probe.core.objectives import LATENCIES

Counter = tuple[str, str]  # a series' name and its label matchers
# As long as Prometheus takes a sample for the newest. A range also bridges scrapes that failed.
_NEWEST = "5m"


@dataclass(frozen=True, slots=True)
class Sli:
    """A ratio of good to all requests.

    `who`: canary or users. `by`: the labels it is grouped by, besides alert_labels.KEPT.
    `good_series` and `all_series`: a counter and its label matchers. `counted`: what the latter counts, as part of a
    record's name. `is_zero_if_missing`: whether a missing series of good requests means zero (True) or unknown (False).
    """

    objective: str
    who: str
    by: tuple[str, ...]
    good_series: Counter
    all_series: Counter
    counted: str
    is_zero_if_missing: bool

    def counters(self) -> dict[str, str]:
        """Return the expressions to record of the newest counters, of all requests and of good ones, by record.

        Each is a sum of one Kneewatch's series, which are reset together; they and what they count begin at zero.
        """
        group = by("job", "instance", *self.by)
        series = {self.all_record: self.all_series, self._good_record: self.good_series}
        return {name: f"sum {group} (last_over_time({_matching(one)}[{_NEWEST}]))" for name, one in series.items()}

    def total_grown(self, step: str) -> str:
        """Return the number of requests that have been counted since the counters were recorded a `step` before."""
        total = _recorded_growth(self.all_record, step)
        if not self.is_zero_if_missing:
            # A Kneewatch that does not count good requests does not know whether these were good.
            total += f" and {on('job', 'instance', *self.by)} {self._good_record}"
        return f"sum {self._by} ({total})"

    def bad_grown(self, step: str) -> str:
        """Return the number of requests among them that missed the objective, of those in `total_record`."""
        total, good = self.total_record(step), f"sum {self._by} ({_recorded_growth(self._good_record, step)})"
        return f"{total} - ({good}\n  or 0 * {total})" if self.is_zero_if_missing else f"{total} - {good}"

    def good_ratio(self, window: str, selector: str = "") -> str:
        """Return the share that met the objective. No sample, rather than NaN, without requests."""

        def rate(series: Counter) -> str:
            return f"rate({_matching(series, selector)}[{window}])"

        good = rate(self.good_series)
        if self.is_zero_if_missing:
            # No label set is on both sides, so `or` keeps both, and the zeros replace missing series.
            good = f"{good} or 0 * {rate(self.all_series)}"
        return f"sum {self._by} ({good})\n  / ({self._total(rate)} > 0)"

    def error_ratio(self, window: str, selector: str = "") -> str:
        """Return the share that missed it; never below 0, despite extrapolation."""
        return f"clamp_min(1 -\n  {self.good_ratio(window, selector)}, 0)"

    def error_record(self, window: str) -> str:
        """Return the name of the recording rule for that share."""
        return f"{self._level}_errors:ratio_rate{window}"

    def bad_record(self, window: str) -> str:
        """Return the name of the recording rule for the number of requests that missed it."""
        return f"{self._level}_errors:increase{window}"

    def total_record(self, window: str) -> str:
        """Return the name of the recording rule for the number of requests judged."""
        return f"{self._level}_requests:increase{window}"

    @property
    def usual_record(self) -> str:
        """Return the name of the recording rule for the share that missed it in the median of the last hours."""
        return f"{self._level}_errors:usual_ratio"

    def burn_record(self, severity: str) -> str:
        """Return the name of the recording rule for how many times too fast it burns the budget, where it does."""
        return f"{self._level}_burn:{severity}"

    @property
    def budget_record(self) -> str:
        """Return the name of the recording rule for the remaining error budget: 1 all, 0 none, below 0 overspent."""
        return f"{self._level}_budget:left_ratio"

    def _total(self, counted: Callable[[Counter], str]) -> str:
        total = counted(self.all_series)
        if not self.is_zero_if_missing:
            # A Kneewatch that does not count good requests does not know whether these were good.
            total += f" and {on('job', 'instance', 'target')} {counted(self.good_series)}"
        return f"sum {self._by} ({total})"

    @property
    def _level(self) -> str:
        return f"{'_'.join(self.by)}:{PREFIX}{self.who}_{self.objective}"

    @property
    def all_record(self) -> str:
        """Return the name of the recording rule for the newest counter of all requests."""
        return f"instance_{'_'.join(self.by)}:{PREFIX}{self.who}_{self.counted}:newest"

    @property
    def _good_record(self) -> str:
        return f"instance_{'_'.join(self.by)}:{PREFIX}{self.who}_{self.objective}_good:newest"

    @property
    def _by(self) -> str:
        return by(*self.by)


# Not by model: it is "unknown" until the server reports it, and the history should continue.
BY = ("target", "workload")
_CANARY = 'traffic="canary"'


def _of_canaries(objective: str, counted: str, matcher: str, *, is_usual: bool = True) -> Sli:
    """Return the SLI. Of an unusual objective, requests of targets without it are not recorded."""
    good = names.GOOD_REQUESTS.name, f'{_CANARY},objective="{objective}"'
    every = names.REQUESTS.name, f"{_CANARY},{matcher}"
    return Sli(objective, "canary", BY, good, every, counted, is_zero_if_missing=is_usual)


def _of_users_latency(objective: str, histogram: Series) -> Sli:
    # A monitor that does not count good requests is an older one, or cannot: then no request counts as bad.
    good = names.USERS_GOOD.name, f'objective="{objective}"'
    every = f"{histogram.name}_count", ""
    return Sli(objective, "users", ("target",), good, every, f"{objective}_requests", is_zero_if_missing=False)


# Of servers that count failed requests; of others the monitor counts no good ones, either.
USERS_AVAILABILITY = Sli(
    "availability",
    "users",
    ("target",),
    good_series=(names.USERS_GOOD.name, 'objective="availability"'),
    all_series=(names.USERS_REQUESTS.name, 'outcome!="aborted"'),
    counted="availability_requests",
    is_zero_if_missing=False,
)
AVAILABILITY = _of_canaries("availability", "requests", 'outcome!="aborted"')
CANARIES = (
    AVAILABILITY,
    *(_of_canaries(name, "answers", 'outcome="ok"', is_usual=bool(row.usual)) for name, row in LATENCIES.items()),
)
USERS = (USERS_AVAILABILITY, *(_of_users_latency(name, series) for name, series in names.USERS_LATENCIES.items()))
ALL = CANARIES  # the SLIs of a target with canaries


def grown(series: str, ago: str) -> str:
    """Return how much a counter has grown since `ago`, for a text: exactly, unlike increase(), which extrapolates.

    A counter that fell was reset and has grown to its value. Of a counter that did not exist `ago`, the first sample's
    value is not growth: Prometheus may have begun to scrape it late.
    """
    newest, before = f"last_over_time({series}[{_NEWEST}])", f"last_over_time({series}[{_NEWEST}] offset {ago})"
    return f"({newest} - ({before} or min_over_time({series}[{ago}])) >= 0 or {newest})"


def _recorded_growth(record: str, step: str) -> str:
    """Return how much a recorded counter has grown since it was recorded a step before.

    So each request is in one minute, whenever its sample arrives: a difference of the samples of two moments would miss
    those that come later than the second. A counter that fell was reset and has grown to its value.
    """
    before = f"{record} offset {step}"
    return f"({record} - {before} >= 0 or ({record} and {before}))"


def _matching(series: Counter, selector: str = "") -> str:
    name, own = series
    matchers = ",".join(part for part in (own, selector) if part)
    return f"{name}{{{matchers}}}" if matchers else name
