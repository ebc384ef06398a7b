"""Good and bad requests of each objective in PromQL: the one definition for rules and panels. Pure.

Canaries: requests that Kneewatch itself cancelled (outcome "aborted") do not count. Latency objectives judge
successful requests only, so a dead server spends the availability budget and not three budgets at once.

Users: their own requests, measured by the server. The monitor counts the good ones itself, at a bucket bound of the
server's histograms (kneewatch_users_objective_seconds), so no rule needs a bucket that another version lacks.
"""

from dataclasses import dataclass

from exporters import names
from exporters.names import PREFIX, Series


@dataclass(frozen=True, slots=True)
class Sli:
    """A ratio of good to all requests.

    `who`: canary or users. `by`: the labels it is grouped by. `good_series` and `all_series`: a counter and its label
    matchers. `is_zero_if_missing`: whether a missing series of good requests means zero (True) or unknown (False).
    """

    objective: str
    who: str
    by: tuple[str, ...]
    good_series: tuple[str, str]
    all_series: tuple[str, str]
    is_zero_if_missing: bool

    def total(self, window: str, selector: str = "", function: str = "increase") -> str:
        """Return the number of requests that count, over `window`; `selector` adds label matchers."""
        counted = _over(self.all_series, window, selector, function)
        if not self.is_zero_if_missing:
            # A Kneewatch that does not count good requests does not know whether these were good.
            counted += f" and on (job, instance, target) {_over(self.good_series, window, selector, function)}"
        return f"sum by ({self._by}) ({counted})"

    def good(self, window: str, selector: str = "", function: str = "increase") -> str:
        """Return the number of requests that met the objective; for canaries, 0 before the series exists."""
        good = _over(self.good_series, window, selector, function)
        if self.is_zero_if_missing:
            # No label set is on both sides, so `or` keeps both, and the zeros replace missing series.
            good = f"{good} or 0 * {_over(self.all_series, window, selector, function)}"
        return f"sum by ({self._by}) ({good})"

    def bad(self, window: str, selector: str = "") -> str:
        """Return the number of requests that missed the objective."""
        return f"clamp_min(\n  {self.total(window, selector)}\n  - {self.good(window, selector)}, 0)"

    def good_ratio(self, window: str, selector: str = "") -> str:
        """Return the share that met the objective. No sample, rather than NaN, without requests."""
        return f"{self.good(window, selector, 'rate')}\n  / ({self.total(window, selector, 'rate')} > 0)"

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
    def budget_record(self) -> str:
        """Return the name of the recording rule for the remaining error budget: 1 all, 0 none, below 0 overspent."""
        return f"{self._level}_budget:left_ratio"

    @property
    def _level(self) -> str:
        return f"{'_'.join(self.by)}:{PREFIX}{self.who}_{self.objective}"

    @property
    def _by(self) -> str:
        return ", ".join(self.by)


# Not by model: it is "unknown" until the server reports it, and the history should continue.
BY = ("target", "workload")
_CANARY = 'traffic="canary"'


def _of_canaries(objective: str, counted: str) -> Sli:
    good = names.GOOD_REQUESTS.name, f'{_CANARY},objective="{objective}"'
    return Sli(objective, "canary", BY, good, (names.REQUESTS.name, f"{_CANARY},{counted}"), is_zero_if_missing=True)


def _of_users(objective: str, histogram: Series) -> Sli:
    # A monitor that does not count good requests is an older one, or cannot: then no request counts as bad.
    good = names.USERS_GOOD.name, f'objective="{objective}"'
    return Sli(objective, "users", ("target",), good, (f"{histogram.name}_count", ""), is_zero_if_missing=False)


AVAILABILITY = _of_canaries("availability", 'outcome!="aborted"')
TTFT = _of_canaries("ttft", 'outcome="ok"')
TPOT = _of_canaries("tpot", 'outcome="ok"')
USERS_TTFT = _of_users("ttft", names.USERS_TTFT)
USERS_TPOT = _of_users("tpot", names.USERS_TPOT)
CANARIES = (AVAILABILITY, TTFT, TPOT)
USERS = (USERS_TTFT, USERS_TPOT)
ALL = CANARIES  # the SLIs of a target with canaries


def _over(series: tuple[str, str], window: str, selector: str, function: str) -> str:
    name, own = series
    matchers = ",".join(part for part in (own, selector) if part)
    return f"{function}({name}{f'{{{matchers}}}' if matchers else ''}[{window}])"
