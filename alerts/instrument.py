"""The alerts on Kneewatch as an instrument: too slow to judge, tasks that fail, a configuration it refuses. Pure."""

from alerts.links import PROBE
from alerts.rules import Alert
from alerts.templates import asked
from alerts.windows import HOUR_S, duration
from exporters import names
from probe.load.step_summary import MAX_ERROR_SHARE

_CANARIES_S = HOUR_S
# One canary in ten that judges no latency: a fault that hits fewer than that is hidden from its objective.
_CANARIES_SHARE = 0.1
_CANARIES_LEAST = 3

# A machine that is busy for some minutes is a hiccup.
_LAG_S = 300.0
_LAG_FOR_S = 900.0

# A night's run, and its second one.
_STEPS_S = 6 * HOUR_S
# The highest steps have the most streams, and may be the client's to lose; with a third gone there is no knee to find.
_STEPS_SHARE = 1 / 3
_STEPS_LEAST = 3

# Tasks that are due every few seconds, and forecasts, which are due twice an hour.
_TASKS_S = (900.0, 6 * HOUR_S)
_FAILURES_SHARE = 0.25
_FAILURES_LEAST = 3
_SLOW_SHARE = 0.1  # of the canaries that ended: a slow one keeps several others from being sent

_REFUSED_S = 600.0


def instrument_alerts(scale: float = 1.0) -> list[Alert]:
    """For all targets; `scale` shortens windows and waiting times."""
    return [_canaries(scale), _lag(scale), _steps(scale), _failing(scale), _refused(scale)]


def _client_bound(reason: str, expr: str, for_s: float, summary: str, description: str) -> Alert:
    return Alert(
        name="KneewatchClientBound",
        expr=expr,
        for_s=for_s,
        severity="ticket",
        dashboard=PROBE,
        summary=f"{{{{ $labels.target }}}}: {summary}",
        description=f"{description} Give Kneewatch processor time of its own.",
        labels={"reason": reason},
    )


def _canaries(scale: float) -> Alert:
    window = duration(_CANARIES_S * scale)

    def count(outcomes: str) -> str:
        return f'sum by (target) (increase({names.REQUESTS.name}{{traffic="canary",{outcomes}}}[{window}]))'

    bound, judged = count('outcome="client_bound"'), count('outcome=~"ok|client_bound"')
    return _client_bound(
        "canaries",
        f"{bound} / {judged} > {_CANARIES_SHARE:g}\nand {bound} > {_CANARIES_LEAST - 0.5:g}",  # increase() extrapolates
        300 * scale,
        f"Kneewatch was too late to judge {{{{ $value | humanizePercentage }}}} of its canaries in {window}",
        f"Over {window}, {{{{ $value | humanizePercentage }}}} of the answered canaries of {{{{ $labels.target }}}}"
        " missed an objective for latency by no more than Kneewatch itself was late. They judge no latency, so a slow"
        " server may look well.",
    )


def _lag(scale: float) -> Alert:
    window = duration(_LAG_S * scale)
    lag = f"histogram_quantile(0.99, sum by (job, instance, le) (rate({names.LOOP_LAG.bucket}[{window}])))"
    ttft = f'min by (job, instance, target) ({names.OBJECTIVE_SECONDS.name}{{objective="ttft"}})'
    promised = asked(f'min({names.OBJECTIVE_SECONDS.name}{{target=%q,objective="ttft"}})', shown="humanizeDuration")
    return _client_bound(
        "event_loop",
        f"max by (target) (\n  {lag}\n  > on (job, instance) group_right () {MAX_ERROR_SHARE:g} * {ttft}\n)",
        _LAG_FOR_S * scale,
        "Kneewatch's own event loop is late by {{ $value | humanizeDuration }}",
        f"One in a hundred times in {window}, the event loop that stamps the answers of {{{{ $labels.target }}}} woke"
        f" late by {{{{ $value | humanizeDuration }}}} or more: above a tenth of the TTFT that is promised"
        f" ({promised}). Latencies may be too long by as much.",
    )


