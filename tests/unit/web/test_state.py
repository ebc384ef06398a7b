"""The state of a target, decided by its newest canaries and its users: a table, and that worse is never better."""

from dataclasses import replace

import pytest
from example_records import CHAT, record
from hypothesis import given
from hypothesis import strategies as st

from probe.core import objectives as slo
from probe.core.request import Outcome, RequestRecord
from probe.core.snapshot import UserLatency, UserMinutes
from probe.web.state import Evidence, Facts, decide, evidence, order, shares

KINDS = {
    "g": record(),
    "l": record(ttft_s=0.9),
    "f": record(outcome=Outcome.TIMEOUT),
    "?": record(outcome=Outcome.ABORTED),
}


def _seen(canaries: str) -> Evidence:
    """Return what these canaries show, the newest first."""
    records: list[RequestRecord] = [KINDS[kind] for kind in canaries]
    return evidence(records, [slo.met(one, CHAT) for one in records], CHAT)


@pytest.mark.fault(
    "NM40",
    "One success among a server's failures, or one failure among its successes",
    area="Truth",
    users_see="failing, with its share and since when, by the last 20 canaries of each kind",
    stays="order of the targets: worse evidence never comes after better",
)
@pytest.mark.parametrize(
    ("canaries", "state"),
    [
        ("", "starting"),
        ("gggg", "starting"),
        ("ggggg", "good"),
        ("?????", "starting"),
        ("f", "failing"),
        ("ff", "failing"),
        ("fg", "starting"),
        ("fgggggggg", "good"),  # the row lists the broken objective
        ("ffggggggg", "failing"),  # a dead server is known by two in a row
        ("gfffgfgff", "failing"),  # 60 % fail, and the last one was answered
        ("g" * 9 + "fff" + "g" * 8, "failing"),
        ("g" * 10 + "f" * 10, "good"),  # over
        ("g" * 19 + "ff", "good"),
        ("gg" + "l" * 18, "slow"),
        ("l" * 2 + "g" * 18, "good"),
        ("l" * 3 + "g" * 17, "slow"),
        ("g" * 10 + "l" * 10, "good"),
        ("lfl" + "g" * 17, "slow"),  # a request that failed was not in time either
    ],
)
def test_the_state_is_of_the_newest_canaries(canaries: str, state: str) -> None:
    assert decide(Facts((_seen(canaries),)), CHAT) == state


GOOD = Facts((_seen("g" * 20),))
LATE = {"ttft": UserLatency(50.0, 30.0, is_met=False)}


@pytest.mark.fault(
    "NM41",
    "Canaries are answered in time, while users' requests fail or are late",
    area="Truth",
    users_see="failing or slow, with the share of users' requests in five minutes and the cause",
    stays="`up`, which is of canaries alone",
)
@pytest.mark.parametrize(
    ("facts", "state"),
    [
        (GOOD, "good"),
        (replace(GOOD, has_problem=True), "degraded"),
        (replace(GOOD, is_over=True, has_problem=True), "over"),
        (replace(GOOD, users=UserMinutes(300.0, 60.0, 30.0)), "failing"),
        (replace(GOOD, users=UserMinutes(300.0, 9.0, 9.0)), "good"),  # too few
        (replace(GOOD, users=UserMinutes(300.0, 1e4, 5.0)), "good"),  # of 99.9 %
        (replace(GOOD, users=UserMinutes(300.0, latencies=LATE)), "slow"),
        (replace(GOOD, users=UserMinutes(300.0, latencies=LATE), is_asleep=True), "asleep"),
        (Facts(is_stale=True), "degraded"),
        (Facts(is_passive=True), "passive"),
        (Facts(is_passive=True, users=UserMinutes(300.0, latencies=LATE)), "slow"),
        (Facts(is_passive=True, has_problem=True), "degraded"),
    ],
)
def test_users_limits_and_problems_count_too(facts: Facts, state: str) -> None:
    assert decide(facts, CHAT) == state


@given(st.text("glf", min_size=1, max_size=30), st.data())
def test_worse_evidence_never_sorts_below_better(canaries: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(canaries) - 1))
    worse = canaries[:at] + {"g": "l", "l": "f", "f": "f"}[canaries[at]] + canaries[at + 1 :]

    def place(shown: str) -> tuple[float, ...]:
        kinds = [_seen(shown)]
        return order(decide(Facts(kinds), CHAT), shares(kinds, None), 0.0)

    assert place(worse) <= place(canaries)
