"""Alerts on Kneewatch itself: down, silent for a target, without the target, or unable to read its metrics. Pure.

They watch Kneewatch's own heartbeat, never traffic: a night without users is not silence, and a canary that fails
because the server is down is a task that ran. No rule names a target: what was there within the last day and is not
now is missing. Discovered servers come and go, so their discovery is watched instead.
"""

from functools import partial

from alerts import inhibitions, links
from alerts.alert_labels import by, on
from alerts.discovery import discovery_alerts, incomplete_shards
from alerts.instrument import instrument_alerts
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

HEARTBEAT, MISSING = f"target:{PREFIX}heartbeat:present", f"target:{PREFIX}heartbeat:missing"
LOST = f"target:{PREFIX}heartbeat:lost"
_LOST_S = 7 * DAY_S
# A rollout of Kneewatch shows one instance more or less for a few minutes; the median of a day shows neither.
_STEP_S = 600.0


def health_group(scale: float = 1.0) -> RuleGroup:
    """Return the alerts on whether it watches; `scale` shortens their waiting times, but not the canary intervals."""
    rules: list[Recording | Alert] = [*heartbeats(scale), _gone(scale), _silent(scale), _vanished(scale)]
    rules += [_instance_gone(scale), _unreadable(scale), _passive(scale)]
    return RuleGroup("kneewatch-health", max(1.0, 60 * scale), rules)


def instrument_group(scale: float = 1.0) -> RuleGroup:
    """Return the tickets on how Kneewatch works; `scale` shortens their windows and waiting times."""
    rules = [*instrument_alerts(scale), *discovery_alerts(scale)]
    return RuleGroup("kneewatch-instrument", max(1.0, 240 * scale), rules)


def _gone(scale: float) -> Alert:
    """Alert on each target of a Kneewatch that is down; without a target if none was watched within the last day."""
    named = "{{ with or $labels.target $labels.discovery }}"
    for_s = 300 * scale  # longer than a rollout of Kneewatch or a restart of Prometheus
    return Alert(
        name="KneewatchProbeGone",
        command=links.PODS,
        expr=f"{of_a_dead_kneewatch(scale)}\nor {nothing_watched(scale)}",
        for_s=for_s,
        severity="page",
        summary=(
            f"{named}{{{{ . }}}} is UNWATCHED: no Kneewatch that watches it{{{{ else }}}}No Kneewatch{{{{ end }}}} has"
            f" been scraped for {words(for_s)}"
        ),
        description=(
            f"{named}For {words(for_s)} Prometheus has had no sample of {{{{ . }}}}: the Kneewatch that watches it"
            " is down or is not scraped. No other Kneewatch alert can fire for {{ . }} until it is back."
            f"{{{{ else }}}}Prometheus has had no sample of a Kneewatch for {words(DAY_S * scale)} or more: none"
            " runs, or none is scraped. No other Kneewatch alert can fire.{{ end }}"
        ),
        means="no Kneewatch watches the target, so no other alert can fire for it",
        panels={links.PROBE: ["Configuration file", "Uptime", "Time since each task ran"], links.FLEET: ["Targets"]},
        route=inhibitions.ONE_KNEEWATCH,
        unseen="Kneewatch itself has no fault",
    )


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
    """Alert if every Kneewatch is up, and none watches what one watched within the last day."""
    name = "{{ or $labels.target $labels.discovery }}"
    return Alert(
        name="KneewatchTargetVanished",
        command=links.SHOW_CONFIG,
        expr=of_a_changed_configuration(scale),
        for_s=600 * scale,
        severity="ticket",
        summary=f"{name}: no Kneewatch has it in its configuration any more; one had it within {words(DAY_S * scale)}",
        description=(
            f"Every Kneewatch is up, but none has {name} in its configuration; one had it within the last"
            f" {words(DAY_S * scale)}. If it was removed on purpose, this alert ends within that time. If not, it is"
            " not monitored."
        ),
        means="every Kneewatch is up, and none watches a target that one watched within the last day",
        panels={links.PROBE: ["Time since each task ran"], links.FLEET: ["Targets"]},
        route=inhibitions.ALL_TARGETS,
        unseen="the configuration does not change",
    )


def _instance_gone(scale: float) -> Alert:
    """Alert if a Kneewatch is gone while another one still watches. If none does, KneewatchProbeGone pages."""
    return Alert(
        name="KneewatchInstanceGone",
        command=links.PODS,
        expr=f"{fewer(scale)}\nand {on()} {HEARTBEAT}\nunless {on()} ({incomplete_shards()})",
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
    """Return rules that record 1 for each target and discovery that is watched, that is missing, and that is lost.

    A heartbeat is there whatever the server does: the time of the last canary or, for a passive target, of the last
    scrape. It is missing for a day; and lost for a week where nothing else in its namespace is watched. LOST follows
    itself, so a target that was removed before that is not among them.
    """
    last = f'{names.TASK_LAST_SUCCESS.name}{{task=~"canary|scrape",target!~".+/.+"}}'
    day, hour = duration(DAY_S * scale), duration(HOUR_S * scale)
    return [
        Recording(HEARTBEAT, f"group {by('target')} ({last})\nor group {by('discovery')} ({names.DISCOVERED.name})"),
        Recording(MISSING, f"last_over_time({HEARTBEAT}[{day}])\nunless {HEARTBEAT}"),
        Recording(
            LOST,
            f"{MISSING} unless {on()} {HEARTBEAT}\n"
            f"or last_over_time({LOST}[{hour}]) unless {on()} {HEARTBEAT}\n"
            f"  and {on()} last_over_time((group {by()} ({HEARTBEAT}))[{duration(_LOST_S * scale)}:{hour}])",
        ),
    ]


def fewer(scale: float) -> str:
    """Return an expression for jobs of Kneewatch with fewer instances than in most of the last day.

    Its value is the number they had. Counted by job, because the address of a Kneewatch in a cluster changes with each
    change of its configuration.
    """
    instances = f"count {by('job')} ({names.BUILD_INFO.name})"
    usual = f"quantile_over_time(0.5, ({instances})[{duration(DAY_S * scale)}:{duration(_STEP_S * scale)}])"
    return f"{usual}\n  > ({instances} or 0 * {usual})"


def of_a_dead_kneewatch(scale: float) -> str:
    """Return an expression for what is missing because a Kneewatch is down: no other in its namespace, or fewer."""
    return f"{LOST}\nor {MISSING} and {on()} ({_some_down(scale)})"


def of_a_changed_configuration(scale: float) -> str:
    """Return an expression for what is missing while every Kneewatch is up."""
    return f"{MISSING} and {on()} {HEARTBEAT} unless {on()} ({_some_down(scale)})"


def nothing_watched(scale: float) -> str:
    """Return an expression with a result if nothing was watched within the last day, and no target is lost."""
    return f"absent(last_over_time({HEARTBEAT}[{duration(DAY_S * scale)}]) or {LOST})"


def _some_down(scale: float) -> str:
    return f"\n  {fewer(scale)}\n  or {incomplete_shards()}\n"
