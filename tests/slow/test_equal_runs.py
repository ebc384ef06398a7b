"""Runs of one server that nothing has changed, against one another: chance alone must not make anything worse."""

import asyncio
from dataclasses import replace
from itertools import combinations

import pytest
from example_records import result

from benchmarks.capacity.cases import CASES
from benchmarks.capacity.virtual_load import VirtualLoad
from probe.capacity.trend.compare import BETTER, WORSE, compare
from probe.capacity.trend.measurement import of_result
from probe.core.result import Capacity
from probe.core.step import StepPlan, StepRun, StepSummary
from probe.load.step_summary import summarize
from tests.virtual_time import virtually

CASE = CASES["tiny"]
NOT_FOUND = Capacity(mode="empirical", reason="fixed steps")


def measured(run: int, lengths: int, concurrency: int, requests: int) -> StepSummary:
    """Return a step of the case; `run` seeds the server's times, `lengths` those of prompts and answers."""
    server = CASE.server(run, 0.001)

    async def step() -> StepRun:
        server.advance(asyncio.get_running_loop().time())
        plan = StepPlan(concurrency=concurrency, requests=requests, seconds=10.0)
        return await VirtualLoad(server, CASE.workload, lengths).run(plan, asyncio.Event(), lambda _: None)

    return summarize(virtually(step(), within_s=1000), CASE.objectives)


def changed(steps: list[StepSummary]) -> list[str]:
    """Return the metrics that a comparison of any two of these runs calls better or worse."""
    sides = [of_result(f"{i}.json", result(steps=[step], capacity=NOT_FOUND)) for i, step in enumerate(steps)]
    pairs = (compare(base, new, 0.05) for base, new in combinations(sides, 2))
    return [row.metric for found in pairs for row in found.rows if row.verdict in (WORSE, BETTER)]


@pytest.mark.slow
def test_nothing_is_worse_between_equal_runs() -> None:
    steps = [measured(run, 0, 4, 20) for run in range(5)]
    assert all(step.valid and step.itl_s.count > 500 for step in steps)
    assert changed(steps) == []


@pytest.mark.slow
def test_gaps_between_tokens_are_not_worse_where_only_the_lengths_were_drawn_anew() -> None:
    steps = [measured(run, run, 16, 64) for run in range(5)]
    bare = [step.itl_s.p99 or 0.0 for step in steps]
    assert max(bare) > 1.05 * min(bare)  # as numbers they differ
    assert not [metric for metric in changed(steps) if metric.startswith("ITL")]


@pytest.mark.slow
def test_gaps_of_a_slower_server_are_worse() -> None:
    fast, slow = measured(0, 0, 4, 20), measured(0, 0, 16, 64)
    base, new = (result(steps=[one], capacity=NOT_FOUND) for one in (fast, replace(slow, plan=fast.plan)))
    rows = compare(of_result("a.json", base), of_result("b.json", new), 0.05).rows
    assert {row.metric for row in rows if row.verdict == WORSE} >= {"ITL p50", "ITL p95"}
