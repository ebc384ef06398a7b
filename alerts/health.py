"""The alerts on Kneewatch itself: gone, silent for a target, without it, or blind to a server's metrics. Pure.

They watch our own heartbeat, never traffic: a night without users is not silence, and a canary that
fails because the server is down is a task that ran.
"""

from alerts.discovery import discovery_alerts, shard_alerts
from alerts.instrument import instrument_alerts
from alerts.links import PROBE
from alerts.rules import Alert, RuleGroup, none_of, one_of
from alerts.windows import HOUR_S, duration
from exporters import names
from probe.config.models import Config

_INTERVALS = 5
_AT_LEAST_S = 120.0


def health_group(config: Config, scale: float = 1.0) -> RuleGroup:
    """The probe's own alerts; `scale` shortens their waiting times, the canary's intervals stay."""
    passive = [target.known_as for target in config.targets if target.passive]
    found = [template.known_as for template in config.templates]
    rules = [_gone(config, scale), _silent(config, scale), _vanished(found, scale), _unreadable(scale)]
    rules += [_passive(passive, scale)] if passive else []
    rules += instrument_alerts(scale)
    rules += discovery_alerts(scale) if found else []
    rules += shard_alerts(scale)
    return RuleGroup("kneewatch-health", max(1.0, 30 * scale), rules)


def _gone(config: Config, scale: float) -> Alert:
    # By target: with two Kneewatches in one Prometheus, the series of the one would hide that the other is gone.
    last = names.TASK_LAST_SUCCESS.name
    watched = sorted((target.name, "scrape" if target.passive else "canary") for target in config.servers)
    series = [f'{last}{{task="{task}",target="{name}"}}' for name, task in watched]
    # Servers that are found come and go; what finds them stays.
    series += [f'{names.DISCOVERED.name}{{target="{name}"}}' for name in sorted(one.name for one in config.templates)]
    absent = "\n  or ".join(f"absent({one})" for one in series)
    for_s = 300 * scale  # a rollout of Kneewatch or a restart of Prometheus takes less
    return Alert(
        name="KneewatchProbeGone",
        expr=f"max by (target) (\n  {absent}\n)",
        for_s=for_s,
        severity="page",
        dashboard=PROBE,
        summary=f"{{{{ $labels.target }}}}: no Kneewatch that watches it has been scraped for {duration(for_s)}",
        description=(
            f"Prometheus has had no {last} of {{{{ $labels.target }}}} for {duration(for_s)}: the Kneewatch"
            " that watches it is down, not scraped, or no longer told to. No other Kneewatch alert can fire for"
            " {{ $labels.target }} until it is back."
        ),
    )


def _silent(config: Config, scale: float) -> Alert:
    last = f'{names.TASK_LAST_SUCCESS.name}{{task="canary"}}'
    interval = f'{names.TASK_INTERVAL.name}{{task="canary"}}'
    # A canary that waits for its timeout is slow and not silent.
    floor_s = max(_AT_LEAST_S * scale, 2 * max(target.canary.timeout for target in config.targets))
    # The task counts as alive from the monitor's start, so one that never ends is missed too, and a
    # monitor that has just started is not.
    # Where several watch a target of that name, as sidecars do, one that hangs counts.
    expr = f"time() - min by (target) ({last})\n  > clamp_min({_INTERVALS} * max by (target) ({interval}), {floor_s:g})"
    return Alert(
        name="KneewatchProbeSilent",
        expr=expr,
        for_s=60 * scale,
        severity="page",
        dashboard=PROBE,
        summary="{{ $labels.target }}: no canary has run for {{ $value | humanizeDuration }}",
        description=(
            "Kneewatch runs, but a canary task for {{ $labels.target }} has not run to its end for at least"
            " {{ $value | humanizeDuration }}. Whether the server is up is not known, and its other alerts cannot fire."
        ),
    )


def _vanished(found: list[str], scale: float) -> Alert:
    """All Kneewatches of a job are there, and none of any job watches a target that one of it watched an hour ago.

    By job, since the address of a Kneewatch in a cluster changes with each change of its configuration. Where one of
    the job is gone, its targets are KneewatchProbeGone's.
    """
    ago = duration(HOUR_S * scale)
    # What discovery finds may go; KneewatchNothingFound looks after that.
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
        summary="{{ $labels.target }}: Kneewatch runs, and does not watch it any more",
        description=(
            f"{ago} ago a Kneewatch watched {{{{ $labels.target }}}}. As many of them run now as then, and none has it"
            " in its configuration. If it was removed on purpose, this ends within the hour; if not, nobody sees what"
            " happens to it."
        ),
    )


def _unreadable(scale: float) -> Alert:
    window = duration(300 * scale)
    never_read = f"max_over_time({names.SERVER_UP.name}[{window}]) == 0"
    # A server that is down altogether is another alert's business: here its canaries succeed.
    # Compared pod by pod, so that one blind Kneewatch of several is seen.
    expr = f"max by (target) (\n  {never_read}\n  and {names.TARGET_UP.name} == 1\n)"
    return Alert(
        name="KneewatchServerMetricsUnreadable",
        expr=expr,
        for_s=300 * scale,
        severity="ticket",
        dashboard=PROBE,
        summary="{{ $labels.target }}: answers, but its metrics cannot be read",
        description=(
            "{{ $labels.target }} answers canaries, but no attempt to read its own metrics has succeeded for"
            f" {duration(600 * scale)}. Queue, KV cache and preemptions are unknown, and the guard of capacity runs"
            " cannot see them."
        ),
    )


def _passive(targets: list[str], scale: float) -> Alert:
    """The same of targets without canaries: nothing else tells that they are down."""
    window = duration(300 * scale)
    return Alert(
        name="KneewatchServerMetricsUnreadable",
        expr=f"max by (target) (max_over_time({names.SERVER_UP.name}{{{one_of(targets)}}}[{window}])) == 0",
        for_s=300 * scale,
        severity="page",
        dashboard=PROBE,
        summary="{{ $labels.target }}: its metrics cannot be read, and nothing else tells whether it is up",
        description=(
            f"No attempt to read the metrics of {{{{ $labels.target }}}} has succeeded for {duration(600 * scale)}. It"
            " is passive: no canary asks it anything, so it may well be down, and no other alert would say so."
        ),
    )
