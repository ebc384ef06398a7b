"""Alerts on the knee: it dropped, or no run has measured it for days. Pure.

probe/capacity/trend/change_detection.py decides whether it dropped; the rules only publish that. A drop is a page where
users have needed more within the last week than the server now sustains, and else a ticket. Headroom, and whether
forecasts agree with the measured knee, is in alerts/headroom.py.
"""

from dataclasses import dataclass

from alerts import inhibitions, links
from alerts.alert_labels import by, on
from alerts.headroom import ALERT, KEEP_S, LOAD, THIS, headroom_rules
from alerts.rules import Alert, FaultKind, Recording, RuleGroup
from alerts.templates import COUNT, NUMBER, OF_TARGET, PERCENT, SPAN, if_any, listed, value_of, words
from alerts.thresholds import CAPACITY_DROP, DEFAULTS, Thresholds, percent
from alerts.user_mix import if_moved
from alerts.windows import DAY_S, HOUR_S, duration
from exporters import names
from exporters.names import PREFIX
from probe.capacity.trend.change_detection import CONFIRMED_DROP, MANN_WHITNEY, MEDIAN_OF_3
from probe.core.reasons import REFUSED_ASLEEP
from probe.core.shift import UNVERIFIED

# Verified, empirical and unverified samples share a baseline. Which of them the last run gave must not end an alert.
_LABELS = ("target", "model", "workload")
# Less than 5 minutes, when a sample becomes stale. Capacity is measured at night, headroom over a quarter of an hour.
_INTERVAL_S = 240.0
# What a run leaves stays for hours: samples so far apart show it, at an eightieth of the cost of each scrape of 15
# days. A ticket after two days may be as much later.
_LOOKED_AT_S = _STALE_INTERVAL_S = 1200.0
# Weekends are quiet, and the next Monday is not.
_PEAK_S = 7 * DAY_S
_REASONS = 3  # of refusals, that are listed
_BELOW = f"target_model_workload:{PREFIX}knee_dropped_below_peak:rps"
_UNMEASURED = f"target:{PREFIX}capacity_unmeasured:interval_seconds"


@dataclass(frozen=True, slots=True)
class _Schedule:
    """Schedules with more than `above_s` and at most `most_s` between two days with a run.

    `stale_s`: after this time without a measurement at least two runs were missed.
    """

    above_s: float
    most_s: float
    stale_s: float
    due: str


# Two nights and two hours: one night may be a bad one, and a run does not start to the second. For a schedule with more
# than a week between two runs there is no alert.
_DAILY = _Schedule(0.0, DAY_S, 2 * DAY_S + 2 * HOUR_S, "every day")
RAREST_SCHEDULE_S = 7 * DAY_S
_WEEKLY = _Schedule(DAY_S, RAREST_SCHEDULE_S, 15 * DAY_S, "every week or more often")


def capacity_group(scale: float = 1.0, thresholds: Thresholds = DEFAULTS) -> RuleGroup:
    """Return the alerts for all targets; `scale` shortens their windows and waiting times, not the cron schedules."""
    dropped = [_dropped(scale, thresholds, page=is_page) for is_page in (True, False)]
    headroom = headroom_rules(scale, thresholds)
    rules = [_load(), _below_peak(scale), *dropped, _down(scale), _stale(scale), *headroom]
    return RuleGroup("kneewatch-capacity", max(1.0, _INTERVAL_S * scale), rules)


def stale_group(scale: float = 1.0) -> RuleGroup:
    """Return the rule that finds capacities that are no longer measured; `scale` shortens its windows.

    It costs too much to be an alert: one that is evaluated so rarely is in no query for most of the time.
    """
    unmeasured = f"{_unmeasured(_DAILY, scale)}\nor {_unmeasured(_WEEKLY, scale)}"
    return RuleGroup("kneewatch-capacity-stale", _stale_every_s(scale), [Recording(_UNMEASURED, unmeasured)])


def _stale_every_s(scale: float) -> float:
    return max(1.0, _STALE_INTERVAL_S * scale)


def _load() -> Recording:
    """Record the requests per second that users send: what headroom was computed from."""
    measured = 'mode!="forecast"'
    load = f"{names.CAPACITY_RPS.name}{{{measured}}} * (1 - {names.HEADROOM.name}{{{measured}}})"
    return Recording(LOAD, f"max {by(*_LABELS)} ({load})")


def _below_peak(scale: float) -> Recording:
    """Record a dropped knee while users have sent more within the last week.

    The last run's, which is lower than the capacity shown where no load held in it.
    """
    shown = f'max {by(*_LABELS)} ({names.CAPACITY_RPS.name}{{mode!="forecast"}})'
    knee = f"max {by(*_LABELS)} ({names.KNEE_BASELINE.name} * (1 + {names.KNEE_SHIFT.name})) or {shown}"
    peak = f"max_over_time({LOAD}[{duration(_PEAK_S * scale)}])"
    return Recording(_BELOW, f"(({knee}) < {peak}) and {on(*_LABELS)} {_shifted(CONFIRMED_DROP)}")


