"""What counts as good and as bad in an objective, in PromQL: the one definition for rules and panels. Pure.

Canaries: requests that we cancelled ourselves (outcome "aborted") count for nobody. Latency objectives judge
the requests that succeeded, so a dead server spends the availability budget and not three at once.

Users: their own requests, by the server's clock. The monitor counts the good ones itself, at a bound of the
server's own buckets (kneewatch_users_objective_seconds), so no rule asks for a bucket that another version lacks.
"""

from dataclasses import dataclass

from exporters import names
from exporters.names import PREFIX, Series


@dataclass(frozen=True, slots=True)
class Sli:
    """A ratio of good to all requests.

    `who`: canary or users. `by`: the labels it is told by. `good_series` and `all_series`: a counter and the
    matchers that select from it. `zeros`: whether good ones that have no series are none, or not known.
    """

    objective: str
    who: str
    by: tuple[str, ...]
    good_series: tuple[str, str]
    all_series: tuple[str, str]
    zeros: bool

    def total(self, window: str, selector: str = "", function: str = "increase") -> str:
        """Requests that count, over `window`; `selector` is more label matchers."""
        counted = _over(self.all_series, window, selector, function)
        if not self.zeros:
            # Of a Kneewatch that does not count good ones nobody knows whether these were good.
            counted += f" and on (job, instance, target) {_over(self.good_series, window, selector, function)}"
        return f"sum by ({self._by}) ({counted})"

    def good(self, window: str, selector: str = "", function: str = "increase") -> str:
        """Those of them that met the objective; of canaries, 0 where no such series is there yet."""
        good = _over(self.good_series, window, selector, function)
        if self.zeros:
            # No label set is on both sides, so `or` keeps both, and the zeros stand in for what is missing.
            good = f"{good} or 0 * {_over(self.all_series, window, selector, function)}"
        return f"sum by ({self._by}) ({good})"

    def bad(self, window: str, selector: str = "") -> str:
        """How many requests missed the objective."""
        return f"clamp_min(\n  {self.total(window, selector)}\n  - {self.good(window, selector)}, 0)"

    def good_ratio(self, window: str, selector: str = "") -> str:
        """The share that met the objective. No sample, rather than NaN, where nothing was asked."""
        return f"{self.good(window, selector, 'rate')}\n  / ({self.total(window, selector, 'rate')} > 0)"

    def error_ratio(self, window: str, selector: str = "") -> str:
        """The share that missed it; never below 0, whatever extrapolation does."""
        return f"clamp_min(1 -\n  {self.good_ratio(window, selector)}, 0)"

    def error_record(self, window: str) -> str:
        """Name of the recording rule of that share."""
        return f"{self._level}_errors:ratio_rate{window}"

    def bad_record(self, window: str) -> str:
        """Name of the recording rule of how many missed it."""
        return f"{self._level}_errors:increase{window}"

    def total_record(self, window: str) -> str:
        """Name of the recording rule of how many requests it judges."""
        return f"{self._level}_requests:increase{window}"

    @property
    def budget_record(self) -> str:
        """Name of the recording rule of the error budget that is left: 1 is all of it, 0 nothing, below 0 overspent."""
        return f"{self._level}_budget:left_ratio"

    @property
    def _level(self) -> str:
        return f"{'_'.join(self.by)}:{PREFIX}{self.who}_{self.objective}"

    @property
    def _by(self) -> str:
        return ", ".join(self.by)


# The model is left out: it is "unknown" until the server has told it, and the history goes on.
BY = ("target", "workload")
_CANARY = 'traffic="canary"'


def _of_canaries(objective: str, counted: str) -> Sli:
    good = names.GOOD_REQUESTS.name, f'{_CANARY},objective="{objective}"'
    return Sli(objective, "canary", BY, good, (names.REQUESTS.name, f"{_CANARY},{counted}"), zeros=True)


def _of_users(objective: str, histogram: Series) -> Sli:
    # A monitor that does not count good ones is an older one, or one that cannot: then nobody knows, and none is bad.
    good = names.USERS_GOOD.name, f'objective="{objective}"'
    return Sli(objective, "users", ("target",), good, (f"{histogram.name}_count", ""), zeros=False)


AVAILABILITY = _of_canaries("availability", 'outcome!="aborted"')
TTFT = _of_canaries("ttft", 'outcome="ok"')
TPOT = _of_canaries("tpot", 'outcome="ok"')
USERS_TTFT = _of_users("ttft", names.USERS_TTFT)
USERS_TPOT = _of_users("tpot", names.USERS_TPOT)
CANARIES = (AVAILABILITY, TTFT, TPOT)
USERS = (USERS_TTFT, USERS_TPOT)
ALL = CANARIES  # what a target with canaries is judged by


def _over(series: tuple[str, str], window: str, selector: str, function: str) -> str:
    name, own = series
    matchers = ",".join(part for part in (own, selector) if part)
    return f"{function}({name}{f'{{{matchers}}}' if matchers else ''}[{window}])"
