"""The vLLM plugin beside vLLM's own scheduler, in virtual time. Runs in vLLM's Python.

    .vllm/bin/python -m benchmarks.timed.plugin_steps --model FOLDER --rate RPS CASE

Requests of the case's lengths, spread, arrive at a Poisson rate; each step lasts as the case's law says. vLLM's own
statistics of each step go to the plugin. Prints a JSON object: `pages` is the plugin's page once a second, with its
time; `planned`, `known` and `wrong` are how many steps decoded, how many of these the plugin reported, and how many of
the reports differ from what the scheduler planned.
"""

import argparse
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from vllm.v1.metrics.stats import (  # type: ignore[import-not-found]
    IterationStats,
    LoRARequestStates,
    RequestStateStats,
)

from benchmarks.timed.arrivals import poisson
from benchmarks.timed.cases import BLOCK_SIZE, CASES, MAX_MODEL_LEN
from benchmarks.timed.virtual_vllm import Step, VirtualVllm, serve
from exporters.vllm_plugin import stat_logger, step_contents
from exporters.vllm_plugin.step_series import EngineSeries, StepSeries

_SIGMA = 0.45  # of the lengths: a stranger's requests are not all alike
_DIGITS = 9  # a step is known by its duration, which has noise


class Watched:
    """Passes the steps of a virtual server to the plugin, as vLLM's API server would, and checks its reports."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.pages: list[tuple[float, str]] = []
        self.planned: dict[float, tuple[int, int]] = {}
        self.known: dict[float, tuple[int, int]] = {}
        self._series = StepSeries(self.registry)
        self._logger: stat_logger.StepStatLogger | None = None
        self._requests: dict[str, Any] = defaultdict(RequestStateStats)
        self._ended_s = 0.0

    def step(self, engine: VirtualVllm, planned: Step, now_s: float) -> None:
        """Take in a step that has ended."""
        if self._logger is None:
            # A registry of its own; no engine client is in this process, whose requests would have ages.
            stat_logger._series = lambda: SimpleNamespace(engine=self._engine, oldest=object())  # noqa: SLF001
            self._logger = stat_logger.StepStatLogger(engine.config, 0)
        stats = IterationStats() if engine.outputs.outputs else None
        for output in engine.outputs.outputs:
            request = self._requests[output.request_id]
            is_first = request.first_token_ts == 0.0
            stats.update_from_output(output, now_s, is_first, request, LoRARequestStates(), None)
            if output.finish_reason is not None:
                stats.update_from_finished_request(output.finish_reason, output.request_id, 0, 0, request)
                del self._requests[output.request_id]
        if stats is not None and stats.inter_token_latencies_iter:
            decodes = len(stats.inter_token_latencies_iter)
            seconds = round(min(stats.inter_token_latencies_iter), _DIGITS)
            self.planned[seconds] = (len(planned.tokens), planned.total - decodes)
        self._logger.record(engine.outputs.scheduler_stats, stats)
        if not self.pages or now_s - self.pages[-1][0] >= 1.0:
            self.pages.append((now_s, generate_latest(self.registry).decode()))

    def _engine(self, number: int, limits: dict[str, int]) -> EngineSeries:
        series = self._series.engine(number, limits)
        count = series.add

        def add(step: step_contents.Step) -> None:
            self.known[round(step.seconds, _DIGITS)] = (step.requests, step.prefill_tokens)
            count(step)

        series.add = add  # type: ignore[method-assign]
        return series


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--model", type=Path, required=True, help="folder of tests/integration/tiny_model.py")
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--synchronous", action="store_true")
    options = parser.parse_args()
    case, watched = replace(CASES[options.case], sigma=_SIGMA), Watched()
    arrivals = [
        replace(one, prompt_tokens=min(one.prompt_tokens, MAX_MODEL_LEN - one.output_tokens - BLOCK_SIZE))
        for one in poisson(case, options.rate, options.requests, seed=3)
    ]
    serve(options.model, case, arrivals, depth=1 if options.synchronous else 2, watch=watched.step)
    wrong = sum(watched.planned.get(seconds) != found for seconds, found in watched.known.items())
    print(
        json.dumps(
            {
                "planned": len(watched.planned),
                "known": len(watched.known),
                "wrong": wrong,
                "pages": watched.pages,
            }
        )
    )


if __name__ == "__main__":
    main()
