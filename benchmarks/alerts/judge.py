"""Match alerts to faults: faults found, delays and false alerts. Pure.

In: faults, the alerts that fired (replay.py) and the notifications of them (notify.py). Out: a Verdict on the month.
Each alert says which faults it finds or follows. Counts incidents, not instances: alerts with the same name and
target that fire within ten minutes of each other are one incident, as Alertmanager would send them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.alerts.faults import ALERTS, WHEN_BUSY, Fault, aftermath_s
from benchmarks.alerts.notify import Ring
from benchmarks.alerts.replay import Firing
from benchmarks.alerts.rules import seconds_of

_ONE_S = 600.0
# The longest pair of windows of a burn alert, by severity.
_PAIR = {"page": ("6h", "1h"), "ticket": ("3d", "6h")}


@dataclass(slots=True)
class Incident:
    """Alerts of one name, target and severity. `labels` are those of the first; `windows` of all that fired."""

    alert: str
    target: str
    severity: str
    start_s: float
    end_s: float
    labels: Mapping[str, str]
    windows: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Found:
    """A fault, and the delay from its start to its first alert; None if no alert fired. `pages`: how often it rang."""

    fault: Fault
    delay_s: float | None
    by: str
    pages: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """`echoes` are alerts for a fault that is over but still in the alert's long window: not false, but not wanted.

    `busy` are alerts on low headroom while users took most of the capacity: true, though there was no fault.
    """

    found: tuple[Found, ...]
    false: tuple[Incident, ...]
    echoes: tuple[Incident, ...]
    busy: tuple[Incident, ...]
    incidents: int


def incidents(firings: Iterable[Firing]) -> list[Incident]:
    """Return the alerts that are sent to people, in order of time."""
    open_: dict[tuple[str, str, str], Incident] = {}
    found: list[Incident] = []
    for firing in sorted(firings, key=lambda one: one.start_s):
        labels = firing.labels
        if labels["severity"] == "none":
            continue
        key = labels["alertname"], labels.get("target", ""), labels["severity"]
        before = open_.get(key)
        if before is not None and firing.start_s <= before.end_s + _ONE_S:
            before.end_s = max(before.end_s, firing.end_s)
            before.windows.add(_pair(labels)[0])
            continue
        open_[key] = Incident(*key, firing.start_s, firing.end_s, labels, {_pair(labels)[0]})
        found.append(open_[key])
    return found


def _pair(labels: Mapping[str, str]) -> tuple[str, str]:
    """Return the long and the short window of a burn alert; two empty texts for another alert."""
    return _PAIR[labels["severity"]] if labels["alertname"].endswith("Burn") else ("", "")


def judge(
    faults: Sequence[Fault],
    sent: Sequence[Firing],
    busy: Callable[[str, float], bool] = lambda *_: False,
    rings: Sequence[Ring] = (),
) -> Verdict:
    """Compare the alerts with the faults.

    `sent` are the alerts that fired and were not inhibited, `rings` the notifications of them. `busy` reports whether a
    target truly was busy shortly before a time. Raises KeyError for an alert that is not in ALERTS.
    """
    happened = incidents(sent)
    false, echoes, true = [], [], []
    for one in happened:
        if any(_explains(fault, one) for fault in faults):
            continue
        if any(_echoes(fault, one) for fault in faults):
            echoes.append(one)
        elif one.alert in WHEN_BUSY and busy(one.target, one.start_s):
            true.append(one)
        else:
            false.append(one)
    return Verdict(
        tuple(_found(fault, sent, _pages(fault, faults, rings)) for fault in faults),
        tuple(false),
        tuple(echoes),
        tuple(true),
        len(happened),
    )


def _found(fault: Fault, sent: Sequence[Firing], pages: int) -> Found:
    """Return the delay to a fault's first alert. One counts only if it begins to fire after the fault's start."""
    hits = [
        (max(firing.start_s, fault.start_s) - fault.start_s, firing.labels["alertname"])
        for firing in sent
        if firing.labels.get("target") == fault.target
        and fault.kind in ALERTS[firing.labels["alertname"]].finds
        and fault.start_s < firing.start_s <= fault.end_s + aftermath_s(fault.kind, _pair(firing.labels)[1])
    ]
    delay_s, by = min(hits, default=(None, ""))
    return Found(fault, delay_s, by, pages)


def _pages(fault: Fault, faults: Sequence[Fault], rings: Sequence[Ring]) -> int:
    """Return how often a fault paged. A page that finds another fault, as during a knee shift of days, is of that."""

    def causes(one: Incident) -> bool:
        finds = [each for each in faults if _explains(each, one) and each.kind in ALERTS[one.alert].finds]
        return fault in finds if finds else _explains(fault, one) or _echoes(fault, one)

    return sum(ring.receiver == "page" and any(map(causes, incidents(ring.new))) for ring in rings)


def _explains(fault: Fault, one: Incident) -> bool:
    if not _may_follow(fault, one):
        return False
    return fault.start_s <= one.start_s <= fault.end_s + aftermath_s(fault.kind, _pair(one.labels)[1])


def _echoes(fault: Fault, one: Incident) -> bool:
    if not _may_follow(fault, one):
        return False
    longest = max((seconds_of(window) for window in one.windows if window), default=0.0)
    return fault.start_s <= one.start_s <= fault.end_s + longest


def _may_follow(fault: Fault, one: Incident) -> bool:
    alert = ALERTS[one.alert]
    return fault.target == one.target and fault.kind in (*alert.finds, *alert.follows)
