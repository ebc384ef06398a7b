"""Which alerts the shipped Alertmanager configuration lets through: asked of a real Alertmanager."""

import time
from collections.abc import Iterator

import pytest
from process import eventually
from real_alertmanager import Notice, RealAlertmanager, Receiver

pytestmark = pytest.mark.prometheus

PAGE, TICKET, NONE = "page", "ticket", "none"
SERVERS_OWN = ["QueueGrowth", "KVCachePressure", "PreemptionStorm", "PrefixHitCollapse"]
# What fires of one target, and which of it nobody is told.
CASES = {
    "one objective": ([("TTFTBurn", PAGE), ("TTFTBurn", TICKET), ("TPOTBurn", TICKET)], [("TTFTBurn", TICKET)]),
    "a dead server": (
        [
            *[("AvailabilityBurn", PAGE), ("AvailabilityBurn", TICKET), ("QueueGrowth", TICKET), ("TTFTBurn", PAGE)],
            *[("TargetDown", NONE), ("ServerMetricsUnreadable", TICKET)],
            *[("GPUXid", PAGE), ("KneeDropped", PAGE)],
        ],
        # and not TTFTBurn: canaries may fail on their own while users wait
        [("AvailabilityBurn", TICKET), ("QueueGrowth", TICKET), ("ServerMetricsUnreadable", TICKET)],
    ),
    "one canary in fifty fails, and every user waits": (
        [("AvailabilityBurn", PAGE), ("TTFTBurn", PAGE), ("TPOTBurn", PAGE), ("QueueGrowth", TICKET)],
        [],
    ),
    "every request waits many times too long": (
        [("TTFTCollapse", PAGE), ("TTFTBurn", PAGE), ("TPOTBurn", PAGE), ("QueueGrowth", TICKET)],
        [("TTFTBurn", PAGE), ("QueueGrowth", TICKET)],
    ),
    "some requests fail, slowly": (
        [("AvailabilityBurn", TICKET), ("TPOTBurn", PAGE), ("QueueGrowth", TICKET)],
        [],
    ),
    "a stalled engine": (
        [
            *[("EngineStalled", PAGE), ("AvailabilityBurn", PAGE), ("TPOTBurn", PAGE), ("HeadroomLow", TICKET)],
            *[(name, TICKET) for name in SERVERS_OWN],
        ],
        [("TPOTBurn", PAGE), *[(name, TICKET) for name in SERVERS_OWN]],
    ),
    "no Kneewatch": (
        [
            *[("ProbeGone", PAGE), ("ProbeSilent", PAGE), ("TTFTBurn", PAGE), ("CapacityStale", TICKET)],
            *[("TargetVanished", TICKET), ("TaskFailing", TICKET), ("ClientBound", TICKET)],
        ],
        [
            *[("ProbeSilent", PAGE), ("TTFTBurn", PAGE), ("CapacityStale", TICKET)],
            *[("TargetVanished", TICKET), ("TaskFailing", TICKET), ("ClientBound", TICKET)],
        ],
    ),
    "no canaries": (
        [("ProbeSilent", PAGE), ("TaskFailing", TICKET), ("ClientBound", TICKET)],
        [("TaskFailing", TICKET)],
    ),
    "a full KV cache": (
        [(name, TICKET) for name in SERVERS_OWN] + [("TTFTBurn", PAGE)],
        [("PreemptionStorm", TICKET), ("QueueGrowth", TICKET)],
    ),
    "a queue for want of seats": ([("QueueGrowth", TICKET), ("PreemptionStorm", TICKET)], []),
    "prompts that lost their common beginning": (
        [("PrefixHitCollapse", TICKET), ("UserMixMoved", TICKET), ("KneeDown", TICKET)],
        [("UserMixMoved", TICKET)],
    ),
    "a dropped knee": (
        [("KneeDropped", PAGE), ("KneeDown", TICKET), ("ForecastDisagrees", TICKET), ("HeadroomLow", TICKET)],
        [("KneeDown", TICKET), ("HeadroomLow", TICKET)],
    ),
    "a GPU that is lost": (
        [("GPUXid", PAGE), ("GPUMissing", TICKET), ("AvailabilityBurn", PAGE)],
        [("GPUMissing", TICKET)],
    ),
    "a dropped knee above every peak": (
        [("KneeDropped", TICKET), ("KneeDown", TICKET), ("HeadroomLow", TICKET)],
        [("KneeDown", TICKET)],
    ),
}


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


@pytest.fixture(scope="module")
def running(
    alertmanager: str, receiver: Receiver, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealAlertmanager]:
    with RealAlertmanager(alertmanager, tmp_path_factory.mktemp("alertmanager"), receiver) as server:
        yield server


def _labels(target: str, alert: str, severity: str) -> dict[str, str]:
    # The labels by which the inhibitions compare beside the target; an objective is of burns alone.
    more = {"objective": alert.lower(), "workload": "short"} if alert.endswith("Burn") else {}
    more |= {"task": "canary"} if alert == "TaskFailing" else {}
    more |= {"model": "m", "workload": "short"} if alert.startswith("Knee") else {}
    more |= {"model": "m", "workload": "users"} if alert == "HeadroomLow" else {}
    group = target.partition("/")[0]
    return {"alertname": f"Kneewatch{alert}", "severity": severity, "target": target, "group": group, **more}


