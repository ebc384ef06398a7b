"""Alerts on Kneewatch as an instrument: unjudged requests, failing tasks, a refused configuration. Pure."""

from alerts import inhibitions, links, sli
from alerts.alert_labels import KEPT, by, on
from alerts.budget import total
from alerts.rules import Alert, FaultKind
from alerts.templates import COUNT, PERCENT, SPAN, same, value_of, words
from alerts.windows import HOUR_S, duration
from exporters import names
from probe.core.latency import HELD_BACK
from probe.core.objectives import BY_GAPS
from probe.core.reasons import CLIENT_BOUND
from probe.load.step_summary import MAX_ERROR_SHARE

# Of canaries in a quarter of an hour, so few may be in the minutes before the first record.
_UNRECORDED_S, _UNRECORDED_LEAST = 900.0, 5

_CANARIES_S = HOUR_S
# With one canary in ten not judged on latency, a fault that hits fewer than that stays hidden.
_CANARIES_SHARE = 0.1
_CANARIES_LEAST = 3

# A machine that is busy for a few minutes is not worth a ticket.
_LAG_S = 300.0
_LAG_FOR_S = 900.0

# The nightly run and its repetition.
_STEPS_S = 6 * HOUR_S
# The highest steps have the most streams and may exceed the client. Without a third of them, no knee is found.
_STEPS_SHARE = 1 / 3
_STEPS_LEAST = 3

# For tasks that are due every few seconds, and for forecasts, which are due twice an hour.
_TASKS_S = (900.0, 6 * HOUR_S)
_FAILURES_SHARE = 0.25
_FAILURES_LEAST = 3

_HELD_BACK_S = 600.0

_REFUSED_S = 600.0


_HOST = (*KEPT, "job", "instance")


def instrument_alerts(scale: float = 1.0) -> list[Alert]:
    """Return the alerts for all targets; `scale` shortens windows and waiting times."""
    return [
        _canaries(scale),
        _lag(scale),
        _steps(scale),
        _held_back(scale),
        _failing(scale),
        _refused(scale),
    ]


def unrecorded(scale: float) -> Alert:
    """Page where canaries arrive and the recording rules have none of them: no other page can fire then."""
    window = duration(_UNRECORDED_S * scale)
    sent = f'increase({names.REQUESTS.name}{{traffic="canary",outcome!="aborted"}}[{window}])'
    recorded = total(sli.AVAILABILITY, _UNRECORDED_S * scale, scale)
    return Alert(
        name="KneewatchNotRecorded",
        command=links.PODS,
        expr=(
            f"count {by()} (\n  sum {by('target')} ({sent}) >= {_UNRECORDED_LEAST}\n"
            f"  unless {on('target')} sum {by('target')} ({recorded}) > 0\n)"
        ),
        for_s=_UNRECORDED_S / 3 * scale,
        severity="page",
        summary=(
            f"No page can fire: the canaries of {{{{ $value | {COUNT} }}}} targets run, and rules record none of them"
        ),
        description=(
            f"For {words(_UNRECORDED_S * scale)} Prometheus has had canaries of {{{{ $value | {COUNT} }}}} targets, and"
            " the recording rules counted none. A group of rules fails or is not loaded, or samples come more than five"
            " minutes late. Burn alerts read what is recorded, so none can fire for these targets."
        ),
        means="canaries run and the recording rules count none of them, so no burn alert can fire",
        panels={links.PROBE: ["Time since each task ran"]},
        route=inhibitions.ONE_KNEEWATCH,
        unseen="the rules are evaluated",
    )


def _client_bound(reason: str, expr: str, for_s: float, summary: str, description: str) -> Alert:
    return Alert(
        name="KneewatchClientBound",
        command=links.CPU,
        expr=expr,
        for_s=for_s,
        severity="ticket",
        summary=summary,
        description=f"{description} Give Kneewatch dedicated CPU time.",
        labels={"reason": reason},
        means="Kneewatch is too slow to judge latencies",
        panels={
            links.PROBE: [
                "Schedule lag",
                "Event loop lag",
                "Steps lost to the client",
                "Steps of capacity runs",
            ],
        },
        route=inhibitions.ALL_TARGETS,
        unseen="Kneewatch itself has no fault",
    )


