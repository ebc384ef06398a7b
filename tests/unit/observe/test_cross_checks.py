"""What client, server and GPU tell together, and when they do not."""

from typing import Any

import pytest
from plain_records import PROMISED, poll, record

from probe.core.request import Outcome
from probe.core.snapshot import (
    CountedTraffic,
    CrossChecks,
    EngineSnapshot,
    Gpu,
    GpuSnapshot,
    Histogram,
    ServerSnapshot,
    UserTotals,
)
from probe.observe.cross_checks import CrossChecker
from probe.observe.server_state import ServerState

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


class Target:
    """One target: the state of its server, and its cross-checks."""

    def __init__(self, *comparisons: CountedTraffic) -> None:
        self.state = ServerState()
        self.checker = CrossChecker(self.state, PROMISED)
        self.state.comparisons.extend((second * S, both) for second, both in enumerate(comparisons))

    def add(self, snapshot: ServerSnapshot) -> None:
        self.state.add(snapshot)

    def settle(self, at_s: float, totals: UserTotals) -> None:
        """Take these totals as those of the snapshot just added."""
        self.state.user_history.pop()
        self.state.user_history.append((round(at_s * S), totals))

    def view(self) -> CrossChecks:
        return self.checker.view()


def test_without_snapshots_there_are_no_checks() -> None:
    found = Target().view()
    assert (found.ttft_gap_s, found.counted, found.pressure) == ({}, {}, {})
    assert found.queue_share is found.neighbour_utilization is found.stalled_s is None


class TestGap:
    def test_of_canaries_alone_on_the_server_it_is_exact(self) -> None:
        target = Target(counted(), counted(requests=2), counted(ttft_s=0.9))
        assert target.view().ttft_gap_s == {"matched": pytest.approx(0.002)}

    def test_a_first_token_that_arrives_before_the_server_has_it_is_not_compared(self) -> None:
        assert Target(counted(server_ttft_s=0.15)).view().ttft_gap_s == {}

    def test_beside_users_only_means_can_be_compared(self) -> None:
        target = Target(counted(server_requests=2))
        target.checker.add_canary(record(at_ms=1000, ttft_ms=300))
        target.checker.add_canary(record(at_ms=2000, ttft_ms=100))
        target.add(read(0, histograms={"ttft": histogram(10, 5.0)}))
        target.add(read(5, histograms={"ttft": histogram(20, 6.0)}))
        assert target.view().ttft_gap_s == {"mean": pytest.approx(0.1)}

    def test_a_failed_canary_says_nothing_of_it(self) -> None:
        target = Target()
        target.checker.add_canary(record(tokens=0, outcome=Outcome.TIMEOUT))
        target.add(read(0, histograms={"ttft": histogram(10, 5.0)}))
        target.add(read(5, histograms={"ttft": histogram(20, 6.0)}))
        assert target.view().ttft_gap_s == {}


class TestQueueShare:
    def test_it_is_of_queue_and_prefill_of_the_last_minutes(self) -> None:
        target = Target()
        target.add(read(0, histograms={"prefill": histogram(100, 900.0), "queue": histogram(100, 0.0)}))
        target.add(read(5, histograms={"prefill": histogram(120, 915.0), "queue": histogram(120, 5.0)}))
        assert target.view().queue_share == pytest.approx(0.25)

    def test_without_requests_there_is_none(self) -> None:
        target = Target()
        for second in (0, 5):
            target.add(read(second, histograms={"ttft": histogram(1, 1.0), "queue": histogram(1, 1.0)}))
        assert target.view().queue_share is None

    def test_a_restart_does_not_make_it_negative(self) -> None:
        target = Target()
        target.add(read(0, histograms={"prefill": histogram(100, 900.0), "queue": histogram(100, 90.0)}))
        target.add(read(5, histograms={"prefill": histogram(1, 1.0), "queue": histogram(1, 0.5)}))
        target.add(read(9, histograms={"prefill": histogram(2, 1.75), "queue": histogram(2, 0.75)}))
        assert target.view().queue_share == pytest.approx(0.25)


