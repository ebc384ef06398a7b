"""Recording rules that count requests, and those for the remaining error budgets. Pure.

In: the SLIs, and the targets by objective and window. Out: a group that records each minute how many requests were
judged and how many were bad, a group that sums them over the objectives' windows, and a group of the remaining
budgets. Each Sli.budget_record is 1 minus the ratio of bad requests in the objective's window to those allowed: 1 is
an untouched budget, 0 a spent one, below 0 overspent.

Every window of every alert, and the month of the budget, is a sum of these minutes: reading days of raw samples again
and again is too expensive. Each request has the same weight, whenever it came, and an hour in which Prometheus was
down has none. The counts are exact but for the minute in which a counter is reset or begins (sli.grown);
`python -m benchmarks.alerts.cost` compares them with the raw counters.

With less history than the whole window (a new target, a Prometheus with 15 days of retention) the budget is that of
the recorded requests: one failure in the first hour overspends a budget of 99.9 % many times, and the budget recovers
as requests come in. Before the first request there is no sample, and never NaN.
"""

from collections.abc import Iterable, Mapping, Sequence

from alerts.alert_labels import by, on
from alerts.rules import Recording, RuleGroup, one_of
from alerts.sli import Sli
from alerts.windows import duration
from exporters import names

# Short enough for the fast page to come within three minutes, long enough that a month is 43,200 samples.
_RECORD_EVERY_S = 60.0
_RECORD_AT_LEAST_S = 1.0
# Summing a month of minutes costs as much as all other rules on error budgets do in that time.
_MONTH_EVERY_S = 1200.0
# Less than 5 minutes, when a sample becomes stale.
_BUDGET_EVERY_S = 240.0
_AT_LEAST_S = 15.0


def step_s(scale: float) -> float:
    """Return how often requests are recorded; `scale` shortens it as it does the windows."""
    return max(_RECORD_AT_LEAST_S, _RECORD_EVERY_S * scale)


def requests_group(kept: Iterable[Sli], scale: float = 1.0) -> RuleGroup:
    """Return the rules that record requests."""
    every = duration(step_s(scale))
    rules: list[Recording] = []
    for one in kept:
        rules += [
            Recording(one.total_record(every), one.total_grown(every)),
            Recording(one.bad_record(every), one.bad_grown(every)),
        ]
    return RuleGroup("kneewatch-slo-requests", step_s(scale), rules)


def shares_group(sustained: Iterable[tuple[Sli, float, float]], scale: float = 1.0) -> RuleGroup:
    """Return the rules that record the share of bad requests over each of two windows (s).

    If a target was watched for a part of the longer window, its requests in the rest count as good.
    """
    rules: dict[str, Recording] = {}  # two pairs may have a window in common
    for one, short_s, long_s in sustained:
        for window_s, judged in ((short_s, total(one, short_s, scale)), (long_s, padded_total(one, long_s, scale))):
            name = one.error_record(duration(window_s))
            rules[name] = Recording(name, f"{bad(one, window_s, scale)}\n  / ({judged} > 0)")
    return RuleGroup("kneewatch-slo-shares", step_s(scale), list(rules.values()))


def bad(one: Sli, window_s: float, scale: float, matcher: str = "") -> str:
    """Return the number of bad requests in a window."""
    return f"sum_over_time({one.bad_record(duration(step_s(scale)))}{matcher}[{duration(window_s)}])"


def total(one: Sli, window_s: float, scale: float, matcher: str = "", function: str = "sum_over_time") -> str:
    """Return the number of judged requests in a window, or another function of the recorded numbers."""
    return f"{function}({one.total_record(duration(step_s(scale)))}{matcher}[{duration(window_s)}])"


def padded_total(one: Sli, window_s: float, scale: float, matcher: str = "") -> str:
    """Return the number of judged requests in a window at the pace of the part in which the target was watched."""
    return f"{total(one, window_s, scale, matcher, 'avg_over_time')} * {minutes(window_s, scale):.6g}"


def minutes(window_s: float, scale: float) -> float:
    """Return how many records a window has."""
    return window_s / step_s(scale)


def total_of_window(one: Sli, window_s: float, scale: float) -> str:
    """Return the number of judged requests in an objective's whole window."""
    return _newest(_total_record(one, window_s, scale), scale)


def budget_groups(kept: Mapping[tuple[Sli, float], Sequence[str]], scale: float = 1.0) -> tuple[RuleGroup, RuleGroup]:
    """Return the rules. `kept`: the targets of each SLI and objective window (s). `scale` shortens the windows."""
    sums: list[Recording] = []
    rest: list[Recording] = []
    for one in dict.fromkeys(one for one, _ in kept):
        windows = {window_s: targets for (other, window_s), targets in kept.items() if other == one}
        left = []
        for window_s, targets in windows.items():
            matcher = f"{{{one_of(targets)}}}" if len(windows) > 1 else ""
            missed, judged = _bad_record(one, window_s, scale), _total_record(one, window_s, scale)
            sums.append(Recording(missed, bad(one, window_s * scale, scale, matcher)))
            sums.append(Recording(judged, total(one, window_s * scale, scale, matcher)))
            left.append(_left(one, _newest(missed, scale), _newest(judged, scale)))
        # One rule, because promtool reports two rules of one name as duplicates.
        rest.append(Recording(one.budget_record, "\nor\n".join(left)))
    return (
        RuleGroup("kneewatch-slo-sums", _month_s(scale), sums),
        RuleGroup("kneewatch-slo-budget", max(_AT_LEAST_S, _BUDGET_EVERY_S * scale), rest),
    )


def _month_s(scale: float) -> float:
    return max(_AT_LEAST_S, _MONTH_EVERY_S * scale)


def _bad_record(one: Sli, window_s: float, scale: float) -> str:
    return one.bad_record(duration(window_s * scale))


def _total_record(one: Sli, window_s: float, scale: float) -> str:
    return one.total_record(duration(window_s * scale))


def _newest(record: str, scale: float) -> str:
    # Twice the interval: one evaluation may fail. A rehearsal may be slower than its intervals.
    return f"last_over_time({record}[{duration(max(300.0, 2 * _month_s(scale)))}])"


def _left(one: Sli, missed: str, judged: str) -> str:
    ratio = f'max {by("target")} ({names.OBJECTIVE_RATIO.name}{{objective="{one.objective}"}})'
    return f"1 - {missed}\n  / ({judged} > 0)\n  / {on('target')} group_left () (1 - {ratio})"
