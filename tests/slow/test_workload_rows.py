"""The rows of docs/workloads.md's matrix as they are documented, on a server in virtual time: every level is judged."""

import re
import shlex
from pathlib import Path

import pytest

from benchmarks.capacity.cases import CASES, Case
from benchmarks.capacity.play import Played, play
from probe.capacity.run.request import Budget
from probe.capacity.search.fixed_steps import FixedSteps
from probe.config.capacity import BudgetConfig, CapacityConfig
from probe.config.workloads import PRESETS
from probe.core.objectives import Objective, Objectives
from probe.core.reasons import MIN_REQUESTS
from probe.core.step import StepPlan
from probe.monitor.wiring import workload

PAGE = (Path(__file__).parents[2] / "docs" / "workloads.md").read_text()
ROWS = dict(re.findall(r"^\| ([A-F] [^|]+) \| [^|]+ \| `kneewatch ramp ([^`]+)` \|", PAGE, re.MULTILINE))
LENGTHS = dict(re.findall(r"^\| ([A-E] [^|]+) \| (\d+ / \d+) \|", PAGE, re.MULTILINE))
LOOPS = [name for name in ROWS if name[0] in "ABCD"]  # at fixed concurrency
# What the levels are judged by is not what the rows are about: no level breaks these.
GENEROUS = Objectives("bench", ttft=Objective(0.95, 30.0), tpot=Objective(0.95, 1.0))


def options(row: str) -> dict[str, str]:
    words = shlex.split(ROWS[row])
    return dict(zip(words[::2], words[1::2], strict=True))


def played(row: str) -> Played:
    """Return the row's run, with the options of its command and --no-guard, on an 8B model on an A100."""
    asked, default = options(row), CapacityConfig()
    seconds = float(asked.get("--step-seconds", default.step))
    loads = map(int, asked["--concurrency"].split(","))
    steps = [StepPlan(concurrency=load, seconds=seconds, warm_up_s=seconds / 5) for load in loads]
    most = BudgetConfig()
    budget = Budget(most.tokens_per_run, float(asked.get("--max-seconds", most.seconds)), most.over_objective_seconds)
    usual = CASES["8b-a100"]
    load = workload(asked["--workload"], PRESETS[asked["--workload"]])
    case = Case("row", usual.profile, load, GENEROUS, users=usual.workload)
    plan = FixedSteps(steps, to_the_end=True, confirm_s=default.confirm)
    return play(case, 1.0, 3, plan, live_share=0.001, budget=budget, is_guarded=False)


def test_the_rows_are_those_of_the_page() -> None:
    assert [name[0] for name in ROWS] == ["A", "B", "C", "D", "E", "E", "F"]
    assert LENGTHS.keys() == {name for name in ROWS if name[0] != "F"}


@pytest.mark.long
@pytest.mark.parametrize("row", LOOPS)
def test_every_level_of_a_row_is_judged_within_its_budget(row: str) -> None:
    load = PRESETS[options(row)["--workload"]]
    assert f"{load.prompt_tokens} / {load.output_tokens}" == LENGTHS[row]
    found = played(row).result
    assert found.stopped.by != "budget", found.stopped
    levels = [int(level) for level in options(row)["--concurrency"].split(",")]
    assert [step.plan.concurrency for step in found.steps][: len(levels)] == levels
    for step in found.steps:
        assert step.valid, (step.plan, step.reason)
        assert step.requests.ok >= MIN_REQUESTS
