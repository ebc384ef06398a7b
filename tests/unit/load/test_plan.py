"""Whether a run may begin: refusals add no load, and say why."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from example_records import CHAT, snapshot

from probe.errors import TargetError
from probe.guard import GuardLimits
from probe.load.plan import preflight, ramp_job
from probe.load.ramp import Budget
from probe.records import Api, GuardVerdict, Outcome, ServerSnapshot
from probe.workload import Lognormal, Workload

BUDGET = Budget(1000, 60.0, 5.0)


def _reads(server: ServerSnapshot | None) -> Callable[[], Awaitable[ServerSnapshot]]:
    async def read() -> ServerSnapshot:
        if server is None:
            raise TargetError("http://a/metrics: no vLLM metrics (HTTP 404)", Outcome.UNREACHABLE)
        return server

    return read


def _fires(answer: list[str] | TargetError) -> Callable[[], Awaitable[list[str]]]:
    async def firing() -> list[str]:
        if isinstance(answer, TargetError):
            raise answer
        return answer

    return firing


def _verdict(server: ServerSnapshot | None, alerts: list[str] | TargetError | None = None) -> GuardVerdict:
    firing = None if alerts is None else _fires(alerts)
    return asyncio.run(preflight(_reads(server), GuardLimits(), firing))[0]


@pytest.mark.parametrize(
    ("server", "reason", "words"),
    [
        (None, "no_server_metrics", "HTTP 404"),
        (snapshot(waiting=None), "no_server_metrics", "blind"),
        (snapshot(waiting=1.0), "busy", "1 requests"),
        (snapshot(kv_cache_usage=0.99), "busy", "99%"),
    ],
)
def test_a_server_that_is_busy_or_cannot_be_seen_gets_no_load(
    server: ServerSnapshot | None, reason: str, words: str
) -> None:
    verdict = _verdict(server)
    assert not verdict.go
    assert verdict.reason == reason
    assert words in (verdict.detail or "")


def test_a_firing_page_forbids_the_run_by_name() -> None:
    verdict = _verdict(snapshot(), ["KneewatchTtftBurn", "KneewatchDown"])
    assert (verdict.go, verdict.reason) == (False, "alert_firing")
    assert "KneewatchTtftBurn, KneewatchDown" in (verdict.detail or "")


def test_a_prometheus_that_does_not_answer_forbids_the_run() -> None:
    down = TargetError("http://prometheus: Prometheus does not answer (refused)", Outcome.UNREACHABLE)
    verdict = _verdict(snapshot(), down)
    assert (verdict.go, verdict.reason) == (False, "no_prometheus")
    assert "http://prometheus" in (verdict.detail or "")


def test_a_calm_server_without_alerts_may_be_loaded_and_is_returned_as_it_was() -> None:
    calm = snapshot(running=3.0)
    verdict, server = asyncio.run(preflight(_reads(calm), GuardLimits(), _fires([])))
    assert verdict == GuardVerdict(go=True)
    assert server is calm


def test_prometheus_is_not_asked_about_a_server_that_is_refused_anyway() -> None:
    asked = 0

    async def firing() -> list[str]:
        nonlocal asked
        asked += 1
        return []

    asyncio.run(preflight(_reads(snapshot(waiting=5.0)), GuardLimits(), firing))
    assert asked == 0


def _job(server: ServerSnapshot | None, **workload: Any) -> Any:
    return ramp_job(
        target="a",
        model="m",
        server=server,
        workload=Workload(**{"name": "w", "api": Api.CHAT, "prompt_tokens": 8, "output_tokens": 4, **workload}),
        objectives=CHAT,
        concurrency=(1, 2, 4),
        step_s=15.0,
        requests_per_step=None,
        budget=BUDGET,
        guarded=True,
    )


def test_a_job_is_a_step_for_each_concurrency_in_that_order() -> None:
    job = _job(snapshot())
    assert [plan.concurrency for plan in job.plans] == [1, 2, 4]
    assert {(plan.seconds, plan.requests, plan.loop) for plan in job.plans} == {(15.0, None, "closed")}
    assert job.budget == BUDGET


def test_what_a_figure_holds_for_is_written_beside_it() -> None:
    context = _job(snapshot()).context
    assert (context.engine, context.version) == ("vllm", "0.32.0")
    assert _job(snapshot(flags={"block_size": "32"})).context.flags == {"block_size": "32"}
    assert context.workload["name"] == "w"
    assert context.workload["api"] == "chat"
    assert context.objectives["ttft"] == {"ratio": 0.95, "within_s": 0.5}
    assert _job(None).context.version == "unknown"


def test_lengths_that_vary_are_described_whole() -> None:
    context = _job(snapshot(), prompt_tokens=Lognormal(3000, 0.4, 8000)).context
    assert context.workload["prompt_tokens"] == {"median": 3000, "sigma": 0.4, "maximum": 8000}
