"""A server that refuses requests, as its queue limit is reached: an overload, and no dead server."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from example_records import CHAT, record
from fake_request import LocalLoad
from fake_server import Asked, Timed, job, ready
from virtual_time import VirtualClock, virtually

from probe.capacity.run.request import Budget
from probe.capacity.search.fixed_steps import FixedSteps
from probe.core.request import Outcome, RequestRecord, RequestSpec, Traffic
from probe.core.result import CapacityResult, Stopped
from probe.core.snapshot import UserLoad
from probe.core.step import Arrivals, Pattern, StepPlan
from probe.report.knee_text import knee_line, limit_words
from probe.report.result_text import advice

PLENTY = Budget(tokens=10**9, seconds=10**6, over_objective_seconds=10**6)
VLLM = "HTTP 503: The engine is currently busy and cannot accept new requests."


@dataclass
class Limited:
    """A server that has `limit` requests at most, as vLLM with --max-num-queued-reqs, and refuses more by `answer`."""

    limit: int
    answer: dict[str, Any] = field(default_factory=lambda: {"is_overload": True, "http_status": 503, "detail": VLLM})
    outcome: Outcome = Outcome.REJECTED
    is_counted: bool = True  # by its metrics page
    in_flight: int = 0
    refused: int = 0
    sent_s: list[float] = field(default_factory=list)

    async def __call__(self, spec: RequestSpec, scheduled_ns: int) -> RequestRecord:
        start_s = asyncio.get_running_loop().time()
        self.sent_s.append(start_s)
        what: dict[str, Any] = {"asked": spec, "traffic": Traffic.CAPACITY, "scheduled_ns": scheduled_ns}
        if self.in_flight >= self.limit:
            self.refused += 1
            return record(outcome=self.outcome, start_s=start_s, **what, **self.answer)
        self.in_flight += 1
        try:
            await asyncio.sleep(0.1)
        finally:
            self.in_flight -= 1
        return record(ttft_s=0.098, gap_s=0.001, start_s=start_s, **what)


class Surviving(FixedSteps):
    """Steps that outlive an overload, as those of a search do."""

    survives_overload = True


def closed(*concurrency: int, seconds: float = 5.0) -> tuple[StepPlan, ...]:
    return tuple(StepPlan(one, seconds) for one in concurrency)


def run(
    server: Limited,
    plans: tuple[StepPlan, ...] = (),
    *,
    page: Callable[[float], dict[str, Any] | None] = lambda _: {},
    load_plan: FixedSteps | None = None,
    **given: Any,
) -> CapacityResult:
    def values(now_s: float) -> dict[str, Any] | None:
        shown = page(now_s)
        counted = {"rejections": float(server.refused if server.is_counted else 0)}
        return None if shown is None else {**counted, **shown}

    async def main() -> CapacityResult:
        clock = VirtualClock()
        asked = Asked(job(CHAT, PLENTY, **given), plans, load_plan)
        access = {"users_between": lambda *_: UserLoad(0.0, 0.0)}
        result = await asked.ramp(LocalLoad(ready(server), clock), Timed(values), clock, access=access).run()
        assert server.in_flight == 0
        return result

    return virtually(main(), within_s=600.0)


@pytest.mark.slow
def test_fixed_steps_find_the_knee_below_the_queue_limit_and_name_it() -> None:
    result = run(Limited(4), closed(1, 4, 8, 16))
    assert result.stopped == Stopped("guard", "rejections")
    assert [step.tripped for step in result.steps] == [None, None, "rejections"]
    found = result.capacity
    assert (found.knee_concurrency, found.limiting) == (4, "rejections")
    assert found.requests_per_second == pytest.approx(40.0, rel=0.03)
    assert found.upper == pytest.approx(80.0, rel=0.03), "twice the load that held"
    assert knee_line(result) == "4 requests in flight"
    assert limit_words(result) == "the server's queue limit (--max-num-queued-reqs)"
    assert "--max-num-queued-reqs" in advice(result)


@pytest.mark.slow
def test_a_search_survives_rejections_and_goes_on_below() -> None:
    arrivals = [Arrivals(Pattern.CONSTANT, rate_rps=rate) for rate in (60.0, 20.0)]
    plans = [StepPlan(1000, 10.0, loop="open", arrivals=each) for each in arrivals]
    server = Limited(4)
    result = run(server, load_plan=Surviving(plans, to_the_end=False))
    assert [step.tripped for step in result.steps] == ["rejections", None]
    assert result.stopped == Stopped("done")
    assert result.steps[1].valid
    assert (result.capacity.limiting, result.capacity.lower) == ("rejections", pytest.approx(20.0, rel=0.03))
    assert server.refused == 1, "the first one ends the load"


@pytest.mark.slow
def test_rejections_of_users_end_the_load_too() -> None:
    result = run(Limited(99), closed(4, seconds=30.0), page=lambda now_s: {"rejections": 3.0 if now_s > 5 else 0.0})
    assert result.stopped == Stopped("guard", "rejections")
    assert result.steps[0].requests.failed == 0


def test_rejections_of_before_the_run_stop_nothing() -> None:
    result = run(Limited(99), closed(4, seconds=1.0), page=lambda _: {"rejections": 1000.0})
    assert result.stopped == Stopped("done")


BARE = {"http_status": 503, "detail": "HTTP 503"}


@pytest.mark.parametrize(("status", "outcome"), [(503, Outcome.SERVER_ERROR), (429, Outcome.REJECTED)])
def test_a_refusal_without_words_is_a_rejection_where_the_page_counts_one(status: int, outcome: Outcome) -> None:
    """A gateway may replace the server's words, and its status, by its own."""
    server = Limited(4, {"http_status": status, "detail": f"HTTP {status}"}, outcome)
    result = run(server, closed(2, 8, seconds=1.0))
    assert result.stopped == Stopped("guard", "rejections")
    assert limit_words(result) == "the server's queue limit"
    assert server.refused <= 4, "no more than were sent at once"


