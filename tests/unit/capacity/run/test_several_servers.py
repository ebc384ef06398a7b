"""Several servers behind one address: a run says so, and publishes no more than it measured."""

from typing import Any

import pytest
from example_records import CHAT
from fake_request import LocalLoad
from fake_server import Asked, FakeMetrics, FakeServer, Timed, job, ready
from virtual_time import VirtualClock, virtually

from probe.capacity.run.request import Budget
from probe.capacity.search.knee import TOGETHER
from probe.core.result import CapacityResult, Stopped
from probe.core.snapshot import Histogram, UserLoad
from probe.core.step import StepPlan

pytestmark = pytest.mark.slow

STEPS = (StepPlan(concurrency=4, seconds=6.0), StepPlan(concurrency=8, seconds=6.0))


def _run(metrics: FakeMetrics, *, server: FakeServer | None = None, is_guarded: bool = True) -> CapacityResult:
    asked = Asked(
        job(CHAT, Budget(tokens=10**9, seconds=10**6, over_objective_seconds=10**6), is_guarded=is_guarded), STEPS
    )
    clock, server = VirtualClock(), server or FakeServer()

    async def run() -> CapacityResult:
        return await asked.ramp(LocalLoad(ready(server), clock), metrics, clock).run()

    return virtually(run(), within_s=600.0)


class Balanced(FakeMetrics):
    """The pages of two servers, from 5 s on one after the other."""

    async def __call__(self) -> Any:
        is_other = len(self.read_s) % 2 == 1 and self.read_s[-1] - self.read_s[0] > 5.0
        self.values = lambda now_s: {"prompt_tokens": (10.0 if is_other else 9000.0) + now_s}
        return await super().__call__()


@pytest.mark.fault("TR17")
def test_pages_that_alternate_are_several_servers_and_no_restart() -> None:
    server = FakeServer()
    result = _run(Balanced(), server=server)
    assert result.stopped == Stopped("guard", "several_servers")
    assert [step.tripped for step in result.steps] == [None, "several_servers"]
    assert server.sent_s[-1] - server.sent_s[0] < 6.5, "the load ends at the first sign"
    assert result.capacity.requests_per_second is None
    assert "several servers answer at this address" in str(result.capacity.reason)


def test_without_a_guard_the_capacity_is_what_was_measured_and_says_of_what() -> None:
    result = _run(Balanced(), is_guarded=False)
    assert result.stopped == Stopped("done")
    assert result.capacity.requests_per_second == pytest.approx(result.steps[-1].throughput_rps)
    assert str(result.capacity.reason).startswith(TOGETHER)
    assert {step.users for step in result.steps} | {result.users} == {UserLoad()}


@pytest.mark.parametrize(("share", "reason"), [(0.5, "several_servers"), (1.0, None)])
def test_a_page_that_counts_half_of_the_requests_is_one_of_two_servers(share: float, reason: str | None) -> None:
    server = FakeServer()

    def values(_: float) -> dict[str, Any]:
        count = share * len(server.sent_s)
        return {"histograms": {"ttft": Histogram(((0.5, count), (float("inf"), count)), 0.0)}}

    result = _run(Timed(values), server=server)
    assert result.stopped == (Stopped("guard", reason) if reason else Stopped("done"))
    assert (result.capacity.requests_per_second is None) == (reason is not None)


def test_a_restart_without_a_guard_is_not_several_servers() -> None:
    result = _run(FakeMetrics(lambda now_s: {"prompt_tokens": now_s if now_s > 4.0 else 1000.0}), is_guarded=False)
    assert TOGETHER not in str(result.capacity.reason)


def test_requests_that_a_restart_forgot_are_no_other_servers() -> None:
    server = FakeServer()

    def values(now_s: float) -> dict[str, Any]:
        count = len(server.sent_s) - (0 if now_s < 8.0 else 400)
        return {"histograms": {"ttft": Histogram(((float("inf"), max(count, 0.0)),), 0.0)}}

    assert TOGETHER not in str(_run(Timed(values), server=server, is_guarded=False).capacity.reason)
