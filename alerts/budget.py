"""Recording rules that count requests, and those for what is promised and for the remaining error budgets. Pure.

Out: rules that record the objectives as terms of burn conditions; rules that record each minute how many requests of
each SLI were judged and how many were bad; a group that sums the minutes, one that sums those over the objective's
window, and one of the remaining budgets. Each Sli.budget_record is 1 minus the ratio of bad requests in the objective's
window to those allowed: 1 is an untouched budget, 0 a spent one, below 0 overspent.

Every window of every alert, and the month of the budget, is a sum of these minutes: reading days of raw samples again
and again is too expensive. Each request has the same weight, whenever it came, and an hour in which Prometheus was
down has none. The counts are exact but for the minute in which a counter is reset or begins (sli.grown);
`python -m benchmarks.alerts.cost` compares them with the raw counters.

A range in PromQL is a constant, so the budget is summed over each of the usual windows, and each target has the one of
its objectives.

With less history than the whole window (a new target, a Prometheus with 15 days of retention) the budget covers
the recorded requests: one failure in the first hour overspends a budget of 99.9 % many times, and the budget recovers
as requests come in. Before the first request there is no sample, and never NaN.
"""

from collections.abc import Callable, Iterable

from alerts.alert_labels import by, on
from alerts.rules import Recording, RuleGroup
from alerts.sli import Sli
from alerts.windows import DAY_S, PAIRS, SUSTAINED, BurnWindow, duration
from exporters import names
from exporters.names import PREFIX
from probe.core import objectives as slo

OBJECTIVES = (slo.AVAILABILITY, *slo.LATENCIES)
# With the label `slo`, the objectives' name.
WINDOW = f"target_slo:{PREFIX}objective_window:seconds"
ON_TARGET = f"{on('target')} group_left ()"

# Short enough for the fast page to come within three minutes, long enough that a month is 43,200 samples.
_RECORD_EVERY_S = 60.0
_RECORD_AT_LEAST_S = 1.0
# A month has 2160 of these sums: a twentieth of the samples of its minutes.
_SUM_EVERY_S = 1200.0
_WINDOW = "_window"  # ends the names of records over the objective's window
# The windows of objectives that have a remaining budget.
BUDGET_WINDOWS_S = (DAY_S, 7 * DAY_S, 28 * DAY_S, 30 * DAY_S, 90 * DAY_S)
# Less than 5 minutes, when a sample becomes stale.
_BUDGET_EVERY_S = 240.0
_AT_LEAST_S = 15.0
# The longest interval of canaries that are judged by an hour, and the time after which they have paused.
_RAREST_S, _PAUSE_S = 1200.0, 2700.0


def step_s(scale: float) -> float:
    """Return how often requests are recorded; `scale` shortens it as it does the windows."""
    return max(_RECORD_AT_LEAST_S, _RECORD_EVERY_S * scale)


def counter_rules(kept: Iterable[Sli]) -> list[Recording]:
    """Return the rules that record the newest counters of some SLIs, each once."""
    counters: dict[str, str] = {}
    for one in kept:
        counters |= one.counters()
    return [Recording(name, expr) for name, expr in counters.items()]


def request_rules(one: Sli, scale: float = 1.0) -> list[Recording]:
    """Return the rules that record an SLI's requests.

    A minute in which canaries were due and none was sent has no record, since a server that sleeps is not judged by
    the few that came before or after (`padded_total`). Where canaries are rarer than the minutes, most have none.
    """
    every = duration(step_s(scale))
    total_grown = one.total_grown(every)
    if one.who == "canary":
        interval = f'{names.TASK_INTERVAL.name}{{task="canary"}}'
        paused = f"{one.all_record} == {one.all_record} offset {duration(_PAUSE_S * scale)}"
        due = f"{interval} <= {step_s(scale):g}"
        due += f" or {on('target')} {interval} <= {_RAREST_S * scale:g} and {on('target')} {paused}"
        total_grown = f"({total_grown}) > 0\nor {total_grown}\n  unless {on('target')} ({due})"
    return [Recording(one.total_record(every), total_grown), Recording(one.bad_record(every), one.bad_grown(every))]


def bad(one: Sli, window_s: float, scale: float, matcher: str = "", ago: str = "") -> str:
    """Return the number of bad requests in a window. `ago`: when the window ends, as PromQL."""
    return f"sum_over_time({one.bad_record(duration(step_s(scale)))}{matcher}[{duration(window_s)}]{ago})"


def total(
    one: Sli, window_s: float, scale: float, function: str = "sum_over_time", *, matcher: str = "", ago: str = ""
) -> str:
    """Return the number of judged requests in a window, or another function of the recorded numbers."""
    return f"{function}({one.total_record(duration(step_s(scale)))}{matcher}[{duration(window_s)}]{ago})"


