"""The plugin's series on vLLM's own /metrics page: sums over steps, by the number of tokens that a step computed, and
over requests, by the length of their prompts.

A step's duration is nearly linear in its content as long as the number of tokens is about the same, so the mean of
such steps lies where a step of the mean content would. A fit to the means loses no more than the noise that it has to
average anyway. Counters survive missed scrapes, and a restart shows as in any counter.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from .requests_in_flight import Oldest
from .step_contents import Step

# Each upper bound is twice the one before, up to more than any max_num_batched_tokens in use.
_BOUNDS = tuple(2**power for power in range(3, 16))
# vLLM's names; a test compares them with the flags that Kneewatch reads.
LIMITS = (
    "max_num_seqs", "max_num_active_seqs", "max_num_batched_tokens", "max_num_scheduled_tokens", "max_model_len",
    "max_num_queued_reqs", "max_num_queued_tokens", "prefill_schedule_interval", "long_prefill_token_threshold",
)  # fmt: skip
_SUMS = {
    "kneewatch_vllm_steps": "Engine steps whose content and duration are known",
    "kneewatch_vllm_step_seconds": "Their duration in seconds",
    "kneewatch_vllm_step_requests": "Requests in them",
    "kneewatch_vllm_step_decode_tokens": "Tokens that they computed for decoding requests",
    "kneewatch_vllm_step_prefill_tokens": "Prompt tokens that they computed",
    "kneewatch_vllm_step_kv_tokens": "Tokens in the KV cache before them, over their requests",
}

# Each bound is four times the one before: few enough for a panel, and a prompt's prefill grows about as much.
_PROMPT_BOUNDS = tuple(4**power for power in range(4, 9))
_PROMPT_SUMS = {
    "kneewatch_vllm_prompt_requests": "Requests that ended, by the tokens of their prompts",
    "kneewatch_vllm_prompt_queue_seconds": "Time that they waited in the engine's queue",
    "kneewatch_vllm_prompt_prefill_seconds": "Time from then to their first token",
}


class StepSeries:
    """The series of all engines of a server: a collector, so that a step costs a few additions."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.registry = registry
        self.oldest: Callable[[], Oldest] | None = None  # the ages of requests in flight, if they can be seen
        self._engines: list[EngineSeries] = []
        registry.register(self)

    def engine(self, number: int, limits: Mapping[str, int]) -> "EngineSeries":
        """Return the series of an engine. `limits`: of its scheduler, by flag."""
        found = EngineSeries(str(number), limits)
        self._engines.append(found)
        return found

    def describe(self) -> list[Metric]:
        """Return nothing: the names depend on no step, and vLLM has none of them."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the series, as prometheus_client asks for them."""
        for column, (name, text) in enumerate(_SUMS.items()):
            family = CounterMetricFamily(name, text, labels=("engine", "up_to_tokens"))
            for engine in self._engines:
                for index, values in sorted(engine.sums.items()):
                    family.add_metric((engine.name, _label(index)), values[column])
            yield family
        for column, (name, text) in enumerate(_PROMPT_SUMS.items()):
            family = CounterMetricFamily(name, text, labels=("engine", "up_to_tokens"))
            for engine in self._engines:
                for index, values in sorted(engine.prompts.items()):
                    family.add_metric((engine.name, _label(index, _PROMPT_BOUNDS)), values[column])
            yield family
        skipped = CounterMetricFamily(
            "kneewatch_vllm_steps_skipped", "Engine steps of unknown content or duration", labels=("engine",)
        )
        limits = GaugeMetricFamily(
            "kneewatch_vllm_scheduler_limit", "Limits of vLLM's scheduler by flag", labels=("engine", "flag")
        )
        for engine in self._engines:
            skipped.add_metric((engine.name,), engine.skipped)
            for flag, value in engine.limits.items():
                limits.add_metric((engine.name, flag), value)
        yield from (skipped, limits)
        if self.oldest is not None:
            request, unanswered = self.oldest()
            yield GaugeMetricFamily(
                "kneewatch_vllm_oldest_request_seconds", "Age of the oldest request in flight", request
            )
            yield GaugeMetricFamily(
                "kneewatch_vllm_oldest_unanswered_seconds", "Age of the oldest request without a token", unanswered
            )


class EngineSeries:
    """The sums of one engine, by the index of their bound; one that no step, or no prompt, was below is absent."""

    def __init__(self, name: str, limits: Mapping[str, int]) -> None:
        self.name, self.limits = name, limits
        self.sums: dict[int, list[float]] = {}
        self.prompts: dict[int, list[float]] = {}
        self.skipped = 0

    def add(self, step: Step) -> None:
        """Count a step."""
        index = bisect_left(_BOUNDS, step.decode_tokens + step.prefill_tokens)
        if (sums := self.sums.get(index)) is None:
            sums = self.sums[index] = [0.0] * len(_SUMS)
        sums[0] += 1
        sums[1] += step.seconds
        sums[2] += step.requests
        sums[3] += step.decode_tokens
        sums[4] += step.prefill_tokens
        sums[5] += step.kv_tokens

    def add_request(self, prompt_tokens: int, queue_s: float, prefill_s: float) -> None:
        """Count a request that has ended."""
        index = bisect_left(_PROMPT_BOUNDS, prompt_tokens)
        if (sums := self.prompts.get(index)) is None:
            sums = self.prompts[index] = [0.0] * len(_PROMPT_SUMS)
        sums[0] += 1
        sums[1] += queue_s
        sums[2] += prefill_s


def _label(index: int, bounds: tuple[int, ...] = _BOUNDS) -> str:
    return str(bounds[index]) if index < len(bounds) else "inf"
