"""Alerts on Kneewatch itself: down, silent for a target, without the target, or unable to read its metrics. Pure.

They watch Kneewatch's own heartbeat, never traffic: a night without users is not silence, and a canary that fails
because the server is down is a task that ran. No rule names a target: what was there within the last day and is not
now is missing. If the Kneewatch that watched it last is gone since then, it is lost; else it was taken out. Discovered
servers come and go, so their discovery is watched instead.
"""

from functools import partial

from alerts import inhibitions, links
from alerts.alert_labels import by, on
from alerts.discovery import discovery_alerts, incomplete_shards
from alerts.instrument import instrument_alerts, unrecorded
from alerts.rules import Alert, Recording, RuleGroup
from alerts.templates import COUNT, SPAN, words
from alerts.windows import DAY_S, HOUR_S, duration
from exporters import names
from exporters.names import PREFIX

# A canary is silent after so many of its intervals and timeouts. PromQL's offsets are constants: the next of these (s).
_INTERVALS = 5
_TIMEOUTS = 2
_SILENT_S = (120.0, 300.0, 900.0, HOUR_S, 6 * HOUR_S, DAY_S, 5 * DAY_S)
_INSTANCE_GONE_S = 1800.0

_server_metrics_unreadable = partial(
    Alert,
    name="KneewatchServerMetricsUnreadable",
    command=links.READ_METRICS,
    means="the server's metrics cannot be read; a page for a passive target, which nothing else watches",
    panels={
        links.PROBE: ["Unreadable servers", "Failed scrapes by reason", "Scrape duration"],
        links.SERVER: ["Server's metrics"],
    },
    silenced_by=(inhibitions.TARGET_DOWN,),
    unseen="a server that answers lets its metrics be read",
)

INSTANCE, HEARTBEAT = f"instance:{PREFIX}heartbeat:seconds", f"instance_target:{PREFIX}heartbeat:seconds"
MISSING, DIED = f"instance_target:{PREFIX}heartbeat:missing", f"instance_target:{PREFIX}heartbeat:died"
LOST = f"job_target:{PREFIX}heartbeat:lost"
# A failed scrape ends an instant value at once. A rollout of Kneewatch or a restart of Prometheus takes less.
_SILENCE_S = 300.0
# Prometheus itself has just begun, and has not scraped yet.
_GONE_FOR_S = 60.0
# How long a target that was taken out is told.
_TOLD_S = HOUR_S
_NAME = "{{ or $labels.target $labels.discovery }}"
_probe_gone = partial(
    Alert,
    name="KneewatchProbeGone",
    severity="page",
    command=links.PODS,
    means="no Kneewatch watches the target, so no other alert can fire for it",
    panels={links.PROBE: ["Configuration file", "Uptime", "Time since each task ran"], links.FLEET: ["Targets"]},
    route=inhibitions.ONE_KNEEWATCH,
    unseen="Kneewatch itself has no fault",
)
_LOST_S = 7 * DAY_S
# A rollout of Kneewatch shows one instance more or less for a few minutes; the median of a day shows neither.
_STEP_S = 600.0


def health_group(scale: float = 1.0) -> RuleGroup:
    """Return the alerts on whether it watches; `scale` shortens their waiting times, but not the canary intervals."""
    rules: list[Recording | Alert] = [*heartbeats(scale), *_gone(scale), _silent(scale), _vanished(scale)]
    rules += [_instance_gone(scale), _unreadable(scale), _passive(scale)]
    return RuleGroup("kneewatch-health", max(1.0, 60 * scale), rules)


def recording_group(scale: float = 1.0) -> RuleGroup:
    """Return the page on requests that are not recorded. In no group of what it watches, which may fail as a whole."""
    return RuleGroup("kneewatch-recording", max(1.0, 60 * scale), [unrecorded(scale)])


def instrument_group(scale: float = 1.0) -> RuleGroup:
    """Return the tickets on how Kneewatch works; `scale` shortens their windows and waiting times."""
    rules = [*instrument_alerts(scale), *discovery_alerts(scale)]
    return RuleGroup("kneewatch-instrument", max(1.0, 240 * scale), rules)


def _gone(scale: float) -> list[Alert]:
    """Alert on each target of a Kneewatch that is down; without a target if none was watched within the last day."""
    silent_s = _SILENCE_S * scale
    return [
        _probe_gone(
            expr=f"max {by('target', 'discovery')} ({LOST})",
            for_s=_GONE_FOR_S * scale,
            summary=f"{_NAME} is UNWATCHED: no Kneewatch that watches it has been scraped for {words(silent_s)}",
            description=(
                f"For {words(silent_s)} Prometheus has had no sample of {_NAME}: the Kneewatch that watches it"
                f" is down or is not scraped. No other Kneewatch alert can fire for {_NAME} until it is back."
            ),
        ),
        _probe_gone(
            expr=nothing_watched(scale),
            for_s=silent_s,
            labels={"reason": "nothing"},
            summary=f"No Kneewatch has been scraped for {words(silent_s)}",
            description=(
                f"Prometheus has had no sample of a Kneewatch for {words(DAY_S * scale)} or more: none runs, or none"
                " is scraped. No other Kneewatch alert can fire."
            ),
        ),
    ]


