"""The bench of searches that start cold, and of forecasts from a stranger's traffic, on servers of known timing."""

import asyncio
from dataclasses import replace
from importlib import import_module
from itertools import islice
from random import Random

import pytest
from virtual_time import virtually

from benchmarks.capacity.busy import BusyMachine, QuietMachine
from benchmarks.capacity.light import Light, spread, summary, watched
from benchmarks.capacity.play import Arithmetic
from benchmarks.capacity.switches import SWITCHES, without
from benchmarks.capacity.timed_cases import timed_case
from benchmarks.timed.cases import CASES, MAX_MODEL_LEN
from benchmarks.timed.served import stranger_s
from probe.core.workload import lengths

_FOUND = Light(
    "noisy", 0.55, 0, flags=True, truth_rps=10.0, answer_rps=10.8, lower_rps=9.5, upper_rps=12.0, reason=None, cpu_s=0.5
)


def test_each_heuristic_is_there_to_be_taken_away_and_comes_back() -> None:
    places = [(module, name) for each in SWITCHES.values() for module, name, _ in each]
    before = [getattr(import_module(module), name) for module, name in places]
    with without(SWITCHES):
        taken = [getattr(import_module(module), name) for module, name in places]
    assert all(one is not other for one, other in zip(before, taken, strict=True))
    assert [getattr(import_module(module), name) for module, name in places] == before


def test_arithmetic_takes_its_time() -> None:
    async def work() -> tuple[float, float]:
        begun_s, think = asyncio.get_running_loop().time(), Arithmetic()
        assert await think(lambda: sum(i * i for i in range(100_000))) > 0
        return think.seconds, asyncio.get_running_loop().time() - begun_s

    took_s, passed_s = virtually(work())
    assert took_s > 0
    assert passed_s == pytest.approx(took_s)


def test_a_stranger_s_requests_vary_around_the_workload_s_and_fit_the_server() -> None:
    for name in CASES:
        workload, chance = timed_case(name).workload, Random(1)
        prompt, output = 3500 if name == "long-prompts" else 100, 96
        drawn = [spread(workload, prompt, output, chance) for _ in range(2000)]
        assert max(sum(one) for one in drawn) <= MAX_MODEL_LEN
        assert sum(p for p, _ in drawn) / 2000 == pytest.approx(prompt, rel=0.02)
        assert sum(o for _, o in drawn) / 2000 == pytest.approx(output, rel=0.02)
        assert len(set(drawn)) == (1 if name == "mixed" else pytest.approx(2000, abs=500))


def test_a_stranger_s_requests_to_a_served_vllm_vary_too() -> None:
    for case in CASES.values():
        stranger = stranger_s(case)
        drawn = [(prompt, output) for prompt, output, _ in islice(lengths(stranger, 1), 2000)]
        if case.sigma:
            assert stranger.prompt_tokens == timed_case(case.name).workload.prompt_tokens
            continue
        assert max(sum(one) for one in drawn) <= MAX_MODEL_LEN
        assert sum(p for p, _ in drawn) / 2000 == pytest.approx(case.prompt_tokens, rel=0.02)
        assert sum(o for _, o in drawn) / 2000 == pytest.approx(case.output_tokens, rel=0.02)
        assert min(o for _, o in drawn) == pytest.approx(0.6 * case.output_tokens, rel=0.02)
        assert max(p for p, _ in drawn) > 1.1 * case.prompt_tokens


def test_a_stranger_s_traffic_is_watched_at_its_rate() -> None:
    snapshots = watched("h100-8b-seqs", 8.0, 0.5, 0)
    first, last = snapshots[0].histograms["ttft"], snapshots[-1].histograms["ttft"]
    assert len(snapshots) == 151
    assert last.count - first.count == pytest.approx(150 * 4.0, rel=0.15)


def test_a_busy_machine_is_late_in_stretches_and_says_by_how_much() -> None:
    machine, quiet = BusyMachine(1), QuietMachine()
    at_s = [i * 0.01 for i in range(30_000)]
    handled_s = [machine.handled_s(at) for at in at_s]
    assert handled_s == sorted(handled_s)
    late = sum(handled > at for at, handled in zip(at_s, handled_s, strict=True)) / len(at_s)
    assert 0.05 < late < 0.5
    lags = machine.lags_s(0.0, 300.0)
    assert max(lags) > 0.1
    assert max(handled - at for at, handled in zip(at_s, handled_s, strict=True)) <= max(lags) + 0.02
    assert sum(lag + 0.01 for lag in lags) == pytest.approx(300.0, abs=1.0)
    assert quiet.handled_s(7.0) == 7.0
    assert set(quiet.lags_s(0.0, 1.0)) == {0.0}


def test_a_lower_bound_below_the_truth_holds_and_what_is_withheld_has_no_error() -> None:
    bound = replace(_FOUND, answer_rps=7.0, lower_rps=6.0, upper_rps=None)
    above, withheld = replace(bound, lower_rps=10.5), replace(_FOUND, answer_rps=None)
    assert [bound.has_held, above.has_held, _FOUND.has_held] == [True, False, True]
    words = "55%, flags known: 1 of 4 withheld, 2 lower bounds, 1 within 10 %, 2 of 3 held"
    (line,) = summary([_FOUND, bound, above, withheld])
    assert line == f"{words}; error 30.0% in the median, 30.0% at most; 0.5 s of CPU in the median"
