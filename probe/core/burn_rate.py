"""Burn rates of the error budgets, from the canaries of the last hour. Pure.

A burn rate is the ratio of bad requests divided by the ratio that the objective allows. At 1 the budget lasts exactly
as long as its window.
"""

from collections import Counter, deque
from collections.abc import Mapping

from probe.core import objectives as slo
from probe.core.objectives import Objectives

_MINUTE_NS = 60 * 10**9
_MINUTES = 60
# Fewer bad canaries count as chance, as in the alerts: at an availability of 99.9 % and a canary every 15 s, one
# failure is a burn rate of 4.
_MIN_BAD = 3


class BurnRates:
    """The canaries of one target in the last hour, counted by minute."""

    def __init__(self) -> None:
        self._minutes: deque[tuple[int, Counter[tuple[str, bool]]]] = deque(maxlen=_MINUTES)

    def add(self, met: Mapping[str, bool], at_ns: int) -> None:
        """Count a canary; `met` is the result of slo.met."""
        minute = at_ns // _MINUTE_NS
        if not self._minutes or self._minutes[-1][0] < minute:
            self._minutes.append((minute, Counter()))
        self._minutes[-1][1].update(met.items())

    def rates(self, objectives: Objectives, now_ns: int) -> dict[str, float]:
        """Return the burn rate of each objective judged in the last hour; 0 if fewer than three canaries were bad."""
        first = now_ns // _MINUTE_NS - _MINUTES
        counted: Counter[tuple[str, bool]] = Counter()
        for minute, counts in self._minutes:
            if minute > first:
                counted += counts
        rates = {}
        for name, ratio in slo.promised(objectives).items():
            good, bad = counted[name, True], counted[name, False]
            if good + bad:
                rates[name] = bad / (good + bad) / (1 - ratio) if bad >= _MIN_BAD else 0.0
        return rates
