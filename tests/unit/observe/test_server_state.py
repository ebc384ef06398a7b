"""The one owner of a server's successive snapshots: users' load, restarts, and what is kept."""

from dataclasses import replace
from typing import Any

import pytest
from plain_records import failure, poll, record

from probe.core.request import Outcome, RequestRecord, Traffic
from probe.core.snapshot import Histogram, ServerSnapshot, UserLoad
from probe.observe.probe_traffic import Tokens
from probe.observe.server_state import ServerState
from probe.observe.snapshot_history import unpack
from probe.scrape.replicas import merged

INF = float("inf")
S = 10**9


def read(at_s: float, requests: float = 0.0, tokens: float = 0.0, **values: Any) -> ServerSnapshot:
    histograms = {"ttft": Histogram(((INF, requests),), 0.1 * requests)}
    return poll(at_ns=round(at_s * S), generation_tokens=tokens, histograms=histograms, **values)


def canary(at_s: float, traffic: Traffic = Traffic.CANARY) -> RequestRecord:
    """Return a record of three tokens, the first 100 ms after it was sent."""
    return replace(record(at_ms=1000 * at_s, tokens=3), traffic=traffic)


def send(state: ServerState, at_s: float, traffic: Traffic = Traffic.CANARY) -> None:
    """Send a whole request, from its beginning to its end."""
    state.begin(round(at_s * S))
    state.add_record(canary(at_s, traffic))
    state.end(round(at_s * S), round((at_s + 0.2) * S))


# Users over the last minutes.


def test_users_are_a_rate_once_ten_seconds_were_watched() -> None:
    state = ServerState()
    assert state.users() is None
    for second, requests in ((0, 100.0), (5, 110.0), (10, 120.0)):
        state.add(read(second, requests, 10 * requests))
        assert (state.users() is None) == (second < 10)
    assert state.users() == UserLoad(2.0, 20.0)


@pytest.mark.parametrize("traffic", [Traffic.CANARY, Traffic.ONDEMAND, Traffic.CAPACITY])
def test_probe_traffic_of_any_kind_is_no_user_traffic(traffic: Traffic) -> None:
    state = ServerState()
    state.add(read(0))
    for i in range(10):
        send(state, 4 * i + 1, traffic)
        state.add(read(4 * i + 3, i + 1, 3 * (i + 1)))
    assert state.users() == UserLoad(0.0, 0.0)
    assert state.user_totals.requests == 0


def test_while_load_runs_users_are_unknown_and_afterwards_it_is_in_no_rate() -> None:
    state = ServerState()
    state.add(read(0))
    state.add(read(20, 40.0))
    assert state.users() == UserLoad(2.0, 0.0)
    state.begin(21 * S, is_load=True)
    assert state.users() is None
    state.add(read(25, 50.0))
    state.end(21 * S, 1200 * S, is_load=True)
    assert state.users() is None
    state.add(read(1202, 6040.0))
    assert state.users() is None, "the load is in it"
    state.add(read(1217, 6070.0))
    assert state.users() == UserLoad(pytest.approx(2.0), 0.0)


def test_the_same_under_another_probers_load() -> None:
    state = ServerState()
    state.add(read(0))
    state.other_prober_began()
    state.add(read(20, 40.0))
    assert state.users() is None
    state.other_prober_ended(21 * S)
    for second in (25, 40):
        state.add(read(second, 100.0 + 2 * second))
    assert state.users() == UserLoad(pytest.approx(2.0), 0.0)


def test_load_that_came_by_another_page_is_forgotten() -> None:
    state = ServerState()
    state.add(read(0))
    state.add(read(20, 4000.0))
    state.forget_user_rates()
    assert state.users() is None


def test_a_server_that_is_scraped_every_ten_minutes_has_users_too() -> None:
    state = ServerState()
    for i in range(4):
        state.add(read(600 * i, 1200.0 * i))
    assert state.users() == UserLoad(2.0, 0.0)


# Users beside a capacity run.


