"""Recordings of real servers: to a file and back, joined, and what they tell."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.capacity.cases import CASES
from benchmarks.capacity.play import play
from benchmarks.real.recording import Recorder, Recording, Step, Taken, read, stitched, write
from benchmarks.real.truth import light, scored, truth
from probe.capacity.run.request import Budget
from probe.capacity.search.fixed_steps import FixedSteps
from probe.core.objectives import Objective
from probe.core.step import Arrivals, StepPlan

CASE = CASES["tiny"]
KNEE_RPS = 14.43
PLENTY = Budget(10**9, 1800, 1800)


@pytest.fixture(scope="module")
def recording() -> Recording:
    """Record two rounds on a server in virtual time with a known capacity."""
    taken = []
    for number, shares in enumerate(((0.4, 0.9, 1.1), (1.15, 0.95, 0.5))):
        plans = [
            StepPlan(400, 40.0, loop="open", warm_up_s=5.0, arrivals=Arrivals(rate_rps=share * KNEE_RPS))
            for share in shares
        ]
        noted = Taken(f"round {number + 1}")
        load_plan = Recorder(FixedSteps(plans, to_the_end=True), noted)
        noted.result = play(CASE, KNEE_RPS, number, load_plan, live_share=0.0, budget=PLENTY, is_guarded=False).result
        taken.append(noted)
    return Recording("virtual", {"date": "today"}, CASE.workload, CASE.objectives, tuple(taken))


def test_a_recording_comes_back_from_its_file(recording: Recording, tmp_path: Path) -> None:
    file = tmp_path / "r.json.gz"
    write(recording, file)
    back = read(file)
    assert (back.workload, back.objectives, back.about) == (recording.workload, recording.objectives, recording.about)
    for was, now in zip(recording.taken, back.taken, strict=True):
        assert now.result == was.result
        for before, after in zip(was.steps, now.steps, strict=True):
            old, new = before.summary(CASE.objectives), after.summary(CASE.objectives)
            assert new.valid == old.valid
            assert new.broken == old.broken
            assert new.ttft_s.p95 == pytest.approx(old.ttft_s.p95, abs=2e-6)
            assert new.tpot_s.p50 == pytest.approx(old.tpot_s.p50, abs=2e-6)
            assert new.stall_s.p95 == pytest.approx(old.stall_s.p95, abs=2e-6)
            assert [r.running for r in after.readings] == [r.running for r in before.readings]
            assert after.readings[-1].histograms["itl"].count == before.readings[-1].histograms["itl"].count


def test_a_recording_is_the_same_file_twice(recording: Recording, tmp_path: Path) -> None:
    write(recording, tmp_path / "a")
    write(recording, tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_joined_steps_have_what_each_had_and_nothing_between(recording: Recording) -> None:
    steps = [light(recording)[0][0], light(recording)[1][0]]
    joined = stitched(steps)

    def grown(readings: "list[object] | tuple[object, ...]", name: str) -> float:
        first, last = readings[0], readings[-1]
        return last.histograms[name].count - first.histograms[name].count  # type: ignore[attr-defined,no-any-return]

    for name in ("itl", "ttft"):
        assert grown(joined, name) == sum(grown(step.readings, name) for step in steps)
    times = [reading.at_ns for reading in joined]
    assert times == sorted(times)
    assert times[-1] - times[0] == sum(s.readings[-1].at_ns - s.readings[0].at_ns for s in steps) + 10**9


def test_the_truth_is_found_from_steps_on_both_sides(recording: Recording) -> None:
    found = truth(recording)
    assert abs(math.log(found.rps / KNEE_RPS)) < 0.12
    assert found.lower <= found.rps <= found.upper
    assert len(scored(recording)) == 4


def test_where_nothing_broke_the_truth_is_a_lower_bound(recording: Recording) -> None:
    def below(steps: list[Step]) -> list[Step]:
        return [s for s in steps if s.run.plan.arrivals and s.run.plan.arrivals.rate_rps < KNEE_RPS]

    taken = tuple(Taken(t.name, steps=below(t.steps)) for t in recording.taken)
    found = truth(replace(recording, taken=taken))
    assert 0.8 * KNEE_RPS < found.rps < 1.1 * KNEE_RPS
    assert (found.upper, found.limiting) == (None, None)


def test_there_is_no_truth_where_no_step_held(recording: Recording) -> None:
    never = replace(recording.objectives, ttft=Objective(0.95, 1e-6))
    with pytest.raises(ValueError, match="no step near the knee held"):
        truth(replace(recording, objectives=never))
