"""Which targets and discoveries a Kneewatch watches, and which it watched within the last day. Pure.

No rule names a target: what was there within the last day and is not now is missing. Discovered servers come and go,
so their discovery is watched instead.
"""

from alerts.alert_labels import by, on
from alerts.discovery import incomplete_shards
from alerts.rules import Recording
from alerts.windows import DAY_S, duration
from exporters import names
from exporters.names import PREFIX

HEARTBEAT, MISSING = f"target:{PREFIX}heartbeat:present", f"target:{PREFIX}heartbeat:missing"
# A rollout of Kneewatch shows one instance more or less for a few minutes; the median of a day shows neither.
_STEP_S = 600.0


def heartbeats(scale: float) -> list[Recording]:
    """Return rules that record 1 for each target and discovery that is watched, and for each that is missing.

    A heartbeat is there whatever the server does: the time of the last canary or, for a passive target, of the last
    scrape.
    """
    last = f'{names.TASK_LAST_SUCCESS.name}{{task=~"canary|scrape",target!~".+/.+"}}'
    day = duration(DAY_S * scale)
    return [
        Recording(HEARTBEAT, f"group {by('target')} ({last})\nor group {by('discovery')} ({names.DISCOVERED.name})"),
        Recording(MISSING, f"last_over_time({HEARTBEAT}[{day}])\nunless {HEARTBEAT}"),
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
    return f"{MISSING} unless {on()} {HEARTBEAT}\nor {MISSING} and {on()} ({_some_down(scale)})"


def of_a_changed_configuration(scale: float) -> str:
    """Return an expression for what is missing while every Kneewatch is up."""
    return f"{MISSING} and {on()} {HEARTBEAT} unless {on()} ({_some_down(scale)})"


def nothing_watched(scale: float) -> str:
    """Return an expression with a result if nothing was watched within the last day."""
    return f"absent(last_over_time({HEARTBEAT}[{duration(DAY_S * scale)}]))"


def _some_down(scale: float) -> str:
    return f"\n  {fewer(scale)}\n  or {incomplete_shards()}\n"