def _canaries(scale: float) -> Alert:
    window, in_hour = duration(_CANARIES_S * scale), words(_CANARIES_S * scale)

    def count(outcomes: str) -> str:
        return f'sum {by("target")} (increase({names.REQUESTS.name}{{traffic="canary",{outcomes}}}[{window}]))'

    bound, judged = count('outcome="client_bound"'), count('outcome=~"ok|client_bound"')
    return _client_bound(
        "canaries",
        f"({bound} > {_CANARIES_LEAST - 0.5:g}) / {judged} > {_CANARIES_SHARE:g}",  # increase() extrapolates
        300 * scale,
        f"{{{{ $labels.target }}}}: Kneewatch could not judge {{{{ $value | {PERCENT} }}}} of its canaries in"
        f" {in_hour}: it"
        " was late itself",
        f"Over {in_hour}, {{{{ $value | {PERCENT} }}}} of the canaries of {{{{ $labels.target }}}} missed a latency"
        " objective, or an answer, by no more than Kneewatch's own lateness. They are not judged, so a slow server may"
        " look healthy.",
    )


def _lag(scale: float) -> Alert:
    window = duration(_LAG_S * scale)
    lag = f"histogram_quantile(0.99, sum {by('job', 'instance', 'le')} (rate({names.LOOP_LAG.bucket}[{window}])))"
    ttft = f'min {by("job", "instance")} ({names.OBJECTIVE_SECONDS.name}{{objective="ttft"}})'
    promised = f'{names.OBJECTIVE_SECONDS.name}{{{same(_HOST)},objective="ttft"}}'
    targets = value_of(f"count(count by (target) ({promised}))", _HOST, shown=COUNT)
    least = value_of(f"min({promised})", _HOST, shown=SPAN)
    late = f"{{{{ $value | {SPAN} }}}}"
    return _client_bound(
        "event_loop",
        f"{lag}\n  > {on('job', 'instance')} {MAX_ERROR_SHARE:g} * {ttft}",
        _LAG_FOR_S * scale,
        f"Kneewatch on {{{{ $labels.instance }}}} lacks CPU: latencies of its targets ({targets}) may be {late} too"
        " high; distrust its latency alerts",
        f"In 1 % of the cases in {words(_LAG_S * scale)}, the event loop that timestamps answers woke up {late} late or"
        f" more: above a tenth of the shortest TTFT objective ({least}).",
    )


def _steps(scale: float) -> Alert:
    window = duration(_STEPS_S * scale)
    steps = names.CAPACITY_STEPS.name
    bound = f'sum {by("target")} (increase({steps}{{verdict="{CLIENT_BOUND.verdict}"}}[{window}]))'
    every = f"sum {by('target')} (increase({steps}[{window}]))"
    return _client_bound(
        "capacity",
        f"({bound} > {_STEPS_LEAST - 0.5:g}) / {every} > {_STEPS_SHARE:.3g}",
        300 * scale,
        f"{{{{ $labels.target }}}}: {{{{ $value | {PERCENT} }}}} of its capacity steps in {words(_STEPS_S * scale)}"
        f" were lost"
        " to a slow Kneewatch",
        f"{{{{ $value | {PERCENT} }}}} of the steps that capacity runs tried on {{{{ $labels.target }}}} in"
        f" {words(_STEPS_S * scale)} are not judged, because Kneewatch could not send or timestamp in time. They give"
        f" no knee, so the"
        " capacity on the dashboards may be too low, or out of date.",
    )


