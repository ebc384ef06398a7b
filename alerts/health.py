"""Alerts on Kneewatch itself: down, silent for a target, without the target, or unable to read its metrics. Pure.

They watch Kneewatch's own heartbeat, never traffic: a night without users is not silence, and a canary that fails
because the server is down is a task that ran.
"""

from alerts.discovery import discovery_alerts, shard_alerts
from alerts.instrument import instrument_alerts
from alerts.links import PROBE
from alerts.rules import Alert, RuleGroup, none_of, one_of
from alerts.windows import HOUR_S, duration
from exporters import names
from probe.config.config import Config

_INTERVALS = 5
_AT_LEAST_S = 120.0


def health_group(config: Config, scale: float = 1.0) -> RuleGroup:
    """Return the alerts on Kneewatch itself; `scale` shortens their waiting times, but not the canary intervals."""
    passive = [target.known_as for target in config.targets if target.passive]
    found = [template.known_as for template in config.templates]
    rules = [_gone(config, scale), _silent(config, scale), _vanished(found, scale), _unreadable(scale)]
    rules += [_passive(passive, scale)] if passive else []
    rules += instrument_alerts(scale)
    rules += discovery_alerts(scale) if found else []
    rules += shard_alerts(scale)
    return RuleGroup("kneewatch-health", max(1.0, 30 * scale), rules)


def _gone(config: Config, scale: float) -> Alert:
    # By target: with two Kneewatches in one Prometheus, one's series would hide that the other is down.
    last = names.TASK_LAST_SUCCESS.name
    watched = sorted((target.name, "scrape" if target.passive else "canary") for target in config.servers)
    series = [f'{last}{{task="{task}",target="{name}"}}' for name, task in watched]
    # Discovered servers come and go; their discovery stays.
    discoveries = sorted(template.name for template in config.templates)
    series += [f'{names.DISCOVERED.name}{{discovery="{discovery}"}}' for discovery in discoveries]
    name = "{{ or $labels.target $labels.discovery }}"
    absent = "\n  or ".join(f"absent({one})" for one in series)
    for_s = 300 * scale  # longer than a rollout of Kneewatch or a restart of Prometheus
    return Alert(
        name="KneewatchProbeGone",
        expr=f"max by (target, discovery) (\n  {absent}\n)",
        for_s=for_s,
        severity="page",
        dashboard=PROBE,
        summary=f"{name}: no Kneewatch that watches it has been scraped for {duration(for_s)}",
        description=(
            f"For {duration(for_s)} Prometheus has had no sample of {name}: the Kneewatch that watches it is down, is"
            " not scraped, or no longer has it in its configuration. No other Kneewatch alert can fire for"
            f" {name} until it is back."
        ),
    )


def _silent(config: Config, scale: float) -> Alert:
    last = f'{names.TASK_LAST_SUCCESS.name}{{task="canary"}}'
    interval = f'{names.TASK_INTERVAL.name}{{task="canary"}}'
    # A canary that waits for its timeout is slow, not silent.
    floor_s = max(_AT_LEAST_S * scale, 2 * max(target.canary.timeout for target in config.targets))
    # The task counts as alive from the monitor's start: a task that never completes is caught, and a monitor that has
    # just started is not. If several instances watch a target of that name, as sidecars do, the slowest counts.
    expr = f"time() - min by (target) ({last})\n  > clamp_min({_INTERVALS} * max by (target) ({interval}), {floor_s:g})"
    return Alert(
        name="KneewatchProbeSilent",
        expr=expr,
        for_s=60 * scale,
        severity="page",
        dashboard=PROBE,
        summary="{{ $labels.target }}: no canary has run for {{ $value | humanizeDuration }}",
        description=(
            "Kneewatch is up, but no canary of {{ $labels.target }} has completed for at least"
            " {{ $value | humanizeDuration }}. Whether the server is up is unknown, and its other alerts cannot fire."
        ),
    )


def _vanished(found: list[str], scale: float) -> Alert:
    """Alert if every instance of a job is up, and none watches a target that one of them watched an hour ago.

    By job, because the address of a Kneewatch in a cluster changes with each change of its configuration. If an
    instance of the job is down, KneewatchProbeGone covers its targets.
    """
    ago = duration(HOUR_S * scale)
    # Discovered targets may go; KneewatchNothingFound covers them.
    but = f",{none_of(found)}" if found else ""
    watched = f'{names.TASK_LAST_SUCCESS.name}{{task=~"canary|scrape"{but}}}'
    running = f"count by (job) ({names.BUILD_INFO.name}"
    return Alert(
        name="KneewatchTargetVanished",
        expr=(
            f"max by (target) (\n  {watched} offset {ago}\n"
            f"  and on (job) ({running}) >= {running} offset {ago}))\n)\n"
            f"unless max by (target) ({watched})"
        ),
        for_s=600 * scale,
        severity="ticket",
        dashboard=PROBE,
        summary="{{ $labels.target }}: Kneewatch is up but no longer watches it",
        description=(
            f"A Kneewatch watched {{{{ $labels.target }}}} {ago} ago. As many instances are up now as then, but none"
            " has it in its configuration. If it was removed on purpose, this alert ends within the hour; if not, the"
            " target is not monitored."
        ),
    )


def _unreadable(scale: float) -> Alert:
    window = duration(300 * scale)
    never_read = f"max_over_time({names.SERVER_UP.name}[{window}]) == 0"
    # Other alerts cover a server that is down: here its canaries succeed. Compared pod by pod, so that one blind
    # Kneewatch among several is noticed.
    expr = f"max by (target) (\n  {never_read}\n  and {names.TARGET_UP.name} == 1\n)"
    return Alert(
        name="KneewatchServerMetricsUnreadable",
        expr=expr,
        for_s=300 * scale,
        severity="ticket",
        dashboard=PROBE,
        summary="{{ $labels.target }}: answers canaries, but its metrics cannot be read",
        description=(
            "{{ $labels.target }} answers canaries, but every attempt to read its metrics has failed for"
            f" {duration(600 * scale)}. Queue, KV cache and preemptions are unknown, also to the guard of capacity"
            " runs."
        ),
    )


def _passive(targets: list[str], scale: float) -> Alert:
    """The same for targets without canaries: nothing else shows that they are down."""
    window = duration(300 * scale)
    return Alert(
        name="KneewatchServerMetricsUnreadable",
        expr=f"max by (target) (max_over_time({names.SERVER_UP.name}{{{one_of(targets)}}}[{window}])) == 0",
        for_s=300 * scale,
        severity="page",
        dashboard=PROBE,
        summary="{{ $labels.target }}: its metrics cannot be read, and nothing else shows whether it is up",
        description=(
            f"Every attempt to read the metrics of {{{{ $labels.target }}}} has failed for {duration(600 * scale)}. The"
            " target is passive (no canaries), so it may be down, and no other alert would fire."
        ),
    )
