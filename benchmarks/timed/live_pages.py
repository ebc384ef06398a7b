"""What a vLLM with groups of layers shows of its users, in virtual time. Runs in vLLM's Python.

    .vllm/bin/python -m benchmarks.timed.live_pages --model FOLDER --rate RPS --seconds S CASE

vLLM's own scheduler serves a Poisson load; each step lasts as the case's law says. Prints JSON: for each second its
time (s) and the page, with vLLM's names. The size of the KV cache on it is computed by vLLM's own functions.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from vllm.v1.core.kv_cache_utils import update_kv_cache_capacity  # type: ignore[import-not-found]

from benchmarks.timed.arrivals import Arrival, poisson
from benchmarks.timed.cases import ALL, Case
from benchmarks.timed.virtual_vllm import Step, VirtualVllm, kv_cache, serve

_HISTOGRAMS = {
    "ttft": "time_to_first_token_seconds",
    "itl": "inter_token_latency_seconds",
    "prefill": "request_prefill_time_seconds",
    "prompt": "request_prompt_tokens",
    "output": "request_generation_tokens",
    "step": "iteration_tokens_total",
}
_LENGTHS = [first * 10**power for power in range(4) for first in (1, 2, 5)]


class Page:
    """A vLLM server's page, second by second."""

    def __init__(self, case: Case, arrivals: list[Arrival]) -> None:
        self.pages: list[tuple[float, str]] = []
        self._case, self._arrivals = case, arrivals
        self._registry = registry = CollectorRegistry()
        self._gauges = {
            name: Gauge(f"vllm:{name}", name, registry=registry)
            for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        }
        self._prompt = Counter("vllm:prompt_tokens", "prompt", registry=registry)
        self._generated = Counter("vllm:generation_tokens", "output", registry=registry)
        self._seen = {
            key: Histogram(f"vllm:{name}", name, buckets=_LENGTHS, registry=registry)
            for key, name in _HISTOGRAMS.items()
        }
        self._planned: dict[int, float] = {}
        self._last: dict[int, float] = {}
        self._tokens: dict[int, int] = defaultdict(int)
        self._ends = [0.0, 0.0]  # of the two steps before

    def show_size(self, engine: VirtualVllm) -> None:
        """Set cache_config_info as vLLM does when it starts."""
        config = engine.config
        update_kv_cache_capacity(config, kv_cache(self._case))
        labels = {name.lstrip("_"): value for name, value in config.cache_config.metrics_info().items()}
        Gauge("vllm:cache_config_info", "size", tuple(labels), registry=self._registry).labels(**labels).set(1)

    def step(self, engine: VirtualVllm, planned: Step, now_s: float) -> None:
        """Count a step that has ended."""
        if not self.pages:
            self.show_size(engine)
        for number in planned.tokens:  # planned when the step before began
            self._planned.setdefault(number, max(self._ends[0], self._arrivals[number].at_s))
        self._ends = [self._ends[1], now_s]
        for output in engine.outputs.outputs:
            self._count(int(output.request_id), len(output.new_token_ids), now_s)
            if output.finish_reason is not None:
                self._end(int(output.request_id))
        if planned.total:
            self._seen["step"].observe(planned.total)
        if not self.pages or now_s - self.pages[-1][0] >= 1.0:
            stats = engine.outputs.scheduler_stats
            shown = (stats.num_running_reqs, stats.num_waiting_reqs, stats.kv_cache_usage)
            for gauge, value in zip(self._gauges.values(), shown, strict=True):
                gauge.set(value)
            self.pages.append((now_s, generate_latest(self._registry).decode()))

    def _count(self, number: int, tokens: int, now_s: float) -> None:
        if not tokens:
            return
        if number not in self._last:
            self._prompt.inc(self._arrivals[number].prompt_tokens)
            self._seen["ttft"].observe(now_s - self._arrivals[number].at_s)
            self._planned[number] = now_s - self._planned[number]  # from here on, the time of its prefill
        else:
            self._seen["itl"].observe(now_s - self._last[number])
        self._generated.inc(tokens)
        self._last[number] = now_s

    def _end(self, number: int) -> None:
        self._seen["prefill"].observe(self._planned[number])
        self._seen["prompt"].observe(self._arrivals[number].prompt_tokens)
        self._seen["output"].observe(self._arrivals[number].output_tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=ALL)
    parser.add_argument("--model", type=Path, required=True, help="folder of tests/integration/tiny_model.py")
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--seconds", type=float, default=180.0)
    options = parser.parse_args()
    case = ALL[options.case]
    arrivals = poisson(case, options.rate, round(options.rate * options.seconds), seed=3)
    page = Page(case, arrivals)
    serve(options.model, case, arrivals, depth=2, watch=page.step)
    print(json.dumps(page.pages))


if __name__ == "__main__":
    main()
