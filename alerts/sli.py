"""What counts as good and as bad in an objective, in PromQL: the one definition for rules and panels. Pure.

Requests that we cancelled ourselves (outcome "aborted") count for nobody. Latency objectives judge
the requests that succeeded, so a dead server spends the availability budget and not three at once.
"""

from dataclasses import dataclass

from exporters import names

# The model is left out: it is "unknown" until the server has told it, and the history goes on.
BY = "target, workload"


@dataclass(frozen=True, slots=True)
class Sli:
    """A ratio of good to all requests. `counted` selects the outcomes that count."""

    objective: str
    counted: str

    def total(self, window: str, selector: str = "", function: str = "increase") -> str:
        """Canary requests that count, over `window`; `selector` is more label matchers."""
        return f"sum by ({BY}) ({self._counted(window, selector, function)})"

    def good(self, window: str, selector: str = "", function: str = "increase") -> str:
        """Those of them that met the objective; 0 where no such series is there yet."""
        matchers = _join('traffic="canary"', f'objective="{self.objective}"', selector)
        good = f"{function}({names.GOOD_REQUESTS.name}{{{matchers}}}[{window}])"
        # No label set is on both sides, so `or` keeps both, and the zeros stand in for what is missing.
        return f"sum by ({BY}) ({good} or 0 * {self._counted(window, selector, function)})"

    def bad(self, window: str, selector: str = "") -> str:
        """How many requests missed the objective."""
        return f"clamp_min(\n  {self.total(window, selector)}\n  - {self.good(window, selector)}, 0)"

    def good_ratio(self, window: str, selector: str = "") -> str:
        """The share that met the objective. No sample, rather than NaN, where nothing was sent."""
        return f"{self.good(window, selector, 'rate')}\n  / ({self.total(window, selector, 'rate')} > 0)"

    def error_ratio(self, window: str, selector: str = "") -> str:
        """The share that missed it; never below 0, whatever extrapolation does."""
        return f"clamp_min(1 -\n  {self.good_ratio(window, selector)}, 0)"

    def _counted(self, window: str, selector: str, function: str) -> str:
        matchers = _join('traffic="canary"', self.counted, selector)
        return f"{function}({names.REQUESTS.name}{{{matchers}}}[{window}])"


AVAILABILITY = Sli("availability", 'outcome!="aborted"')
TTFT = Sli("ttft", 'outcome="ok"')
TPOT = Sli("tpot", 'outcome="ok"')
ALL = (AVAILABILITY, TTFT, TPOT)


def _join(*matchers: str) -> str:
    return ",".join(matcher for matcher in matchers if matcher)