@pytest.mark.parametrize("page", [lambda _: {}, lambda now_s: {} if now_s < 0.9 else None])
def test_a_refusal_without_words_is_a_failure_where_the_page_counts_none(page: Any) -> None:
    server = Limited(4, BARE, Outcome.SERVER_ERROR, is_counted=False)
    result = run(server, closed(2, 8, seconds=1.0), page=page)
    assert result.stopped == Stopped("guard", "server_errors")
    assert server.refused <= 4


def test_a_rate_limit_is_no_overload() -> None:
    server = Limited(4, {"http_status": 429, "detail": "HTTP 429: rate limit"}, is_counted=False)
    result = run(server, closed(2, 8, seconds=1.0))
    assert result.stopped == Stopped("guard", "rate_limited")
    assert result.capacity.limiting is None


def test_a_failure_counts_more_than_rejections() -> None:
    """As when the server dies of the overload."""
    server = Limited(4, {"http_status": 500, "detail": "HTTP 500: EngineDeadError"}, Outcome.SERVER_ERROR)
    assert run(server, closed(2, 8, seconds=1.0)).stopped == Stopped("guard", "server_errors")


@pytest.mark.slow
def test_without_a_guard_the_step_breaks_availability_and_the_limit_is_named() -> None:
    result = run(Limited(4), closed(2, 8), is_guarded=False)
    (_, step) = result.steps
    assert step.broken[0] == "availability"
    assert step.rejected == step.requests.failed > 0
    assert result.capacity.limiting == "rejections"


@pytest.mark.slow
def test_without_a_metrics_page_the_answers_tell() -> None:
    result = run(Limited(4), closed(1, 8), by_stream=True)
    assert result.stopped == Stopped("guard", "rejections")
    assert result.capacity.knee_concurrency == 1
