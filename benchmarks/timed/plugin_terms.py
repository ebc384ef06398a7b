"""The step costs that Kneewatch learns from its plugin in vLLM, beside the true ones of the case.

    PYTHONPATH=tests/integration python -m benchmarks.timed.plugin_terms CASE --rate RPS [--seconds 120]
    python -m benchmarks.timed.plugin_terms CASE --pages FILE

The first form serves the case (executor.py) with traffic of spread lengths, and scrapes it once a second. The server's
work on a busy machine makes its steps longer than the law says. FILE is the output of plugin_steps.py: virtual time.
The maximum in the law has a corner, that in Kneewatch's model is smooth. --sharp fits with the law's.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np

from benchmarks.capacity.timed_cases import workload_of
from benchmarks.timed.cases import CASES, Case
from benchmarks.timed.served import served, users
from probe.capacity.model import step_sums_fit
from probe.capacity.model.fit_data import Floats
from probe.core.snapshot import ServerSnapshot
from probe.scrape import vllm
from probe.scrape.metrics_parser import samples

_SIGMA = 0.45


def snapshots(pages: Iterable[tuple[float, str]]) -> list[ServerSnapshot]:
    """Return Kneewatch's snapshots of pages, each with its time in seconds."""
    return [
        replace(vllm.ENGINE.snapshot(samples(page, vllm.ENGINE.wanted)), at_ns=round(at_s * 1e9))
        for at_s, page in pages
    ]


def report(case: Case, found: list[ServerSnapshot]) -> str:
    """Return a line for each term, with its error."""
    law = case.law
    cost_model = step_sums_fit.fit_steps([found], [case.prompt_tokens], law.pair * 1e-9)
    if cost_model is None:
        return "too few steps"
    cost = cost_model.cost
    terms = {
        "host + weights (ms)": (cost.host_s + cost.weights_s, law.host + law.weights),
        "host (ms)": (cost.host_s, law.host),
        "weights (ms)": (cost.weights_s, law.weights),
        "sequence (ms)": (cost.per_sequence_s, law.seq),
        "token (ms)": (cost.per_token_s, law.tok),
        "kv_token (us)": (cost.per_kv_token_s * 1e3, law.kv),
    }
    lines = [
        f"{name:20} {got * 1e3:8.4f}  {true:8.4f}  {got * 1e3 / true - 1:+.1%}" for name, (got, true) in terms.items()
    ]
    steps = sum(one.steps for one in found[-1].step_sums.values())
    return "\n".join([f"{case.name}: {steps:.0f} steps, residual {cost_model.residual:.2%}", *lines])


def sharp(terms: Floats, batch: Floats, kv_tokens: Floats, prefill: Floats) -> Floats:
    """Return the seconds of steps by the law of cases.py."""
    host, sequence, token, weights, kv_token = terms
    return np.asarray(host + sequence * batch + np.maximum(weights + kv_token * kv_tokens, token * (batch + prefill)))


async def scraped(case: Case, rate_rps: float, seconds: float, vllm_python: str) -> list[tuple[float, str]]:
    """Serve the case with the plugin, and return its page once a second."""
    pages = []
    with tempfile.TemporaryDirectory() as folder, served(case, vllm_python, Path(folder), has_plugin=True) as base_url:
        async with (
            users(workload_of("users", case), base_url, rate_rps, seconds),
            httpx.AsyncClient(trust_env=False, timeout=20) as client,
        ):
            end_s = time.monotonic() + seconds
            while time.monotonic() < end_s:
                await asyncio.sleep(1.0)
                pages.append((time.monotonic(), (await client.get(f"{base_url}/metrics")).text))
    return pages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--pages", type=Path)
    parser.add_argument("--rate", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--sharp", action="store_true")
    parser.add_argument("--vllm-python", default=".vllm/bin/python")
    options = parser.parse_args()
    case = replace(CASES[options.case], sigma=_SIGMA)
    if options.pages is not None:
        pages = json.loads(options.pages.read_text())["pages"]
    else:
        pages = asyncio.run(scraped(case, options.rate, options.seconds, options.vllm_python))
    if options.sharp:
        step_sums_fit.step_seconds = sharp  # type: ignore[attr-defined]
    print(report(case, snapshots(pages)))


if __name__ == "__main__":
    main()
