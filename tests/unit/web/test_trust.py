"""What speaks against the measurements, on the pages."""

import pytest
from example_records import record, snapshot, status

from probe.core.request import Outcome
from probe.core.target_status import OwnClock, TargetStatus
from probe.monitor.self_watch import own_clock
from probe.web.overview import Overview, warnings_of
from probe.web.trust import doubts, warnings

NOW_S = 1_790_000_000.0


def _fleet(count: int, host: str = "10.0.0.{}") -> list[TargetStatus]:
    return [status(name=str(i), up=True, base_url=f"http://{host.format(i)}:8000") for i in range(count)]


@pytest.mark.fault(
    "NM44",
    "Kneewatch's own host is short of CPU, or its network is down, and most targets fail at once",
    area="Truth",
    users_see="a banner before any target: how late the clock was, how many began to fail together, what to suspect",
    stays="each target's own state and reasons",
)
@pytest.mark.parametrize(
    ("targets", "after_s", "words"),
    [
        (6, [0.0, 30, 60, 90, 120, 179], "6 of 6 targets began to fail or to be slow within 3 min: suspect network,"),
        (6, [0.0, 30, 60, 90], "4 of 6 targets"),
        (6, [0.0, 30, 60], ""),  # not most of them
        (6, [0.0, 600, 1200, 1800, 2400, 3000], ""),
        (2, [0.0, 10], "2 of 2 targets"),
        (1, [0.0], ""),
    ],
)
def test_a_trouble_that_most_targets_have_at_once_is_said_once(targets: int, after_s: list[float], words: str) -> None:
    found = warnings(_fleet(targets), [NOW_S + each for each in after_s], 0, None)
    assert [one[: len(words)] for one in found] == ([words] if words else [])


def test_targets_that_fail_since_before_kneewatch_was_started_are_said_together_too() -> None:
    (found,) = warnings(_fleet(3), [], 3, None)
    assert found == "All 3 targets fail: suspect network, DNS or this host first."
    assert warnings(_fleet(3), [], 2, None) == []
    slow = [record(ttft_s=0.9, done_wall_s=NOW_S + i) for i in range(60)]
    rows = Overview().rows([status(name=str(i), up=True, recent=slow) for i in range(3)])
    assert warnings_of(rows, None) == [], "when they became slow is not known"


def test_targets_behind_one_address_may_just_share_a_server() -> None:
    (found,) = warnings(_fleet(3, "gateway"), [NOW_S] * 3, 0, None)
    assert found.endswith("suspect their common address first.")


def test_a_clock_that_is_late_by_a_tenth_of_the_objective_is_said() -> None:
    late = OwnClock("vm-7", 0.06, 0.781)
    (found,) = warnings(_fleet(2), [], 0, late)
    assert found.startswith("Kneewatch on vm-7 is short of CPU: its clock was up to 781 ms late")
    assert warnings(_fleet(2), [], 0, OwnClock("vm-7", 0.04, 0.781)) == [], "a single stop"


def test_a_lag_counts_for_as_long_as_it_lasted() -> None:
    assert own_clock([]) is None
    once = own_clock([0.001] * 1199 + [10.0])
    assert once is not None
    assert (once.late_s, once.most_s) == (10.0, 10.0), "ten of 310 seconds"
    short = own_clock([0.001] * 1199 + [0.8])
    assert short is not None
    assert (short.late_s, short.most_s) == (0.001, 0.8)


def test_metrics_that_cannot_be_read_of_most_servers_are_said_once() -> None:
    unread = [status(name=str(i), server_error="no connection") for i in range(5)]
    (found,) = warnings([*unread, status(server=snapshot())], [], 0, None)
    assert found.startswith("The metrics of 5 of 6 servers cannot be read")
    assert warnings([*unread[:1], status(server=snapshot())], [], 0, None) == []


def test_a_target_says_what_its_own_values_suffer_from() -> None:
    late = [record(outcome=Outcome.CLIENT_BOUND)] * 5 + [record()] * 15
    assert doubts(status(recent=late)) == ["5 of the last 20 canaries are not judged: Kneewatch itself was late"]
    (old,) = doubts(status(last_server=snapshot()))
    assert old.startswith("the server's values are old")
    assert doubts(status(recent=[record()] * 20, server=snapshot())) == []
