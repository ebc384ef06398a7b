"""What HTTP, tokenizing and vLLM's engine cost beside the law: `PYTHONPATH=tests/integration python -m ...served_cost`.

    [CASE ...]                      of cases.py; else small-kv, l4-8b and h100-8b-seqs
    --shares 0.95,1                 of the truth: the rates
    --seconds 180                   of each
    --vllm-python .vllm/bin/python  the Python of `make vllm`
    --out FILE                      the record; benchmarks/results/served-cost-DATE.json

A served vLLM gets Poisson requests. vLLM's own scheduler then gets the same ones in virtual time, where nothing but the
law takes time (virtual_vllm.py). Since the requests are the same, chance moves both alike. `ratio` is the capacity of
the served one over that of the other: how much higher the latency is that breaks (`limiting` of truth.json), over how
steeply that rises with the rate at the knee (truth.py). Where the latency is twice as high, the server is beyond its
knee, and TPOT says more. Needs two cores and nothing else on the machine.
"""

import argparse
import asyncio
import json
import math
import os
import platform
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.capacity.timed_cases import workload_of
from benchmarks.timed.arrivals import Arrival, Timed, judged, scores
from benchmarks.timed.cases import CASES, Case
from benchmarks.timed.served import ROOT, send, served
from probe.core import latency
from probe.core.request import Outcome, RequestRecord

_TRUTH = json.loads(Path(__file__).with_name("truth.json").read_text())
_MEASURED = ("small-kv", "l4-8b", "h100-8b-seqs")
_SEEDS = (1, 2)  # of the virtual steps' noise


@dataclass(frozen=True, slots=True)
class Cost:
    """Requests as they were served, and in virtual time. `scores`: p95 over the objective that breaks; times in ms."""

    case: str
    rate_rps: float
    requests: int
    failed: int
    scores: tuple[float, float]
    tpot_ms: tuple[float, float]  # medians
    ttft_ms: tuple[float, float]
    ratio: float

    def __str__(self) -> str:
        return (
            f"{self.case:14} {self.rate_rps:6.2f} requests/s, {self.requests} requests, {self.failed} failed:"
            f" score {self.scores[0]:.3f} served, {self.scores[1]:.3f} virtual; TPOT {self.tpot_ms[0]:.2f} and"
            f" {self.tpot_ms[1]:.2f} ms, TTFT {self.ttft_ms[0]:.1f} and {self.ttft_ms[1]:.1f} ms;"
            f" capacity {self.ratio - 1:+.1%}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(_MEASURED))
    parser.add_argument("--shares", default="0.95,1")
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--vllm-python", default=".vllm/bin/python")
    results = Path(__file__).parents[1] / "results"
    parser.add_argument("--out", type=Path, default=results / f"served-cost-{datetime.now(UTC):%Y-%m-%d}.json")
    options = parser.parse_args()
    costs = []
    for name in options.cases:
        with tempfile.TemporaryDirectory() as folder:
            case, shares = CASES[name], [float(share) for share in options.shares.split(",")]
            for rate_rps, answered, failed in _answers(
                case, options.vllm_python, Path(folder), shares, options.seconds
            ):
                virtual = [_virtual(case, answered, options.vllm_python, Path(folder), seed) for seed in _SEEDS]
                costs.append(compare(case, rate_rps, answered, failed, virtual))
                print(costs[-1], flush=True)
                _write(costs, options.out)


def _answers(
    case: Case, vllm_python: str, folder: Path, shares: Sequence[float], seconds: float
) -> list[tuple[float, list[Timed], int]]:
    """Return the rate, the answers of a served vLLM and the number of failed requests, for each share of the truth."""
    found = []
    with served(case, vllm_python, folder) as base_url:
        for seed, share in enumerate(shares):
            rate_rps = share * _TRUTH[case.name]["requests_per_second"]
            records = asyncio.run(send(workload_of("users", case), base_url, rate_rps, seconds, seed))
            answered = sorted((r for r in records if r.outcome is Outcome.OK), key=lambda r: r.scheduled_ns)
            found.append((rate_rps, list(_timed(answered)), len(records) - len(answered)))
    return found


def _timed(records: Sequence[RequestRecord]) -> Sequence[Timed]:
    began_ns = records[0].scheduled_ns
    timed = []
    for record in records:
        at_s, ttft_s, e2e_s = (record.scheduled_ns - began_ns) * 1e-9, latency.ttft_s(record), latency.e2e_s(record)
        assert ttft_s is not None
        assert e2e_s is not None
        arrival = Arrival(at_s, record.prompt_tokens, record.output_tokens)
        timed.append(Timed(arrival, at_s + ttft_s, at_s + e2e_s, has_ended=True))
    return timed


def _virtual(case: Case, answered: Sequence[Timed], vllm_python: str, folder: Path, seed: int) -> list[Timed]:
    """Return the answers of vLLM's scheduler to the same requests."""
    command = [vllm_python, "-m", "benchmarks.timed.virtual_vllm", str(folder / "model"), case.name, str(seed)]
    arrivals = json.dumps([asdict(one.arrival) for one in answered])
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=ROOT, input=arrivals, capture_output=True, text=True, check=True, env=environment
    )
    times = json.loads(done.stdout.splitlines()[-1])
    return [Timed(one.arrival, *pair, has_ended=True) for one, pair in zip(answered, times, strict=True)]


def compare(
    case: Case, rate_rps: float, answered: Sequence[Timed], failed: int, virtual: Sequence[Sequence[Timed]]
) -> Cost:
    """Return what serving cost: the answers, beside those to the same requests in virtual time, once for each seed."""
    known = _TRUTH[case.name]
    name, slope = known["limiting"], known["asynchronous"]["slope"]
    here = scores(case, judged(answered))[name]
    there = math.exp(fmean(math.log(scores(case, judged(one))[name]) for one in virtual))
    return Cost(
        case.name,
        rate_rps,
        len(answered),
        failed,
        (here, there),
        (_median_ms(judged(answered), "tpot_s"), fmean(_median_ms(judged(one), "tpot_s") for one in virtual)),
        (_median_ms(judged(answered), "ttft_s"), fmean(_median_ms(judged(one), "ttft_s") for one in virtual)),
        math.exp(-math.log(here / there) / slope),
    )


def _median_ms(served_: Sequence[Timed], name: str) -> float:
    return 1e3 * median(getattr(one, name) for one in served_)


def _write(costs: Sequence[Cost], out: Path) -> None:
    record: dict[str, Any] = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "command": "PYTHONPATH=tests/integration python -m benchmarks.timed.served_cost",
        "python": platform.python_version(),
        "costs": [asdict(one) for one in costs],
    }
    out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
