"""vLLM's own scheduler in the place of the simulated one, and a search on it.

    KNEEWATCH_SIMULATOR=interpreted python -m benchmarks.timed.vllm_engine

    [CASE ...]            of cases.py; else those with groups of layers
    --seeds 0             the runs of each
    --model FOLDER        of tests/integration/tiny_model.py
    --vllm-python FILE    the Python of `make vllm`

The search begins cold, as those of benchmarks/capacity/cold.py, and reads the KV cache sizes that vLLM states. vLLM
schedules synchronously here, in a process of its own (vllm_steps.py). No other engine can take the place of a compiled
one, hence the variable.
"""

import argparse
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.capacity import cold
from benchmarks.capacity.timed_cases import PREFIX
from benchmarks.timed.cases import ALL, HYBRIDS, Case
from benchmarks.timed.live_forecasts import snapshots
from probe import simulator
from probe.core.snapshot import KV_SIZES, ServerSnapshot
from probe.simulator import replica
from probe.simulator.cost import Profile
from probe.simulator.engine import SimulatedEngine
from probe.simulator.engine_step import Step
from probe.simulator.metrics_model import SimulatedMetrics
from probe.simulator.simulated_request import SimulatedRequest


class VllmEngine:
    """One engine, as the simulator's Replica drives it."""

    def __init__(self, case: Case, model: Path, vllm_python: str) -> None:
        command = [vllm_python, "-m", "benchmarks.timed.vllm_steps", str(model), case.name]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._submitted: list[tuple[int, int, int]] = []
        self._aborted: list[int] = []
        self._open: set[int] = set()
        self._decoding: set[int] = set()
        self._known: set[int] = set()  # scheduled before
        self._requests: list[SimulatedRequest] = []
        self.in_flight = Step()
        self._in_queue = 0
        self._planned: dict[str, Any] = {}
        self.running, self.kv_usage = 0, 0.0

    @property
    def waiting(self) -> int:
        return self._in_queue + len(self._submitted)

    @property
    def has_work(self) -> bool:
        return bool(self._open)

    def is_occupied(self) -> bool:
        return self.has_work

    def enter(self, request: SimulatedRequest) -> int:
        assert not request.shared_tokens
        request.number = len(self._requests)
        self._submitted.append((request.number, request.prompt_tokens, request.steps))
        self._open.add(request.number)
        self._requests.append(request)
        return request.number

    def holds(self, request: SimulatedRequest) -> bool:
        return request.number in self._open

    def abort(self, number: int) -> bool:
        self._aborted.append(number)
        self._decoding.discard(number)
        self._open.discard(number)
        return True

    def decode_only_steps(self) -> int:
        return 0

    def plan(self) -> bool:
        if not self._open and not self._aborted:
            return False
        said = self._planned = self._ask({"submit": self._submitted, "abort": self._aborted})
        self._submitted, self._aborted = [], []
        tokens = dict(said["tokens"])
        step = self.in_flight
        step.clear()
        step.sequences, step.tokens = len(tokens), sum(tokens.values())
        step.kv_tokens, step.pairs = said["cached"], said["pairs"]
        step.started += [self._requests[number] for number in tokens if number not in self._known]
        step.preempted += [self._requests[number] for number in said["preempted"]]
        for request in step.preempted:
            request.preemptions += 1
        self._known.update(tokens)
        self._decoding -= set(said["preempted"])
        return True

    def complete(self) -> None:
        step = self.in_flight
        sampled = [number for number in self._planned["sampling"] if number in self._open]
        prefilled = [number for number in sampled if number not in self._decoding]
        self._decoding.update(prefilled)
        ended = [number for number in self._ask({})["ended"] if number in self._open]
        self._open.difference_update(ended)
        self._decoding.difference_update(ended)
        step.decoded = len(sampled) - len(prefilled)
        step.prefilled[:] = [self._requests[number] for number in prefilled]
        step.finished[:] = [self._requests[number] for number in ended]

    def _ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        said: dict[str, Any] = json.loads(self._process.stdout.readline())
        self.kv_usage, self.running, self._in_queue = said["usage"], said["running"], said["waiting"]
        return said


@contextmanager
def scheduled_by_vllm(case: Case, model: Path, vllm_python: str) -> Iterator[None]:
    """Have virtual servers of the case scheduled by vLLM, with its page's KV cache sizes; twins stay simulated."""
    (page, *_) = snapshots(case.name, 1.0, model, vllm_python)
    sizes = {key: page.others[key] for key in KV_SIZES if key in page.others}
    shown = SimulatedMetrics.snapshot

    def engine(profile: Profile) -> VllmEngine | SimulatedEngine:
        return VllmEngine(case, model, vllm_python) if profile.name == case.name else SimulatedEngine(profile)

    def snapshot(measured: SimulatedMetrics, *state: Any) -> ServerSnapshot:  # noqa: ANN401 - as the method's
        found = shown(measured, *state)
        is_of_case = measured._profile.name == case.name  # noqa: SLF001 - as no other caller needs it
        return replace(found, kv_cache_tokens=page.kv_cache_tokens, others=sizes) if is_of_case else found

    with (
        mock.patch.object(replica, "SimulatedEngine", engine),
        mock.patch.object(SimulatedMetrics, "snapshot", snapshot),
    ):
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(HYBRIDS))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--vllm-python", default=".vllm/bin/python")
    options = parser.parse_args()
    if simulator.KIND == "compiled":
        parser.error("the simulator is compiled; set KNEEWATCH_SIMULATOR=interpreted")
    for name in options.cases:
        with scheduled_by_vllm(ALL[name], options.model, options.vllm_python):
            for seed in map(int, options.seeds.split(",")):
                truth = cold.true_rps(PREFIX + name, {})
                print(cold.run(PREFIX + name, truth, seed, plans_ahead=False), flush=True)


if __name__ == "__main__":
    main()
