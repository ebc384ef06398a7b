"""Alerts on Kneewatch itself: down, silent for a target, without the target, or unable to read its metrics. Pure.

They watch Kneewatch's own heartbeat, never traffic: a night without users is not silence, and a canary that fails
because the server is down is a task that ran.
"""

from alerts.alert_labels import by, on
from alerts.discovery import discovery_alerts, incomplete_shards, shard_alerts
from alerts.instrument import instrument_alerts
from alerts.links import PROBE
from alerts.rules import Alert, Recording, RuleGroup, none_of, one_of
from alerts.windows import DAY_S, HOUR_S, duration
from exporters import names
from exporters.names import PREFIX
from probe.config.config import Config
from probe.config.targets import TemplateConfig

_INTERVALS = 5
_AT_LEAST_S = 120.0
# A rollout of Kneewatch shows one instance more or less for a few minutes; the median of a day shows neither.
_INSTANCES_S, _INSTANCES_STEP_S = DAY_S, 600.0
_INSTANCE_GONE_S = 1800.0
_ABSENT = f"target:{PREFIX}heartbeat:absent"


def health_group(config: Config, scale: float = 1.0) -> RuleGroup:
    """Return the alerts on Kneewatch itself; `scale` shortens their waiting times, but not the canary intervals."""
    passive = [target.known_as for target in config.targets if target.passive]
    found = [template.known_as for template in config.templates]
    rules: list[Recording | Alert] = [
        _absent(config),
        _gone(config, scale),
        _silent(config, scale),
        _vanished(config, found, scale),
    ]
    rules += [_instance_gone(config, scale), _unreadable(scale)]
    rules += [_passive(passive, scale)] if passive else []
    rules += instrument_alerts(scale)
    rules += discovery_alerts(_templates(config), scale) if found else []
    rules += shard_alerts(scale)
    return RuleGroup("kneewatch-health", max(1.0, 30 * scale), rules)


def _expected(config: Config) -> list[str]:
    """Return the heartbeat of each target of the configuration: a series that must be there, whatever the server does.

    Discovered servers come and go; their discovery stays.
    """
    last = names.TASK_LAST_SUCCESS.name
    watched = sorted((target.name, "scrape" if target.passive else "canary") for target in config.servers)
    series = [f'{last}{{task="{task}",target="{name}"}}' for name, task in watched]
    return series + [f'{names.DISCOVERED.name}{{discovery="{template.name}"}}' for template in _templates(config)]


def _templates(config: Config) -> list[TemplateConfig]:
    return sorted(config.templates, key=lambda template: template.name)


def _absent(config: Config) -> Recording:
    """Record 1 for each heartbeat that is missing."""
    absent = "\n  or ".join(f"absent({series})" for series in _expected(config))
    return Recording(_ABSENT, f"max by (target, discovery) (\n  {absent}\n)")


def _none_watched(config: Config) -> str:
    """Return an expression with a result if every heartbeat of the configuration is missing."""
    return f"count({_ABSENT}) >= {len(_expected(config))}"


def _fewer(scale: float) -> str:
    """Return an expression for jobs of Kneewatch with fewer instances than in most of the last day.

    Its value is the number they had. Counted by job, because the address of a Kneewatch in a cluster changes with each
    change of its configuration.
    """
    instances = f"count {by('job')} ({names.BUILD_INFO.name})"
    day, step = duration(_INSTANCES_S * scale), duration(_INSTANCES_STEP_S * scale)
    usual = f"quantile_over_time(0.5, ({instances})[{day}:{step}])"
    return f"{usual}\n  > ({instances} or 0 * {usual})"


def _gone(config: Config, scale: float) -> Alert:
    """Alert if a target's heartbeat is missing, unless every Kneewatch is up: then none is to watch that target.

    By target: with two Kneewatches in one Prometheus, one's series would hide that the other is down.
    """
    name = "{{ or $labels.target $labels.discovery }}"
    for_s = 300 * scale  # longer than a rollout of Kneewatch or a restart of Prometheus
    return Alert(
        name="KneewatchProbeGone",
        expr=(
            f"{_ABSENT}\nand on () (\n  {_none_watched(config)}\n  or {_fewer(scale)}\n  or {incomplete_shards()}\n)"
        ),
        for_s=for_s,
        severity="page",
        dashboard=PROBE,
        summary=f"{name}: no Kneewatch that watches it has been scraped for {duration(for_s)}",
        description=(
            f"For {duration(for_s)} Prometheus has had no sample of {name}: the Kneewatch that watches it is down or is"
            f" not scraped. No other Kneewatch alert can fire for {name} until it is back."
        ),
    )


