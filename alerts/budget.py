"""Recording rules for the remaining error budgets. Pure.

In: the targets by objective and window. Out: a group of rules, among them each Sli.budget_record: 1 minus the ratio of
bad requests in the objective's window to those allowed. 1 is an untouched budget, 0 a spent one, below 0 overspent.

Reading a month of raw samples for every target again and again is too expensive. So the requests are recorded every
four minutes, and the month is the sum of these records: each request has the same weight, whenever it came, and an
hour in which Prometheus was down has none.

With less history than the whole window (a new target, a Prometheus with 15 days of retention) the budget is that of
the recorded requests: one failure in the first hour overspends a budget of 99.9 % many times, and the budget recovers
as requests come in. Before the first request there is no sample, and never NaN.
"""

from collections.abc import Mapping, Sequence

from alerts.rules import Recording, RuleGroup, one_of
from alerts.sli import Sli
from alerts.windows import duration
from exporters import names

# Less than 5 minutes, when a sample becomes stale; a month has at most 10,800 of them.
_RECORD_EVERY_S = 240.0
# Long enough for two scrapes, also in a rehearsal.
_RECORD_AT_LEAST_S = 15.0


def budget_group(kept: Mapping[tuple[Sli, float], Sequence[str]], scale: float = 1.0) -> RuleGroup:
    """Return the rules. `kept`: the targets of each SLI and objective window (s). `scale` shortens the windows."""
    every_s = max(_RECORD_AT_LEAST_S, _RECORD_EVERY_S * scale)
    every = duration(every_s)
    rules: list[Recording] = []
    for one in dict.fromkeys(one for one, _ in kept):
        windows = {window_s: targets for (other, window_s), targets in kept.items() if other == one}
        rules += _recorded(one, every)
        left = []
        for window_s, targets in windows.items():
            matcher = f"{{{one_of(targets)}}}" if len(windows) > 1 else ""
            window = duration(window_s * scale)
            total = f"sum_over_time({one.total_record(every)}{matcher}[{window}])"
            rules.append(Recording(one.total_record(window), total))
            left.append(_left(one, f"{one.bad_record(every)}{matcher}[{window}]", one.total_record(window)))
        # One rule, because promtool reports two rules of one name as duplicates.
        rules.append(Recording(one.budget_record, "\nor\n".join(left)))
    return RuleGroup("kneewatch-slo-budget", every_s, rules)


def total_record(one: Sli, window_s: float, scale: float = 1.0) -> str:
    """Return the name of the recording rule for the number of requests in an objective's window."""
    return one.total_record(duration(window_s * scale))


def _recorded(one: Sli, every: str) -> list[Recording]:
    # Requests that could not be judged are not good ones: no total without a count of bad ones.
    judged = f"{one.total(every)}\nand {one.bad_record(every)}"
    return [Recording(one.bad_record(every), one.bad(every)), Recording(one.total_record(every), judged)]


def _left(one: Sli, bad: str, total: str) -> str:
    ratio = f'max by (target) ({names.OBJECTIVE_RATIO.name}{{objective="{one.objective}"}})'
    return f"1 - sum_over_time({bad})\n  / ({total} > 0)\n  / on (target) group_left () (1 - {ratio})"