def _dropped(scale: float, thresholds: Thresholds, *, page: bool) -> Alert:
    """Alert on a drop that two more runs have confirmed.

    A page remains one when a later run of the drop measures a little more than the peak: each return would be a ring.
    """
    week = duration(_PEAK_S * scale)
    peak_now = value_of(f"max(max_over_time({LOAD}{{{THIS}}}[{week}]))", ALERT)
    impact = (
        "At the last week's peak users sent more than the server now sustains: they will wait at the next peak"
        if page
        else "Users have not sent more than that within the last week"
    )
    return Alert(
        name="KneewatchKneeDropped",
        expr=(
            f"{_shifted(CONFIRMED_DROP)}\n"
            f"unless {on(*_LABELS)} {_smaller(thresholds[CAPACITY_DROP])}\n"
            f"{'and' if page else 'unless'} {on(*_LABELS)} count_over_time({_BELOW}[{week}])"
        ),
        for_s=60 * scale,
        keep_s=KEEP_S * scale,
        severity="page" if page else "ticket",
        summary=f"{_fell()}, in three runs; users' peak of {words(_PEAK_S * scale)}: {peak_now}",
        description=(
            f"{_capacity_and_baseline()}. Three consecutive runs measured {CAPACITY_DROP.default:.0%} or more below"
            f" that baseline.{_if_unverified()} {impact} (peak: {peak_now} requests/s).{if_moved(scale)}"
        ),
        means=(
            f"three consecutive runs, the last an hour later, measured a capacity {percent(CAPACITY_DROP)} or more"
            " below the baseline; a page if users sent more than that within the last week"
        ),
        panels={
            links.CAPACITY: ["Capacity and users", "Shift", "Detected shifts"],
            links.FLEET: ["Capacity against its baseline, lowest"],
            links.TARGET: ["Users against capacity"],
        },
        route=inhibitions.LASTS_FOR_DAYS,
        finds=(FaultKind.KNEE,),
    )


def _smaller(drop: str) -> str:
    """Return the PromQL: the drop is smaller than one that is to be told.

    At the monitor's own threshold none is, though a later run may measure a little more: else the alert would end while
    the drop lasts.
    """
    shift = f'max {by(*_LABELS)} ({names.KNEE_SHIFT.name}{{mode!="forecast"}})'
    return f"({shift} > -{drop} and on() vector({drop}) > {CAPACITY_DROP.default:g})"


def _down(scale: float) -> Alert:
    return Alert(
        name="KneewatchKneeDown",
        expr=_shifted(MEDIAN_OF_3, MANN_WHITNEY),
        for_s=600 * scale,
        keep_s=KEEP_S * scale,
        severity="ticket",
        summary=_fell(),
        description=(
            f"{_capacity_and_baseline()}. This is more than the usual variation between runs: the server, its settings"
            f" or its hardware changed, or user traffic during the runs did.{if_moved(scale)}"
        ),
        means="capacity is lower than chance explains",
        panels={
            links.CAPACITY: ["Capacity and users", "Shift", "Detected shifts"],
            links.FLEET: ["Capacity against its baseline, lowest"],
            links.TARGET: ["Users against capacity"],
        },
        silenced_by=(inhibitions.KNEE_DROPPED,),
        finds=(FaultKind.KNEE,),
    )


def _shifted(*methods: str) -> str:
    """Return the expression for a shift found by `methods`, in runs with load: forecasts are not measurements."""
    chosen = f'method=~"{"|".join(methods)}"' if len(methods) > 1 else f'method="{methods[0]}"'
    return f'max {by(*_LABELS)} ({names.KNEE_SHIFTED.name}{{{chosen},mode!="forecast"}}) == 1'


def _capacity_and_baseline() -> str:
    baseline = f'{names.KNEE_BASELINE.name}{{{THIS},mode!="forecast"}}'
    sustained = value_of(f"max({baseline} * (1 + {names.KNEE_SHIFT.name}))", ALERT)
    return (
        "{{ $labels.target }} ({{ $labels.model }}, workload {{ $labels.workload }}) sustains"
        f" {sustained} requests/s within its objectives, against a"
        f" baseline of {value_of(f'max({baseline})', ALERT)}"
    )


def _if_unverified() -> str:
    """Return a template of a sentence on a last run that was not verified: what is certain is its upper bound."""
    upper = f'max({names.KNEE_UPPER.name}{{{THIS},mode="{UNVERIFIED}"}})'
    most = f"{{{{ . | first | value | {NUMBER} }}}}"
    some = f" The last run was not verified: by its interval the server takes at most {most}."
    return if_any(upper, ALERT, some, "", "")


