"""How `python -m benchmarks.alerts` counts rings (benchmarks/alerts/notify.py), compared with a real Alertmanager.

Three days, with the alerts in their order and the hours between them left out, in a thirtieth of their time. The model
is asked about the times at which the alerts were really sent: a busy machine sends them late.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from real_alertmanager import EXAMPLE, Labels, Notice, RealAlertmanager, Receiver

from benchmarks.alerts.notify import rings
from benchmarks.alerts.replay import Firing

pytestmark = [pytest.mark.prometheus, pytest.mark.long]

SCALE = 1 / 30
PAGE, TICKET, NONE = "page", "ticket", "none"
Alert = tuple[str, str]  # target and name
Rings = dict[str, list[set[Alert]]]  # by receiver and group, the new alerts of each ring in order


@dataclass(frozen=True, slots=True)
class Sent:
    """The alerts as they were sent, in seconds of the day, and the rings that came."""

    firings: Sequence[Firing]
    rings: Rings


def fires(target: str, alert: str, severity: str, start_s: float, end_s: float) -> Firing:
    more = {"objective": "o", "workload": "short"} if alert.endswith("Burn") else {}
    labels = {"alertname": f"Kneewatch{alert}", "severity": severity, "target": target}
    return Firing({**labels, "group": target.partition("/")[0], **more}, start_s, end_s)


# Servers that die within 40 s of each other. The canaries that they still answer wait too long.
EIGHT_PODS = [
    firing
    for pod in range(8)
    for firing in (
        fires(f"service/p{pod}", "AvailabilityBurn", PAGE, 5.0 * pod, 900),
        fires(f"service/p{pod}", "AvailabilityBurn", TICKET, 30 + 10.0 * pod, 900),
        fires(f"service/p{pod}", "TargetDown", NONE, 30 + 5.0 * pod, 700),
        fires(f"service/p{pod}", "TTFTCollapse", PAGE, 300 + 20.0 * pod, 600),
    )
]
# The budget that burns while nobody gets an answer in time outlasts what inhibits it, here on purpose.
OVERLOAD = [
    fires("overload", "TTFTCollapse", PAGE, 0, 600),
    fires("overload", "TTFTBurn", PAGE, 120, 900),
    fires("overload", "QueueGrowth", TICKET, 30, 500),
    fires("overload", "HeadroomLow", TICKET, 60, 700),
]
# A page that comes and goes, with its ticket, which shows between two of them, and one that ends within the wait.
SLOW_BURN = [
    fires("slow", "AvailabilityBurn", PAGE, 0, 250),
    fires("slow", "AvailabilityBurn", TICKET, 100, 1000),
    fires("slow", "AvailabilityBurn", PAGE, 1000, 1200),
    fires("slow", "TTFTBurn", PAGE, 1120, 1300),
    fires("brief", "AvailabilityBurn", PAGE, 0, 20),
]


@pytest.fixture(scope="module")
def receiver() -> Iterable[Receiver]:
    with Receiver() as running:
        yield running


@pytest.fixture(scope="module")
def sent(alertmanager: str, receiver: Receiver, tmp_path_factory: pytest.TempPathFactory) -> Sent:
    """Send every alert when it fires and when it ends."""
    firings = [*EIGHT_PODS, *OVERLOAD, *SLOW_BURN]
    due = sorted(
        [(one.start_s, i) for i, one in enumerate(firings)] + [(one.end_s, i) for i, one in enumerate(firings)]
    )
    at_s: dict[int, list[float]] = defaultdict(list)
    folder: Path = tmp_path_factory.mktemp("alertmanager")
    with RealAlertmanager(alertmanager, folder, receiver, SCALE) as running:
        began = time.monotonic()
        for due_s, i in due:
            time.sleep(max(0.0, began + due_s * SCALE - time.monotonic()))
            (running.end if i in at_s else running.post)([firings[i].labels])
            at_s[i].append((time.monotonic() - began) / SCALE)
        time.sleep(700 * SCALE)  # the longest wait and interval of a group
        return Sent([Firing(one.labels, *at_s[i]) for i, one in enumerate(firings)], _rings(receiver.notices))


def _rings(notices: Sequence[Notice]) -> Rings:
    """Return the notifications with an alert that was not in the group's one before."""
    found: Rings = {}
    before: dict[tuple[str, str], set[Alert]] = {}
    messages: dict[tuple[float, str, str], set[Alert]] = {}
    for notice in notices:
        message = messages.setdefault((notice.at_s, notice.receiver, notice.group), set())
        if notice.firing:
            message.add(notice.about)
    for (_, receiver, group), firing in messages.items():
        if new := firing - before.get((receiver, group), set()):
            found.setdefault(f"{receiver} {_of(new)}", []).append(new)
        before[receiver, group] = firing
    return found


def _of(alerts: Iterable[Alert]) -> str:
    (group,) = {target.partition("/")[0] for target, _ in alerts}
    return group


def modelled(firings: Sequence[Firing]) -> Rings:
    found: Rings = {}
    for ring in rings(firings, EXAMPLE.read_text()):
        new = {_about(firing.labels) for firing in ring.new}
        found.setdefault(f"{ring.receiver} {_of(new)}", []).append(new)
    return found


def _about(labels: Labels) -> Alert:
    return labels["target"], labels["alertname"]


@pytest.mark.parametrize("day", [EIGHT_PODS, OVERLOAD, SLOW_BURN], ids=["service", "overload", "slow"])
def test_alertmanager_rings_as_the_model_does(sent: Sent, day: Sequence[Firing]) -> None:
    groups = {firing.labels["group"] for firing in day}
    really = [firing for firing in sent.firings if firing.labels["group"] in groups]
    assert {key: new for key, new in sent.rings.items() if key.split()[1] in groups} == modelled(really)


def test_eight_pods_that_die_together_are_one_page(sent: Sent) -> None:
    (first, *more) = sent.rings["page service"]
    assert {target for target, _ in first} == {f"service/p{pod}" for pod in range(8)}
    assert more == []
