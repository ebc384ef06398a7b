"""A KV cache is too small only if requests lack room in it and somebody is late or rejected."""

from collections.abc import Iterable
from typing import Any

import pytest
from plain_records import PROMISED, failure, poll, record

from probe.core.objectives import Objectives
from probe.core.request import Outcome, RequestRecord, Traffic
from probe.core.snapshot import CrossChecks, EngineSnapshot, Histogram, ServerSnapshot, UserTotals
from probe.observe.cross_checks import CrossChecker
from probe.observe.kv_pressure import is_too_small
from probe.observe.server_state import ServerState

INF = float("inf")
S = 10**9
BATCH = Objectives(name="batch", availability=0.9)
LATE = dict.fromkeys((0, 15, 30), 900.0)  # TTFT of canaries (ms) by second; PROMISED allows 500 for 95 %


def read(at_s: float, waiting: float = 0.0, **values: Any) -> ServerSnapshot:
    """A snapshot of vLLM: every request that is not deferred waits for "capacity"."""
    by_reason = {"capacity": waiting, "deferred": 0.0}
    return poll(
        **{"at_ns": round(at_s * S), "wall_s": at_s, "waiting": waiting, "waiting_by_reason": by_reason, **values}
    )


def canaries(ttft_ms: dict[int, float]) -> list[RequestRecord]:
    return [record(at_ms=1000 * at_s, ttft_ms=ms, traffic=Traffic.CANARY) for at_s, ms in ttft_ms.items()]


def view(
    snapshots: Iterable[ServerSnapshot],
    *,
    seats: int | None = None,
    objectives: Objectives = PROMISED,
    sent: Iterable[RequestRecord] = (),
    users: Iterable[UserTotals] = (),
) -> CrossChecks:
    """The cross-checks after these snapshots, canaries and totals of user traffic. `seats`: max_num_seqs."""
    state = ServerState()
    checker = CrossChecker(state, objectives, seats)
    for snapshot in snapshots:
        state.add(snapshot)
    for canary in sent:
        checker.add_canary(canary)
    if users:
        state.user_history.clear()
        state.user_history.extend((at * S, totals) for at, totals in enumerate(users))
    return checker.view()


def full(seconds: Iterable[int], **values: Any) -> list[ServerSnapshot]:
    """Snapshots of a full KV cache with a queue of five and twenty running requests."""
    return [
        read(at_s, **{"waiting": 5.0, "kv_cache_usage": 0.97, "running": 20.0, "preemptions": 0.0, **values})
        for at_s in seconds
    ]


class TestServersThatWorkWell:
    """Each of these was reported as KV pressure, because requests waited or because the cache was well used."""

    def test_requests_that_wait_for_a_place_in_the_batch_at_an_empty_cache(self) -> None:
        found = view([read(at, 3.0, kv_cache_usage=0.035, running=8.0) for at in (0, 30, 60)], sent=canaries(LATE))
        assert found.pressure["waiting"] is False
        assert found.is_kv_cache_too_small is False

    def test_a_full_cache_whose_batch_is_full_too(self) -> None:
        found = view(full((0, 30, 60)), seats=20, sent=canaries(LATE))
        assert found.pressure["waiting"] is False
        assert found.is_kv_cache_too_small is False

    def test_a_full_cache_with_rare_preemptions_and_nobody_late(self) -> None:
        snapshots = [*full((0, 15)), *full((30, 45, 60), preemptions=2.0)]
        found = view(snapshots, seats=64, sent=canaries({0: 100.0, 15: 120.0, 30: 90.0}))
        assert found.pressure == {"usage": True, "waiting": True, "preemptions": True, "late": False}
        assert found.is_kv_cache_too_small is False

    def test_a_batch_server_with_a_full_queue(self) -> None:
        growing = [
            read(at, 50.0 + at, kv_cache_usage=0.99, running=40.0, histograms={"queue": waited(at, 600.0)})
            for at in range(0, 301, 15)
        ]
        found = view(growing, seats=256, objectives=BATCH, sent=canaries(LATE))
        assert found.pressure["waiting"] is True
        assert found.pressure["late"] is False
        assert found.is_kv_cache_too_small is False