def _silent(scale: float) -> Alert:
    """Alert if the time of the last canary has not changed. The clocks of two machines are never compared.

    A monitor that has just started has no older value to compare with. If several instances watch a target of that
    name, as sidecars do, one that hangs is enough. A canary that waits for its timeout is slow, not silent.
    """
    last = f'{names.TASK_LAST_SUCCESS.name}{{task="canary"}}'
    interval, timeout = f'{names.TASK_INTERVAL.name}{{task="canary"}}', names.CANARY_TIMEOUT.name
    unchanged = "\n  or ".join(
        f"clamp({last} == {last} offset {duration(s)}, {s:g}, {s:g}) and {_INTERVALS} * {interval} <= {s:g}"
        f" unless ignoring (task) {_TIMEOUTS} * {timeout} > {s:g}"
        for s in (silent_s * scale for silent_s in reversed(_SILENT_S))
    )
    return Alert(
        name="KneewatchProbeSilent",
        expr=f"max {by('target')} (\n  {unchanged}\n)",
        for_s=60 * scale,
        severity="page",
        summary=f"{{{{ $labels.target }}}} is UNWATCHED: no canary has run for more than {{{{ $value | {SPAN} }}}}",
        description=(
            "Kneewatch is up, but no canary of {{ $labels.target }} has completed for more than"
            f" {{{{ $value | {SPAN} }}}}. Whether the server is up is unknown, and its other alerts cannot fire."
        ),
        means="the canaries of a target have stopped, so no alert on them can fire",
        panels={links.PROBE: ["Overdue tasks", "Time since each task ran"]},
        unseen="Kneewatch itself has no fault",
    )


def _vanished(scale: float) -> Alert:
    """Alert on what no Kneewatch watches any more, and whose last one is up. A ticket of an hour for each removal."""
    name = _NAME
    return Alert(
        name="KneewatchTargetVanished",
        command=links.SHOW_CONFIG,
        expr=(
            f"max {by('target', 'discovery')} ({MISSING}) > time() - {_TOLD_S * scale:g}\n"
            f"unless {on('target', 'discovery')} {LOST}"
        ),
        for_s=600 * scale,
        severity="ticket",
        summary=(
            f"{name}: no Kneewatch has it in its configuration any more; one had it within {words(_TOLD_S * scale)}"
        ),
        description=(
            f"Kneewatch is up, but none has {name} in its configuration; one had it within the last"
            f" {words(_TOLD_S * scale)}. This alert ends within that time. If it was not removed on purpose, it is"
            " not monitored."
        ),
        means="Kneewatch is up, and none watches a target any more that one watched within the last hour",
        panels={links.PROBE: ["Time since each task ran"], links.FLEET: ["Targets"]},
        route=inhibitions.ALL_TARGETS,
        unseen="the configuration does not change",
    )


def _instance_gone(scale: float) -> Alert:
    """Alert if a Kneewatch is gone while another one still watches. If none does, KneewatchProbeGone pages."""
    return Alert(
        name="KneewatchInstanceGone",
        command=links.PODS,
        expr=(
            f"{fewer(scale)}\nand {on()} {HEARTBEAT}\nunless {on('job')} {LOST}\n"
            f"unless {on('job')} ({incomplete_shards()})"
        ),
        for_s=_INSTANCE_GONE_S * scale,
        severity="ticket",
        summary=(
            f"{{{{ $labels.job }}}}: fewer Kneewatches run than the usual {{{{ $value | {COUNT} }}}}, for"
            f" {words(_INSTANCE_GONE_S * scale)}; targets are still watched"
        ),
        description=(
            f"The job {{{{ $labels.job }}}} had {{{{ $value | {COUNT} }}}} Kneewatches for most of the last day and"
            f" has had"
            f" fewer for {words(_INSTANCE_GONE_S * scale)}. Targets are still watched, but the next failure would"
            " leave them unwatched. If there are fewer on purpose, this alert ends within half a day."
        ),
        means="one of several Kneewatches is gone; the others still watch",
        panels={links.PROBE: ["Configuration file"]},
        unseen="there is one Kneewatch",
    )


