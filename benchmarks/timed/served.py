"""A served vLLM of known timing, and Kneewatch's commands against it, as a stranger would give them.

In: a case. Out: what `kneewatch ramp` and `kneewatch forecast` say of it.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from benchmarks.capacity.timed_cases import workload_of
from benchmarks.timed.cases import LONGEST, MAX_MODEL_LEN, Case
from probe.client.endpoint import Endpoint
from probe.core.clock import SystemClock
from probe.core.request import RequestRecord
from probe.core.step import Arrivals, StepPlan
from probe.core.token_length import MeasuredLength, measured_of
from probe.core.workload import Workload
from probe.load.request_source import RequestSource
from probe.load.worker_pool import WorkerPool

ROOT = Path(__file__).parents[2]
MODEL = "tiny"
_USERS_STREAMS = 400
_SPREAD = 0.4
_TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A command's capacity, as its JSON has it, and what it took."""

    capacity: Mapping[str, Any]
    took_s: float
    tokens: int
    over_objective_s: float
    steps: tuple[str, ...]  # each load, how long it lasted, and why it broke or was not judged
    stopped: str
    users: int = 0  # requests of live users that were answered during a search
    spoilt: int = 0  # of these, those that missed an objective, and those that failed


@contextlib.contextmanager
def served(case: Case, vllm_python: str, folder: Path, *, has_plugin: bool = False) -> Iterator[str]:
    """Run the case's server on a core of its own, with Kneewatch's plugin or without, and yield its address."""
    from hybrid_model import hybrid  # noqa: PLC0415 - from tests/integration
    from real_vllm import RealVllm  # noqa: PLC0415 - the same

    limits = (
        f"--max-model-len={MAX_MODEL_LEN}",
        f"--max-num-seqs={case.max_num_seqs}",
        f"--num-gpu-blocks-override={case.num_blocks}",
        f"--max-num-batched-tokens={case.max_num_batched_tokens}",
        "--distributed-executor-backend=benchmarks.timed.executor.TimedExecutor",
    )
    sizes: dict[str, object] = {"max_position_embeddings": MAX_MODEL_LEN}
    if case.sliding_groups:
        sizes |= hybrid(case.sliding_groups, case.window)
    server = RealVllm(vllm_python, folder, limits, sizes, has_plugin=has_plugin)
    with mock.patch.dict(os.environ, KNEEWATCH_TIMED_CASE=case.name, PYTHONPATH=str(ROOT)):
        server.start()
    try:
        yield server.base_url
    finally:
        server.stop()


def configuration(case: Case, base_url: str, folder: Path) -> Path:
    """Write a configuration with nothing but what a user must state: address, workload and objectives."""
    text = {
        "objectives": {
            "timed": {
                "ttft": {"ratio": 0.95, "within": f"{case.ttft_ms:g}ms"},
                "tpot": {"ratio": 0.95, "within": f"{case.tpot_ms:g}ms"},
            }
        },
        "workloads": _workloads(case),
        "targets": [
            {"name": case.name, "base_url": base_url, "objectives": "timed", "capacity": {"workload": "timed"}}
        ],
    }
    path = folder / "kneewatch.yml"
    path.write_text(yaml.safe_dump(text))
    return path


def _workloads(case: Case) -> dict[str, object]:
    kinds: dict[str, object] = {
        f"kind-{i}": {
            "prompt_tokens": _tokens(kind.prompt_tokens, kind.sigma),
            "output_tokens": _tokens(kind.output_tokens, kind.sigma),
        }
        for i, kind in enumerate(case.kinds)
    }
    if not case.mixture:
        return {"timed": kinds["kind-0"]}
    return {**kinds, "timed": {"mixture": {f"kind-{i}": kind.weight for i, kind in enumerate(case.kinds)}}}


def _tokens(median: int, sigma: float) -> object:
    return {"lognormal": {"median": median, "sigma": sigma, "max": LONGEST * median}} if sigma else median