def hours_rules(one: Sli, scale: float = 1.0) -> list[Recording]:
    """Return the rule that records the share of bad requests over an hour, of which half of several must be high."""
    (pair,) = (pair for pair in PAIRS if pair.is_sustained)
    hour_s = pair.short_s * scale
    share = f"{bad(one, hour_s, scale)}\n  / ({padded_total(one, hour_s, scale)} > 0)"
    return [Recording(one.error_record(duration(hour_s)), share)]


def padded_total(one: Sli, window_s: float, scale: float) -> str:
    """Return the number of judged requests in a window at the pace of the minutes in which some were recorded."""
    return f"{total(one, window_s, scale, 'avg_over_time')} * {minutes(window_s, scale):.6g}"


def minutes(window_s: float, scale: float) -> float:
    """Return how many records a window has."""
    return window_s / step_s(scale)


def total_of_window(one: Sli, scale: float) -> str:
    """Return the number of judged requests in the objective's whole window."""
    return _newest(one.total_record(_WINDOW), scale)


def sums_group(kept: Iterable[Sli], scale: float = 1.0) -> RuleGroup:
    """Return the rules that sum the minutes of each third of an hour. `scale` shortens it."""
    every_s, step = sum_s(scale), step_s(scale)
    rules = []
    for one in kept:
        for record in (one.bad_record, one.total_record):
            # Half a step earlier, so that each minute is in one sum, also where both are recorded at the same moment.
            minutes_of_it = f"{record(duration(step))}[{duration(every_s)}] offset {duration(step / 2)}"
            rules.append(Recording(record(duration(every_s)), f"sum_over_time({minutes_of_it})"))
    return RuleGroup("kneewatch-slo-sums", every_s, rules)


def windows_group(kept: Iterable[Sli], scale: float = 1.0) -> RuleGroup:
    """Return the rules that record the requests of objectives' windows, as often as their sums change."""
    records = [record for one in kept for record in (one.bad_record, one.total_record)]
    rules = [Recording(record(_WINDOW), _of_window(record, scale)) for record in records]
    return RuleGroup("kneewatch-slo-windows", sum_s(scale), rules)


def budget_group(kept: Iterable[Sli], scale: float = 1.0) -> RuleGroup:
    """Return the rules that record the budget left."""
    rules = []
    for one in kept:
        spent = f"{_newest(one.bad_record(_WINDOW), scale)}\n  / ({total_of_window(one, scale)} > 0)"
        rules.append(Recording(one.budget_record, f"1 - {spent}\n  / {ON_TARGET} {allowed(one.objective)}"))
    return RuleGroup("kneewatch-slo-budget", max(_AT_LEAST_S, _BUDGET_EVERY_S * scale), rules)


def _newest(record: str, scale: float) -> str:
    # Twice the interval: one evaluation may fail. A rehearsal may be slower than its intervals.
    return f"last_over_time({record}[{duration(max(300.0, 2 * sum_s(scale)))}])"


def _of_window(record: Callable[[str], str], scale: float) -> str:
    sums = record(duration(sum_s(scale)))
    return "\nor ".join(
        f"sum_over_time({sums}[{duration(window_s * scale)}]) and {on('target')} {WINDOW} == {window_s:g}"
        for window_s in BUDGET_WINDOWS_S
    )


def sum_s(scale: float) -> float:
    """Return how often the minutes are summed."""
    return max(_AT_LEAST_S, _SUM_EVERY_S * scale)


def promise_rules() -> list[Recording]:
    """Return the rules, of each target that has objectives."""
    # Where two Kneewatches disagree, one of them counts: each target needs one value.
    one = f"topk {by('target')} (1, {names.OBJECTIVE_WINDOW.name})"
    rules = [Recording(WINDOW, f"max {by('target', 'slo')} ({one})")]
    for objective in OBJECTIVES:
        ratio = f'{names.OBJECTIVE_RATIO.name}{{objective="{objective}"}}'
        rules.append(Recording(allowed(objective), f"1 - max {by('target')} ({ratio})"))
    for pair in {limit(pair): pair for pair in PAIRS}.values():
        # A pair longer than the objective's window has no limit, and does not fire.
        spent = f"{pair.share:g} * ({WINDOW} >= {pair.long_s:g}) / {pair.long_s:g}"
        rules.append(Recording(limit(pair), f"clamp_min({spent}, 1)"))
    return rules


def allowed(objective: str) -> str:
    """Return the name of the rule that records the ratio of bad requests that the objective allows."""
    return f"target:{PREFIX}{objective}_allowed:ratio"


def limit(pair: BurnWindow) -> str:
    """Return the name of the rule that records the multiple of the allowed ratio at which the pair fires."""
    return f"target_slo:{PREFIX}burn_limit:over{duration(pair.long_s)}"


def least(pair: BurnWindow) -> str:
    """Return the multiple that the short window must exceed."""
    return f"clamp_min({limit(pair)} / {SUSTAINED:g}, 1)" if pair.is_sustained else limit(pair)
