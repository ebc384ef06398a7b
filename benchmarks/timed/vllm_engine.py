"""vLLM's own scheduler in the place of the simulated one, and a search on it: `python -m benchmarks.timed.vllm_engine`.

    [CASE ...]            of cases.py; else those with groups of layers
    --seeds 0             the runs of each
    --model FOLDER        of tests/integration/tiny_model.py
    --vllm-python FILE    the Python of `make vllm`

The search begins cold, as those of benchmarks/capacity/cold.py, and reads the KV cache sizes that vLLM states. vLLM
schedules synchronously here, in a process of its own (vllm_steps.py).
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
from probe.core.snapshot import KV_SIZES, ServerSnapshot
from probe.simulator import replica
from probe.simulator.cost import Batch, Profile
from probe.simulator.engine import SimulatedEngine
from probe.simulator.engine_step import ScheduledStep, StepOutcome
from probe.simulator.metrics_model import SimulatedMetrics


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
        self._count = self._in_queue = 0
        self._planned: dict[str, Any] = {}
        self.running, self.kv_usage = 0, 0.0

    @property
    def waiting(self) -> int:
        return self._in_queue + len(self._submitted)

    @property
    def has_work(self) -> bool:
        return bool(self._open)

    is_occupied = has_work

    def submit(self, *, prompt_tokens: int, output_tokens: int, shared_tokens: int = 0) -> int:
        assert not shared_tokens
        self._submitted.append((self._count, prompt_tokens, output_tokens))
        self._open.add(self._count)
        self._count += 1
        return self._count - 1

    def abort(self, number: int) -> bool:
        self._aborted.append(number)
        self._decoding.discard(number)
        self._open.discard(number)
        return True

    def decode_only_steps(self) -> int:
        return 0

    def plan_step(self) -> ScheduledStep | None:
        if not self._open and not self._aborted:
            return None
        said = self._planned = self._ask({"submit": self._submitted, "abort": self._aborted})
        self._submitted, self._aborted = [], []
        tokens = dict(said["tokens"])
        decoding = tuple(number for number in tokens if number in self._decoding)
        prefills = tuple((number, count) for number, count in tokens.items() if number not in self._decoding)
        admitted = tuple(number for number in tokens if number not in self._known)
        self._known.update(admitted)
        self._decoding -= set(said["preempted"])
        batch = Batch(len(tokens), sum(tokens.values()), said["cached"], said["pairs"])
        return ScheduledStep(decoding, prefills, batch, admitted, (), tuple(said["preempted"]))

    def complete_step(self) -> StepOutcome:
        sampled = [number for number in self._planned["sampling"] if number in self._open]
        decoded = tuple(number for number in sampled if number in self._decoding)
        prefilled = tuple(number for number in sampled if number not in self._decoding)
        self._decoding.update(prefilled)
        ended = tuple(number for number in self._ask({})["ended"] if number in self._open)
        self._open.difference_update(ended)
        self._decoding.difference_update(ended)
        return StepOutcome(decoded, prefilled, ended)

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
    for name in options.cases:
        with scheduled_by_vllm(ALL[name], options.model, options.vllm_python):
            for seed in map(int, options.seeds.split(",")):
                truth = cold.true_rps(PREFIX + name, {})
                print(cold.run(PREFIX + name, truth, seed, plans_ahead=False), flush=True)


if __name__ == "__main__":
    main()