def _held_back(scale: float) -> Alert:
    window = duration(_HELD_BACK_S * scale)
    share = f"min {by('target')} (min_over_time({names.HELD_BACK.name}[{window}]))"
    needs = "|".join(BY_GAPS)
    promised = f'min {by("target")} ({names.OBJECTIVE_SECONDS.name}{{objective=~"{needs}"}})'
    return Alert(
        name="KneewatchStreamHeldBack",
        expr=f"{share} > {HELD_BACK:g}\nand {promised}",
        for_s=300 * scale,
        severity="ticket",
        summary=(
            f"{{{{ $labels.target }}}}: {{{{ $value | {PERCENT} }}}} of the tokens arrive at once, for"
            f" {words(_HELD_BACK_S * scale)}: TPOT and ITL are not judged"
        ),
        description=(
            f"For {words(_HELD_BACK_S * scale)}, {{{{ $value | {PERCENT} }}}} or more of the tokens of a canary of"
            " {{ $labels.target }} came together with the first one. A proxy holds streams back, or the server does not"
            " stream. No request is judged on its TPOT or ITL objective, TTFT is too long, and capacity runs give no"
            " capacity."
        ),
        means="a proxy holds answers back, or the server does not stream, so TPOT and ITL are not judged",
        panels={links.PROBE: ["Streams held back"]},
        unseen="no proxy is between Kneewatch and the servers",
    )


def _failing(scale: float) -> Alert:
    """Alert on the share of due runs that failed. KneewatchCapacityStale covers capacity runs."""
    failed = "\n  or ".join(_failed(window_s * scale) for window_s in _TASKS_S)
    share = f"{{{{ $value | {PERCENT} }}}}"
    return Alert(
        name="KneewatchTaskFailing",
        expr=f"max {by('task', 'target')} (\n  {failed}\n)",
        for_s=300 * scale,
        severity="ticket",
        summary=f"{{{{ $labels.target }}}}: {share} of its {{{{ $labels.task }}}} task runs fail",
        description=(
            f"{share} of the {{{{ $labels.task }}}} task runs due for {{{{ $labels.target }}}} raised an error, started"
            " late, or were skipped because the previous one was still running. The task's values are updated less"
            " often than configured, or not at all. A server that is down or slow is no task failure."
        ),
        means="a task of Kneewatch fails, such as a scrape or the canaries of a target",
        panels={links.PROBE: ["Failed tasks, 1 h", "Task lateness", "Task failures"]},
        silenced_by=(inhibitions.PROBE_SILENT,),
        follows=(FaultKind.STALL,),
    )


def _failed(window_s: float) -> str:
    """Return the share of due runs that failed, by task and Kneewatch, where it is too large."""
    window = duration(window_s)
    failures = f"increase({names.TASK_FAILURES.name}[{window}])"
    share = f"({failures} > {_FAILURES_LEAST - 0.5:g}) * {names.TASK_INTERVAL.name} / {window_s:g}"
    return f"({share} > {_FAILURES_SHARE:g})"


def _refused(scale: float) -> Alert:
    window = duration(_REFUSED_S / 2 * scale)
    return Alert(
        name="KneewatchConfigRefused",
        command=links.CHECK_CONFIG,
        expr=f"max_over_time({names.CONFIG_TAKEN.name}[{window}]) == 0",
        for_s=_REFUSED_S / 2 * scale,
        severity="ticket",
        summary=(
            f"Kneewatch at {{{{ $labels.instance }}}} has refused its configuration file for"
            f" {words(_REFUSED_S * scale)}; it"
            " goes on with the previous one"
        ),
        description=(
            f"For {words(_REFUSED_S * scale)} the Kneewatch at {{{{ $labels.instance }}}} has refused its"
            " configuration file and kept the previous one. If the file has a mistake, Kneewatch would not start with"
            " it either, and nothing would be monitored: `kneewatch config check -c FILE` names the mistake. If a"
            " change needs a restart, the log says so."
        ),
        means="Kneewatch refuses its configuration file and keeps the previous one",
        panels={links.PROBE: ["Configuration file", "Configuration loaded"]},
        unseen="the configuration does not change",
    )