def test_a_runs_users_are_less_the_canaries_beside_it() -> None:
    state = ServerState()
    state.begin(0, is_load=True)
    send(state, 2.0)
    send(state, 4.0, Traffic.ONDEMAND)
    own = [canary(1.0, Traffic.CAPACITY), canary(5.0, Traffic.CAPACITY)]
    for each in own:
        state.add_record(each)
    users = state.users_between(own, [read(0.5), read(5.0, 20.0, 100.0), read(10.5, 24.0, 112.0)])
    assert users == UserLoad(pytest.approx(2.0), pytest.approx(10.0))


def test_requests_counted_while_a_canary_is_in_flight_are_not_known_yet() -> None:
    state = ServerState()
    state.begin(0, is_load=True)
    state.begin(6 * S)
    snapshots = [read(0), read(5, 10.0), read(7, 14.0)]
    assert state.users_between((), snapshots) == UserLoad(2.0, 0.0)
    assert state.users_between((), snapshots[2:]) == UserLoad()
    state.end(6 * S, 8 * S)
    assert state.users_between((), snapshots) == UserLoad(2.0, 0.0)


def test_a_canary_that_was_cancelled_makes_a_runs_users_unknown() -> None:
    state = ServerState()
    state.begin(0, is_load=True)
    state.add_record(replace(failure(Outcome.ABORTED), traffic=Traffic.ONDEMAND))
    assert state.users_between((), [read(0), read(5, 10.0)]) == UserLoad()


def test_canaries_of_before_a_run_are_not_kept_for_the_next() -> None:
    state = ServerState()
    send(state, 1.0)
    state.begin(2 * S, is_load=True)
    send(state, 3.0)
    state.end(2 * S, 4 * S, is_load=True)
    assert state._canaries_during_runs == []


# Restarts.


@pytest.mark.fault(
    "TR3",
    "Counters that fall because the server restarted",
    area="Truth",
    users_see="a restart, with time and evidence",
    stays="totals go on without a negative rate",
)
def test_a_restart_is_known_with_its_time_and_evidence() -> None:
    state = ServerState()
    state.add(read(0, 10.0, 100.0))
    state.add(read(5, 12.0, 120.0))
    assert state.restarted_ago(60 * S) is None
    state.add(read(10, 1.0, 3.0))
    assert state.restarted_ago(60 * S) == (50.0, "generation_tokens fell from 120 to 3")


@pytest.mark.parametrize(
    ("before", "after", "kept"),
    [
        ({"max_num_seqs": "64"}, {"max_num_seqs": "128"}, 1),
        ({"max_num_seqs": "64"}, {"max_num_seqs": "64", "block_size": "16"}, 2),
        ({"max_num_seqs": "64"}, {}, 2),
    ],
    ids=["another value", "one more is known", "none is known"],
)
def test_another_flag_forgets_what_forecasts_learn_from(
    before: dict[str, str], after: dict[str, str], kept: int
) -> None:
    state = ServerState()
    state.add(replace(read(0, 10.0, 100.0), flags=before))
    state.add(replace(read(5, 11.0, 110.0), flags=after))
    assert len(state.history.packed) == kept


def test_a_restart_forgets_the_former_process() -> None:
    state = ServerState()
    for second in (0, 5, 10):
        state.add(read(second, 10.0, 100.0, running=1.0, progress=100.0))
        send(state, second + 1)
    assert state.stalled_s == 10
    assert state.users() is not None
    state.add(read(20, 1.0, 3.0, running=1.0, progress=100.0))
    assert [len(each) for each in (state.recent, state.user_history, state.comparisons)] == [1, 1, 0]
    assert [each.generation_tokens for each in unpack(state.history.packed)] == [3.0]
    assert state.stalled_s == 0
    assert state.users() is None


def test_user_traffic_of_before_a_restart_stays_in_the_totals() -> None:
    state = ServerState()
    state.add(read(0, 10.0))
    state.add(read(5, 14.0))
    state.add(read(10, 1.0))
    state.add(read(15, 3.0))
    assert state.user_totals.requests == 6


