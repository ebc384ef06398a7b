"""Failed canaries as text, such as "20 x unreachable since 02:49", and since when a target is up or down. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from probe.core.failure_log import FailureGroup
from probe.core.target_status import CanaryStatus, TargetStatus
from probe.report.figures import ago, when

_MOST = 20
_DATE = len("2026-11-23 ")


@dataclass(frozen=True, slots=True)
class TargetFailures:
    """A group of a target's failures. `words`: outcome, number, times. `is_current`: the target fails like this now."""

    name: str
    group: FailureGroup
    words: str
    is_current: bool


def failures(statuses: Sequence[TargetStatus]) -> list[TargetFailures]:
    """Return the last groups of failures of all targets: current ones first, then the newest first."""
    found = [
        TargetFailures(status.name, group, _words(group, is_current=is_current), is_current)
        for status in statuses
        for i, group in enumerate(status.failure_groups)
        for is_current in (i == 0 and group.recovered_s is None,)
    ]
    return sorted(found, key=lambda one: (not one.is_current, -one.group.last_s))[:_MOST]


def since_words(status: TargetStatus | CanaryStatus, now_s: float) -> str:
    """Return since when a target, or a kind of its canaries, is up or down; "" if unknown.

    Such as "2026-11-23 02:49:12 UTC (3 h ago)".
    """
    if status.since is None:
        return ""
    age = ago(status.since.at_s, now_s)
    return f"{when(status.since.at_s)} ({age if status.since.is_exact else f'{age}, the first canary'})"


def _words(group: FailureGroup, *, is_current: bool) -> str:
    what = group.outcome.value.replace("_", " ")
    counted = f"{group.count} x {what}" if group.count > 1 else what
    if is_current:
        return f"{counted} since {when(group.first_s)}"
    if group.count == 1:
        return f"{counted} at {when(group.first_s)}"
    first, last = when(group.first_s), when(group.last_s)
    is_same_day = first[:_DATE] == last[:_DATE]
    return f"{counted} from {first.removesuffix(' UTC')} to {last[_DATE:] if is_same_day else last}"
