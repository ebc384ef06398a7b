"""Rules that find a server whose every canary fails, from the counters as they arrive. Pure.

The recorded minutes find it, too, up to a minute later: too late where samples themselves come two minutes late. As
elsewhere, six failures of canaries every 15 s page, or three of rarer ones; here, with no success since 75 seconds.
"""

from alerts import sli
from alerts.alert_labels import by, on
from alerts.rules import Recording
from alerts.windows import MIN_BAD_EVENTS, duration
from exporters import names
from exporters.names import PREFIX

DOWN = f"target:{PREFIX}canaries_failing:count"
_FAILED, _GOOD = (f"instance_target:{PREFIX}canaries_{kind}:sum" for kind in ("failed", "good"))
# A rolling update in which no connection succeeds for a minute fails four or five canaries.
_LEAST, _OFTEN_S = 6, 25.0
_NONE_GOOD_S, _WITHIN_S = 75.0, 150.0


def down_rules(scale: float) -> list[Recording]:
    """Return the rules. DOWN is the number of canaries that failed within the last minutes, where none succeeded."""
    sent, good = (
        f"sum {by('job', 'instance', 'target')} ({name}{{{matchers}}})"
        for name, matchers in (sli.AVAILABILITY.all_series, sli.AVAILABILITY.good_series)
    )
    failed = f"{_FAILED} - {_FAILED} offset {duration(_WITHIN_S * scale)}"
    rare = f'{on("target")} {names.TASK_INTERVAL.name}{{task="canary"}} > {_OFTEN_S * scale:g}'
    none_good = f"{on('job', 'instance', 'target')} {_GOOD} == {_GOOD} offset {duration(_NONE_GOOD_S * scale)}"
    return [
        Recording(_GOOD, f"{good}\nor 0 * {sent}"),
        Recording(_FAILED, f"{sent}\n- {_GOOD}"),
        Recording(
            DOWN,
            f"max {by('target')} (\n  ({failed} >= {_LEAST}\n   or {failed} >= {MIN_BAD_EVENTS} and {rare})\n"
            f"  and {none_good}\n)",
        ),
    ]
