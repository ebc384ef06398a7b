"""What client, server and GPU tell together, and when they do not."""

from typing import Any

import pytest
from made import poll, record

from probe.core.request import Outcome
from probe.core.snapshot import (
    CountedTraffic,
    CrossChecks,
    EngineReading,
    Gpu,
    GpuSnapshot,
    Histogram,
    ServerSnapshot,
    UserLoad,
    UserTotals,
)
from probe.observe.cross_checks import CrossChecker, pressure

INF = float("inf")
S = 10**9


def histogram(count: float, total_s: float) -> Histogram:
    return Histogram(((0.1, 0.0), (INF, count)), total_s)


def read(at_s: float, **values: Any) -> ServerSnapshot:
    return poll(at_ns=round(at_s * S), wall_s=at_s, **values)


def gpus(at_s: float, *percent: float, **labels: str) -> GpuSnapshot:
    found = (Gpu({"UUID": f"GPU-{i}", **labels}, {"DCGM_FI_DEV_GPU_UTIL": value}) for i, value in enumerate(percent))
    return GpuSnapshot(round(at_s * S), at_s, "nvml", tuple(found))


def counted(requests: int = 1, **others: Any) -> CountedTraffic:
    values: dict[str, Any] = {
        "prompt_tokens": 8 * requests,
        "output_tokens": 3 * requests,
        "ttft_s": 0.102 * requests,
        "server_requests": requests,
        "server_prompt_tokens": 8.0 * requests,
        "server_output_tokens": 3.0 * requests,
        "server_ttft_s": 0.1 * requests,
    }
    return CountedTraffic(requests=requests, **{**values, **others})


def told(*accounts: CountedTraffic) -> CrossChecker:
    """A target with these accounts, of which the last has just been made up."""
    joined = CrossChecker()
    joined.reading(read(0))
    for second, both in enumerate(accounts):
        joined.accounts(second * S, UserTotals(), both)
    return joined


def test_of_nothing_nothing_is_told() -> None:
    found = CrossChecker().view()
    assert (found.ttft_gap_s, found.counted, found.pressure) == ({}, {}, {})
    assert found.queue_share is found.neighbour_utilization is found.stalled_s is None


class TestGap:
    def test_of_canaries_alone_on_the_server_it_is_exact(self) -> None:
        joined = told(counted(), counted(requests=2), counted(ttft_s=0.9))
        assert joined.view().ttft_gap_s == {"matched": pytest.approx(0.002)}

    def test_beside_users_only_means_can_be_compared(self) -> None:
        joined = told(counted(server_requests=2))
        joined.canary(record(at_ms=1000, ttft_ms=300))
        joined.canary(record(at_ms=2000, ttft_ms=100))
        joined.reading(read(0, histograms={"ttft": histogram(10, 5.0)}))
        joined.reading(read(5, histograms={"ttft": histogram(20, 6.0)}))
        assert joined.view().ttft_gap_s == {"mean": pytest.approx(0.1)}

    def test_a_failed_canary_says_nothing_of_it(self) -> None:
        joined = CrossChecker()
        joined.canary(record(tokens=0, outcome=Outcome.TIMEOUT))
        joined.reading(read(0, histograms={"ttft": histogram(10, 5.0)}))
        joined.reading(read(5, histograms={"ttft": histogram(20, 6.0)}))
        assert joined.view().ttft_gap_s == {}


class TestQueueShare:
    def test_it_is_of_queue_and_prefill_of_the_last_minutes(self) -> None:
        joined = CrossChecker()
        joined.reading(read(0, histograms={"prefill": histogram(100, 900.0), "queue": histogram(100, 0.0)}))
        joined.reading(read(5, histograms={"prefill": histogram(120, 915.0), "queue": histogram(120, 5.0)}))
        assert joined.view().queue_share == pytest.approx(0.25)

    def test_without_requests_there_is_none(self) -> None:
        joined = CrossChecker()
        for second in (0, 5):
            joined.reading(read(second, histograms={"ttft": histogram(1, 1.0), "queue": histogram(1, 1.0)}))
        assert joined.view().queue_share is None

    def test_a_restart_does_not_make_it_negative(self) -> None:
        joined = CrossChecker()
        joined.reading(read(0, histograms={"prefill": histogram(100, 900.0), "queue": histogram(100, 90.0)}))
        joined.reading(read(5, histograms={"prefill": histogram(1, 1.0), "queue": histogram(1, 0.5)}))
        joined.reading(read(9, histograms={"prefill": histogram(2, 1.75), "queue": histogram(2, 0.75)}))
        assert joined.view().queue_share == pytest.approx(0.25)


