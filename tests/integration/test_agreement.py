"""Kneewatch and `vllm bench serve` see the same server, and its own counters agree with both.

Both run the same closed loop in turn, on the core the server is not on. A run's p50 moves with whatever else
the machine does, so medians over rounds are compared, and rounds go on until those medians are known well.
"""

import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from bench_serve import bench_serve
from kneewatch_command import kneewatch
from real_vllm import RealVllm

pytestmark = pytest.mark.vllm

MIN_ROUNDS, MAX_ROUNDS = 4, 10
# Half the tolerance is for chance, in units of the standard error of a median: 1.25 sigma / sqrt(n).
ENOUGH = 0.025
CONCURRENCY, REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS = 4, 60, 128, 64
TOLERANCE = 0.10
METRICS = (("ttft_s", "median_ttft_ms"), ("tpot_s", "median_tpot_ms"))


@dataclass(frozen=True, slots=True)
class Round:
    """One run of each, and how far the server's counters moved under Kneewatch's."""

    ours: dict[str, Any]
    theirs: dict[str, Any]
    counted: dict[str, float]


@pytest.fixture(scope="module")
def rounds(vllm_server: RealVllm, tmp_path_factory: pytest.TempPathFactory) -> list[Round]:
    if not vllm_server.alive:
        vllm_server.start()
    folder = tmp_path_factory.mktemp("agreement")
    # The first requests after a start are slower: neither client is to pay for them.
    _ramp(vllm_server, folder, seed=99)
    done: list[Round] = []
    while len(done) < MIN_ROUNDS or (len(done) < MAX_ROUNDS and _uncertainty(done) > ENOUGH):
        done.append(_round(vllm_server, folder, seed=len(done)))
    return done


def _uncertainty(rounds: list[Round]) -> float:
    """The largest relative standard error of the medians over the rounds. It does not look at their ratio."""
    columns = [values for ours, theirs in METRICS for values in _columns(rounds, ours, theirs)]
    if min(map(len, columns)) < MIN_ROUNDS:
        return 1.0
    return max(1.25 * statistics.stdev(v) / math.sqrt(len(v)) / statistics.median(v) for v in columns)


def _columns(rounds: list[Round], ours: str, theirs: str) -> tuple[list[float], list[float]]:
    """The p50 of each round in milliseconds, Kneewatch's and vLLM's.

    A step in which the client itself was late says so, and is not compared.
    """
    steps = [each.ours["steps"][0] for each in rounds]
    mine = [1000 * step[ours]["p50"] for step in steps if step["valid"]]
    return mine, [each.theirs[theirs] for each in rounds]


def _round(server: RealVllm, folder: Path, seed: int) -> Round:
    theirs = bench_serve(
        server,
        folder,
        concurrency=CONCURRENCY,
        requests=REQUESTS,
        prompt_tokens=PROMPT_TOKENS,
        output_tokens=OUTPUT_TOKENS,
        seed=seed,
    )
    before = server.settled_metrics()
    ours = _ramp(server, folder, seed=seed)
    after = server.settled_metrics()
    return Round(ours, theirs, {name: after[name] - before.get(name, 0.0) for name in after})


def _ramp(server: RealVllm, folder: Path, *, seed: int) -> dict[str, Any]:
    file = folder / f"ramp-{seed}.json"
    done = kneewatch(
        *("ramp", "--base-url", server.base_url, "--concurrency", str(CONCURRENCY), "--no-guard"),
        *("--requests-per-step", str(REQUESTS), "--prompt-tokens", str(PROMPT_TOKENS)),
        *("--output-tokens", str(OUTPUT_TOKENS), "--seed", str(seed), "--json", file),
    )
    assert file.exists(), f"status {done.status}\n{done.out}\n{done.err}"
    result: dict[str, Any] = json.loads(file.read_text())
    return result


@pytest.mark.parametrize(("ours", "theirs"), METRICS)
def test_median_latencies_agree(
    rounds: list[Round], ours: str, theirs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    mine, bench = _columns(rounds, ours, theirs)
    assert len(mine) >= MIN_ROUNDS, [each.ours["steps"][0]["reason"] for each in rounds]
    ratio = statistics.median(mine) / statistics.median(bench)
    with capsys.disabled():
        print(f"\n{theirs}: kneewatch {_list(mine)}, vllm bench serve {_list(bench)}: ratio of medians {ratio:.3f}")  # noqa: T201
    assert ratio == pytest.approx(1, abs=TOLERANCE)


def test_both_measure_the_same_number_of_requests_and_tokens(rounds: list[Round]) -> None:
    for each in rounds:
        (step,) = each.ours["steps"]
        assert step["requests"]["ok"] == each.theirs["completed"] == REQUESTS
        assert each.theirs["total_input_tokens"] == REQUESTS * PROMPT_TOKENS
        assert step["requests"]["failed"] == 0
        tokens = step["output_tokens_per_second"] * step["seconds"]
        assert round(tokens) == each.theirs["total_output_tokens"] == REQUESTS * OUTPUT_TOKENS
        assert round(step["prompt_tokens_per_second"] * step["seconds"]) == REQUESTS * PROMPT_TOKENS


def test_the_servers_own_counters_moved_by_exactly_what_the_result_says(rounds: list[Round]) -> None:
    for each in rounds:
        cost, counted = each.ours["cost"], each.counted
        assert counted["vllm:request_success_total"] == cost["requests"]
        assert counted["vllm:prompt_tokens_total"] + counted["vllm:generation_tokens_total"] == cost["tokens"]


def _list(values: list[float]) -> str:
    return " ".join(f"{value:.2f}" for value in values) + " ms"
