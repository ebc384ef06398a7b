"""What is left of each error budget, as recording rules. Pure.

In: which objectives are kept over which windows. Out: a group of rules, among them each Sli.budget_record: 1 less the
share of requests that were bad in the objective's window over the share that may be. 1 is an untouched budget, 0 a
spent one, below 0 it is overspent.

A month of raw samples for every target is too much to read again and again. So what came in is noted every four
minutes, and the month is the sum of these notes: each request has the same weight, whenever it came, and an hour that
Prometheus was down for has none.

Where there is less than the whole window (a new target, a Prometheus that forgets after 15 days) the budget is that
of the requests there were: one failure in the first hour of 99.9 % has overspent it many times, and it comes back as
requests come in. Until something was counted there is no sample, and never NaN.
"""

from collections.abc import Mapping, Sequence

from alerts.rules import Recording, RuleGroup, one_of
from alerts.sli import Sli
from alerts.windows import duration
from exporters import names

# Under 5 minutes, where a sample would count as stale, and a month is not more than 10,800 of them.
_NOTED_EVERY_S = 240.0
# Two scrapes have to lie in it, also in a rehearsal.
_NOTED_AT_LEAST_S = 15.0


def budget_group(kept: Mapping[tuple[Sli, float], Sequence[str]], scale: float = 1.0) -> RuleGroup:
    """The rules; `kept`: the targets that keep an objective, by what is judged and the window (s) it is kept over.

    `scale` shortens the windows.
    """
    every_s = max(_NOTED_AT_LEAST_S, _NOTED_EVERY_S * scale)
    every = duration(every_s)
    rules: list[Recording] = []
    for one in dict.fromkeys(one for one, _ in kept):
        windows = {window_s: targets for (other, window_s), targets in kept.items() if other == one}
        rules += _noted(one, every)
        left = []
        for window_s, targets in windows.items():
            matcher = f"{{{one_of(targets)}}}" if len(windows) > 1 else ""
            window = duration(window_s * scale)
            total = f"sum_over_time({one.total_record(every)}{matcher}[{window}])"
            rules.append(Recording(one.total_record(window), total))
            left.append(_left(one, f"{one.bad_record(every)}{matcher}[{window}]", one.total_record(window)))
        # One rule, since two of one name look like a mistake to promtool.
        rules.append(Recording(one.budget_record, "\nor\n".join(left)))
    return RuleGroup("kneewatch-slo-budget", every_s, rules)


def total_record(one: Sli, window_s: float, scale: float = 1.0) -> str:
    """Name of the recording rule of how many requests came in an objective's window."""
    return one.total_record(duration(window_s * scale))


def _noted(one: Sli, every: str) -> list[Recording]:
    # Requests that nobody could judge are not good ones: no total without a count of the bad.
    judged = f"{one.total(every)}\nand {one.bad_record(every)}"
    return [Recording(one.bad_record(every), one.bad(every)), Recording(one.total_record(every), judged)]


def _left(one: Sli, bad: str, total: str) -> str:
    ratio = f'max by (target) ({names.OBJECTIVE_RATIO.name}{{objective="{one.objective}"}})'
    return f"1 - sum_over_time({bad})\n  / ({total} > 0)\n  / on (target) group_left () (1 - {ratio})"
