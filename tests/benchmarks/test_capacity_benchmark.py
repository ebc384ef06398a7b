"""The record of `make bench-capacity`: its figures from known rows, and its truths. A whole run: tests/slow."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.capacity.__main__ import main
from benchmarks.capacity.bench import FORECAST, KNEEWATCH, METHODS, Row, jobs_of
from benchmarks.capacity.cases import CASES
from benchmarks.capacity.report import BASELINE, goals, line, summaries, table, verdicts
from benchmarks.capacity.truth import Truth
from benchmarks.capacity.truth_file import Known, digest, kind, named, read, stale, write

ROW = Row(
    method=KNEEWATCH, case="8b-a100", kind="named", seed=0, truth_rps=10.0, answer_rps=10.0, lower_rps=9.0,
    upper_rps=11.0, mode="verified", reason=None, requests=100, tokens=1000, seconds=100.0, over_objective_s=1.0,
    users=1000, spoilt=1, cpu_s=1.0,
)  # fmt: skip
SWEEP = replace(ROW, method=BASELINE, lower_rps=None, upper_rps=None, mode="", tokens=10_000)


def test_figures_of_known_runs() -> None:
    rows = [
        ROW,
        replace(ROW, answer_rps=10.4),
        replace(ROW, answer_rps=9.2, lower_rps=8.0, upper_rps=9.5, over_objective_s=9.0),
        replace(ROW, answer_rps=None, lower_rps=None, upper_rps=None, mode="forecast", spoilt=-1),
        SWEEP,
    ]
    (mine, sweep) = summaries(rows)
    assert (mine["runs"], mine["cases"], mine["withheld"], mine["wrong_as_verified"]) == (4, 1, 1, 0)
    assert mine["error_median"] == pytest.approx(0.04)
    assert (mine["within_5"], mine["within_10"]) == (0.5, 0.75)  # what is withheld is not within
    assert mine["covered"] == pytest.approx(2 / 3)
    assert mine["tokens_of_sweep"] == pytest.approx(0.1)
    assert (mine["over_objective_s_mean"], mine["over_objective_s_max"]) == (3.0, 9.0)
    assert mine["spoilt"] == pytest.approx(2 / 4000)
    assert mine["modes"] == {"forecast": 1, "verified": 3}
    assert (sweep["tokens_of_sweep"], sweep["covered"]) == (1.0, None)


def test_wrong_as_verified_is_counted_and_a_goal() -> None:
    wrong = replace(ROW, answer_rps=11.5)
    found = summaries([wrong, replace(wrong, mode="empirical"), replace(wrong, mode="forecast")])
    assert found[0]["wrong_as_verified"] == 1
    verdict = {goal["figure"]: goal["met"] for goal in goals(found)}
    assert verdict["wrong_as_verified"] is False
    assert verdict["tokens_of_sweep"] is None  # no sweep was run
    assert verdict["spoilt"] is True
    assert "NOT MET      kneewatch, wrong_as_verified: 1 (at most 0)" in verdicts(goals(found))


def test_kinds_of_cases_have_a_line_each_and_one_for_all() -> None:
    found = summaries([ROW, replace(ROW, case="random-1000", kind="random", answer_rps=20.0)])
    assert [each["kind"] for each in found] == ["named", "random", "all"]
    assert [each["within_10"] for each in found] == [1.0, 0.0, 0.5]
    lines = table(found).splitlines()
    assert len(lines) == 1 + 3 + 2
    assert "kneewatch  all (2)" in lines[3]
    assert goals(summaries([SWEEP])) == []


def test_a_run_is_one_line() -> None:
    assert "+0.0% verified" in line(ROW)
    assert line(replace(ROW, answer_rps=None, reason="not enough evidence")).endswith("not enough evidence")


def test_every_case_has_the_truth_of_what_it_is_now() -> None:
    """Else: `python -m benchmarks.capacity --truth NAME ...`."""
    assert stale(CASES, read()) == []
    assert all(known.truth.rps > 20 * known.truth.error_rps for known in read().values() if known.truth.rps)


def test_a_truth_of_another_definition_is_stale(tmp_path: Path) -> None:
    file = tmp_path / "truth.json"
    known = Known(Truth(3.0, 0.1, "ttft"), digest(CASES["8b-l4"]), 1.0, "2026-11-21T00:00:00+00:00")
    write({"8b-a100": known, "8b-l4": known}, "a command", file)
    assert read(file) == {"8b-a100": known, "8b-l4": known}
    assert list(json.loads(file.read_text())["cases"]) == ["8b-l4", "8b-a100"]  # in the order of the cases
    assert stale(["8b-l4", "8b-a100", "tiny"], read(file)) == ["8b-a100", "tiny"]
    assert read(tmp_path / "none.json") == {}


def test_cases_by_name() -> None:
    assert named("8b-a100") is CASES["8b-a100"]
    assert not named("random-1000").blind
    assert named("random-blind-1000").blind
    assert [kind(name) for name in ("8b-a100", "tokenizer", "random-1", "random-blind-1")] == [
        "named", "blind", "random", "random blind",
    ]  # fmt: skip
    assert len({digest(named(name)) for name in ("8b-a100", "8b-l4", "random-1", "random-2", "random-blind-1")}) == 5
    with pytest.raises(KeyError):
        named("random-x")


def test_seeds_are_kneewatchs_and_one_for_a_random_case() -> None:
    jobs = jobs_of(METHODS, {"8b-a100": 1.0, "random-1": 1.0}, seeds=3, peer_seeds=2)
    count = {name: sum(job.case == "8b-a100" and job.method == name for job in jobs) for name in METHODS}
    assert count == {KNEEWATCH: 3, FORECAST: 3, **dict.fromkeys(METHODS[2:], 2)}
    assert sum(job.case == "random-1" for job in jobs) == len(METHODS)


def test_a_forecast_is_judged_by_its_own_goals() -> None:
    row = replace(ROW, method=FORECAST, answer_rps=13.0, mode="forecast")
    judged = goals(summaries([ROW, row]))
    assert {(goal["figure"], goal["met"]) for goal in judged if goal["method"] == FORECAST} == {
        ("within_10", False), ("covered", False),
    }  # fmt: skip


def test_an_unknown_case_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="no case 'nothing'"):
        main(["--cases", "nothing"])
    assert capsys.readouterr().out == ""
