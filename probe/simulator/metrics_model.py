"""vLLM's metrics in virtual time: the same counters as probe/mock_server/metrics.py, without a page. Pure.

Input: what happens to requests. Output: a ServerSnapshot, as a scrape would return it. mock_server/metrics.py says when
vLLM counts what.
"""

from bisect import bisect_left
from collections.abc import Sequence
from math import inf

from probe.core.snapshot import EngineSnapshot, Histogram, ServerSnapshot
from probe.simulator.cost import Profile
from probe.simulator.engine import SimulatedEngine
from probe.simulator.simulated_request import SimulatedRequest

# The bucket bounds of vLLM 0.32's histograms; mock_server/metrics.py has the same.
TTFT_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0),
    *(60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


def one_two_five(limit: int) -> tuple[int, ...]:
    """Return 1, 2, 5, 10, 20, 50 ... up to the limit: vLLM's buckets for token counts follow max_model_len."""
    return tuple(m * 10**e for e in range(len(str(limit))) for m in (1, 2, 5) if m * 10**e <= limit)


class GrowingHistogram:
    """A histogram that observations are added to; one that will not be read does not count them."""

    def __init__(self, bounds: Sequence[float], *, is_read: bool = True) -> None:
        self._bounds, self._is_read = bounds, is_read
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        if not self._is_read:
            return
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def histogram(self) -> Histogram:
        total, buckets = 0.0, []
        for bound, count in zip((*self._bounds, inf), self._counts, strict=True):
            total += count
            buckets.append((float(bound), total))
        return Histogram(tuple(buckets), self._sum)


class SimulatedMetrics:
    """The counters and histograms of one server, all of its engines together."""

    def __init__(self, profile: Profile, *, has_page: bool = True) -> None:
        def growing(bounds: Sequence[float]) -> GrowingHistogram:
            return GrowingHistogram(bounds, is_read=has_page)

        lengths_of = one_two_five(profile.max_model_len)
        self.ttft, self.itl, self.tpot = growing(TTFT_S), growing(TOKEN_S), growing(TOKEN_S)
        self.e2e, self.queue, self.prefill = growing(REQUEST_S), growing(REQUEST_S), growing(REQUEST_S)
        self.iteration_tokens = growing(STEP_TOKENS)
        self.prompt_length, self.output_length = growing(lengths_of), growing(lengths_of)
        self.prompt_tokens = self.generation_tokens = self.finished = self.preemptions = 0.0
        self.prefix_queries = self.prefix_hits = 0.0
        self._profile = profile

    def step(self, prompt_tokens: int, found_tokens: int, generated: float) -> None:
        """Count a step that produced tokens: tokens of prompts that it finished, cached ones, output."""
        self.prompt_tokens += prompt_tokens
        self.generation_tokens += generated
        self.iteration_tokens.add(prompt_tokens - found_tokens + generated)

    def ended(self, request: SimulatedRequest, answered_s: float) -> None:
        """Count a finished request; the front end began to send its last token at `answered_s`."""
        decode_s = request.made_last_s - request.made_first_s
        self.finished += 1
        self.tpot.add(decode_s / (request.output_tokens - 1) if request.output_tokens > 1 else 0.0)
        self.e2e.add(answered_s - request.entered_s)
        self.queue.add(request.scheduled_s - request.entered_s)
        self.prefill.add(request.made_first_s - request.scheduled_s)
        self.prompt_length.add(request.prompt_tokens)
        self.output_length.add(request.output_tokens)

    def snapshot(
        self, engines: Sequence[SimulatedEngine], generated: Sequence[float], at_s: float, wall_s: float, version: str
    ) -> ServerSnapshot:
        """Return the metrics as a scrape would return them now. `generated`: tokens by engine."""
        return ServerSnapshot(
            at_ns=round(at_s * 1e9),
            wall_s=wall_s,
            engine="vllm",
            version=version,
            running=float(sum(engine.running for engine in engines)),
            waiting=float(sum(engine.waiting for engine in engines)),
            kv_cache_usage=max(engine.kv_usage for engine in engines),
            preemptions=self.preemptions,
            rejections=0.0,
            prompt_tokens=self.prompt_tokens,
            generation_tokens=self.generation_tokens,
            finished={"length": self.finished},
            prefix_cache_queries=self.prefix_queries,
            prefix_cache_hits=self.prefix_hits,
            kv_cache_tokens=float(self._profile.usable_blocks * self._profile.block_size * len(engines)),
            engines=len(engines),
            flags={"block_size": str(self._profile.block_size)},
            by_engine=_by_engine(engines, generated) if len(engines) > 1 else {},
            histograms={
                "ttft": self.ttft.histogram(),
                "itl": self.itl.histogram(),
                "tpot": self.tpot.histogram(),
                "e2e": self.e2e.histogram(),
                "queue": self.queue.histogram(),
                "prefill": self.prefill.histogram(),
                "iteration_tokens": self.iteration_tokens.histogram(),
                "prompt_length": self.prompt_length.histogram(),
                "output_length": self.output_length.histogram(),
            },
        )


def _by_engine(engines: Sequence[SimulatedEngine], generated: Sequence[float]) -> dict[str, EngineSnapshot]:
    return {
        str(i): EngineSnapshot(float(engine.running), float(engine.waiting), engine.kv_usage, generation_tokens=tokens)
        for i, (engine, tokens) in enumerate(zip(engines, generated, strict=True))
    }
