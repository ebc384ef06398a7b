"""The alerts on capacity: the knee went down, or nothing has measured it for days. Pure."""

from alerts.rules import Alert, Group, now, one_of
from alerts.windows import DAY_S, HOUR_S, duration
from exporters import names
from probe.config import Config

_LEFT = 0.85
_BY = "target, model, workload, mode"
# Two nights and two hours: one night may be a bad one, and a run does not start to the second.
_STALE_S = 2 * DAY_S + 2 * HOUR_S


def capacity_group(config: Config, scale: float = 1.0) -> Group:
    """The alerts for all targets; `scale` shortens their windows and waiting times, not the cron schedules."""
    nightly = [name for name, cron in _schedules(config) if _every_day(cron)]
    rules = [_down(scale), *([_stale(nightly, scale)] if nightly else [])]
    return Group("kneewatch-capacity", max(1.0, 60 * scale), rules)


def left_out(config: Config) -> list[str]:
    """A line for each target whose runs are too rare to be missed after two days."""
    return [
        f"KneewatchCapacityStale of {name}: it expects a run every day, and the schedule is {cron!r}"
        for name, cron in _schedules(config)
        if not _every_day(cron)
    ]


def _schedules(config: Config) -> list[tuple[str, str]]:
    measured = [target for target in config.targets if target.capacity.mode == "verify"]
    return sorted((target.name, target.capacity.schedule.cron) for target in measured)


def _every_day(cron: str) -> bool:
    day, month, weekday = cron.split()[2:]
    return day == month == weekday == "*"


def _down(scale: float) -> Alert:
    """Compares with the average over a day a week ago: the same hour and day, smoothed."""
    day, week = duration(DAY_S * scale), duration(7 * DAY_S * scale)
    lower, upper = names.CAPACITY_RPS_LOWER.name, names.CAPACITY_RPS_UPPER.name
    # The knee is found to within a step. Where steps double, one request more or less may halve the
    # figure, so only bounds that lie apart are a change. Without an upper bound no load broke an
    # objective: the figure says "at least", and a lower "at least" is no sign of a lower knee.
    expr = f"avg by ({_BY}) ({upper})\n  / avg by ({_BY}) (avg_over_time({lower}[{day}] offset {week})) < {_LEFT:g}"
    current = now(f"avg({names.CAPACITY_RPS.name}{{target=%q}})")
    return Alert(
        name="KneewatchKneeDown",
        expr=expr,
        for_s=600 * scale,
        severity="ticket",
        summary="{{ $labels.target }}: capacity is at most {{ $value | humanizePercentage }} of last week's",
        description=(
            "{{ $labels.target }} ({{ $labels.model }}, workload {{ $labels.workload }}, {{ $labels.mode }}) takes"
            f" {current} requests/s within its objectives. Even the upper bound of that is"
            f" {{{{ $value | humanizePercentage }}}} of the lower bound of a week ago (average over {day}). Below"
            f" {_LEFT:.0%} the server, its settings or its hardware changed, or users' load during the run did."
        ),
    )


def _stale(targets: list[str], scale: float) -> Alert:
    stale_s = _STALE_S * scale
    stale, hour = duration(stale_s), duration(HOUR_S * scale)
    runs = f"{names.CAPACITY_RUNS.name}{{{one_of(targets)}}}"
    # The counters of runs are there from the start, so a target that was never measured has them too, and
    # a target that is new has none of then. The age is looked up over the whole time because a Kneewatch
    # without a store forgets it at a restart.
    expr = (
        f"max by (target) (max_over_time({runs}[{hour}]))\n"
        f"and max by (target) (max_over_time({runs}[{hour}] offset {stale}))\n"
        f"unless max by (target) (max_over_time({names.CAPACITY_LAST_SUCCESS.name}[{stale}])) > time() - {stale_s:g}"
    )
    ended, refused = _count('!="refused"', stale), _count('="refused"', stale)
    return Alert(
        name="KneewatchCapacityStale",
        expr=expr,
        for_s=600 * scale,
        severity="ticket",
        summary=f"{{{{ $labels.target }}}}: no run has found its capacity for {stale}",
        description=(
            f"A capacity run of {{{{ $labels.target }}}} is due every day, and none has found a knee for {stale}:"
            f" {ended} ended without, {refused} were not allowed to start. The figure on the dashboard is older, or"
            " there is none. The lowest step may break an objective by now, in which case capacity has collapsed."
        ),
    )


def _count(outcome: str, window: str) -> str:
    return now(f"round(sum(increase({names.CAPACITY_RUNS.name}{{target=%q,outcome{outcome}}}[{window}])))")