class TestCounted:
    def test_the_same_tokens_on_both_sides_are_a_ratio_of_one(self) -> None:
        assert Target(*[counted(requests=2)] * 3).view().counted == {"prompt": 1.0, "output": 1.0}

    def test_metrics_of_another_server_do_not_count_the_canaries(self) -> None:
        found = Target(*[counted(server_requests=0, server_prompt_tokens=0.0, server_output_tokens=0.0)] * 3).view()
        assert found.counted == {"prompt": 0.0, "output": 0.0}
        assert found.ttft_gap_s == {}

    def test_one_account_or_two_are_too_few(self) -> None:
        assert Target(*[counted(server_output_tokens=0.0)] * 2).view().counted == {}

    def test_values_that_the_server_does_not_count_are_absent(self) -> None:
        assert Target(*[counted(server_prompt_tokens=None)] * 3).view().counted == {"output": 1.0}

    def test_settlements_of_hours_ago_or_before_a_restart_are_not_used(self) -> None:
        target = Target(*[counted()] * 3)
        target.add(read(2 * 3600))
        assert target.view().counted == {}
        target = Target(*[counted()] * 3)
        target.add(read(5, generation_tokens=100.0))
        target.add(read(10, generation_tokens=1.0))
        assert target.view().counted == {}


class TestStall:
    def test_an_engine_with_requests_that_makes_nothing_is_stalled_since_it_last_did(self) -> None:
        target = Target()
        for second, tokens in ((0, 10.0), (5, 20.0), (10, 20.0), (15, 20.0)):
            target.add(read(second, running=1.0, progress=tokens))
        assert target.view().stalled_s == 10
        target.add(read(20, running=1.0, progress=21.0))
        assert target.view().stalled_s == 0

    @pytest.mark.parametrize("state", [{"running": 1.0}, {"running": 0.0, "waiting": 1.0}])
    def test_running_or_waiting_makes_it_one(self, state: dict[str, float]) -> None:
        target = Target()
        for second in (0, 5):
            target.add(read(second, progress=20.0, **state))
        assert target.view().stalled_s == 5

    def test_an_idle_server_is_not_however_long(self) -> None:
        target = Target()
        for second in range(0, 1000, 5):
            target.add(read(second, progress=20.0))
        target.add(read(1000, running=1.0, progress=20.0))
        assert target.view().stalled_s == 5

    def test_a_long_prompt_that_is_being_read_is_not_stalled_but_one_that_others_wait_behind_is(self) -> None:
        """vLLM tells no token of it, but its KV cache fills."""
        target = Target()
        for second in range(0, 61, 5):
            target.add(read(second, running=1.0, waiting=second / 5, progress=9.0, kv_cache_usage=second / 100))
        assert target.view().stalled_s == 0
        for second in range(65, 96, 5):
            target.add(read(second, running=1.0, waiting=second / 5, progress=9.0, kv_cache_usage=0.6))
        assert target.view().stalled_s == 35

    def test_one_of_several_engines_is_enough(self) -> None:
        target = Target()
        for second, tokens in ((0, 10.0), (5, 20.0), (10, 30.0)):
            by_engine = {
                "0": EngineSnapshot(running=1.0, generation_tokens=tokens),
                "1": EngineSnapshot(running=2.0, generation_tokens=7.0),
            }
            target.add(read(second, running=3.0, progress=7 + tokens, by_engine=by_engine))
        assert target.view().stalled_s == 10

    def test_without_a_sign_of_progress_a_stall_is_unknown(self) -> None:
        target = Target()
        target.add(read(0, running=1.0, progress=None))
        assert target.view().stalled_s is None

    def test_a_failed_scrape_in_between_does_not_restart_the_stall(self) -> None:
        target = Target()
        for second in range(0, 65, 5):
            if second % 25 != 20:
                target.add(read(second, running=1.0, progress=20.0))
        assert target.view().stalled_s == pytest.approx(60)