def ramp(config: Path, folder: Path, *options: str) -> Answer:
    """Run `kneewatch ramp`."""
    out = folder / "ramp.json"
    out.unlink(missing_ok=True)
    took_s, _ = _kneewatch("ramp", "-c", str(config), "--out", str(out), *options)
    if not out.exists():
        raise RuntimeError("kneewatch ramp wrote no result")
    result = json.loads(out.read_text())
    return Answer(
        result["capacity"],
        took_s,
        result["cost"]["tokens"],
        result["cost"]["over_objective_seconds"],
        tuple(map(_words, result["steps"])),
        " ".join(filter(None, (result["stopped"]["by"], result["stopped"]["reason"]))),
    )


def forecast(config: Path, seconds: float) -> Answer:
    """Run `kneewatch forecast` beside whatever traffic there is."""
    took_s, printed = _kneewatch("forecast", "-c", str(config), "--seconds", f"{seconds:g}", "--json")
    result = json.loads(printed)
    return Answer(result["capacity"], took_s, 0, 0.0, (), "")


def _words(step: Mapping[str, Any]) -> str:
    plan = step["plan"]
    why = step["tripped"] or ",".join(step["broken"]) or step["reason"]
    load = f"{plan['arrivals']['rate_rps']:.3g}/s" if plan["arrivals"] else f"{plan['concurrency']}x"
    return f"{load}({plan['warm_up_s'] + plan['seconds']:.0f}s{': ' + why if why else ''})"


@contextlib.asynccontextmanager
async def users(
    workload: Workload, base_url: str, rate_rps: float, seconds: float, seed: int = 99
) -> AsyncIterator[list[RequestRecord]]:
    """Send Poisson traffic of the workload meanwhile. The list has its requests once it is over.

    Raises RuntimeError where the server took so much less that the traffic ended before its time.
    """
    over, records, began_s = asyncio.Event(), list[RequestRecord](), time.monotonic()
    load = asyncio.create_task(send(workload, base_url, rate_rps, seconds, seed, over=over))
    try:
        yield records
        if load.done() and time.monotonic() < began_s + seconds:
            raise RuntimeError(f"{base_url}: users' {rate_rps:.3g} requests/s ended early: this machine serves fewer")
    finally:
        over.set()
        records += await load


def stranger_s(case: Case) -> Workload:
    """Return a stranger's requests: like the case's, and spread evenly by up to 40 % where its lengths are fixed."""
    workload = workload_of("users", case)
    if case.sigma or case.mixture:
        return workload
    # As far as the server takes them.
    room = (MAX_MODEL_LEN - (1 + _SPREAD) * case.output_tokens) / case.prompt_tokens - 1
    prompts, outputs = _spread(case.prompt_tokens, min(_SPREAD, room)), _spread(case.output_tokens, _SPREAD)
    return replace(workload, prompt_tokens=prompts, output_tokens=outputs)


def _spread(tokens: int, most: float) -> MeasuredLength:
    return measured_of(range(round(tokens * (1 - most)), round(tokens * (1 + most)) + 1))


async def send(
    workload: Workload,
    base_url: str,
    rate_rps: float,
    seconds: float,
    seed: int,
    *,
    over: asyncio.Event | None = None,
) -> Sequence[RequestRecord]:
    """Send Poisson traffic of the workload for so long, or until it is `over`, and return its requests."""
    source = RequestSource(Endpoint(target=workload.name, base_url=base_url), MODEL, workload, 60.0, seed)
    plan = StepPlan(_USERS_STREAMS, seconds, loop="open", arrivals=Arrivals(rate_rps=rate_rps))
    async with WorkerPool(source, 1, SystemClock()) as workers:
        run = await workers.run(plan, over or asyncio.Event(), lambda _: None)
    return run.records


def _kneewatch(*arguments: str) -> tuple[float, str]:
    """Return how long a command took, and what it printed. RuntimeError if it could not measure."""
    began_s = time.monotonic()
    command = [sys.executable, "-m", "probe", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode not in (0, 1):
        words = (done.stderr.strip() or done.stdout.strip())[-400:]
        raise RuntimeError(f"{' '.join(arguments)}: exit status {done.returncode}: {words}")
    return time.monotonic() - began_s, done.stdout