class TestLackOfRoom:
    def test_requests_that_wait_beside_a_full_cache_and_free_places_wait_for_room(self) -> None:
        found = view(full((0, 30, 60)), seats=64, sent=canaries(LATE))
        assert found.pressure == {"usage": True, "waiting": True, "preemptions": False, "late": True}
        assert found.is_kv_cache_too_small is True

    @pytest.mark.parametrize(("usage", "shows"), [(0.9, True), (0.89, False)])
    def test_a_cache_is_full_from_nine_tenths_on(self, usage: float, *, shows: bool) -> None:
        found = view(full((0, 30), kv_cache_usage=usage), seats=64)
        assert (found.pressure["usage"], found.pressure["waiting"]) == (shows, shows)

    def test_between_two_steps_a_full_batch_is_a_few_short(self) -> None:
        """vLLM counts running requests when those that finished have left, and before others have joined."""
        assert view(full((0, 30), running=62.0), seats=64).pressure["waiting"] is False
        assert view(full((0, 30), running=57.0), seats=64).pressure["waiting"] is True

    def test_the_limits_that_the_page_shows_count_and_the_lower_one_of_them(self) -> None:
        shown = {"max_num_seqs": 256, "max_num_active_seqs": 64}
        for seats in (None, 128):
            found = view(full((0, 30), running=64.0, scheduler_limits=shown), seats=seats)
            assert found.pressure["waiting"] is False
        assert view(full((0, 30), running=57.0, scheduler_limits=shown)).pressure["waiting"] is True

    def test_one_moment_with_a_full_batch_is_enough_to_doubt(self) -> None:
        assert view([*full((0, 15)), *full((30,), running=64.0)], seats=64).pressure["waiting"] is False

    def test_without_max_num_seqs_fewer_than_ever_ran_means_free_places(self) -> None:
        before = read(0, kv_cache_usage=0.5, running=64.0)
        assert view([before, *full((300, 330))]).pressure["waiting"] is True

    def test_without_max_num_seqs_as_many_as_ever_ran_may_be_all_that_may(self) -> None:
        found = view(full((0, 30, 60)), sent=canaries(LATE))
        assert "waiting" not in found.pressure
        assert found.is_kv_cache_too_small is False
        assert view([read(0, 5.0, kv_cache_usage=0.5, running=20.0)]).pressure["waiting"] is False

    def test_a_restarted_server_may_have_another_limit(self) -> None:
        before = read(0, kv_cache_usage=0.5, running=64.0, started_s=1.0)
        found = view([before, *full((300, 330), started_s=290.0)])
        assert "waiting" not in found.pressure

    def test_deferred_requests_wait_for_something_else(self) -> None:
        deferred = {"waiting_by_reason": {"capacity": 0.0, "deferred": 5.0}}
        assert view(full((0, 30), **deferred), seats=64).pressure["waiting"] is False

    def test_servers_that_report_no_reason_are_judged_alike(self) -> None:
        assert view(full((0, 30), waiting_by_reason={}), seats=64).pressure["waiting"] is True
        assert view(full((0, 30), waiting_by_reason={}, running=64.0), seats=64).pressure["waiting"] is False

    def test_each_engine_is_judged_by_its_own_batch_and_cache(self) -> None:
        short = EngineSnapshot(running=20.0, waiting=5.0, kv_cache_usage=0.97)
        in_step = EngineSnapshot(running=64.0, waiting=5.0, kv_cache_usage=0.4)
        engines = {"engines": 2, "running": 84.0, "by_engine": {"0": in_step, "1": short}}
        assert view(full((0, 30), **engines), seats=64).pressure["waiting"] is True
        engines["by_engine"] = {"0": in_step, "1": EngineSnapshot(running=64.0, waiting=5.0, kv_cache_usage=0.97)}
        assert view(full((0, 30), **engines), seats=64).pressure["waiting"] is False

    def test_engines_that_are_not_reported_one_by_one_share_the_running_requests(self) -> None:
        assert view(full((0, 30), engines=4, running=256.0), seats=64).pressure["waiting"] is False

    def test_signs_are_those_of_the_last_minute(self) -> None:
        later = [read(at, kv_cache_usage=0.5, running=3.0, preemptions=9.0) for at in (90, 120)]
        found = view([*full((0, 15)), *later], seats=64)
        assert found.pressure == {"usage": False, "waiting": False, "preemptions": False, "late": False}

    def test_a_server_that_is_scraped_every_two_minutes_has_signs_too(self) -> None:
        found = view([*full((0,)), *full((120,), preemptions=4.0)], seats=64)
        assert found.pressure["preemptions"] is True

    def test_a_gateway_has_no_cache_and_no_signs(self) -> None:
        found = view([read(0, 9.0, kv_cache_usage=None, preemptions=None, rejections=4.0)])
        assert found.pressure == {}
        assert found.is_kv_cache_too_small is None