class TestNeighbour:
    """Two minutes of an idle server; canaries of `canary_s` begin each half minute."""

    def watch(self, *, percent: tuple[float, ...], canary_s: float = 0.0, users: UserTotals | None = None) -> Target:
        target = Target()
        for second in range(0, 121, 10):
            running = 0.0
            if canary_s and second % 30 == 0:
                target.checker.add_canary(
                    record(at_ms=1000.0 * second - 1000, ttft_ms=10, gap_ms=1000 * canary_s, tokens=2)
                )
                running = 1.0
            target.add(read(second, running=running if second < 120 else 0.0))
            totals = users if users is not None and second > 60 else UserTotals(0.0, 0.0, 0.0)
            target.settle(second, totals)
            target.checker.add_gpus(gpus(second, *percent))
        return target

    def test_a_busy_gpu_under_an_idle_server_shows_another_process(self) -> None:
        assert self.watch(percent=(0.0, 60.0)).view().neighbour_utilization == pytest.approx(0.6)
        assert self.watch(percent=(0.0, 0.0)).view().neighbour_utilization == 0

    def test_the_time_of_our_own_canaries_is_taken_off_also_of_those_that_the_window_cuts(self) -> None:
        target = self.watch(percent=(20.0,), canary_s=6.0)
        assert target.view().neighbour_utilization == pytest.approx(0.2 - (5 + 6 + 6 + 6 + 1) / 120, abs=0.01)

    def test_time_in_which_several_canaries_ran_is_taken_off_once(self) -> None:
        target = Target()
        for second in range(0, 121, 10):
            target.add(read(second))
            target.settle(second, UserTotals(0.0, 0.0, 0.0))
            target.checker.add_gpus(gpus(second, 60.0))
        for began in (30, 40, 50):  # together from 30 s to 70 s
            target.checker.add_canary(record(at_ms=1000.0 * began, ttft_ms=10, gap_ms=20_000 - 10, tokens=2))
        assert target.view().neighbour_utilization == pytest.approx(0.6 - 40 / 120, abs=0.01)

    @pytest.mark.parametrize("users", [UserTotals(1.0, 0.0, 0.0), UserTotals(0.0, 0.0, 9.0), UserTotals()])
    def test_another_process_is_unknown_with_users_or_unknown_users(self, users: UserTotals) -> None:
        assert self.watch(percent=(60.0,), users=users).view().neighbour_utilization is None

    def test_a_request_that_runs_and_is_no_canary_is_a_users(self) -> None:
        target = Target()
        for second in range(0, 121, 10):
            target.add(read(second, running=1.0 if second == 60 else 0.0))
            target.settle(second, UserTotals(0.0, 0.0, 0.0))
            target.checker.add_gpus(gpus(second, 60.0))
        assert target.view().neighbour_utilization is None

    def test_nor_without_the_gpu_or_after_too_short_a_time(self) -> None:
        assert self.watch(percent=()).view().neighbour_utilization is None
        target = Target()
        for second in (0, 10):
            target.add(read(second))
            target.settle(second, UserTotals(0.0, 0.0, 0.0))
            target.checker.add_gpus(gpus(second, 60.0))
        assert target.view().neighbour_utilization is None


@pytest.mark.fault(
    "TR2",
    "Several servers behind one address",
    area="Truth",
    users_see="it is reported; no user traffic is computed",
    stays="canaries",
)
def test_several_servers_behind_one_address_only_report_that() -> None:
    target = Target()
    for second, started_s in ((0, 1.0), (5, 2.0), (10, 1.0)):
        target.add(read(second, running=1.0, progress=1.0, started_s=started_s))
    assert target.state.has_multiple_backends
    assert target.view() == CrossChecks(has_multiple_backends=True)


def test_data_older_than_five_minutes_are_forgotten() -> None:
    target = Target()
    for second in range(0, 3000, 5):
        target.add(read(second))
        target.checker.add_gpus(gpus(second, 1.0))
        target.checker.add_canary(record(at_ms=1000 * second))
    assert len(target.checker._gpus) == 61
    assert len(target.checker._canaries) <= 62