@pytest.mark.parametrize("case", CASES)
def test_symptoms_of_another_alert_are_inhibited(running: RealAlertmanager, case: str) -> None:
    fires, silenced = CASES[case]
    # The same alerts, each of a target of its own: nothing crosses over.
    others = [_labels(f"{case}, {number}", *pair) for number, pair in enumerate(silenced)]
    running.post([*(_labels(case, *pair) for pair in fires), *others])
    of = running.silenced()
    found = {pair: of[case, f"Kneewatch{pair[0]}", pair[1]] for pair in fires}
    assert found == {pair: pair in silenced for pair in fires}
    assert not any(of[each["target"], each["alertname"], each["severity"]] for each in others)


def test_one_target_in_trouble_is_one_page_and_its_end_is_sent(running: RealAlertmanager, receiver: Receiver) -> None:
    burn, users = _labels("grouped", "AvailabilityBurn", PAGE), _labels("grouped", "TTFTBurn", PAGE)
    low = _labels("grouped", "HeadroomLow", TICKET)
    running.post([burn, users, low])
    eventually(lambda: len(_told(receiver, "grouped")) == 3, within_s=30, what="two alerts paged and a ticket")
    reported = _told(receiver, "grouped")
    assert {(notice.receiver, notice.about[1]) for notice in reported} == {
        (PAGE, "KneewatchAvailabilityBurn"),
        (PAGE, "KneewatchTTFTBurn"),
        (TICKET, "KneewatchHeadroomLow"),
    }
    pages = {notice.at_s for notice in reported if notice.receiver == PAGE}
    assert len(pages) == 1, "two notifications for one target"
    running.end([low])
    eventually(lambda: not _told(receiver, "grouped")[-1].firing, within_s=30, what="the end of the ticket")
    assert _told(receiver, "grouped")[-1].about[1] == "KneewatchHeadroomLow"


def test_the_servers_of_one_discovery_that_fail_together_are_one_page(
    running: RealAlertmanager, receiver: Receiver
) -> None:
    """Clusters and namespaces are kept apart: the service may have the same name in two."""
    targets = [f"service/pod-{number}" for number in range(8)]
    here = [{**_labels(target, "AvailabilityBurn", PAGE), "cluster": "here"} for target in targets]
    there = {**_labels("service/pod-0", "AvailabilityBurn", PAGE), "cluster": "there"}
    running.post([*here, there])
    eventually(lambda: all(_told(receiver, target) for target in targets), within_s=30, what="all of them paged")
    eventually(lambda: len(_told(receiver, targets[0])) == 2, within_s=30, what="both clusters paged")
    reported = [notice for notice in receiver.notices if notice.about[0].startswith("service/")]
    assert len({notice.at_s for notice in reported if notice.labels["cluster"] == "here"}) == 1
    assert len({notice.at_s for notice in reported}) == 2


def test_a_dropped_knee_does_not_hide_an_outage(running: RealAlertmanager, receiver: Receiver) -> None:
    """The outage begins a group of its own, so it also rings where the knee's page was acknowledged."""
    running.post([_labels("knee", "KneeDropped", PAGE)])
    eventually(lambda: len(_told(receiver, "knee")) == 1, within_s=30, what="the knee paged")
    running.post([_labels("knee", "AvailabilityBurn", PAGE)])
    eventually(lambda: len(_told(receiver, "knee")) == 2, within_s=30, what="the outage paged")
    first, second = _told(receiver, "knee")
    assert first.group != second.group


def test_a_second_dead_kneewatch_is_another_notification(running: RealAlertmanager, receiver: Receiver) -> None:
    """Both are in one group, so that one Kneewatch of many targets is one page."""
    first, second = (_labels(f"watched by the {which}", "ProbeGone", PAGE) for which in ("first", "second"))
    running.post([first])
    eventually(lambda: _told(receiver, first["target"]), within_s=30, what="the first paged")
    running.post([second])
    eventually(lambda: _told(receiver, second["target"]), within_s=30, what="the second paged")
    assert _told(receiver, second["target"])[0].at_s > _told(receiver, first["target"])[0].at_s
    running.end([first, second])


@pytest.mark.parametrize(("alert", "severity"), [("ProbeGone", PAGE), ("ClientBound", TICKET)])
def test_an_alert_on_kneewatch_itself_is_sent_once_for_all_targets(
    running: RealAlertmanager, receiver: Receiver, alert: str, severity: str
) -> None:
    targets = [f"{alert} {number}" for number in range(5)]
    before = len(receiver.notices)
    running.post([_labels(target, alert, severity) for target in targets])
    eventually(lambda: all(_told(receiver, target) for target in targets), within_s=30, what="all of them told")
    of_them = [notice for notice in receiver.notices[before:] if notice.labels["target"] in targets]
    assert len({notice.at_s for notice in of_them}) == 1
    assert {notice.receiver for notice in of_them} == {severity}


def test_no_inhibited_alert_was_ever_sent(running: RealAlertmanager, receiver: Receiver) -> None:
    """Last, after some rounds of notifications."""
    running.post([_labels("late", "CapacityStale", TICKET)])
    eventually(lambda: _told(receiver, "late"), within_s=30, what="a later ticket")
    time.sleep(2)
    for case, (fires, silenced) in CASES.items():
        reported = {
            (n.about[1].removeprefix("Kneewatch"), n.receiver) for n in _told(receiver, case) if n.receiver != NONE
        }
        assert reported == {pair for pair in fires if pair[1] != NONE} - set(silenced), case


def _told(receiver: Receiver, target: str) -> list[Notice]:
    return [notice for notice in receiver.notices if notice.labels["target"] == target]