def _silent(config: Config, scale: float) -> Alert:
    """Alert if the time of the last canary has not changed. The clocks of two machines are never compared.

    A monitor that has just started has no older value to compare with. If several instances watch a target of that
    name, as sidecars do, one that hangs is enough.
    """
    last = f'{names.TASK_LAST_SUCCESS.name}{{task="canary"}}'
    interval = f'{names.TASK_INTERVAL.name}{{task="canary"}}'
    # A canary that waits for its timeout is slow, not silent.
    floor_s = max(_AT_LEAST_S * scale, 2 * max(target.canary.timeout for target in config.targets))
    windows = sorted({max(floor_s, _INTERVALS * target.canary.every) for target in config.targets})
    unchanged = "\n  or ".join(
        f"clamp({last} == {last} offset {duration(s)}, {s:g}, {s:g}) and {_INTERVALS} * {interval} <= {s:g}"
        for s in windows
    )
    return Alert(
        name="KneewatchProbeSilent",
        expr=f"max {by('target')} (\n  {unchanged}\n)",
        for_s=60 * scale,
        severity="page",
        dashboard=PROBE,
        summary="{{ $labels.target }}: no canary has run for more than {{ $value | humanizeDuration }}",
        description=(
            "Kneewatch is up, but no canary of {{ $labels.target }} has completed for more than"
            " {{ $value | humanizeDuration }}. Whether the server is up is unknown, and its other alerts cannot fire."
        ),
    )


def _vanished(config: Config, found: list[str], scale: float) -> Alert:
    """Alert if every Kneewatch is up, and none watches a target of the rules, or one watched an hour ago.

    If an instance is down, KneewatchProbeGone covers its targets.
    """
    ago = duration(HOUR_S * scale)
    # Discovered targets may go; KneewatchNothingFound covers them.
    but = f",{none_of(found)}" if found else ""
    watched = f'{names.TASK_LAST_SUCCESS.name}{{task=~"canary|scrape"{but}}}'
    running = f"count {by('job')} ({names.BUILD_INFO.name}"
    return Alert(
        name="KneewatchTargetVanished",
        expr=(
            f"(\n  max {by('target')} (\n    {watched} offset {ago}\n"
            f"    and {on('job')} ({running}) >= {running} offset {ago}))\n  )\n"
            f"  unless max {by('target')} ({watched})\n)\n"
            f"or (\n  {_ABSENT}\n  unless on () (\n  {_none_watched(config)}\n"
            f"  or {_fewer(scale)}\n  or {incomplete_shards()}\n  )\n)"
        ),
        for_s=600 * scale,
        severity="ticket",
        dashboard=PROBE,
        summary="{{ or $labels.target $labels.discovery }}: Kneewatch is up but does not watch it",
        description=(
            "Every Kneewatch is up, and none has {{ or $labels.target $labels.discovery }} in its configuration. If it"
            " was removed on purpose, generate the rules again: they still expect it, or they do not and this alert"
            " ends within the hour. If not, it is not monitored."
        ),
    )


def _instance_gone(config: Config, scale: float) -> Alert:
    """Alert if a Kneewatch is gone while another one still watches. If none does, KneewatchProbeGone pages."""
    return Alert(
        name="KneewatchInstanceGone",
        expr=f"{_fewer(scale)}\nunless on () ({incomplete_shards()})\nunless on () {_none_watched(config)}",
        for_s=_INSTANCE_GONE_S * scale,
        severity="ticket",
        dashboard=PROBE,
        summary="{{ $labels.job }}: a Kneewatch is gone, and another one still watches",
        description=(
            "The job {{ $labels.job }} had {{ $value | humanize }} Kneewatches for most of the last day and has had"
            f" fewer for {duration(_INSTANCE_GONE_S * scale)}. Targets are still watched, but the next failure would"
            " leave them unwatched. If there are fewer on purpose, this alert ends within half a day."
        ),
    )


def _unreadable(scale: float) -> Alert:
    window = duration(300 * scale)
    never_read = f"max_over_time({names.SERVER_UP.name}[{window}]) == 0"
    # Other alerts cover a server that is down: here its canaries succeed. Compared pod by pod, so that one blind
    # Kneewatch among several is noticed.
    expr = f"max {by('target')} (\n  {never_read}\n  and {names.TARGET_UP.name} == 1\n)"
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
        expr=f"max {by('target')} (max_over_time({names.SERVER_UP.name}{{{one_of(targets)}}}[{window}])) == 0",
        for_s=300 * scale,
        severity="page",
        dashboard=PROBE,
        summary="{{ $labels.target }}: its metrics cannot be read, and nothing else shows whether it is up",
        description=(
            f"Every attempt to read the metrics of {{{{ $labels.target }}}} has failed for {duration(600 * scale)}. The"
            " target is passive (no canaries), so it may be down, and no other alert would fire."
        ),
    )