class TestCounted:
    def test_the_same_tokens_on_both_sides_are_a_ratio_of_one(self) -> None:
        assert told(*[counted(requests=2)] * 3).view().counted == {"prompt": 1.0, "output": 1.0}

    def test_metrics_of_another_server_count_nothing_of_ours(self) -> None:
        found = told(*[counted(server_requests=0, server_prompt_tokens=0.0, server_output_tokens=0.0)] * 3).view()
        assert found.counted == {"prompt": 0.0, "output": 0.0}
        assert found.ttft_gap_s == {}

    def test_one_account_or_two_are_too_few(self) -> None:
        assert told(*[counted(server_output_tokens=0.0)] * 2).view().counted == {}

    @pytest.mark.parametrize("both", [counted(server_requests=2), counted(requests=0)])
    def test_with_users_or_without_requests_nobody_can_tell(self, both: CountedTraffic) -> None:
        assert told(*[both] * 3).view().counted == {}

    def test_what_the_server_does_not_count_is_absent(self) -> None:
        assert told(*[counted(server_prompt_tokens=None)] * 3).view().counted == {"output": 1.0}

    def test_accounts_of_hours_ago_or_of_the_server_before_a_restart_say_nothing_now(self) -> None:
        joined = told(*[counted()] * 3)
        joined.reading(read(2 * 3600))
        assert joined.view().counted == {}
        joined = told(*[counted()] * 3)
        joined.reading(read(5, generation_tokens=100.0))
        joined.reading(read(10, generation_tokens=1.0))
        assert joined.view().counted == {}


class TestStall:
    def test_an_engine_with_requests_that_makes_nothing_is_stalled_since_it_last_did(self) -> None:
        joined = CrossChecker()
        for second, tokens in ((0, 10.0), (5, 20.0), (10, 20.0), (15, 20.0)):
            joined.reading(read(second, running=1.0, progress=tokens))
        assert joined.view().stalled_s == 10
        joined.reading(read(20, running=1.0, progress=21.0))
        assert joined.view().stalled_s == 0

    @pytest.mark.parametrize("state", [{"running": 1.0}, {"running": 0.0, "waiting": 1.0}])
    def test_running_or_waiting_makes_it_one(self, state: dict[str, float]) -> None:
        joined = CrossChecker()
        for second in (0, 5):
            joined.reading(read(second, progress=20.0, **state))
        assert joined.view().stalled_s == 5

    def test_an_idle_server_is_not_however_long(self) -> None:
        joined = CrossChecker()
        for second in range(0, 1000, 5):
            joined.reading(read(second, progress=20.0))
        joined.reading(read(1000, running=1.0, progress=20.0))
        assert joined.view().stalled_s == 5

    def test_a_long_prompt_that_is_being_read_is_not_stalled_but_one_that_others_wait_behind_is(self) -> None:
        """vLLM tells no token of it, but its KV cache fills."""
        joined = CrossChecker()
        for second in range(0, 61, 5):
            joined.reading(read(second, running=1.0, waiting=second / 5, progress=9.0, kv_cache_usage=second / 100))
        assert joined.view().stalled_s == 0
        for second in range(65, 96, 5):
            joined.reading(read(second, running=1.0, waiting=second / 5, progress=9.0, kv_cache_usage=0.6))
        assert joined.view().stalled_s == 35

    def test_one_of_several_engines_is_enough(self) -> None:
        joined = CrossChecker()
        for second, tokens in ((0, 10.0), (5, 20.0), (10, 30.0)):
            by_engine = {
                "0": EngineReading(running=1.0, generation_tokens=tokens),
                "1": EngineReading(running=2.0, generation_tokens=7.0),
            }
            joined.reading(read(second, running=3.0, progress=7 + tokens, by_engine=by_engine))
        assert joined.view().stalled_s == 10

    def test_where_nothing_tells_progress_or_nothing_is_read_it_is_not_known(self) -> None:
        joined = CrossChecker()
        joined.reading(read(0, running=1.0, progress=None))
        assert joined.view().stalled_s is None
        joined.reading(read(5, running=1.0, progress=1.0))
        joined.unread()
        assert joined.view().stalled_s is None

    def test_a_reading_that_failed_in_between_does_not_begin_it_anew(self) -> None:
        joined = CrossChecker()
        for second in range(0, 65, 5):
            if second % 25 == 20:
                joined.unread()
            else:
                joined.reading(read(second, running=1.0, progress=20.0))
        assert joined.view().stalled_s == pytest.approx(60)


class TestPressure:
    def test_each_sign_is_of_the_last_minute(self) -> None:
        readings = [
            read(0, kv_cache_usage=1.0, waiting_by_reason={"capacity": 1.0}, preemptions=0.0, rejections=0.0),
            read(30, kv_cache_usage=0.95, waiting_by_reason={"capacity": 2.0}, preemptions=1.0, rejections=1.0),
            read(60, kv_cache_usage=0.5, waiting_by_reason={"capacity": 0.0}, preemptions=3.0, rejections=2.0),
        ]
        assert pressure(readings) == {"usage": True, "waiting": True, "preemptions": True, "rejections": True}
        later = [*readings, read(125, kv_cache_usage=0.5, waiting_by_reason={"capacity": 0.0}, preemptions=3.0)]
        assert pressure(later) == {"usage": False, "waiting": False, "preemptions": False}

    def test_requests_that_wait_for_something_else_are_no_sign(self) -> None:
        waiting = {"capacity": 0.0, "deferred": 5.0}
        assert not pressure([read(0, kv_cache_usage=1.0, waiting=5.0, waiting_by_reason=waiting)])["waiting"]

    @pytest.mark.parametrize(("usage", "sign"), [(0.95, True), (0.5, False)])
    def test_without_a_reason_they_wait_for_the_cache_where_it_is_full(self, usage: float, *, sign: bool) -> None:
        assert pressure([read(0, kv_cache_usage=usage, waiting=3.0)])["waiting"] is sign

    def test_what_the_server_does_not_tell_is_absent(self) -> None:
        assert pressure([read(0, kv_cache_usage=None, preemptions=None, waiting=3.0)]) == {}


