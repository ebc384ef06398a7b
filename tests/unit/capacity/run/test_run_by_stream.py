"""A run that is guarded by its own answers alone: no metrics page is read, and the result says what was not seen."""

from collections.abc import Callable

import pytest
from example_records import CHAT
from fake_request import LocalLoad
from fake_server import Asked, FakeMetrics, FakeServer, job, ready, specs
from virtual_time import Jumpy, VirtualClock, virtually

from probe.capacity.run.request import Budget
from probe.core.request import Outcome
from probe.core.result import CapacityResult, Stopped
from probe.core.step import StepPlan
from probe.observe.stream_guard import UNLOADED_REQUESTS, UNSEEN
from probe.report.result_text import advice

pytestmark = pytest.mark.slow

PLENTY = Budget(tokens=10**9, seconds=10**6, over_objective_seconds=10**6)


def _run(
    server: FakeServer,
    *concurrency: int,
    metrics: FakeMetrics | None = None,
    client_clock: VirtualClock | None = None,
) -> CapacityResult:
    by_stream = job(CHAT, PLENTY, by_stream=True)
    plans = tuple(StepPlan(concurrency=count, seconds=6.0) for count in concurrency)
    clock = VirtualClock()

    async def run() -> CapacityResult:
        load = LocalLoad(ready(server, specs(8, 10)), client_clock or clock)
        return await Asked(by_stream, plans).ramp(load, metrics or FakeMetrics(lambda _: None), clock).run()

    return virtually(run(), within_s=600.0)


def _slow_from(count: int, seconds: float) -> Callable[[int], float]:
    """Return a server that is fast below that concurrency."""
    return lambda in_flight: seconds if in_flight >= count else 0.1


def test_without_a_metrics_page_a_run_finds_a_knee_and_names_what_it_did_not_see() -> None:
    metrics = FakeMetrics(lambda _: None)
    result = _run(FakeServer(_slow_from(8, 0.8)), 4, 8, 16, metrics=metrics)
    assert result.stopped == Stopped("done", "concurrency 8 broke ttft")
    assert result.capacity.requests_per_second == pytest.approx(40.0, rel=0.05)
    assert str(result.capacity.reason).startswith(UNSEEN)
    assert metrics.read_s == []


def test_answers_that_take_more_than_twice_the_objective_end_the_load() -> None:
    server = FakeServer(_slow_from(2, 1.5))  # two late requests are too few for `no_first_token`
    result = _run(server, 1, 2, 4)
    assert result.stopped == Stopped("guard", "slow_answers")
    assert [(step.plan.concurrency, step.tripped) for step in result.steps] == [(1, None), (2, "slow_answers")]
    assert result.capacity.limiting == "slow_answers"
    assert result.capacity.upper is None
    assert server.in_flight == 0


@pytest.mark.parametrize("seconds", [0.7, 1.5, 10.0])
def test_a_server_that_is_slow_without_load_gets_no_load_and_is_not_called_busy(seconds: float) -> None:
    """However slow it is: a request that waits for long is no overload while it is alone."""
    server = FakeServer(lambda _: seconds)
    result = _run(server, 4, 8)
    assert result.stopped == Stopped("guard", "slow_unloaded")
    assert result.steps == ()
    assert server.peak == 1
    assert len(server.sent_s) <= 1 + UNLOADED_REQUESTS
    assert result.capacity.limiting is None
    assert advice(result) == "loosen the objective, shorten the workload, or make the server faster."


@pytest.mark.fault(
    "LO83",
    "Kneewatch's machine is busy while it measures a server without a metrics page before any load",
    area="Starvation",
    users_see="the run goes on, with steps that are `client_bound` while that lasts",
    stays="the server is not called slow without load (`slow_unloaded`) for what the lateness may explain",
)
@pytest.mark.parametrize(("seconds", "by"), [(0.55, "done"), (0.9, "guard")])
def test_a_late_client_calls_no_server_slow_without_load(seconds: float, by: str) -> None:
    assert _run(FakeServer(lambda _: seconds), 1, client_clock=Jumpy()).stopped.by == by


def test_a_request_that_fails_ends_the_load() -> None:
    server = FakeServer(outcome=lambda number: Outcome.SERVER_ERROR if number >= 30 else Outcome.OK)
    assert _run(server, 4, 8).stopped == Stopped("guard", "server_errors")


def test_a_server_that_hangs_ends_the_load() -> None:
    result = _run(FakeServer(_slow_from(8, 60.0)), 4, 8)
    assert result.stopped == Stopped("guard", "no_first_token")