@pytest.mark.fault("TR2")
def test_of_several_servers_behind_one_address_there_is_no_user_traffic() -> None:
    state = ServerState()
    for second, requests, started_s in ((0, 10.0, 1.0), (5, 900.0, 2.0), (10, 20.0, 1.0), (15, 950.0, 2.0)):
        state.add(read(second, requests, started_s=started_s))
    assert state.has_multiple_backends
    assert state.users() is None
    assert state.user_totals.requests is None
    for second in (1000, 1010):  # one of them is gone for good
        state.add(read(second, 960.0 + second, started_s=2.0))
    assert not state.has_multiple_backends
    assert state.user_totals.requests == 10, "of the minutes between nothing is known"


# Two targets with one page.


def test_a_snapshot_that_was_asked_for_before_the_last_had_come_is_no_restart() -> None:
    state = ServerState()
    state.add(read(0, 0.0))
    state.add(replace(read(3, 2.0), asked_ns=1 * S))
    state.add(replace(read(4, 1.0), asked_ns=2 * S))
    assert state.restarted_ago(5 * S) is None
    state.add(replace(read(6, 3.0), asked_ns=5 * S))
    assert state.user_totals.requests == 3


def test_two_targets_of_one_page_share_what_was_settled_and_compared() -> None:
    state = ServerState()
    state.add(read(0))
    send(state, 1)
    state.add(read(5, 1.0, 3.0))  # the one's scrape
    state.add(read(6, 1.0, 3.0))  # the other's, with nothing to compare
    ((at_ns, both),) = state.comparisons
    assert (at_ns, both.requests, both.server_requests) == (5 * S, 1, 1)
    assert [totals.requests for _, totals in state.user_history] == [0, 0, 0]


def test_with_users_there_or_without_requests_nothing_is_compared() -> None:
    state = ServerState()
    state.add(read(0))
    state.add(read(3))
    assert not state.comparisons
    send(state, 4)
    state.add(read(8, 2.0, 6.0))
    assert not state.comparisons


def test_data_older_than_five_minutes_are_forgotten() -> None:
    state = ServerState()
    for second in range(0, 3000, 5):
        state.add(read(second, requests=second / 5, tokens=3 * second / 5))
        send(state, second + 1)
    assert len(state.recent) == len(state.user_history) == 61
    assert len(state.comparisons) == 20
    state.add(read(9000, 600.0, 1800.0))
    assert (len(state.recent), len(state.comparisons)) == (1, 1)


def test_two_scrapers_that_know_different_versions_of_one_process_show_no_restart() -> None:
    state = ServerState()
    for i in range(20):
        version = "0.11" if i % 2 else "0.10"
        state.add(read(5 * i, 10.0 * i, 100.0 * i, version=version, started_s=1.0))
    assert state.restarted_ago(100 * S) is None
    assert state.users() == UserLoad(2.0, 20.0)


def test_a_canary_that_takes_longer_than_a_step_hides_no_users() -> None:
    state = ServerState()
    state.begin(1 * S, most=Tokens(8, 3))
    state.begin(2 * S, is_load=True)
    snapshots = [read(second, 5.0 * second, 50.0 * second) for second in range(3, 19)]
    users = state.users_between((), snapshots)
    assert users.requests_per_second == pytest.approx(5.0 - 1 / 15), "one of them may be the canary"
    assert users.output_tokens_per_second == pytest.approx(50.0 - 3 / 15)


def test_a_canary_that_takes_longer_than_a_short_step_is_no_user_of_the_run() -> None:
    state = ServerState()
    state.begin(1 * S, most=Tokens(8, 3))
    state.begin(2 * S, is_load=True)
    snapshots = [read(3), read(4.5, 1.0, 2.0), read(6, 1.0, 3.0)]
    assert state.users_between((), snapshots) == UserLoad(0.0, 0.0)


def test_under_another_probers_load_no_record_is_kept_for_a_run() -> None:
    state = ServerState()
    state.other_prober_began()
    for i in range(50):
        send(state, 4 * i + 1)
    state.begin(300 * S, is_load=True)
    assert state.users_between((), [read(1), read(250, 5.0, 15.0)]).requests_per_second == pytest.approx(5 / 249)