class TestNeighbour:
    """Two minutes of an idle server; canaries of `canary_s` begin each half minute."""

    def watch(
        self, *, percent: tuple[float, ...], canary_s: float = 0.0, users: UserTotals | None = None
    ) -> CrossChecker:
        joined = CrossChecker()
        for second in range(0, 121, 10):
            running = 0.0
            if canary_s and second % 30 == 0:
                joined.canary(record(at_ms=1000.0 * second - 1000, ttft_ms=10, gap_ms=1000 * canary_s, tokens=2))
                running = 1.0
            joined.reading(read(second, running=running if second < 120 else 0.0))
            totals = users if users is not None and second > 60 else UserTotals(0.0, 0.0, 0.0)
            joined.accounts(second * S, totals, None)
            joined.gpus(gpus(second, *percent))
        return joined

    def test_a_busy_gpu_under_an_idle_server_is_somebody_elses(self) -> None:
        assert self.watch(percent=(0.0, 60.0)).view().neighbour_utilization == pytest.approx(0.6)
        assert self.watch(percent=(0.0, 0.0)).view().neighbour_utilization == 0

    def test_the_time_of_our_own_canaries_is_taken_off_also_of_those_that_the_window_cuts(self) -> None:
        joined = self.watch(percent=(20.0,), canary_s=6.0)
        assert joined.view().neighbour_utilization == pytest.approx(0.2 - (5 + 6 + 6 + 6 + 1) / 120, abs=0.01)

    @pytest.mark.parametrize("users", [UserTotals(1.0, 0.0, 0.0), UserTotals(0.0, 0.0, 9.0), UserTotals()])
    def test_with_users_or_without_knowing_of_them_it_cannot_be_told(self, users: UserTotals) -> None:
        assert self.watch(percent=(60.0,), users=users).view().neighbour_utilization is None

    def test_a_request_that_runs_and_is_no_canary_is_a_users(self) -> None:
        joined = CrossChecker()
        for second in range(0, 121, 10):
            joined.reading(read(second, running=1.0 if second == 60 else 0.0))
            joined.accounts(second * S, UserTotals(0.0, 0.0, 0.0), None)
            joined.gpus(gpus(second, 60.0))
        assert joined.view().neighbour_utilization is None

    def test_nor_without_the_gpu_or_after_too_short_a_time(self) -> None:
        assert self.watch(percent=()).view().neighbour_utilization is None
        joined = CrossChecker()
        for second in (0, 10):
            joined.reading(read(second))
            joined.accounts(second * S, UserTotals(0.0, 0.0, 0.0), None)
            joined.gpus(gpus(second, 60.0))
        assert joined.view().neighbour_utilization is None


def test_users_are_told_as_rates_once_enough_was_seen() -> None:
    joined = CrossChecker()
    joined.reading(read(0))
    for second, requests in ((0, 100.0), (5, 110.0), (10, 120.0)):
        joined.accounts(second * S, UserTotals(requests, None, 10 * requests), None)
        assert (joined.users() is None) == (second < 10)
    assert joined.users() == UserLoad(2.0, 20.0)
    joined.unread()
    assert joined.users() is None


def test_what_came_while_we_loaded_the_server_makes_no_rate_of_the_minutes_after() -> None:
    joined = CrossChecker()
    joined.reading(read(0))
    for second, requests in ((0, 0.0), (1200, 6000.0), (1215, 6030.0)):
        if second == 1200:
            joined.loaded()
        joined.accounts(second * S, UserTotals(requests, None, None), None)
    assert joined.users() == UserLoad(pytest.approx(2.0), None)


def test_of_several_servers_behind_one_address_nothing_is_told_but_that() -> None:
    joined = CrossChecker()
    for second, started_s in ((0, 1.0), (5, 2.0), (10, 1.0)):
        joined.reading(read(second, running=1.0, progress=1.0, started_s=started_s))
    assert joined.several
    assert joined.view() == CrossChecks(several=True)


def test_what_is_older_than_five_minutes_is_forgotten() -> None:
    joined = CrossChecker()
    for second in range(0, 3000, 5):
        joined.reading(read(second))
        joined.gpus(gpus(second, 1.0))
        joined.canary(record(at_ms=1000 * second))
        joined.accounts(second * S, UserTotals(), counted())
    assert len(joined._readings) == len(joined._gpus) == len(joined._users) == 61
    assert len(joined._accounts) == 20
    assert len(joined._canaries) <= 62