def _fell() -> str:
    """Return a template of how far the capacity fell: "llama-8b: capacity fell from 40 to 28 requests/s (-30 %)"."""
    baseline, shift = (f'{one.name}{{{THIS},mode!="forecast"}}' for one in (names.KNEE_BASELINE, names.KNEE_SHIFT))
    return (
        f"{{{{ $labels.target }}}}: capacity fell{value_of(f'max({baseline})', ALERT, before=' from ', none='')}"
        f"{value_of(f'max({baseline} * (1 + {shift}))', ALERT, before=' to ', after=' requests/s', none='')}"
        f"{value_of(f'min({shift})', ALERT, shown=PERCENT, before=' (', after=')', none='')}"
    )


def _stale(scale: float) -> Alert:
    def either(daily: str, weekly: str) -> str:
        return f"{{{{ if le $value {_DAILY.most_s:.1f} }}}}{daily}{{{{ else }}}}{weekly}{{{{ end }}}}"

    measured = f'{names.CAPACITY_LAST_SUCCESS.name}{{{OF_TARGET},mode!="forecast"}}'
    after = either(*(f"{words(each.stale_s * scale)} or more" for each in (_DAILY, _WEEKLY)))
    age = value_of(
        f"time() - max(last_over_time({measured}[{duration(_WEEKLY.stale_s * scale)}]))", shown=SPAN, none=after
    )
    refusals = (
        f"sum by (reason) (increase({names.CAPACITY_REFUSALS.name}{{{OF_TARGET}}}[{duration(_DAILY.stale_s * scale)}]))"
    )
    why = listed(f"sort_desc(topk({_REASONS}, round({refusals}) > 0))", "reason", before="; refused: ")
    missed = either(*(_missed(each, scale) for each in (_DAILY, _WEEKLY)))
    return Alert(
        name="KneewatchCapacityStale",
        expr=f"last_over_time({_UNMEASURED}[{duration(2 * _stale_every_s(scale))}])",
        for_s=600 * scale,
        keep_s=KEEP_S * scale,
        severity="ticket",
        summary=f"{{{{ $labels.target }}}}: no run has measured its capacity for {age}{why}",
        description=(
            f"A capacity run of {{{{ $labels.target }}}} is due {missed}. The capacity on the dashboards is out of"
            " date or missing. If even the lowest step now misses an objective, capacity has collapsed."
        ),
        means="no nightly run has found a knee for two days, or no weekly one for 15 days",
        panels={links.CAPACITY: ["Age", "Runs by outcome", "Runs, guard trips and refusals"]},
        unseen="a run that does not take place is no fault of the server",
    )


def _unmeasured(schedule: _Schedule, scale: float) -> str:
    """Return the expression for targets of this schedule without a recent measurement; its value is their interval.

    The run counters exist from the start, so a target that was never measured has them too; a new target had none at
    that time. The age is looked up over the whole window because a Kneewatch without a store forgets it at a restart.
    A server that slept when its run was due is measured when it is awake.
    """
    stale_s = schedule.stale_s * scale
    stale, hour = duration(stale_s), duration(HOUR_S * scale)
    window = f"{stale}:{duration(_LOOKED_AT_S * scale)}"
    between = f"last_over_time({names.CAPACITY_SCHEDULE.name}[{hour}])"
    asleep = f'{names.CAPACITY_REFUSALS.name}{{reason="{REFUSED_ASLEEP.word}"}}'
    measured = f'{names.CAPACITY_LAST_SUCCESS.name}{{mode!="forecast"}}'  # a forecast measures nothing
    return (
        f"max {by('target')} ({between} > {schedule.above_s:g} <= {schedule.most_s:g})\n"
        f"and max {by('target')} (max_over_time({names.CAPACITY_RUNS.name}[{hour}] offset {stale}))\n"
        f"unless max {by('target')} (max_over_time({measured}[{window}])) > time() - {stale_s:g}\n"
        f"unless max {by('target')} (increase({asleep}[{window}])) > 0"
    )


def _missed(schedule: _Schedule, scale: float) -> str:
    stale = duration(schedule.stale_s * scale)
    ended, refused = _run_count('!="refused"', stale), _run_count('="refused"', stale)
    return (
        f"{schedule.due}, but none has found the knee for {words(schedule.stale_s * scale)}: {ended} ended"
        f" without one, {refused} were refused"
    )


def _run_count(outcome: str, window: str) -> str:
    return value_of(
        f"round(sum(increase({names.CAPACITY_RUNS.name}{{{OF_TARGET},outcome{outcome}}}[{window}])))", shown=COUNT
    )