@pytest.mark.parametrize(("targets", "kept"), [(1, 41), (2, 41)])
def test_targets_of_one_page_do_not_shorten_the_history(targets: int, kept: int) -> None:
    state = ServerState()
    for _ in range(targets):
        state.history.keep_at_interval(5.0)
    for i in range(40 * targets + 1):
        state.add(read(5.0 * i / targets, i, i))
    assert len(state.history.packed) == kept
    assert state.history.seconds == 200


# Sleep.


def test_a_server_that_sleeps_does_not_stall_and_its_sleep_begins_with_the_first_snapshot_that_shows_it() -> None:
    state = ServerState()
    for second in range(0, 60, 5):
        state.add(read(second, waiting=3.0, progress=7.0, wall_s=1000.0 + second, is_asleep=second >= 10))
        assert state.stalled_s == (second if second < 10 else None)
        assert state.sleep.since_s == (None if second < 10 else 1010.0)
    assert state.sleep.is_recent(114 * S)
    assert not state.sleep.is_recent(115 * S)
    assert state.sleep.was_since(55 * S)
    assert not state.sleep.was_since(56 * S)
    for second in (60, 65):
        state.add(read(second, waiting=3.0, progress=7.0, is_asleep=False))
        assert state.sleep.since_s is None
        assert state.stalled_s == second - 60


# Replicas that are read together.


def replicas(at_s: float, one: float, other: float) -> ServerSnapshot:
    each = {"one:8000": read(at_s, one, 10 * one), "other:8000": read(at_s, other, 10 * other)}
    return replace(merged(each), at_ns=round(at_s * S))


def test_of_replicas_users_are_all_requests_less_the_probes_wherever_they_went() -> None:
    state = ServerState()
    state.add(replicas(0, 100.0, 50.0))
    for i in range(1, 11):
        send(state, 4 * i - 2)
        state.add(replicas(4 * i, 100.0 + 2 * i + i // 2, 50.0 + i + (i + 1) // 2))
    assert state.user_totals.requests == 30
    assert state.users() == UserLoad(0.75, (400 - 10 * 3) / 40)


def test_a_replica_that_restarts_forgets_the_minutes_before_though_the_sum_grew() -> None:
    state = ServerState()
    state.add(replicas(0, 100.0, 50.0))
    state.add(replicas(5, 110.0, 55.0))
    state.add(replicas(10, 900.0, 1.0))
    assert state.restarted_ago(10 * S) == (0, "other:8000: generation_tokens fell from 550 to 10")
    assert not state.has_multiple_backends
    assert len(state.recent) == 1
    assert state.user_totals.requests == 15


@pytest.mark.fault("TR19")
def test_what_a_replica_had_counted_before_it_came_is_no_user_traffic() -> None:
    state = ServerState()

    def add(at_s: float, **counts: float) -> None:
        each = {name: read(at_s, count, 10 * count) for name, count in counts.items()}
        state.add(replace(merged(each), at_ns=round(at_s * S)))

    add(0, one=100.0, other=50.0)
    add(20, one=110.0, other=55.0)
    add(40, one=120.0, other=60.0, third=9000.0)
    assert state.restarted_ago(40 * S) == (0, "its replicas changed, third came")
    assert state.users() is None, "a rate over the change would be another server's"
    add(60, one=130.0, other=65.0, third=9010.0)
    assert state.user_totals.requests == 15 + 25
    assert state.users() == UserLoad(25 / 20, 250 / 20)
    add(80, one=140.0, other=70.0)
    add(100, one=150.0, other=75.0)
    assert state.user_totals.requests == 15 + 25 + 15
    assert not state.has_multiple_backends, "the two of before are back, and so is nothing that a balancer hides"


def test_what_is_kept_of_replicas_is_their_sum() -> None:
    state = ServerState()
    for second in (0, 5):
        state.add(replicas(second, 100.0, 50.0))
    assert [dict(one.replicas) for one in (*state.recent, *unpack(state.history.packed))] == [{}, {}, {}, {}]
    assert unpack(state.history.packed)[-1].engines == 2
