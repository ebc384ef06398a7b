"""How fast the canaries of the last hour spend their error budgets. It does no I/O.

A burn rate is the share of bad requests over the share that the objective allows: at 1 the budget lasts exactly as long
as its window.
"""

from collections import Counter, deque
from collections.abc import Mapping

from probe.core import objectives as slo
from probe.core.objectives import Objectives

_MINUTE_NS = 60 * 10**9
_MINUTES = 60
# One bad canary is an accident and two are a coincidence, as for the alerts: at an availability of 99.9 % and a canary
# every 15 s, one failure alone is a burn rate of 4.
_MIN_BAD = 3


class BurnRates:
    """The last hour of one target, by minute."""

    def __init__(self) -> None:
        self._minutes: deque[tuple[int, Counter[tuple[str, bool]]]] = deque(maxlen=_MINUTES)

    def add(self, met: Mapping[str, bool], at_ns: int) -> None:
        """A canary ended; `met` as slo.met says it."""
        minute = at_ns // _MINUTE_NS
        if not self._minutes or self._minutes[-1][0] < minute:
            self._minutes.append((minute, Counter()))
        self._minutes[-1][1].update(met.items())

    def rates(self, objectives: Objectives, now_ns: int) -> dict[str, float]:
        """The burn rate of each objective that canaries of the last hour judge; 0 where fewer than three were bad."""
        first = now_ns // _MINUTE_NS - _MINUTES
        seen: Counter[tuple[str, bool]] = Counter()
        for minute, counts in self._minutes:
            if minute > first:
                seen += counts
        rates = {}
        for name, ratio in slo.promised(objectives).items():
            good, bad = seen[name, True], seen[name, False]
            if good + bad:
                rates[name] = bad / (good + bad) / (1 - ratio) if bad >= _MIN_BAD else 0.0
        return rates