def _unreadable(scale: float) -> Alert:
    window = duration(300 * scale)
    never_read = f"max_over_time({names.SERVER_UP.name}[{window}]) == 0"
    # Other alerts cover a server that is down: here its canaries succeed. Compared pod by pod, so that one blind
    # Kneewatch among several is noticed.
    expr = f"max {by('target')} (\n  {never_read}\n  and {names.TARGET_UP.name} == 1\n)"
    return _server_metrics_unreadable(
        expr=expr,
        for_s=300 * scale,
        severity="ticket",
        summary=(
            f"{{{{ $labels.target }}}}: answers canaries, but its metrics have been unreadable for {words(600 * scale)}"
        ),
        description=(
            "{{ $labels.target }} answers canaries, but every attempt to read its metrics has failed for"
            f" {words(600 * scale)}. Queue, KV cache and preemptions are unknown, also to the guard of capacity"
            " runs."
        ),
    )


def _passive(scale: float) -> Alert:
    """Page where the target has no canaries: nothing else shows that it is down."""
    window = duration(300 * scale)
    return _server_metrics_unreadable(
        expr=(
            f"max {by('target')} (max_over_time({names.SERVER_UP.name}[{window}])) == 0\n"
            f'unless {on("target")} {names.TASK_INTERVAL.name}{{task="canary"}}'
        ),
        for_s=300 * scale,
        severity="page",
        summary=(
            f"{{{{ $labels.target }}}} may be DOWN: its metrics have been unreadable for {words(600 * scale)}, and it"
            f" gets no"
            " canaries"
        ),
        description=(
            f"Every attempt to read the metrics of {{{{ $labels.target }}}} has failed for {words(600 * scale)}. The"
            " target is passive (no canaries), so it may be down, and no other alert would fire."
        ),
    )


def heartbeats(scale: float) -> list[Recording]:
    """Return rules that record when each Kneewatch was there, and what it watches; and what is missing, and lost.

    A heartbeat is there whatever the server does: the time of the last canary or, for a passive target, of the last
    scrape. It is missing for a day. It died with the Kneewatch that had it last. It is lost for a week, if the job has
    fewer Kneewatches than it had, or lacks a shard: until it is back, or the Kneewatch is. Then it was taken out.
    """
    last = f'{names.TASK_LAST_SUCCESS.name}{{task=~"canary|scrape",target!~".+/.+"}}'
    day, hour, week = (duration(s * scale) for s in (DAY_S, HOUR_S, _LOST_S))

    def there(series: str, *labels: str) -> str:
        return f"group {by('job', 'instance', *labels)} (count_over_time({series}[{duration(_SILENCE_S * scale)}]))"

    watched, who = on("target", "discovery"), on("job", "instance")
    of_job = f"count {by('job')} ({INSTANCE})"
    begins = [
        f"({DIED} > bool 0) * {on('job')} group_left () ({fewer(scale)})",
        f"({DIED} > bool 0) unless {on('job')} {INSTANCE}",
        f"({DIED} > bool 0) and {on('job')} ({incomplete_shards()})",
    ]
    lasts = f"last_over_time({LOST}[{hour}])"
    return [
        Recording(
            HEARTBEAT,
            f"({there(last, 'target')}\n  or {there(names.DISCOVERED.name, 'discovery')}) * time()",
        ),
        Recording(
            INSTANCE,
            f"({there(names.BUILD_INFO.name)}\n  or group {by('job', 'instance')} ({HEARTBEAT})) * time()",
        ),
        Recording(MISSING, f"last_over_time({HEARTBEAT}[{day}])\nunless {watched} {HEARTBEAT}"),
        Recording(
            DIED,
            f"{MISSING} == {watched} group_left () max {by('target', 'discovery')} ({MISSING})\n"
            f"and {MISSING} >= {who} group_left () (last_over_time({INSTANCE}[{day}]) - {_SILENCE_S * scale:g})\n"
            f"unless {who} {INSTANCE}",
        ),
        Recording(
            LOST,
            f"max {by('job', 'target', 'discovery')} (\n  {f'{chr(10)}  or '.join(begins)}\n)\n"
            f"or ({lasts} unless {on('job')} {INSTANCE}\n"
            f"    or {lasts} > {on('job')} group_left () {of_job})\n"
            f"  unless {watched} {HEARTBEAT}\n  unless {LOST} offset {week}",
        ),
    ]


def fewer(scale: float) -> str:
    """Return an expression for jobs of Kneewatch with fewer instances than in most of the last day.

    Its value is the number they had. Counted by job, because the address of a Kneewatch in a cluster changes with each
    change of its configuration.
    """
    instances = f"count {by('job')} ({INSTANCE})"
    usual = f"quantile_over_time(0.5, ({instances})[{duration(DAY_S * scale)}:{duration(_STEP_S * scale)}])"
    return f"{usual}\n  > ({instances} or 0 * {usual})"


def nothing_watched(scale: float) -> str:
    """Return an expression with a result if no Kneewatch was there within the last day, and no target is lost."""
    return f"absent(last_over_time({INSTANCE}[{duration(DAY_S * scale)}]) or {LOST})"