def _steps(scale: float) -> Alert:
    window = duration(_STEPS_S * scale)
    steps = names.CAPACITY_STEPS.name
    bound = f'sum by (target) (increase({steps}{{verdict="client_bound"}}[{window}]))'
    every = f"sum by (target) (increase({steps}[{window}]))"
    return _client_bound(
        "capacity",
        f"{bound} / {every} > {_STEPS_SHARE:.3g}\nand {bound} > {_STEPS_LEAST - 0.5:g}",
        300 * scale,
        f"{{{{ $value | humanizePercentage }}}} of its capacity steps in {window} were lost to a slow client",
        f"Of the steps of load on {{{{ $labels.target }}}} in {window}, {{{{ $value | humanizePercentage }}}} judge"
        " nothing, because Kneewatch could not send or stamp in time. No knee is taken from them: the capacity on the"
        " dashboard may be too low, or old.",
    )


def _failing(scale: float) -> Alert:
    """By the share of the runs that were due. Capacity runs have no interval: KneewatchCapacityStale misses them."""
    failed = "\n  or ".join(_failed(window_s * scale) for window_s in _TASKS_S)
    share = "{{ $value | humanizePercentage }}"
    return Alert(
        name="KneewatchTaskFailing",
        expr=f"max by (task, target) (\n  {failed}\n)",
        for_s=300 * scale,
        severity="ticket",
        dashboard=PROBE,
        summary=f"{{{{ $labels.target }}}}: {share} of the runs of its task {{{{ $labels.task }}}} fail",
        description=(
            f"{share} of the runs of {{{{ $labels.task }}}} for {{{{ $labels.target }}}} that were due have raised an"
            " error, were late, or were skipped because the one before had not ended. What the task watches is seen"
            " less often than the configuration asks for, or not at all. A server that is down or slow is no failure of"
            " a task."
        ),
    )


def _failed(window_s: float) -> str:
    """The share of the runs due that failed, for each task of each Kneewatch, where it is too large.

    Canaries of a server that hangs or is slow are skipped, since the one before still waits: the server's fault, which
    is told by its objectives.
    """
    window = duration(window_s)
    ours = 'traffic="canary"'
    ended = f'sum by (target) (increase({names.REQUESTS.name}{{{ours},outcome!~"aborted|client_bound"}}[{window}]))'
    good = f'sum by (target) (increase({names.GOOD_REQUESTS.name}{{{ours},objective="all"}}[{window}]))'
    slow = f"{ended} * {1 - _SLOW_SHARE:g} > ({good} or {ended} * 0)"
    failures = f"increase({names.TASK_FAILURES.name}[{window}])"
    share = f"{failures} * {names.TASK_INTERVAL.name} / {window_s:g} > {_FAILURES_SHARE:g}"
    down = f"min by (target) (min_over_time({names.TARGET_UP.name}[{window}])) == 0"
    return (
        f"({share} and {failures} > {_FAILURES_LEAST - 0.5:g}\n"
        f'    unless on (task, target) label_replace({down}, "task", "canary", "", "")\n'
        f'    unless on (task, target) label_replace({slow}, "task", "canary", "", ""))'
    )


def _refused(scale: float) -> Alert:
    window = duration(_REFUSED_S / 2 * scale)
    return Alert(
        name="KneewatchConfigRefused",
        expr=f"max_over_time({names.CONFIG_TAKEN.name}[{window}]) == 0",
        for_s=_REFUSED_S / 2 * scale,
        severity="ticket",
        dashboard=PROBE,
        summary="Kneewatch at {{ $labels.instance }} refuses its configuration file",
        description=(
            f"For {duration(_REFUSED_S * scale)} the configuration file of the Kneewatch at {{{{ $labels.instance }}}}"
            " has been one that it refuses. What it took before stands. If there is a mistake in the file, it would not"
            " start with it either, and nothing would be watched: `kneewatch config check -c FILE` names the mistake."
            " The log names what only a restart can change."
        ),
    )