def waited(requests: float, seconds: float) -> Histogram:
    """The queue histogram after so many requests, each of which waited that long."""
    return Histogram(((INF, requests),), requests * seconds)


def answered(good: float, bad: float) -> UserTotals:
    """User requests within 0.5 s, the TTFT objective of PROMISED, and above it."""
    return UserTotals(histograms={"ttft": Histogram(((0.25, 0.0), (0.5, good), (INF, good + bad)), 0.0)})


class TestLate:
    def late(self, snapshots: Iterable[ServerSnapshot] | None = None, **values: Any) -> bool:
        return view(full((0, 30)) if snapshots is None else snapshots, seats=64, **values).pressure["late"]

    def test_one_slow_canary_may_be_chance(self) -> None:
        assert not self.late(sent=canaries({0: 900.0, 15: 100.0}))
        assert self.late(sent=canaries({0: 900.0, 15: 900.0, 30: 100.0}))

    def test_misses_that_the_objective_allows_are_not_late(self) -> None:
        allowed = {at: 900.0 if at < 2 else 100.0 for at in range(60)}
        assert not self.late(sent=canaries(allowed))
        assert self.late(sent=canaries({**allowed, 2: 900.0, 3: 900.0}))

    def test_canaries_that_fail_are_late_whatever_the_objectives(self) -> None:
        failed = [failure(Outcome.TIMEOUT, traffic=Traffic.CANARY) for _ in range(3)]
        assert self.late(sent=failed, objectives=BATCH)
        aborted = [failure(Outcome.ABORTED, traffic=Traffic.CANARY) for _ in range(3)]
        assert not self.late(sent=aborted)

    def test_users_are_late_if_more_than_the_allowed_share_misses_and_more_than_one_burst(self) -> None:
        assert self.late(users=[answered(1000, 50), answered(1080, 60)])
        assert not self.late(users=[answered(1000, 50), answered(1010, 59)])
        assert not self.late(users=[answered(1000, 50), answered(1300, 60)])
        assert not self.late(users=[answered(1000, 50), answered(1080, 60)], objectives=BATCH)

    def test_a_wait_in_the_queue_longer_than_the_ttft_objective_is_late(self) -> None:
        def waiting(seconds: float) -> list[ServerSnapshot]:
            return [
                read(at, 5.0, kv_cache_usage=0.97, running=20.0, histograms={"queue": waited(at, seconds)})
                for at in (0, 60, 120)
            ]

        assert self.late(waiting(0.6))
        assert not self.late(waiting(0.4))
        assert not self.late(waiting(60.0), objectives=BATCH)

    def test_a_growing_queue_will_be_late(self) -> None:
        def queue(*waiting: float) -> list[ServerSnapshot]:
            return [one for at, count in enumerate(waiting) for one in full((60 * at,), waiting=count)]

        assert self.late(queue(2, 3, 5, 6, 9, 12))
        assert not self.late(queue(3, 5, 3, 4, 5, 3))
        assert not self.late(queue(2, 9, 5, 6, 9, 12)), "a longer queue at the beginning"
        assert not self.late(queue(2, 3, 12, 14)), "too short a time"
        assert not self.late(queue(2, 3, 5, 6, 9, 12), objectives=BATCH)


@pytest.mark.parametrize(
    ("signs", "too_small"),
    [
        ({}, None),
        ({"usage": True, "late": True}, False),
        ({"usage": True, "rejections": True, "late": True}, False),
        ({"usage": False, "preemptions": True, "late": True}, True),
        ({"usage": True, "waiting": True, "late": True}, True),
        ({"usage": True, "waiting": True, "rejections": True, "late": False}, True),
        ({"usage": True, "waiting": True, "preemptions": True, "late": False}, False),
    ],
)
def test_the_verdict_needs_lack_of_room_and_somebody_who_suffers(
    signs: dict[str, bool], *, too_small: bool | None
) -> None:
    assert is_too_small(signs) is too_small
